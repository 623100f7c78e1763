"""
Failure signatures by kind, for the kinds that can be started and for those that can only be read.

Data and nothing else. What every provider says in the same words is in the common rules, which
follow behind these. Wordings are from public reports and documentation; none of the programs
named only here was run.
"""

from collections.abc import Mapping

from fallbackd.backends import opencode_cli
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import Reason

_PRINTED = ("stdout", "stderr", "unknown")

_COPILOT = (
    Rule(
        id="copilot-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"(?:✗ )?(?:Execution failed: )?(?:Error: )?CAPIError:\s*|✗\s*",
        streams=_PRINTED,
    ),
    Rule(
        id="copilot-quota",
        reason=Reason.USAGE_LIMIT,
        pattern=r"you have no quota|monthly (?:premium request|chat messages) quota"
        r"|out of premium requests|monthly limit for premium requests",
        codes=("user_weekly_rate_limited", "quota_exceeded", "user_global_rate_limited"),
    ),
    Rule(
        id="copilot-throttle",
        reason=Reason.RATE_LIMIT,
        pattern=r"sorry, you(?:'ve| have) (?:been rate-limited|hit a rate limit"
        r"|exhausted this model)",
    ),
    Rule(
        id="copilot-login",
        reason=Reason.AUTH,
        pattern=r"no authentication information found|access denied by policy settings"
        r"|not authorized to use this copilot|failed to get copilot token",
    ),
    Rule(
        id="copilot-filter",
        reason=Reason.CONTENT_POLICY,
        pattern=r"filtered by the responsible ai|response matched public code",
    ),
)

_AIDER = (
    Rule(
        id="aider-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"litellm\.(?:exceptions\.)?\w{1,40}:\s*",
        streams=_PRINTED,
    ),
    Rule(
        id="aider-token-limit",
        reason=Reason.CONTEXT_OVERFLOW,
        pattern=r"Model \S{1,120} has hit a token limit",
        streams=_PRINTED,
    ),
    Rule(
        id="aider-throttle",
        reason=Reason.RATE_LIMIT,
        pattern=r"The API provider has rate limited you",
        streams=_PRINTED,
    ),
    Rule(
        id="aider-login",
        reason=Reason.AUTH,
        pattern=r"The API provider is not able to",
        streams=_PRINTED,
    ),
)

_GOOSE = (
    Rule(
        id="goose-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"Ran into this error:\s*|error: Request failed:\s*",
        streams=_PRINTED,
    ),
    Rule(
        id="goose-config",
        reason=Reason.NOT_CONFIGURED,
        pattern=r"No provider configured|Run 'goose configure'",
        streams=_PRINTED,
    ),
)

