"""What was said before, bounded and in words."""

from hypothesis import given
from hypothesis import strategies as st

from fallbackd_conversations.turns import ToolUse, Utterance
from fallbackd_conversations.words import BRIEF_BYTES, bounded, brief, cleaned, tool_lines


def user(text: str) -> Utterance:
    return Utterance(role="user", text=text)


def agent(text: str, *tools: ToolUse) -> Utterance:
    return Utterance(role="assistant", text=text, tools=tools)


TALK = (user("one"), agent("two"), user("three"), agent("four"))


def test_a_brief_quotes_what_was_said_and_ends_with_the_prompt() -> None:
    text = brief(TALK, "and now?", path="/runs/d1/1/earlier.md")
    places = [text.index(word) for word in ("> User: one", "> Agent: two", "> Agent: four")]
    assert places == sorted(places)
    assert "/runs/d1/1/earlier.md" in text
    assert text.endswith("\nand now?")


def test_a_prompt_without_a_past_is_left_as_it_is() -> None:
    assert brief((), "hello") == "hello"


def test_the_oldest_messages_are_left_out_of_a_brief_and_that_is_said() -> None:
    long = tuple(user(f"{number} " + "x" * 900) for number in range(10))
    text = brief(long, "p")
    assert "9 xxx" in text
    assert "0 xxx" not in text
    assert "earlier messages are left out" in text


def test_the_latest_turns_are_kept_and_begin_with_a_user() -> None:
    assert bounded(TALK, max_turns=1, context_tokens=None) == TALK[2:]
    assert bounded(TALK, max_turns=9, context_tokens=None) == TALK
    big = (user("x" * 4000), agent("a"), user("b"), agent("c"))
    assert bounded(big, max_turns=9, context_tokens=1000) == big[2:]


def test_what_does_not_fit_at_all_leaves_nothing() -> None:
    assert bounded((user("x" * 4000),), max_turns=9, context_tokens=10) == ()


def test_secrets_control_characters_and_empty_messages_go() -> None:
    tool = ToolUse(name="shell", command="echo hush", result="hush\x1b[31m" + "r" * 9000)
    (one,) = cleaned(
        (agent("it is hush\x07\n", tool), user(" ")), redact=lambda text: text.replace("hush", "*")
    )
    assert one.text == "it is *\n"
    assert one.tools[0].command == "echo *"
    assert "\x1b" not in one.tools[0].result
    assert len(one.tools[0].result) < 2100


def test_tools_are_lines_of_text() -> None:
    ran = ToolUse(name="shell", command="npm test", result="3 failed\n", outcome="failed")
    read = ToolUse(name="Read", args='{"path": "a"}', outcome="done")
    cut_off = ToolUse(name="shell", command="git push")
    assert tool_lines((ran, read, cut_off)).splitlines() == [
        "[ran: npm test → failed: 3 failed]",
        '[used Read: {"path": "a"} → ok]',
        "[ran: git push → no result, it may or may not have run]",
    ]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text())), st.text())
def test_a_brief_of_anything_is_bounded(said: list[tuple[str, str]], prompt: str) -> None:
    talk = tuple(user(text) if role == "user" else agent(text) for role, text in said)
    text = brief(cleaned(talk, redact=str), prompt)
    assert text.endswith(prompt)
    assert len(text.encode("utf-8", "replace")) <= (
        BRIEF_BYTES + 400 + len(prompt.encode("utf-8", "replace"))
    )
