"""
What opencode says of a failure, as evidence: of one that ends a turn, and of one before a retry.

A retry status holds the provider's sentence and the instant of the next try, and nothing else of
the answer: its headers and body come with `session.error`, when the last retry has failed. An
instant beyond opencode's own back-off is what the provider asked for in `Retry-After`, which
opencode obeys without a bound.

Source: opencode 1.18.33; neither its log at any level, nor its messages, nor an abort tell more.
"""

from collections.abc import Mapping

import msgspec

from fallbackd.core.protocol import Evidence
from fallbackd.lib import foreign_json, loose

ErrorFields = Mapping[str, object]

OWN_BACKOFF_BASE_S = 2.0
OWN_BACKOFF_SPREAD = 1.25
"""opencode waits 2 s · 2^n by itself, and up to a quarter more (measured)."""
SLACK_S = 0.5
"""Between its clock and the arrival of the event."""


def wait_of(status: ErrorFields, *, now: float) -> float | None:
    """Seconds until the next try; None: it says none."""
    next_at = status.get("next")
    if not isinstance(next_at, int | float) or isinstance(next_at, bool):
        return None
    return max(0.0, next_at / 1000 - now)


def retry_evidence(status: ErrorFields, *, now: float) -> Evidence:
    """A wait that is longer than the server's own back-off is what the provider has stated."""
    attempt = status.get("attempt")
    number = attempt if isinstance(attempt, int) else 1
    own_s = OWN_BACKOFF_BASE_S * 2.0 ** min(max(number - 1, 0), 16) * OWN_BACKOFF_SPREAD
    wait_s = wait_of(status, now=now)
    headers = {}
    if wait_s is not None and wait_s > own_s + SLACK_S:
        headers["retry-after"] = str(round(wait_s))
    text = loose.text(status.get("message"))
    return Evidence(text=text, stream="jsonl", headers=headers, body=text_body(text))


def error_evidence(error: ErrorFields) -> Evidence:
    data = loose.fields(error.get("data"))
    text = loose.text(data.get("message")) or loose.text(error.get("message"))
    status = data.get("statusCode")
    headers = loose.fields(data.get("responseHeaders"))
    raw = loose.text(data.get("responseBody"))
    body = _json(raw) if raw else text_body(text)
    return Evidence(
        text=text,
        stream="jsonl",
        http_status=status if isinstance(status, int) else None,
        headers={name.lower(): loose.text(value) for name, value in headers.items()},
        body=body,
        code=loose.text(error.get("name")) or None,
    )


def text_body(text: str) -> object:
    """A failure in the middle of a stream has the provider's own JSON as its message."""
    return _json(text) if text.startswith("{") else None


def _json(text: str) -> object:
    """The value that `text` holds, or `text` as it is: bodies are cut off and HTML at times."""
    try:
        return foreign_json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text
