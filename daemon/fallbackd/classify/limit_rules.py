"""Signatures of limits: of size, of money, of windows, of load. Most specific first."""

from fallbackd.classify.rules import Rule, words
from fallbackd.core.failures import Reason

_R = Reason

LIMIT_RULES: tuple[Rule, ...] = (
    # --- the answer asked for is too long: a parameter, whatever it says of limits ---------------
    Rule(
        id="max-tokens",
        reason=_R.FORMAT_ERROR,
        pattern=r"max_(?:completion_|output_)?tokens[`'\"]?(?: is)? (?:too large|must be|is greater"
        r"|cannot|should be|exceeds? the (?:model|maximum output))"
        r"|max_tokens: \d+ > \d+|maximum allowed number of output tokens"
        r"|maximum tokens you requested|supports at most \d+ (?:completion|output) tokens",
    ),
    # --- the request is too large (before every "limit" and "exceeded") --------------------------
    Rule(
        id="tpm-request-too-large",
        reason=_R.PAYLOAD_TOO_LARGE,
        hop=True,
        pattern=r"request too large for (?:model |gpt|[`\w])|too large for .{0,120}tokens per min",
    ),
    Rule(
        id="context",
        reason=_R.CONTEXT_OVERFLOW,
        pattern=r"context[_ -]?(?:length|window|size|limit)s?.{0,40}(?:exceed|overflow|reached|too)"
        r"|(?:exceed|over)\w{0,6}.{0,60}(?:context[ _-]?(?:length|window|size|limit)"
        r"|maximum allowed length)"
        r"|maximum context length|prompt is too long|input is too long|prompt too long"
        r"|input length .{0,60}exceed|input token count.{0,80}exceed|ran out of room in the model"
        r"|too many (?:input )?tokens in|reduce the length of the (?:messages|prompt)"
        r"|(?:request|prompt) is ~?\d+ tokens \(limit|max(?:imum)?_?(?:input"
        r"|prompt)_?tokens.{0,20}exceed"
        r"|maximum prompt length|token count exceeds|exceeded (?:the )?model token limit"
        r"|too large to process|(?:history|context) is too long|context window exceeds"
        r"|hit a token limit|prompt token count.{0,40}exceeds|conversation (?:is )?too long"
        r"|range of input length should be|requested tokens .{0,30}exceed context"
        r"|(?:longer|larger) than the (?:model's )?context|exceeds the available context"
        r"|token limit exceeded|too many tokens in (?:the )?(?:prompt|request)"
        r"|body too large for \S{1,200} model.{0,40}tokens|上下文长度|超过.{0,6}最大.{0,6}长度",
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
        pattern=r"request entity too large|payload too large|request too large \(max"
        r"|body (?:is )?too large"
        r"|image (?:exceeds|(?:is )?too large|dimensions exceed)|request_too_large"
        r"|request exceeds the maximum"
        r" (?:size|allowed number of bytes)",
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
        pattern=r"insufficient[ _](?:credits?|balance|funds?|quota)|credit balance (?:is )?too low"
        r"|(?:spend|spending|budget) (?:limit|cap)|(?:limit|cap)\w{0,40} (?:your |the )?spending"
        r"|out of (?:credits?|funds|(?:extra )?usage\b)|(?:all|no) (?:available "
        r"|remaining )?credits\b(?! (?:were|was|have been|has been|are|will be) (?:charged|used))"
        r"|used up your (?:points|credits|balance)|(?:no|missing|invalid|add an?"
        r"|update your|valid) payment method"
        r"|payment (?:required(?!.*limit)|failed"
        r"|overdue)|billing (?:or|issue|hard)"
        r"|(?:check|issue with|problem with) your (?:plan and )?billing|key limit exceeded"
        r"|specified api usage limits|purchase (?:more )?credits to|add (?:more )?(?:credits|funds)"
        r"|never purchased credits|can only afford|fewer max_tokens|prompt tokens limit exceeded"
        r"|free allocated quota exceeded|extra usage is required|account (?:is )?(?:in )?arrears"
        r"|arrearage"
        r"|all available credits|account (?:is )?overdue|insufficient account|额度不足"
        r"|budget has been exceeded|account is not active|credits? (?:are |is )?(?:depleted"
        r"|exhausted|used up)"
        r"|billing to be enabled|enable billing|in good standing|membership (?:has )?expired"
        r"|(?:free )?trial (?:has |period )?(?:ended|expired)|requires? more credits"
        r"|run out of credits|no (?:\w{1,40} )?credits? (?:left|remaining)|recharge your account"
        r"|(?:with|on) your \w{1,40} plan, upgrade to|quota exceeded\. check your plan"
        r"|subscription (?:is )?(?:expired|inactive|required)"
        r"|active \w{1,40} subscription|余额不足|欠费|账户余额"
        r"|充值|saldo insuficiente|solde insuffisant|残高不足|guthaben (?:reicht|aufgebraucht)"
        r"|cr[ée]ditos? (?:insuficientes|agotados)|رصيد غير كاف",
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
        pattern=r"(?:you(?:'ve| have) )?(?:hit|reached|exceeded|exhausted) (?:your|the)"
        r"(?! (?:\w{1,40} |per-(?:minute|second) ){0,3}"
        r"(?:rate|context|token|length|size|rpm|tpm)\b) .{0,30}\b(?:limit|quota)\b"
        r"(?!.{0,20}per minute)"
        r"|(?:weekly|daily|monthly|hourly|5-hour) rate limit"
        r"|(?:the |your )?(?:usage|session|weekly|daily|monthly|5[- ]hours?|7[- ]days?|plan"
        r"|subscription|premium|individual|week)"
        r"[- /\w]{0,20}(?:limit|quota)s? (?:has been |was |is )?(?:reached|hit|exceeded|exhausted)"
        r"|(?:weekly|monthly|daily|session|5-hour)(?:/\w{1,40})? limit (?:reached|hit|exhausted)"
        r"|exhausted your (?:daily |hourly )?(?:capacity|quota)|your daily quota"
        r"|free usage exceeded|usage (?:limit|quota) (?:has been )?(?:reached|exceeded)"
        r"|usage limit (?:reached|exceeded|for)|(?:quota|usage)s? reached for"
        r"|(?:daily|weekly|monthly|hourly|\d-hour) (?:\w{1,20} ){0,2}(?:limit|quota)\b.{0,40}"
        r"(?:reached|exceeded|used up|hit)|reached (?:the|your) (?:\w{1,20} ){0,2}request limit"
        r"|used (?:up )?all (?:of )?(?:your|the) (?:\w{1,20} ){0,3}(?:requests|quota|messages)"
        r"|(?:your|the) (?:\w{1,20} ){0,3}quota (?:is |has been )?used up|no quota left"
        r"|have no quota|out of (?:premium"
        r"|free) requests"
        r"|(?:hit|reached|at) your limit\b|limit reached ∙|quota will be refreshed|usage cap"
        r"|quota will reset after|free-models-per-day|(?:requests?|tokens?)[_ ]per[_ ]day"
        r"|\b(?:TPD|RPD)\b"
        r"|(?:limit|quota) will reset (?:at|on|when|in)|out of premium requests|quota refresh"
        r"|(?<!\d)\d{1,6}/\d{1,6}h\)|rolling time window|usage window|weekly_rate_limited"
        r"|weekly rate limit"
        r"|已达到.{0,20}上限|使用上限|限额将在|达到.{0,12}上限"
        r"|límite de uso|limite d'utilisation|nutzungslimit"
        r"|лимит использования|limite de uso|kontingent (?:erschöpft|aufgebraucht)"
        r"|quota (?:d'utilisation )?(?:dépassé|épuisé)|cuota (?:agotada|superada)"
        r"|(?:使用量|利用)の?(?:上限|制限)|上限に達しま|حد الاستخدام|额度已用完|次数已用完",
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
        pattern=r"(?:requests?|tokens?|calls?) per (?:minute|second)|per minute limit",
    ),
    # What a program guesses behind its own time-out ("may be under high load") is no cause.
    Rule(id="timed-out", reason=_R.TIMEOUT, pattern=r"\brequest timed out\."),
    # --- load ----------------------------------------------------------------------------------
    Rule(
        id="overloaded",
        reason=_R.OVERLOADED,
        pattern=r"\boverload(?:ed)?\b|server_is_overloaded|(?:at|no|exceeds?|over"
        r"|insufficient) capacity"
        r"|capacity (?:exceeded|constraints|limit)"
        r"|high (?:demand|load|traffic)|(?:server|service|engine|system"
        r"|model) (?:is )?(?:currently )?(?:too )?busy"
        r"|no healthy upstream|request queue is full|server is busy|temporarily at capacity"
        r"|heavy traffic|engine not available|(?:is|are) (?:a bit |all )?busy\b|peak load"
        r"|tier capacity|no available (?:channel|capacity|workers)"
        r"|unable to process your request\b|reset reason: overflow|pending requests exceeded"
        r"|サーバーが混雑|überlastet|surchargé|sobrecargad[oa]"
        r"|服务器繁忙|系统繁忙|当前.{0,8}过载",
        codes=words(
            """
            overloaded_error overloaded server_is_overloaded slow_down unavailable
            engine_overloaded_error serviceunavailableerror overloadederror
            """
        ),
    ),
)
