"""What codex calls its failures: typed words first, then sentences."""

from typing import Any

from fallbackd.backends.lines import fields, status_in, words
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import NO_CONVERSATION, Reason
from fallbackd.core.protocol import Evidence


def evidence_of(error: dict[str, Any]) -> Evidence:
    """
    Read the message of an error and its typed kind, where there is one.

    The kind is a word, or an object whose only key is the word: `{"httpConnectionFailed":
    {"httpStatusCode": 503}}`. A status says more than that word, and an unknown word says nothing.
    """
    message = words(error.get("message"))
    kind = error.get("codexErrorInfo") or error.get("codex_error_info")
    status = status_in(message)
    if isinstance(kind, dict):
        kind, inner = next(iter(kind.items()), ("", None))
        for name in ("httpStatusCode", "http_status_code"):
            stated = fields(inner).get(name)
            status = stated if isinstance(stated, int) and stated >= 400 else status
        kind = kind if status is None else ""
    word = words(kind).replace("_", "").lower()
    return Evidence(
        text=message,
        stream="jsonl",
        code=word if word in _TYPED_WORDS else None,
        http_status=status,
    )


_TYPED = (
    Rule(
        id="codex-typed-context",
        reason=Reason.CONTEXT_OVERFLOW,
        codes=("contextwindowexceeded",),
    ),
    Rule(id="codex-typed-plan", reason=Reason.USAGE_LIMIT, codes=("usagelimitexceeded",)),
    Rule(id="codex-typed-throttle", reason=Reason.RATE_LIMIT, codes=("ratelimitexceeded",)),
    Rule(
        id="codex-typed-load",
        reason=Reason.OVERLOADED,
        codes=("serveroverloaded", "flexunavailable", "policycapacityunavailable"),
    ),
    Rule(id="codex-typed-model", reason=Reason.MODEL_NOT_FOUND, codes=("modelnotfound",)),
    Rule(
        id="codex-typed-safety",
        reason=Reason.CONTENT_POLICY,
        codes=("cyberpolicy", "misalignmentpolicyviolation"),
    ),
    Rule(
        id="codex-typed-policy",
        reason=Reason.PROVIDER_POLICY,
        codes=("inferencehookdenied",),
    ),
    Rule(id="codex-typed-login", reason=Reason.AUTH, codes=("unauthorized",)),
    Rule(
        id="codex-typed-network",
        reason=Reason.NETWORK,
        codes=(
            "httpconnectionfailed",
            "responsestreamconnectionfailed",
            "responsestreamdisconnected",
        ),
    ),
    Rule(id="codex-typed-fault", reason=Reason.SERVER_ERROR, codes=("internalservererror",)),
)
"""The kinds that the program itself names; `codex exec` 0.169.0 prints none of them yet."""
_TYPED_WORDS = frozenset(word for rule in _TYPED for word in rule.codes)

RULES = (
    *_TYPED,
    Rule(
        id="codex-warning",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"(?:■|ERROR:|stream error:|unexpected status|Error:)\s*",
        streams=("stderr", "unknown"),
    ),
    Rule(
        id="codex-plan-limit",
        reason=Reason.USAGE_LIMIT,
        pattern=r"You've hit your usage limit|The usage limit has been reached",
        codes=("usage_limit_reached", "usage_not_included"),
    ),
    Rule(
        id="codex-quota",
        reason=Reason.BILLING,
        pattern=r"Quota exceeded\. Check your plan",
    ),
    Rule(
        id="codex-capacity",
        reason=Reason.OVERLOADED,
        pattern=r"Selected model is at capacity|We're currently experiencing high demand",
    ),
    Rule(
        id="codex-context",
        reason=Reason.CONTEXT_OVERFLOW,
        pattern=r"Codex ran out of room in the model's",
    ),
    Rule(
        id="codex-resume",
        reason=Reason.SESSION,
        detail=NO_CONVERSATION,
        pattern=r"thread/resume failed:|thread \S+ already has an active writer",
    ),
    Rule(
        id="codex-config",
        reason=Reason.NOT_CONFIGURED,
        pattern=r"Error loading config\.toml|Missing environment variable:"
        r"|Not inside a trusted directory"
        r"|Model provider `[^`]*` not found",
    ),
    Rule(
        id="codex-login",
        reason=Reason.AUTH,
        pattern=r"Your access token could not be refreshed|Not logged in|Please (?:log"
        r"|sign)(?: ?in|ing in) again",
    ),
    Rule(
        id="codex-model-for-login",
        reason=Reason.MODEL_NOT_FOUND,
        pattern=r"model is not supported when using Codex",
    ),
)
