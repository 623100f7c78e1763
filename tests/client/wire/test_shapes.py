import msgspec

from fallbackd_client.wire.shapes import Delegation, Hop

DELEGATION_FIELDS = [
    "delegation",
    "session",
    "role",
    "state",
    "requested",
    "active",
    "served_by",
    "fallback_from",
    "fallback_reason",
    "requested_platform",
    "active_platform",
    "tiers_attempted",
    "tier_served",
    "attempts",
    "hops",
    "text",
    "failure",
    "retry_at",
    "question",
    "handed_back",
    "phase",
    "last_activity_at",
    "usage",
    "log_path",
    "tmux_window",
    "created_at",
    "ended_at",
    "request_id",
    "metadata",
    "candidates",
]


def test_a_delegation_shows_every_field_even_if_nothing_is_known() -> None:
    shown = msgspec.to_builtins(Delegation(delegation="d1", state="queued", created_at=1.0))
    for name in DELEGATION_FIELDS:
        assert name in shown
    assert shown["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost_usd": None}


def test_a_hop_says_from_on_the_wire() -> None:
    hop = Hop(at=1.0, from_="codex", to="opencode", trigger="reactive", reason="rate_limit")
    shown = msgspec.to_builtins(hop)
    assert shown["from"] == "codex"
    assert "from_" not in shown
    assert msgspec.convert(shown, Hop) == hop


def test_fields_of_a_later_version_are_ignored() -> None:
    text = b'{"delegation":"d1","state":"queued","created_at":1,"mood":"good"}'
    assert msgspec.json.decode(text, type=Delegation).delegation == "d1"
