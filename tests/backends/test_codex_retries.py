"""What codex says of its own retries, and how long each is known to wait."""

import json

import pytest

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import Chunk, Retrying


@pytest.mark.parametrize(
    ("said", "wait_s"),
    [
        ("1/5 (unexpected status 503: overloaded)", 0.22),
        ("4/5 (stream disconnected before completion: stream closed)", 1.76),
        ("1/5 (exceeded retry limit, last status: 429 Too Many Requests)", None),
        ("1/5", None),
        ("waiting for network (Connection failed: error sending request)", None),
    ],
)
def test_the_wait_of_a_numbered_retry_is_known_unless_a_throttle_may_prolong_it(
    said: str, wait_s: float | None
) -> None:
    parser = KINDS["codex"].parser(Options())
    line = json.dumps({"type": "error", "message": f"Reconnecting... {said}"}) + "\n"
    (seen,) = parser.feed(Chunk("stdout", line.encode(), 1000.0))
    assert isinstance(seen, Retrying)
    assert seen.wait_s == (None if wait_s is None else pytest.approx(wait_s))
