"""
Failure signatures by kind, for the kinds that can be started and for those that can only be read.

Data and nothing else. What every provider says in the same words is in the common rules, which
follow behind these. Wordings are from public reports and documentation; none of the programs
named only here was run.
"""

from collections.abc import Mapping

from fallbackd.backends import opencode_cli
from fallbackd.classify.rules import Rule
from fallbackd.core.reasons import Reason

_PRINTED = ("stdout", "stderr", "unknown")

_COPILOT = (
    Rule(
        "copilot-error",
        Reason.UNKNOWN,
        r"(?:✗ )?(?:Execution failed: )?(?:Error: )?CAPIError:\s*|✗\s*",
        opens=True,
        streams=_PRINTED,
    ),
    Rule(
        "copilot-quota",
        Reason.USAGE_LIMIT,
        "you have no quota|monthly (?:premium request|chat messages) quota"
        "|out of premium requests|monthly limit for premium requests",
        codes=("user_weekly_rate_limited", "quota_exceeded", "user_global_rate_limited"),
    ),
    Rule(
        "copilot-throttle",
        Reason.RATE_LIMIT,
        "sorry, you(?:'ve| have) (?:been rate-limited|hit a rate limit|exhausted this model)",
    ),
    Rule(
        "copilot-login",
        Reason.AUTH,
        "no authentication information found|access denied by policy settings"
        "|not authorized to use this copilot|failed to get copilot token",
    ),
    Rule(
        "copilot-filter",
        Reason.CONTENT_POLICY,
        "filtered by the responsible ai|response matched public code",
    ),
)

_AIDER = (
    Rule(
        "aider-error",
        Reason.UNKNOWN,
        r"litellm\.(?:exceptions\.)?\w{1,40}:\s*",
        opens=True,
        streams=_PRINTED,
    ),
    Rule(
        "aider-token-limit",
        Reason.CONTEXT_OVERFLOW,
        r"Model \S{1,120} has hit a token limit",
        streams=_PRINTED,
    ),
    Rule(
        "aider-throttle",
        Reason.RATE_LIMIT,
        "The API provider has rate limited you",
        streams=_PRINTED,
    ),
    Rule("aider-login", Reason.AUTH, "The API provider is not able to", streams=_PRINTED),
)

_GOOSE = (
    Rule(
        "goose-error",
        Reason.UNKNOWN,
        r"Ran into this error:\s*|error: Request failed:\s*",
        opens=True,
        streams=_PRINTED,
    ),
    Rule(
        "goose-config",
        Reason.NOT_CONFIGURED,
        "No provider configured|Run 'goose configure'",
        streams=_PRINTED,
    ),
)

_QWEN = (
    Rule("qwen-error", Reason.UNKNOWN, r"(?:✕\s*)?\[API Error:?\s*", opens=True, streams=_PRINTED),
    Rule(
        "qwen-daily",
        Reason.USAGE_LIMIT,
        "daily quota has been reached|hour allocated quota exceeded",
        streams=_PRINTED,
    ),
    Rule(
        "qwen-throttle",
        Reason.RATE_LIMIT,
        codes=("throttling.ratequota", "throttling.allocationquota", "throttling.burstrate"),
    ),
    Rule(
        "qwen-inspection",
        Reason.CONTENT_POLICY,
        "DataInspectionFailed",
        codes=("data_inspection_failed", "datainspectionfailed"),
    ),
    Rule("qwen-arrears", Reason.BILLING, codes=("arrearage",)),
)

_KIMI = (
    Rule("kimi-error", Reason.UNKNOWN, r"LLM provider error:\s*", opens=True, streams=_PRINTED),
    Rule(
        "kimi-window",
        Reason.USAGE_LIMIT,
        r"(?:5-hour|weekly|7-day)\)? usage limit|quota will be refreshed",
    ),
    Rule("kimi-login", Reason.AUTH, "LLM not set, send", streams=_PRINTED),
    Rule("kimi-load", Reason.OVERLOADED, codes=("engine_overloaded_error",)),
    Rule("kimi-money", Reason.BILLING, codes=("exceeded_current_quota_error",)),
)

_CRUSH = (
    Rule("crush-error", Reason.UNKNOWN, r"ERROR\s{1,4}", opens=True, streams=_PRINTED),
    Rule("crush-config", Reason.NOT_CONFIGURED, "No providers configured", streams=_PRINTED),
)

_HERMES = (
    Rule(
        "hermes-error",
        Reason.UNKNOWN,
        r"API call failed (?:\(attempt \d+/\d+\)|after \d+ retries)[:.]?\s*|Error: HTTP ",
        opens=True,
        streams=_PRINTED,
    ),
    Rule(
        "hermes-config", Reason.NOT_CONFIGURED, "No inference provider configured", streams=_PRINTED
    ),
    Rule("hermes-silence", Reason.TIMEOUT, r"No response from provider for \d+", streams=_PRINTED),
)