_QWEN = (
    Rule(
        id="qwen-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"(?:✕\s*)?\[API Error:?\s*",
        streams=_PRINTED,
    ),
    Rule(
        id="qwen-daily",
        reason=Reason.USAGE_LIMIT,
        pattern=r"daily quota has been reached|hour allocated quota exceeded",
        streams=_PRINTED,
    ),
    Rule(
        id="qwen-throttle",
        reason=Reason.RATE_LIMIT,
        codes=("throttling.ratequota", "throttling.allocationquota", "throttling.burstrate"),
    ),
    Rule(
        id="qwen-inspection",
        reason=Reason.CONTENT_POLICY,
        pattern=r"DataInspectionFailed",
        codes=("data_inspection_failed", "datainspectionfailed"),
    ),
    Rule(id="qwen-arrears", reason=Reason.BILLING, codes=("arrearage",)),
)

_KIMI = (
    Rule(
        id="kimi-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"LLM provider error:\s*",
        streams=_PRINTED,
    ),
    Rule(
        id="kimi-window",
        reason=Reason.USAGE_LIMIT,
        pattern=r"(?:5-hour|weekly|7-day)\)? usage limit|quota will be refreshed",
    ),
    Rule(id="kimi-login", reason=Reason.AUTH, pattern=r"LLM not set, send", streams=_PRINTED),
    Rule(id="kimi-load", reason=Reason.OVERLOADED, codes=("engine_overloaded_error",)),
    Rule(id="kimi-money", reason=Reason.BILLING, codes=("exceeded_current_quota_error",)),
)

_CRUSH = (
    Rule(
        id="crush-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"ERROR\s{1,4}",
        streams=_PRINTED,
    ),
    Rule(
        id="crush-config",
        reason=Reason.NOT_CONFIGURED,
        pattern=r"No providers configured",
        streams=_PRINTED,
    ),
)

_HERMES = (
    Rule(
        id="hermes-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"API call failed (?:\(attempt \d+/\d+\)|after \d+ retries)[:.]?\s*|Error: HTTP ",
        streams=_PRINTED,
    ),
    Rule(
        id="hermes-config",
        reason=Reason.NOT_CONFIGURED,
        pattern=r"No inference provider configured",
        streams=_PRINTED,
    ),
    Rule(
        id="hermes-silence",
        reason=Reason.TIMEOUT,
        pattern=r"No response from provider for \d+",
        streams=_PRINTED,
    ),
)

OPENAI = (
    Rule(
        id="openai-money",
        reason=Reason.BILLING,
        codes=("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"),
        pattern=r"^You exceeded your current quota",
    ),
    Rule(
        id="openai-verified",
        reason=Reason.AUTH,
        pattern=r"organization must be verified to (?:stream|use) (?:this|the) model",
    ),
)

ANTHROPIC = (
    Rule(id="anthropic-load", reason=Reason.OVERLOADED, codes=("overloaded_error",)),
    Rule(id="anthropic-size", reason=Reason.PAYLOAD_TOO_LARGE, codes=("request_too_large",)),
    Rule(id="anthropic-money", reason=Reason.BILLING, codes=("billing_error",)),
    Rule(id="anthropic-time", reason=Reason.TIMEOUT, codes=("timeout_error",)),
)

GOOGLE = (
    Rule(
        id="google-free-zero",
        reason=Reason.BILLING,
        pattern=r"free_tier\w{0,40}, limit: 0\b",
    ),
    Rule(
        id="google-key",
        reason=Reason.AUTH,
        codes=("api_key_invalid", "api_key_expired", "consumer_invalid"),
    ),
    Rule(id="google-location", reason=Reason.CONTENT_POLICY, pattern=r"User location is not"),
)

_BEDROCK = (
    Rule(id="bedrock-day", reason=Reason.USAGE_LIMIT, pattern=r"too many tokens per day"),
    Rule(
        id="bedrock-throttle",
        reason=Reason.RATE_LIMIT,
        pattern=r"^too many (?:requests|tokens), please wait",
        codes=("throttlingexception", "toomanyrequestsexception"),
    ),
    Rule(
        id="bedrock-load",
        reason=Reason.OVERLOADED,
        codes=("modelnotreadyexception", "serviceunavailableexception"),
    ),
    Rule(
        id="bedrock-model",
        reason=Reason.MODEL_NOT_FOUND,
        pattern=r"don't have access to the model|model identifier is invalid"
        r"|on-demand throughput isn't supported|end of (?:its )?life",
        codes=("resourcenotfoundexception",),
    ),
    Rule(
        id="bedrock-login",
        reason=Reason.AUTH,
        codes=("expiredtokenexception", "unrecognizedclientexception", "accessdeniedexception"),
    ),
    Rule(id="bedrock-time", reason=Reason.TIMEOUT, codes=("modeltimeoutexception",)),
    Rule(id="bedrock-fault", reason=Reason.SERVER_ERROR, codes=("internalserverexception",)),
)

_AZURE = (
    Rule(
        id="azure-deployment",
        reason=Reason.MODEL_NOT_FOUND,
        codes=("deploymentnotfound", "operationnotsupported"),
    ),
    Rule(
        id="azure-filter",
        reason=Reason.CONTENT_POLICY,
        codes=("content_filter", "responsibleaipolicyviolation"),
    ),
    Rule(
        id="azure-throttle",
        reason=Reason.RATE_LIMIT,
        pattern=r"exceeded (?:call|token) rate limit of your current",
    ),
    Rule(id="azure-capacity", reason=Reason.OVERLOADED, codes=("nocapacity",)),
)

OPENROUTER = (
    Rule(
        id="openrouter-upstream",
        reason=Reason.RATE_LIMIT,
        rotate=False,
        statuses=(429,),
        pattern=r"provider returned error|rate-limited upstream",
    ),
    Rule(id="openrouter-day", reason=Reason.USAGE_LIMIT, pattern=r"free-models-per-day"),
    Rule(id="openrouter-minute", reason=Reason.RATE_LIMIT, pattern=r"free-models-per-min"),
    Rule(
        id="openrouter-money",
        reason=Reason.BILLING,
        pattern=r"requires more credits|never purchased credits|key limit exceeded",
    ),
    Rule(
        id="openrouter-policy",
        reason=Reason.PROVIDER_POLICY,
        pattern=r"matching your (?:data|guardrail)|guardrail restrictions",
    ),
    Rule(
        id="openrouter-model",
        reason=Reason.MODEL_NOT_FOUND,
        pattern=r"^no (?:endpoints found|allowed providers)|is not a valid model id",
    ),
)

_OLLAMA = (
    Rule(
        id="ollama-model",
        reason=Reason.MODEL_NOT_FOUND,
        pattern=r"^model ['\"]\S{1,120}['\"] not found",
    ),
    Rule(id="ollama-busy", reason=Reason.OVERLOADED, pattern=r"maximum pending requests exceeded"),
    Rule(
        id="ollama-runner",
        reason=Reason.CRASH,
        pattern=r"runner process has terminated|requires more system memory",
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
