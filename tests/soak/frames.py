"""Messages for a daemon: well formed, nearly well formed, and not at all. Made from a seed."""

import json
import random
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fallbackd.fronts.rpc.discover import HANDLERS

ENDING = frozenset({"daemon.shutdown", "daemon.drain"})
"""These do what they say."""
METHODS = tuple(one.method.name for one in HANDLERS if one.method.name not in ENDING)
WORDS = ("codex", "nobody", "", "a/b", "d1", "s1", "*", "../../etc", "\x1b[31m", "\u202e")
_FIELDS = """
    backend session delegation prompt cwd model mode wait settle_s wait_s timeout_s request_id
    turn env metadata target action reason ttl_s note attempt offset max_bytes kinds since
    subscription evidence outcome lease chain goal path text verbose limit state only
"""
FIELDS = tuple(_FIELDS.split())

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
ids = st.none() | st.integers(-5, 10**12) | st.text(max_size=10) | json_values
requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2]),
        "id": ids,
        "method": st.sampled_from(METHODS) | st.text(max_size=20),
        "params": st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5) | json_values,
    },
)
messages = requests | st.lists(requests, max_size=5) | json_values


def frames_of(number: int, *, examples: int = 400) -> list[bytes]:
    """Lines, each with its end. The same for the same number."""
    found: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(messages)
    def collect(message: Any) -> None:
        text = json.dumps(_harmless(message), ensure_ascii=False)
        found.append(text.encode("utf-8", "replace") + b"\n")

    collect()
    return found


def _harmless(message: Any) -> Any:
    """Work that is begun costs a process each, and marks would shut the well-behaved out."""
    if isinstance(message, list):
        return [_harmless(one) for one in message]
    if isinstance(message, dict) and isinstance(params := message.get("params"), dict):
        params = {key: value for key, value in params.items() if key not in ("target", "platform")}
        if message.get("method") == "delegate":
            params["backend"] = "nobody"
        return {**message, "params": params}
    return message


def broken(frame: bytes, luck: random.Random) -> bytes:
    """A frame with a few bytes changed, lost, doubled or put in."""
    data = bytearray(frame)
    for _ in range(luck.randint(1, 6)):
        place = luck.randrange(len(data) + 1)
        match luck.randrange(4):
            case 0 if place < len(data):
                data[place] = luck.randrange(256)
            case 1:
                data[place:place] = luck.randbytes(luck.randint(1, 8))
            case 2:
                del data[place : place + luck.randint(1, 8)]
            case _:
                data[place:place] = data[place : place + 20]
    return bytes(data) + b"\n"
