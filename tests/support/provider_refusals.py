"""
How four model APIs say no: status, headers and body of each refusal.

    name          openai (chat, responses)   anthropic                    google
    401           401 invalid_api_key        401 authentication_error     400 API_KEY_INVALID
    429           429 rate_limit_exceeded    429 rate_limit_error         429 RetryInfo
    usage_limit   429 usage_limit_reached    429 unified-status rejected  429 QUOTA_EXHAUSTED
    529           529 overloaded_error       529 overloaded_error         529 UNAVAILABLE

Shapes follow the public references of the three vendors. Everything here is a value; the server
sends it.
"""

import time
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Dialect = Literal["chat", "responses", "anthropic", "google"]


class Refusal(Struct, frozen=True, kw_only=True):
    status: int
    body: Any
    """A JSON value, or a string that is sent as HTML."""
    headers: Mapping[str, str] = {}


class Limits(Struct, frozen=True, kw_only=True):
    """What the throttled and spent answers state."""

    retry_after_s: float | None = 5
    """None: no `Retry-After`, no reset headers, no RetryInfo, and no word of it in the text."""
    reset_in_s: float = 13872
    """End of the window of a usage limit."""


NAMES = (
    "401",
    "402",
    "403",
    "404",
    "413",
    "429",
    "500",
    "502",
    "503",
    "529",
    "context",
    "quota",
    "usage_limit",
)


def refusal(name: str, dialect: Dialect, model: str, limits: Limits) -> Refusal:
    """One of `NAMES` in one dialect. An unknown name is a `KeyError`."""
    match name:
        case "502":
            return _page(502, "Bad Gateway", "cloudflare")
        case "413" if dialect != "anthropic":
            return _page(413, "Request Entity Too Large", "nginx/1.25.3")
        case _:
            table = {"anthropic": _anthropic, "google": _google}.get(dialect, _openai)
            return table(model, limits)[name]


def openai_error(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "req_0000000000000000",
    }


def google_error(
    code: int, status: str, message: str, details: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message, "status": status}
    if details:
        error["details"] = details
    return {"error": error}


def _page(status: int, title: str, server: str) -> Refusal:
    body = (
        f"<html>\n<head><title>{status} {title}</title></head>\n<body>\n"
        f"<center><h1>{status} {title}</h1></center>\n<hr><center>{server}</center>\n"
        "</body>\n</html>\n"
    )
    return Refusal(status=status, body=body, headers={"server": server})


