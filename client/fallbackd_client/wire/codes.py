"""
Words of the contract for readers without msgspec: codes of errors, states of delegations.

The word goes into `data.kind` of an error, so that a caller need not parse sentences.
"""

PARSE_ERROR = -32700  # caller: the line is not JSON
INVALID_REQUEST = -32600  # caller: not a request, or a line beyond the limit
METHOD_NOT_FOUND = -32601  # caller: unknown here, maybe of a later version
INVALID_PARAMS = -32602  # caller: wrong type, out of bounds, or a contradiction
INTERNAL_ERROR = -32603  # ours: a bug, its id is in the log

UNKNOWN_ID = -32001  # caller: no such backend, delegation, session or question
BUSY = -32002  # state: the session or the workspace is in use
REFUSED = -32003  # state: no backend is available, `data: {retry_at, candidates}`
DRAINING = -32004  # state: the daemon drains or is paused
NOT_PERMITTED = -32005  # caller: path, consent, nesting
CONFIG_INVALID = -32006  # person: `data: {errors: [{path, message}]}`
WAIT_OVER = -32007  # state: the work continues, only the waiting ended
TOO_MANY = -32008  # caller: connections or subscriptions

KINDS: dict[int, str] = {
    PARSE_ERROR: "parse_error",
    INVALID_REQUEST: "invalid_request",
    METHOD_NOT_FOUND: "method_not_found",
    INVALID_PARAMS: "invalid_params",
    INTERNAL_ERROR: "internal",
    UNKNOWN_ID: "unknown",
    BUSY: "busy",
    REFUSED: "refused",
    DRAINING: "draining",
    NOT_PERMITTED: "not_permitted",
    CONFIG_INVALID: "config_invalid",
    WAIT_OVER: "wait_over",
    TOO_MANY: "too_many",
}
"""The word where an error carries no narrower one of its own (`nesting`, `workspace`, …)."""


def kind_of(code: int) -> str:
    """The stable word of a code; `error` for one of a later version."""
    return KINDS.get(code, "error")


# States of a delegation, for readers without msgspec. The types are in `bounds`.


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
