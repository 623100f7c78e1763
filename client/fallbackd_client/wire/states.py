"""States of a delegation, for readers without msgspec. The types are in `bounds`."""

STATES = frozenset(
    {
        "queued",
        "running",
        "waiting",
        "succeeded",
        "failed",
        "refused",
        "cancelled",
        "awaiting_answer",
        "handed_back",
    }
)
"""All of them."""
END_STATES = frozenset({"succeeded", "failed", "refused", "cancelled", "handed_back"})
"""A delegation in one of these has had its one answer."""