def _openai(model: str, limits: Limits) -> dict[str, Refusal]:
    wait_s = limits.retry_after_s
    reset_at = int(time.time() + limits.reset_in_s)
    bad = "invalid_request_error"

    def no(status: int, message: str, kind: str, code: str | None = None) -> Refusal:
        return Refusal(status=status, body=openai_error(message, kind, code))

    throttled = no(
        429,
        f"Rate limit reached for {model} in organization org-FAKE on tokens per min (TPM): "
        "Limit 30000, Used 29500, Requested 1212."
        + ("" if wait_s is None else f" Please try again in {wait_s}s."),
        "tokens",
        "rate_limit_exceeded",
    )
    spent = {
        "type": "usage_limit_reached",
        "message": "The usage limit has been reached",
        "plan_type": "plus",
        "resets_at": reset_at,
        "resets_in_seconds": int(limits.reset_in_s),
    }
    spent_headers = {
        "x-codex-plan-type": "plus",
        "x-codex-primary-used-percent": "100",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": str(reset_at),
        "x-codex-secondary-used-percent": "80",
        "x-codex-secondary-window-minutes": "10080",
    }
    return {
        "401": no(401, "Incorrect API key provided: sk-fake*******0000.", bad, "invalid_api_key"),
        "402": Refusal(
            status=402, body={"error": {"message": "Insufficient credits", "code": 402}}
        ),
        "403": no(
            403,
            "Country, region, or territory not supported",
            "request_forbidden",
            "unsupported_country_region_territory",
        ),
        "404": no(
            404,
            f"The model `{model}` does not exist or you do not have access to it.",
            bad,
            "model_not_found",
        ),
        "429": (
            throttled
            if wait_s is None
            else Refusal(status=429, body=throttled.body, headers=_openai_window(wait_s))
        ),
        "500": no(
            500,
            "The server had an error while processing your request. Sorry about that!",
            "server_error",
        ),
        "503": no(
            503,
            "The server is currently overloaded with other requests. Sorry about that!",
            "service_unavailable_error",
            "server_is_overloaded",
        ),
        "529": no(529, "Overloaded", "overloaded_error"),
        "context": no(
            400,
            "Your input exceeds the context window of this model. Please adjust your input and "
            "try again.",
            bad,
            "context_length_exceeded",
        ),
        "quota": no(
            429,
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        "usage_limit": Refusal(status=429, headers=spent_headers, body={"error": spent}),
    }


def _openai_window(wait_s: float) -> dict[str, str]:
    return {
        "retry-after": f"{wait_s:g}",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": f"{wait_s:g}s",
    }


def _anthropic(model: str, limits: Limits) -> dict[str, Refusal]:
    stop = {"x-should-retry": "false"}
    again = {"x-should-retry": "true"}
    wait_s = limits.retry_after_s
    reset_at = int(time.time() + limits.reset_in_s)

    def no(status: int, kind: str, message: str, **headers: str) -> Refusal:
        return Refusal(status=status, body=anthropic_error(kind, message), headers=headers)

    throttled = no(
        429,
        "rate_limit_error",
        "This request would exceed your organization's rate limit of 40,000 input tokens per "
        "minute.",
        **again,
        **({} if wait_s is None else {"retry-after": f"{wait_s:g}"}),
    )
    spent = no(
        429,
        "rate_limit_error",
        "This request would exceed your account's rate limit. Please try again later.",
        **again,
        **{
            "retry-after": str(int(limits.reset_in_s)),
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-reset": str(reset_at),
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
            "anthropic-ratelimit-unified-5h-status": "rejected",
            "anthropic-ratelimit-unified-5h-reset": str(reset_at),
            "anthropic-ratelimit-unified-5h-utilization": "1.0",
            # A plan's other window, which is not spent, ends days later.
            "anthropic-ratelimit-unified-7d-status": "allowed",
            "anthropic-ratelimit-unified-7d-reset": str(reset_at + 3 * 86400),
            "anthropic-ratelimit-unified-7d-utilization": "0.4",
            "anthropic-ratelimit-unified-overage-status": "rejected",
        },
    )
    bad = "invalid_request_error"
    return {
        "401": no(401, "authentication_error", "invalid x-api-key", **stop),
        "402": no(402, "billing_error", "There's an issue with your billing information."),
        "403": no(
            403,
            "permission_error",
            "Your API key does not have permission to use the specified resource.",
            **stop,
        ),
        "404": no(404, "not_found_error", f"model: {model}", **stop),
        "413": no(413, "request_too_large", "Request exceeds the maximum size", **stop),
        "429": throttled,
        "500": no(500, "api_error", "Internal server error", **again),
        "503": no(503, "api_error", "Service temporarily unavailable"),
        "529": no(529, "overloaded_error", "Overloaded", **again),
        "context": no(400, bad, "prompt is too long: 204512 tokens > 200000 maximum", **stop),
        "quota": no(
            400, bad, "Your credit balance is too low to access the Anthropic API.", **stop
        ),
        "usage_limit": spent,
    }


def _google(model: str, limits: Limits) -> dict[str, Refusal]:
    wait_s = limits.retry_after_s

    def no(
        code: int, status: str, message: str, details: list[dict[str, Any]] | None = None
    ) -> Refusal:
        return Refusal(status=code, body=google_error(code, status, message, details))

    quota = "You exceeded your current quota, please check your plan and billing details."
    throttled = (
        no(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).")
        if wait_s is None
        else no(429, "RESOURCE_EXHAUSTED", quota, _google_quota("PerMinute", wait_s, model))
    )
    delay_s = limits.reset_in_s
    spent: list[dict[str, Any]] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "QUOTA_EXHAUSTED",
            "domain": "cloudcode-pa.googleapis.com",
            "metadata": {"model": model, "quotaResetDelay": f"{delay_s:g}s"},
        },
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{delay_s:g}s"},
    ]
    invalid_key = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "API_KEY_INVALID",
        "domain": "googleapis.com",
        "metadata": {"service": "generativelanguage.googleapis.com"},
    }
    return {
        "401": no(
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
            [invalid_key],
        ),
        "402": no(402, "FAILED_PRECONDITION", "Your prepayment credits are depleted."),
        "403": no(403, "PERMISSION_DENIED", "Permission denied: Consumer has been suspended."),
        "404": no(404, "NOT_FOUND", f"models/{model} is not found for API version v1beta."),
        "429": throttled,
        "500": no(500, "INTERNAL", "An internal error has occurred."),
        "503": no(503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
        "529": no(529, "UNAVAILABLE", "Overloaded"),
        "context": no(
            400,
            "INVALID_ARGUMENT",
            "The input token count (1200000) exceeds the maximum number of tokens allowed "
            "(1048576).",
        ),
        "quota": no(
            429,
            "RESOURCE_EXHAUSTED",
            f"{quota} For more information on this error, head to: "
            "https://ai.google.dev/gemini-api/docs/rate-limits.\n* Quota exceeded for metric: "
            "generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 250, "
            f"model: {model}\nPlease retry in 18h12m30.5s.",
            _google_quota("PerDay", 65550, model),
        ),
        "usage_limit": no(
            429,
            "RESOURCE_EXHAUSTED",
            "You have exhausted your capacity on this model. Your quota will reset after "
            f"{int(delay_s // 3600)}h{int(delay_s % 3600 // 60)}m{int(delay_s % 60)}s.",
            spent,
        ),
    }


def _google_quota(period: str, wait_s: float, model: str) -> list[dict[str, Any]]:
    return [
        {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [
                {
                    "quotaMetric": "generativelanguage.googleapis.com/"
                    "generate_content_free_tier_requests",
                    "quotaId": f"GenerateRequests{period}PerProjectPerModel-FreeTier",
                    "quotaDimensions": {"location": "global", "model": model},
                    "quotaValue": "10",
                }
            ],
        },
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{wait_s:g}s"},
    ]
