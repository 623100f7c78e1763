"""The text of an attempt as subscribers receive it: kept, continued, and without secrets."""

from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.protocol import AgentText
from fallbackd.core.watch import Watch
from fallbackd.engine.live import Progress, Teller, Texts
from fallbackd.lib.secretvalues import SecretValues

KEY = "sk-ant-api03-AAAABBBBCCCC1234"
ABOUT = Progress(
    attempt=AttemptId("d1.1"), delegation="d1", session="s", backend=BackendId("a"), at=1.0
)
WATCH = Watch(started_at=0.0)


def told(*pieces: str, answer: str | None = None) -> list[str]:
    secrets = SecretValues()
    secrets.learn("key", KEY)
    sent: list[Progress] = []
    teller = Teller(lambda: ABOUT, sent.append, Texts().begin(ABOUT), secrets)
    for piece in pieces:
        teller.heard([AgentText(piece)], WATCH)
    if answer is not None:
        teller.ended(answer)
    teller.close()
    texts = [one for one in sent if one.kind == "attempt.text"]
    ends = [one.offset + len(one.text) for one in texts]
    assert [one.offset for one in texts] == [0, *ends[:-1]]
    return [one.text for one in texts]


def test_a_secret_that_comes_in_pieces_is_never_sent() -> None:
    for size in range(1, len(KEY) + 1):
        text = f"The key is {KEY}, and sk-ant is how it begins."
        cut = [text[at : at + size] for at in range(0, len(text), size)]
        assert "".join(told(*cut, answer=text)) == text.replace(KEY, "[secret]")


def test_what_only_looks_like_the_beginning_of_a_secret_is_sent_at_the_end() -> None:
    assert told("all of it, sk-ant-") == ["all of it, ", "sk-ant-"]
    assert "".join(told("all of it, sk-ant-", answer="all of it, sk-ant-")) == "all of it, sk-ant-"


def test_a_text_is_read_from_any_place_in_pieces_of_any_size() -> None:
    text = Texts().begin(ABOUT)
    for word in ("one ", "two ", "three "):
        text.add(word)
    whole = "one two three "
    for start in range(len(whole) + 2):
        assert text.since(start) == whole[start:]
        for most in (1, 3, 100):
            assert text.since(start, most) == whole[start:][:most]
