"""States of a delegation, for readers without msgspec. The types are in `bounds`."""

END_STATES = frozenset({"succeeded", "failed", "refused", "cancelled", "handed_back"})
"""A delegation in one of these has had its one answer."""
