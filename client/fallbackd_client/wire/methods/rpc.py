"""The contract about itself."""

from typing import Any

from msgspec import Struct

from fallbackd_client.wire import codes
from fallbackd_client.wire.envelope import Method

# Errors of the contract: what each means, and the fields of its `data`. For `rpc.discover`.


class About(Struct, frozen=True, kw_only=True):
    text: str
    """When it comes, in a sentence."""
    kinds: tuple[str, ...] = ()
    """Narrower words that `data.kind` may hold instead of the one of the code."""
    fields: dict[str, str] = {}
    """Fields of `data` besides `kind`, those that may be absent included."""
    example: dict[str, Any] = {}  # JSON


_PATH = "The parameter that is wrong, such as `chain[1].tier`."
_DELEGATION = "The delegation that is in the way."

ABOUT: dict[int, About] = {
    codes.PARSE_ERROR: About(text="The line is not valid JSON in UTF-8."),
    codes.INVALID_REQUEST: About(
        text="The message is not a JSON-RPC 2.0 request, or the line is too long or too slow.",
        fields={"max_bytes": "The longest line that is accepted."},
    ),
    codes.METHOD_NOT_FOUND: About(text="This version has no such method."),
    codes.INVALID_PARAMS: About(
        text="A parameter has the wrong type, is out of bounds, misspelt or contradictory.",
        kinds=("request_id", "withdrawn", "empty_chain", "prompt_too_large", "choice", "standby"),
        fields={
            "path": _PATH,
            "did_you_mean": "The parameter that was probably meant.",
            "delegation": "With `request_id`: the delegation that used the id.",
            "prompt_tokens": "With `prompt_too_large`: the estimated size of the prompt.",
            "context_tokens": "With `prompt_too_large`: the context size of each candidate.",
            "question": "With `choice`: the question that was answered.",
        },
        example={"path": "bakend", "did_you_mean": "backend"},
    ),
    codes.INTERNAL_ERROR: About(
        text="A bug of fallbackd; please report it.",
        fields={"bug": "Id under which the daemon's log has the traceback."},
        example={"bug": "9f31c0de"},
    ),
    codes.UNKNOWN_ID: About(
        text="There is no such backend, scope, delegation, attempt, session or question.",
        kinds=("unknown_backend", "unknown_session", "unknown_question"),
        fields={
            "backend": "The backend that is unknown.",
            "credential": "The credential that is unknown.",
            "question": "The question that is unknown.",
            "delegation": "The delegation in which it was looked for.",
        },
        example={"kind": "unknown_backend", "backend": "codx"},
    ),
    codes.BUSY: About(
        text="The session, directory or question is in use or was answered; try again later.",
        kinds=("workspace", "answered"),
        fields={"delegation": _DELEGATION, "question": "The question that was answered."},
        example={"delegation": "d4f0c2a91b7e"},
    ),
    codes.REFUSED: About(
        text="No backend in the chain is available.",
        fields={
            "retry_at": "When a candidate is expected to be available again; null: unknown.",
            "candidates": "All candidates with their verdicts, as `CandidateVerdict`.",
        },
        example={
            "retry_at": 1767272400.0,
            "candidates": [
                {
                    "backend": "codex",
                    "verdict": "rate_limited",
                    "reason": "usage_limit",
                    "until_at": 1767272400.0,
                }
            ],
        },
    ),
    codes.DRAINING: About(
        text="The daemon takes no new work now, or cannot put on record what it has done.",
        kinds=("limit", "shortage", "store_unwritable", "exposed"),
        fields={
            "done": "With `store_unwritable`: it was done, and holds until the daemon ends.",
            "unfinished": "With `limit`: delegations that have not ended.",
            "limit": "With `limit`: how many there may be.",
            "question": "The question that stays open.",
            "delegation": "Its delegation.",
        },
        example={"kind": "limit", "unfinished": 1000, "limit": 1000},
    ),
    codes.NOT_PERMITTED: About(
        text="The daemon does not allow it: the directory, the nesting or the address.",
        kinds=("nesting", "server"),
        fields={"path": _PATH},
        example={"kind": "nesting"},
    ),
    codes.CONFIG_INVALID: About(
        text="The configuration file cannot be used; the last good one stays in force.",
        fields={"errors": "Every error as `{path, message}`."},
        example={
            "errors": [{"path": "config.toml", "message": "line 3: a value is missing after ="}]
        },
    ),
    codes.WAIT_OVER: About(
        text="The wait is over and the work continues; only with `strict_wait`.",
        fields={"delegation": "The delegation.", "state": "Its state."},
        example={"delegation": "d4f0c2a91b7e", "state": "running"},
    ),
    codes.TOO_MANY: About(
        text="Too many connections, subscriptions or waiting requests.",
        kinds=("too_many_subscriptions",),
        fields={"max_in_flight": "How many requests of a connection may wait for answers."},
    ),
}


RpcDiscoverResult = dict[str, Any]
"""OpenRPC 1.3; `Any` because its schema is that specification's, not ours."""


class RpcDiscoverParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


RPC_DISCOVER: Method[RpcDiscoverParams, RpcDiscoverResult] = Method(
    "rpc.discover",
    params=RpcDiscoverParams,
    result=RpcDiscoverResult,
    read_only=True,
    who="any",
    summary="All methods as an OpenRPC document.",
    example=(
        {},
        {"openrpc": "1.3.2", "info": {"title": "fallbackd", "version": "0.2.0"}, "methods": []},
    ),
)


METHODS = (RPC_DISCOVER,)
