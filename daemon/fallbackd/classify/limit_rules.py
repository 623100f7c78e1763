"""Signatures of limits: of size, of money, of windows, of load. Most specific first."""

from fallbackd.classify.rules import Rule, words
from fallbackd.core.failures import Reason

_R = Reason

LIMIT_RULES: tuple[Rule, ...] = (
    # --- the answer asked for is too long: a parameter, whatever it says of limits ---------------
    Rule(
        id="max-tokens",
        reason=_R.FORMAT_ERROR,
        pattern=r"max_tokens: \d+ > \d+|maximum allowed number of output tokens"
        r"|maximum tokens you requested|supports at most \d+ (?:completion|output) tokens",
    ),
    # --- the request is too large (before every "limit" and "exceeded") --------------------------
    # A budget for each minute, which says nothing about the window of the model.
    Rule(
        id="request-over-budget",
        reason=_R.RATE_LIMIT,
        pattern=r"too large for .{0,160}tokens per min",
    ),
    Rule(
        id="request-too-large-for-model",
        reason=_R.PAYLOAD_TOO_LARGE,
        hop=True,
        pattern=r"request too large for (?:model |gpt|[`\w])",
    ),
    Rule(
        id="context",
        reason=_R.CONTEXT_OVERFLOW,
        pattern=r"context[_ -]?(?:length|window|size|limit)s?.{0,40}(?:exceed|overflow"
        r"|reached|too)"
        r"|(?:exceed|over)\w{0,6}.{0,60}(?:context[ _-]?(?:length|window|size|limit)"
        r"|maximum allowed length)|maximum context length|prompt is too long"
        r"|input is too long|input token count.{0,80}exceed|too many (?:input )?tokens in"
        r"|(?:request|prompt) is ~?\d+ tokens \(limit"
        r"|max(?:imum)?_?(?:input|prompt)_?tokens.{0,20}exceed|maximum prompt length"
        r"|token count exceeds|exceeded (?:the )?model token limit|too large to process"
        r"|(?:history|context) is too long|context window exceeds|hit a token limit"
        r"|conversation (?:is )?too long|range of input length should be"
        r"|(?:longer|larger) than the (?:model's )?context"
        r"|too many tokens in (?:the )?(?:prompt|request)"
        r"|body too large for \S{1,200} model.{0,40}tokens",
        codes=words(
            """
            context_length_exceeded contextwindowexceedederror contextoverflowerror
            tokens_limit_reached model_context_window_exceeded string_above_max_length
            """
        ),
    ),
    Rule(
        id="payload",
        reason=_R.PAYLOAD_TOO_LARGE,
        pattern=r"request entity too large|request too large \(max|body (?:is )?too large"
        r"|image (?:exceeds|(?:is )?too large|dimensions exceed)",
        codes=("request_too_large", "payload_too_large"),
    ),
    # Google names the spent quota by id; its sentence speaks of billing whichever it is.
    Rule(id="quota-zero", reason=_R.BILLING, pattern=r"\blimit: 0\b"),
    Rule(
        id="quota-per-day",
        reason=_R.USAGE_LIMIT,
        # The delay that comes with it is that of the quota per minute.
        until_midnight_in="America/Los_Angeles",
        pattern=r"^\S{0,200}per-?day\S{0,200}$|quota_?id\W+\S{0,200}per-?day|per day per project",
    ),
    Rule(
        id="quota-per-minute",
        reason=_R.RATE_LIMIT,
        pattern=r"^\S{0,200}per-?(?:project-?)?per-?minute\S{0,200}$"
        r"|^\S{0,200}per-?minute\S{0,200}$"
        r"|quota_?id\W+\S{0,200}per-?minute",
    ),
    Rule(
        id="free-models-per-day",
        reason=_R.USAGE_LIMIT,
        stands=True,
        pattern=r"(?:rate limit exceeded: )?free-models-per-day",
    ),
    Rule(
        id="rate-per-day",
        reason=_R.USAGE_LIMIT,
        pattern=r"rate limit reached for .{1,160}\b(?:per day|TPD|RPD)\b",
    ),
    Rule(
        id="rate-per-minute",
        reason=_R.RATE_LIMIT,
        pattern=r"rate limit reached for .{1,160}\b(?:per min|TPM|RPM)",
    ),
    # --- money ---------------------------------------------------------------------------------
    Rule(
        id="hour-quota",
        reason=_R.USAGE_LIMIT,
        pattern=r"(?:hour|day|week|month)\w{0,40} allocated quota exceeded|too many tokens per day",
    ),
    Rule(
        id="tokens-per-minute-quota",
        reason=_R.RATE_LIMIT,
        pattern=r"(?<!free )\ballocated quota exceeded",
    ),
    Rule(
        id="billing",
        reason=_R.BILLING,
        pattern=r"insufficient[ _](?:credits?|balance|funds?|quota)|balance insufficient"
        r"|credit balance used up|used up credit balance|credit balance (?:is )?too low"
        r"|(?:spend|spending|budget) (?:limit|cap)"
        r"|out of (?:credits?|funds|(?:extra )?usage\b)"
        r"|used up your (?:points|credits|balance)|billing (?:or|issue|hard)"
        r"|key limit exceeded|specified api usage limits|can only afford|fewer max_tokens"
        r"|free allocated quota exceeded|extra usage is required|all available credits"
        r"|account (?:is )?overdue|insufficient account|额度不足|budget has been exceeded"
        r"|account is not active|credits? (?:are |is )?(?:depleted|exhausted|used up)"
        r"|billing to be enabled|membership (?:has )?expired"
        r"|(?:free )?trial (?:has |period )?(?:ended|expired)"
        r"|no (?:\w{1,40} )?credits? (?:left|remaining)"
        r"|(?:with|on) your \w{1,40} plan, upgrade to|quota exceeded\. check your plan"
        r"|active \w{1,40} subscription|账户余额|saldo insuficiente|solde insuffisant",
        codes=words(
            """
            insufficient_quota billing_error billing_hard_limit_reached payment_required
            insufficient_credits insufficient_balance credits_exhausted arrearage
            account_deactivated_for_billing terminal_quota_exhausted billing_not_active
            exceeded_current_quota_error creditserror budgetexceedederror
            insufficient_user_quota spend_limit_reached
            """
        ),
    ),
    # --- plan windows --------------------------------------------------------------------------
    Rule(
        id="usage-limit",
        reason=_R.USAGE_LIMIT,
        pattern=r"(?:you(?:'ve| have) )?(?:hit|reached|exceeded|exhausted) (?:your|the)(?!"
        r" (?:\w{1,40} |per-(?:minute|second) ){0,3}(?:rate|context|token|length"
        r"|size|rpm|tpm)\b) .{0,30}\b(?:limit|quota)\b(?!.{0,20}per minute)"
        r"|(?:weekly|daily|monthly|hourly|5-hour) rate limit"
        r"|(?:the |your )?(?:usage|session|weekly|daily|monthly|5[- ]hours?|7[-"
        r" ]days?|plan|subscription|premium|individual|week)[- /\w]{0,20}(?:limit"
        r"|quota)s? (?:has been |was |is )?(?:reached|hit|exceeded|exhausted)"
        r"|reached (?:the|your) (?:\w{1,20} ){0,2}request limit"
        r"|used (?:up )?all (?:of )?(?:your|the) (?:\w{1,20} ){0,3}(?:requests|quota"
        r"|messages)|(?:your|the) (?:\w{1,20} ){0,3}quota (?:is |has been )?used up"
        r"|no quota left|out of (?:premium|free) requests|quota will be refreshed"
        r"|(?:exceeded|reached|used up) (?:\w{1,20} ){0,2}(?:usage|daily|monthly) limit"
        r"|(?:usage|daily|monthly) limit (?:\w{1,20} ){0,2}(?:exceeded|reached|used up)"
        r"|(?:requests?|tokens?)[_ ]per[_ ]day|\b(?:TPD|RPD)\b"
        r"|out of premium requests|usage window|限额将在|达到.{0,12}上限|límite de uso"
        r"|limite d'utilisation|nutzungslimit|limite de uso|(?:使用量|利用)の?(?:上限|制限)"
        r"|上限に達しま|حد الاستخدام",
        codes=words(
            """
            usage_limit_reached usage_limit_exceeded user_weekly_rate_limited rejected
            terminalquotaerror gousagelimiterror subscriptionusagelimiterror
            """
        ),
    ),
    Rule(
        id="per-minute",
        reason=_R.RATE_LIMIT,
        pattern=r"per minute limit|per[ -]minute quota"
        r"|\b(?:quota|limit)s? (?:is |has been )?(?:exceeded|reached)\b.{0,40}"
        r"\bper[ -](?:minute|second)",
    ),
    # What a program guesses behind its own time-out ("may be under high load") is no cause.
    Rule(id="timed-out", reason=_R.TIMEOUT, pattern=r"\brequest timed out\."),
    # --- load ----------------------------------------------------------------------------------
    Rule(
        id="overloaded",
        reason=_R.OVERLOADED,
        pattern=r"\boverload(?:ed)?\b|server_is_overloaded"
        r"|(?:at|no|exceeds?|over|insufficient) capacity|high (?:demand|load|traffic)"
        r"|no healthy upstream|request queue is full|server is busy|heavy traffic"
        r"|engine not available|peak load|tier capacity"
        r"|no available (?:channel|capacity|workers)|unable to process your request\b"
        r"|reset reason: overflow|pending requests exceeded|überlastet",
        codes=words(
            """
            overloaded_error overloaded server_is_overloaded slow_down unavailable
            engine_overloaded_error serviceunavailableerror overloadederror
            """
        ),
    ),
)
