"""Earlier turns in front of a prompt, as pairs of role and text that every HTTP dialect knows."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from fallbackd_conversations.turns import Utterance
from fallbackd_conversations.words import whole


def turns(
    earlier: Sequence[Utterance], prompt: str
) -> Iterator[tuple[Literal["user", "assistant"], str]]:
    """
    What was said, then the prompt. Roles alternate, as some of the APIs demand.

    Tools of other programs are text here: no request offers them.
    """
    role: Literal["user", "assistant"] = "user"
    texts: list[str] = []
    for one in (*earlier, Utterance(role="user", text=prompt)):
        text = whole(one, between="\n\n")
        if one.role != role and texts:
            yield role, "\n\n".join(texts)
            texts = []
        role = one.role
        texts.append(text)
    yield role, "\n\n".join(texts)


def as_messages(earlier: Sequence[Utterance], prompt: str) -> list[dict[str, Any]]:
    """The shape that OpenAI's chat completions and Anthropic's messages share."""
    return [{"role": role, "content": text} for role, text in turns(earlier, prompt)]
