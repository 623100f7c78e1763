"""
What Claude Code calls its failures: typed words first, then sentences.

Meanings of the words of `api_error` are those of the schema in the program itself (2.1.330).
"""

from fallbackd.classify.rules import Rule
from fallbackd.classify.rules import words as listed
from fallbackd.core.failures import NO_CONVERSATION, Reason

NO_STATUS = "no_status"
"""Ours: it tries again without any status, as after a refused or broken connection."""

NO_ANSWER = "no_response"
"""Its own word, and ours where such a try has lasted for minutes."""

_PRINTS = ("stdout", "stderr", "unknown")
REFUSED = "refusal"
"""The provider's `stop_reason`."""

VAGUE_WORDS = ("", "unknown", "invalid_request", "server_error", "rate_limit")
"""Values of `error` that say less than the provider's own word."""

_TYPED = (
    Rule(id="claude-refusal", reason=Reason.CONTENT_POLICY, codes=(REFUSED,)),
    Rule(
        id="claude-window",
        reason=Reason.USAGE_LIMIT,
        codes=("rejected", "usage_limit_reached"),
    ),
    Rule(
        id="claude-typed-context",
        reason=Reason.CONTEXT_OVERFLOW,
        codes=("prompt_too_long", "message_over_context_limit", "autocompact_thrashing"),
    ),
    Rule(
        id="claude-typed-login",
        reason=Reason.AUTH,
        codes=listed(
            """
            stored_login_refused oauth_refresh_store_refused provider_credentials
            gateway_signin_required gateway_session_expired api_key_auth_disabled
            org_disabled_credential invalid_credential_header named_profile_unusable
            """
        ),
    ),
    Rule(
        id="claude-typed-money",
        reason=Reason.BILLING,
        codes=("model_requires_usage_credits", "long_context_credits_required"),
    ),
    Rule(
        id="claude-typed-policy",
        reason=Reason.PROVIDER_POLICY,
        codes=("dlp_request_denied", "field_not_granted", "hook_denied"),
    ),
    Rule(
        id="claude-typed-safety",
        reason=Reason.CONTENT_POLICY,
        codes=("safety_monitor_blocked",),
    ),
    Rule(
        id="claude-typed-version",
        reason=Reason.NOT_CONFIGURED,
        detail="version",
        codes=("claude_code_version_too_old",),
    ),
    Rule(
        id="claude-typed-network",
        reason=Reason.NETWORK,
        codes=("connection_failed", "computer_slept", "network_edge_blocked"),
    ),
    Rule(
        id="claude-typed-silence",
        reason=Reason.TIMEOUT,
        codes=(NO_ANSWER, "stream_idle_timeout"),
    ),
    Rule(
        id="claude-typed-certificate",
        reason=Reason.TLS,
        codes=("tls_untrusted_ca", "tls_cert_signature_failure"),
    ),
    Rule(
        id="claude-typed-request",
        reason=Reason.FORMAT_ERROR,
        codes=listed(
            """
            effort_requires_thinking advisor_incompatible tool_history_mismatch
            pdf_password_protected
            """
        ),
    ),
    Rule(
        id="claude-typed-length",
        reason=Reason.FORMAT_ERROR,
        detail="output_limit",
        codes=("max_output_tokens",),
    ),
    Rule(
        id="claude-typed-size",
        reason=Reason.PAYLOAD_TOO_LARGE,
        codes=("pdf_too_large", "request_too_large"),
    ),
    Rule(
        id="claude-typed-malformed",
        reason=Reason.SERVER_ERROR,
        codes=("gateway_content_type", "malformed_tool_use_exhausted"),
    ),
    Rule(id="claude-typed-silent", reason=Reason.EMPTY_RESULT, codes=("empty_completion",)),
)
TYPED_WORDS = frozenset(word for rule in _TYPED for word in rule.codes)

RULES = (
    *_TYPED,
    Rule(
        id="claude-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"(?:Failed to authenticate\. )?API Error\b[:\s]*",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-spend-limit",
        reason=Reason.BILLING,
        pattern=r"You've (?:hit|reached) your (?:org's |organization's )?(?:\w+ )?(?:spend"
        r"|spending|budget) limit"
        r"|Credit balance (?:is )?too low",
        streams=_PRINTS,
        codes=("billing_error",),
    ),
    # Said of a throttle to people with a plan, and it names the limit that it is not.
    Rule(
        id="claude-passing",
        reason=Reason.RATE_LIMIT,
        pattern=r"Server is temporarily limiting requests",
        streams=_PRINTS,
        anywhere=True,
    ),
    Rule(
        id="claude-plan-limit",
        reason=Reason.USAGE_LIMIT,
        pattern=r"You've (?:hit|reached) your (?:\w+[- ]){0,3}?limit\b|(?:Weekly|Session|5-hour"
        r"|Opus|Sonnet|Usage) limit reached"
        r"|Claude (?:AI )?usage limit reached",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-login",
        reason=Reason.AUTH,
        pattern=r"Not logged in\b|Invalid API key\b|Please run /login"
        r"|OAuth token (?:has )?(?:expired|revoked)",
        streams=_PRINTS,
        codes=("authentication_failed", "oauth_org_not_allowed"),
    ),
    Rule(
        id="claude-context",
        reason=Reason.CONTEXT_OVERFLOW,
        pattern=r"Prompt is too long",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-too-large",
        reason=Reason.PAYLOAD_TOO_LARGE,
        pattern=r"Request too large \(max",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-model",
        reason=Reason.MODEL_NOT_FOUND,
        pattern=r"There's an issue with the selected model",
        streams=_PRINTS,
        codes=("model_not_found",),
    ),
    Rule(
        id="claude-overloaded",
        reason=Reason.OVERLOADED,
        pattern=r"Repeated 529 Overloaded",
        streams=_PRINTS,
        codes=("overloaded",),
    ),
    Rule(
        id="claude-malformed",
        reason=Reason.SERVER_ERROR,
        pattern=r"API returned an empty or malformed|Failed to parse JSON"
        r"|JSON Parse error",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-resume",
        reason=Reason.SESSION,
        detail=NO_CONVERSATION,
        pattern=r"No conversation found with session ID",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-connect",
        reason=Reason.NETWORK,
        pattern=r"Unable to connect to API(?!.*certificate)",
        streams=_PRINTS,
        codes=(NO_STATUS,),
    ),
    Rule(
        id="claude-turn-limit",
        reason=Reason.TASK_FAILED,
        detail="turn_limit",
        codes=("error_max_turns", "error_max_budget_usd"),
    ),
    Rule(
        id="claude-root",
        reason=Reason.NOT_CONFIGURED,
        pattern=r"(?:^.{0,80})?cannot be used with root/sudo privileges",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-not-built",
        reason=Reason.NOT_INSTALLED,
        pattern=r"claude native binary not installed",
        streams=_PRINTS,
    ),
)
