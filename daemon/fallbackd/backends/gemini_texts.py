"""What texts of gemini say: errors, the causes in a report, answers whose stream broke."""

import re
from typing import Any

from fallbackd.backends.lines import read_object, words
from fallbackd.core.protocol import Evidence

MIN_REPEAT_CHARS = 12
MIN_RETRY_GAP_S = 0.8
"""A broken stream is asked for again after about a second."""
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`"
_CAUSE = re.compile(rf"^\s+message:\s+((?:{_QUOTED})(?:\s*\+\s*(?:{_QUOTED}))*)", re.M)


def causes(report: str) -> list[str]:
    """Messages of the causes of an error, as Node.js prints objects: quoted, over several lines."""
    return [
        "".join(
            re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], part[1:-1])
            for part in re.findall(_QUOTED, found[:4000])
        )
        for found in _CAUSE.findall(report)
    ]


def without_repeats(pieces: list[tuple[str, float]]) -> str:
    """
    Join the pieces of a text, without what came of streams that broke.

    A stream that broke shows as a pause after which the text begins again with the same pieces.
    """
    begin = 0
    for k in range(1, len(pieces)):
        lost = k - begin
        again = [t for t, _ in pieces[k : k + lost]]
        broken = [t for t, _ in pieces[begin:k]]
        is_long = sum(map(len, broken)) >= MIN_REPEAT_CHARS
        if is_long and again == broken and pieces[k][1] - pieces[k - 1][1] >= MIN_RETRY_GAP_S:
            begin = k
    return "".join(t for t, _ in pieces[begin:])


def seconds(event: dict[str, Any]) -> float | None:
    """Seconds of the day in an event's time, good enough for pauses."""
    found = re.search(r"T(\d\d):(\d\d):(\d\d(?:\.\d+)?)", words(event.get("timestamp")))
    return None if found is None else int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])


def evidence_of(message: str, kind: str = "") -> Evidence:
    inner = re.search(r"\{.*\}", message, re.S)
    body = read_object(inner[0]) if inner else None
    return Evidence(
        text=message,
        stream="jsonl",
        body=body,
        http_status=status_of(message),
        code=kind if kind and kind != "unknown" else None,
    )


def status_of(text: str) -> int | None:
    found = re.search(r"failed with status (\d{3})\b|\"code\":\s*(\d{3})\b", text)
    status = int(found[1] or found[2]) if found else 0
    return status if 400 <= status < 600 else None