OPENAI = (
    Rule(
        "openai-money",
        Reason.BILLING,
        "^You exceeded your current quota",
        codes=("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"),
    ),
    Rule(
        "openai-verified",
        Reason.AUTH,
        "organization must be verified to (?:stream|use) (?:this|the) model",
    ),
)

ANTHROPIC = (
    Rule("anthropic-load", Reason.OVERLOADED, codes=("overloaded_error",)),
    Rule("anthropic-size", Reason.PAYLOAD_TOO_LARGE, codes=("request_too_large",)),
    Rule("anthropic-money", Reason.BILLING, codes=("billing_error",)),
    Rule("anthropic-time", Reason.TIMEOUT, codes=("timeout_error",)),
)

GOOGLE = (
    Rule("google-free-zero", Reason.BILLING, r"free_tier\w{0,40}, limit: 0\b"),
    Rule(
        "google-key", Reason.AUTH, codes=("api_key_invalid", "api_key_expired", "consumer_invalid")
    ),
    Rule("google-location", Reason.CONTENT_POLICY, "User location is not"),
)

_BEDROCK = (
    Rule("bedrock-day", Reason.USAGE_LIMIT, "too many tokens per day"),
    Rule(
        "bedrock-throttle",
        Reason.RATE_LIMIT,
        "^too many (?:requests|tokens), please wait",
        codes=("throttlingexception", "toomanyrequestsexception"),
    ),
    Rule(
        "bedrock-load",
        Reason.OVERLOADED,
        codes=("modelnotreadyexception", "serviceunavailableexception"),
    ),
    Rule(
        "bedrock-model",
        Reason.MODEL_NOT_FOUND,
        "don't have access to the model|model identifier is invalid"
        "|on-demand throughput isn't supported|end of (?:its )?life",
        codes=("resourcenotfoundexception",),
    ),
    Rule(
        "bedrock-login",
        Reason.AUTH,
        codes=("expiredtokenexception", "unrecognizedclientexception", "accessdeniedexception"),
    ),
    Rule("bedrock-time", Reason.TIMEOUT, codes=("modeltimeoutexception",)),
    Rule("bedrock-fault", Reason.SERVER_ERROR, codes=("internalserverexception",)),
)

_AZURE = (
    Rule(
        "azure-deployment",
        Reason.MODEL_NOT_FOUND,
        codes=("deploymentnotfound", "operationnotsupported"),
    ),
    Rule(
        "azure-filter",
        Reason.CONTENT_POLICY,
        codes=("content_filter", "responsibleaipolicyviolation"),
    ),
    Rule("azure-throttle", Reason.RATE_LIMIT, "exceeded (?:call|token) rate limit of your current"),
    Rule("azure-capacity", Reason.OVERLOADED, codes=("nocapacity",)),
)

OPENROUTER = (
    Rule(
        "openrouter-upstream",
        Reason.RATE_LIMIT,
        "provider returned error|rate-limited upstream",
        rotate=False,
        statuses=(429,),
    ),
    Rule("openrouter-day", Reason.USAGE_LIMIT, "free-models-per-day"),
    Rule("openrouter-minute", Reason.RATE_LIMIT, "free-models-per-min"),
    Rule(
        "openrouter-money",
        Reason.BILLING,
        "requires more credits|never purchased credits|key limit exceeded",
    ),
    Rule(
        "openrouter-policy",
        Reason.PROVIDER_POLICY,
        "matching your (?:data|guardrail)|guardrail restrictions",
    ),
    Rule(
        "openrouter-model",
        Reason.MODEL_NOT_FOUND,
        "^no (?:endpoints found|allowed providers)|is not a valid model id",
    ),
)

_OLLAMA = (
    Rule("ollama-model", Reason.MODEL_NOT_FOUND, r"^model ['\"]\S{1,120}['\"] not found"),
    Rule("ollama-busy", Reason.OVERLOADED, "maximum pending requests exceeded"),
    Rule(
        "ollama-runner", Reason.CRASH, "runner process has terminated|requires more system memory"
    ),
)

ONLY_READ: Mapping[str, tuple[Rule, ...]] = {
    "aider": _AIDER,
    "azure-http": _AZURE,
    "copilot": _COPILOT,
    "crush": _CRUSH,
    "goose": _GOOSE,
    "hermes": _HERMES,
    "kimi": _KIMI,
    "ollama-http": _OLLAMA,
    "qwen": _QWEN,
}
"""Kinds that only signatures may name: their output can be judged."""

LATER: Mapping[str, tuple[Rule, ...]] = {
    "bedrock-http": _BEDROCK,
    "opencode-server": opencode_cli.RULES,
}
"""Known words of the contract that this version cannot start yet, and can judge."""
