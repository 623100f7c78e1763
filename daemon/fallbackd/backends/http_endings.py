"""Why an answer over HTTP ends, in the words of the vendors, and what is then missing of it."""

from collections.abc import Mapping

from msgspec import Struct

DONE = b"[DONE]"
"""The last event of a stream of chat completions; gateways send it behind other dialects too."""
MISMATCH = "mismatch"
"""Ours: the text that the API repeats at the end is not the one that it sent."""

IN_BACKGROUND = "in_background"
"""Ours: the answer is not there yet, or not any more, and may be asked for by its id."""


class Shortfall(Struct, frozen=True):
    code: str
    """For the rules of `http_answers`."""
    text: str


_OUTPUT_LIMIT = Shortfall(
    "output_limit",
    "the answer was cut off at the limit of output tokens: raise max_output_tokens",
)
_CONTEXT = Shortfall(
    "model_context_window_exceeded", "prompt and answer do not fit into the model's context"
)

_CUT_AT_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens"})
_OUT_OF_CONTEXT = frozenset({"model_context_window_exceeded", "model_length"})
_FILTERED = frozenset(
    {
        "blocklist",
        "content_filter",
        "image_safety",
        "language",
        "prohibited_content",
        "recitation",
        "refusal",
        "safety",
        "sensitive",
        "spii",
    }
)
_UNFINISHED: Mapping[str, str] = {
    "function_call": "the model called a tool that was not offered",
    "malformed_function_call": "the model called a tool that was not offered",
    "pause_turn": "the model paused in the middle of its turn",
    "tool_calls": "the model called a tool that was not offered",
    "tool_use": "the model called a tool that was not offered",
    "unexpected_tool_call": "the model called a tool that was not offered",
}
_BROKEN_OFF = frozenset(
    {
        "abort",
        "cancelled",
        "error",
        "failed",
        "finish_reason_unspecified",
        "incomplete",
        "network_error",
        "other",
        "unknown",
    }
)
_VAGUE = frozenset({"finish_reason_unspecified", "incomplete", "other", "unknown"})
"""Of them, those that say little in the place of a provider's own word."""
_NO_CAPACITY = "insufficient_system_resource"
"""The same for want of capacity."""


def is_broken_off(word: str) -> bool:
    """A word for an end that is none, such as `error`: what came before it is not an answer."""
    return _plain(word) in _BROKEN_OFF or _plain(word) == _NO_CAPACITY


def native_end(word: str, native: str) -> str:
    """
    The word that counts where an aggregator gives its own and that of the provider behind it: it
    calls a generation that broke there a `stop`.
    """
    return native if is_broken_off(native) and _plain(native) not in _VAGUE else word


def _plain(word: str) -> str:
    return word.lower().partition(":")[0].strip()


def shortfall(
    finish_word: str, *, refusal: str = "", has_open_call: bool = False
) -> Shortfall | None:
    """
    What an answer lacks by the vendor's own word for its end; None: nothing.

    Args:
        refusal: The model's own words, where it refused instead of answering.
        has_open_call: The answer ends with the call of a tool, whatever the word says.
    """
    word = _plain(finish_word)
    if word in _CUT_AT_LENGTH:
        return _OUTPUT_LIMIT
    if word in _FILTERED or refusal:
        return Shortfall("filtered_answer", f"the provider withheld the answer: {refusal or word}")
    if word in _OUT_OF_CONTEXT:
        return _CONTEXT
    if word in _BROKEN_OFF:
        return Shortfall("broken_generation", f"the answer broke off: {word}")
    if word == _NO_CAPACITY:
        return Shortfall("no_capacity", f"the answer broke off: {word}")
    if word == MISMATCH:
        return Shortfall("malformed_response", "the answer is not the one that its end repeats")
    if word == IN_BACKGROUND:
        return Shortfall("answer_in_background", "the answer is made in the background")
    if word in _UNFINISHED or has_open_call:
        why = _UNFINISHED.get(word, _UNFINISHED["tool_calls"])
        return Shortfall("unfinished_answer", f"the answer is not finished: {why}")
    return None
