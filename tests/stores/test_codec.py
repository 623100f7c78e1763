"""Records to bytes and back."""

import msgspec
import pytest
from tests.stores.records import NOW, a_delegation, a_note, a_session, a_story, an_outage

from fallbackd.core.decision import Note, PutStory
from fallbackd.core.health import Health
from fallbackd.core.records import Delegation, Hop, Session, Verdict
from fallbackd.stores.writes import Undecodable, decode, encode

HOP = Hop(at=NOW, from_backend="a", to_backend="b", trigger="reactive", reason="rate_limit")


@pytest.mark.parametrize(
    "record",
    [
        a_delegation(hops=(HOP,), verdicts=(Verdict(backend="a", verdict="tried"),)),
        a_delegation(metadata={"deep": [[{"x": 1.5}], None, True, "ü\u2028"]}),
        a_session(hops=(HOP,)),
        an_outage(),
        a_note("kind", n=1),
        a_story(),
        a_session("caf\udce9"),
        a_delegation(cwd="/srv/\udcff\ud800", metadata={"a": "\udc80"}),
    ],
)
def test_a_record_comes_back_as_it_was(record: msgspec.Struct) -> None:
    assert decode(encode(record), type(record)) == record


def test_what_is_unknown_is_ignored_and_what_is_missing_takes_its_default() -> None:
    assert decode(b'{"scope": "backend:x", "later": [1]}', Health) == Health(scope="backend:x")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Session),
        (b"{", Session),
        (b"\x00\xff", Health),
        (b"[]", Health),
        (b'{"scope": 7}', Health),
        (b'{"type": "note", "kind": "x"}', Note),
        (b'{"type": "other", "kind": "x", "at": 1}', Note),
        (b"[" * 100_000, PutStory),
        (b'{"scope": ' + b"[" * 100_000, Health),
    ],
)
def test_what_is_no_record_is_said_to_be_none(data: bytes, kind: type[msgspec.Struct]) -> None:
    with pytest.raises(Undecodable):
        decode(data, kind)


def test_the_place_of_the_mistake_is_said() -> None:
    broken = msgspec.json.encode({**msgspec.to_builtins(a_delegation()), "hops": [{"at": "x"}]})
    with pytest.raises(Undecodable, match=r"\$\.hops\[0\]"):
        decode(broken, Delegation)
