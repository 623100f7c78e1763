"""What a tool returns about a delegation: structured, and the same as text."""

from __future__ import annotations

import json
import time

from fallbackd_client.cli.hops import hop_sentence
from fallbackd_client.cli.refusals import advice
from fallbackd_client.cli.render import clean, one_line
from fallbackd_client.cli.views import failure_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

MAX_TEXT_CHARS = 20_000
"""Of an answer: clients cut long results, or warn about them."""
_COPIED = ("served_by", "fallback_from", "fallback_reason", "retry_at")


def structured(found: dict[str, Json], *, is_error: bool = False) -> dict[str, Json]:
    """Some clients read only the text, so it holds the same."""
    text = json.dumps(found, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": found,
        "isError": is_error,
    }


def worded(text: str, found: dict[str, Json]) -> dict[str, Json]:
    """A text that is easier to read than the structure beside it."""
    return {"content": [{"type": "text", "text": text}], "structuredContent": found}


def outcome(found: dict[str, Json]) -> dict[str, Json]:
    """Of work that has ended."""
    state = found.get("state")
    shown = _shown(found)
    message = _message(found)
    if message:
        shown["message"] = message
    if state == "handed_back":
        shown["next"] = "do this work yourself: it was handed back to you"
    return structured(shown, is_error=state in ("failed", "refused", "cancelled"))


def handle(found: dict[str, Json]) -> dict[str, Json]:
    """Of work that continues."""
    shown = _shown(found)
    delegation = found["delegation"]
    shown["next"] = f"call wait with delegation {delegation}, or cancel"
    question = found.get("question")
    if found["state"] == "awaiting_answer" and isinstance(question, dict):
        choices = [str(one["choice"]) for one in question["options"]]
        shown["question"] = {
            "question": question["question"],
            "text": question["text"],
            "choices": {str(one["choice"]): one["text"] for one in question["options"]},
        }
        shown["next"] = (
            "only a person may decide this: show your user the choices, and the command"
            f" `fallbackd-client answer {question['question']} {'|'.join(choices)}`;"
            f" then call wait with delegation {delegation}"
        )
    elif found.get("blocked_by"):
        shown["message"] = (
            f"waiting for {found['blocked_by']}, which is using the session or directory"
        )
    return structured(shown)


def working(found: dict[str, Json]) -> str:
    """What happens now, in a line."""
    shown = clean(found)
    words = [hop_sentence(hop, shown) for hop in (shown.get("hops") or [])[-1:]]
    backend = one_line(shown.get("active") or shown.get("requested") or "?")
    if shown.get("blocked_by"):
        words.append(f"waiting for {shown['blocked_by']}, which is using the session or directory")
    else:
        words.append(f"{backend}: {one_line(shown.get('phase') or shown.get('state') or '?')}")
    return " ".join(words)


def _shown(found: dict[str, Json]) -> dict[str, Json]:
    shown: dict[str, Json] = {"delegation": found["delegation"], "state": found["state"]}
    shown |= {name: found[name] for name in _COPIED if found.get(name) is not None}
    usage = found.get("usage") or {}
    if any(usage.values()):
        shown["usage"] = {name: value for name, value in usage.items() if value is not None}
    text = found.get("text")
    if isinstance(text, str):
        shown["text"] = text[:MAX_TEXT_CHARS]
        if len(text) > MAX_TEXT_CHARS or found.get("text_truncated"):
            whole = found.get("text_path") or f"`fallbackd-client show {found['delegation']}`"
            shown["next"] = f"the answer is cut at {MAX_TEXT_CHARS} characters; all of it: {whole}"
    return shown


def _message(found: dict[str, Json]) -> str:
    """Why there is no answer, and what helps; or how it came to this one."""
    shown = clean(found)
    lines = [hop_sentence(hop, shown) for hop in shown.get("hops") or [] if hop.get("to")]
    failure = shown.get("failure")
    if shown.get("message"):
        lines.append(one_line(shown["message"]))
    elif isinstance(failure, dict):
        lines.append(failure_line(failure))
    if shown.get("state") == "refused":
        lines += advice(found, now=time.time()) or ["no backend in the chain is available"]
    lines += [one_line(word) for word in shown.get("warnings") or [] if isinstance(word, str)]
    return "\n".join(dict.fromkeys(lines))
