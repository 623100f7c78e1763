"""
Failure signatures that hold for every backend, most specific first.

Wording comes before status: a provider says `overloaded` in a 400 and `insufficient balance` in
a 429. The first block names causes that others are mistaken for; statuses alone come last.
"""

from fallbackd.core.failures import Reason
from fallbackd.core.rules import Rule

_R = Reason


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMON_RULES: tuple[Rule, ...] = (
    # --- the request is too large (before every "limit" and "exceeded") --------------------------
    Rule(
        id="tpm-request-too-large",
        reason=_R.PAYLOAD_TOO_LARGE,
        pattern=r"request too large for (?:model |gpt|[`\w])|too large for .{0,120}tokens per min",
    ),
    Rule(
        id="context",
        reason=_R.CONTEXT_OVERFLOW,
        pattern=r"context[_ -]?(?:length|window|size|limit)s?.{0,40}(?:exceed|overflow|reached|too)"
        r"|(?:exceed|over)\w*.{0,60}(?:context[ _-]?(?:length|window|size|limit)"
        r"|maximum allowed length)"
        r"|maximum context length|prompt is too long|input is too long|prompt too long"
        r"|input length .{0,60}exceed|input token count.{0,80}exceed|ran out of room in the model"
        r"|too many (?:input )?tokens in|reduce the length of the (?:messages|prompt)"
        r"|(?:request|prompt) is ~?\d+ tokens \(limit|max(?:imum)?_?(?:input"
        r"|prompt)_?tokens.{0,20}exceed"
        r"|body too large for \S+ model.{0,40}tokens|上下文长度|超过.{0,6}最大.{0,6}长度",
        codes=_words(
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
        r"|image (?:exceeds|is too large|dimensions exceed)|request_too_large"
        r"|request exceeds the maximum"
        r" (?:size|allowed number of bytes)",
        codes=("request_too_large", "payload_too_large"),
    ),
    # Google names the spent quota by id; its sentence speaks of billing whichever it is.
    Rule(id="quota-zero", reason=_R.BILLING, pattern=r"\blimit: 0\b"),
    Rule(
        id="quota-per-day",
        reason=_R.USAGE_LIMIT,
        pattern=r"^\S*per-?day\S*$|quota_?id\W+\S*per-?day|per day per project",
    ),
    Rule(
        id="quota-per-minute",
        reason=_R.RATE_LIMIT,
        pattern=r"^\S*per-?(?:project-?)?per-?minute\S*$|^\S*per-?minute\S*$"
        r"|quota_?id\W+\S*per-?minute",
    ),
    # --- money ---------------------------------------------------------------------------------
    Rule(
        id="tokens-per-minute-quota",
        reason=_R.RATE_LIMIT,
        pattern=r"^allocated quota exceeded",
    ),
    Rule(
        id="billing",
        reason=_R.BILLING,
        pattern=r"insufficient[ _](?:credits?|balance|funds?|quota)|credit balance (?:is )?too low"
        r"|(?:spend|spending|budget) (?:limit|cap)|(?:limit|cap)\w* (?:your |the )?spending"
        r"|out of (?:credits?|funds|usage\b)|(?:all|no) (?:available |remaining )?credits"
        r"|used up your (?:points|credits|balance)|payment (?:required(?!.*limit)|method|failed"
        r"|overdue)|billing (?:or|issue|hard)"
        r"|(?:check|issue with|problem with) your (?:plan and )?billing|key limit exceeded"
        r"|specified api usage limits|purchase (?:more )?credits to|add (?:more )?(?:credits|funds)"
        r"|never purchased credits|can only afford|fewer max_tokens|prompt tokens limit exceeded"
        r"|free allocated quota exceeded|extra usage is required|account (?:is )?(?:in )?arrears"
        r"|arrearage"
        r"|active \w+ subscription|余额不足|欠费|账户余额"
        r"|saldo insuficiente|solde insuffisant|残高不足",
        codes=_words(
            """
            insufficient_quota billing_error billing_hard_limit_reached payment_required
            insufficient_credits insufficient_balance credits_exhausted arrearage
            account_deactivated_for_billing terminal_quota_exhausted
            """
        ),
    ),
    # --- plan windows --------------------------------------------------------------------------
    Rule(
        id="usage-limit",
        reason=_R.USAGE_LIMIT,
        pattern=r"(?:you(?:'ve| have) )?(?:hit|reached|exceeded|exhausted) (?:your"
        r"|the) .{0,30}\b(?:limit|quota)\b(?!.{0,20}per minute)"
        r"|(?:the |your )?(?:usage|session|weekly|daily|monthly|5[- ]hours?|7[- ]days?|plan"
        r"|subscription|premium|individual|week)"
        r"[- /\w]{0,20}(?:limit|quota)s? (?:has been |was |is )?(?:reached|hit|exceeded|exhausted)"
        r"|(?:weekly|monthly|daily|session|5-hour)(?:/\w+)? limit (?:reached|hit|exhausted)"
        r"|exhausted your (?:daily |hourly )?(?:capacity|quota)|your daily quota"
        r"|free usage exceeded|usage (?:limit|quota) (?:has been )?(?:reached|exceeded)"
        r"|usage limit reached"
        r"|quota will reset after|free-models-per-day|(?:requests?|tokens?)[_ ]per[_ ]day"
        r"|\b(?:TPD|RPD)\b"
        r"|(?:limit|quota) will reset (?:at|on|when|in)|out of premium requests|quota refresh"
        r"|(?<!\d)\d{1,6}/\d{1,6}h\)|rolling time window|usage window|weekly_rate_limited"
        r"|weekly rate limit"
        r"|已达到.{0,20}上限|使用上限|限额将在|达到.{0,12}上限"
        r"|límite de uso|limite d'utilisation|nutzungslimit"
        r"|лимит использования",
        codes=_words(
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
        r"|peak load"
        r"|服务器繁忙|系统繁忙|当前.{0,8}过载",
        codes=_words(
            """
            overloaded_error overloaded server_is_overloaded slow_down unavailable
            engine_overloaded_error serviceunavailableerror overloadederror
            """
        ),
    ),
    # --- rules of the provider -----------------------------------------------------------------
    Rule(
        id="own-policy",
        reason=_R.PROVIDER_POLICY,
        pattern=r"(?:matching|by) your (?:data|privacy|guardrail)[\w ]*polic|guardrail restrictions"
        r"|data policy|privacy settings|(?:organization|workspace|enterprise|account) (?:policy"
        r"|settings) "
        r"(?:does not allow|forbids?|blocks?|prohibits?)",
    ),
    Rule(
        id="region",
        reason=_R.CONTENT_POLICY,
        detail="region",
        pattern=r"(?:country|region|location|territory)[\w, ]{0,40}not (?:supported|available"
        r"|allowed)"
        r"|not (?:supported|available) in your (?:country|region|location)",
        codes=("unsupported_country_region_territory",),
    ),
    Rule(
        id="content-policy",
        reason=_R.CONTENT_POLICY,
        pattern=r"content[_ ](?:filter|policy|moderation|management)|content filtering"
        r"|safety (?:system|filter|policy)"
        r"|(?:request|candidate|output|response|prompt) (?:was |is )?blocked|blocked (?:due to|by"
        r"|for) .{0,30}(?:safety|prohibited|content|policy)|PROHIBITED_CONTENT|new_sensitive"
        r"|violat\w+ (?:our |the )?(?:usage|content|safety) polic|flagged (?:as|for|by)"
        r"|inappropriate content|usage polic",
        codes=_words(
            """
            content_filter content-filter content_policy_violation safety
            data_inspection_failed contentpolicyviolationerror
            """
        ),
    ),
    # --- login ---------------------------------------------------------------------------------
    Rule(
        id="revoked",
        reason=_R.AUTH,
        detail="revoked",
        pattern=r"\btoken_revoked\b|\btoken_invalidated\b|\binvalid_grant\b"
        r"|\brefresh_token_reused\b"
        r"|refresh token (?:has already been used|was already used|not found or invalid"
        r"|was revoked|has been revoked)"
        r"|(?:token|key|credential|access) (?:has been |was |is )revoked",
        codes=_words(
            """
            token_revoked token_invalidated invalid_grant refresh_token_reused
            """
        ),
    ),
    Rule(
        id="no-login",
        reason=_R.NOT_CONFIGURED,
        pattern=r"missing environment variable|set an auth method"
        r"|must specify the \w+ environment variable"
        r"|no (?:provider|model) (?:is )?configured|error loading config"
        r"|config file at .{0,200}is not valid"
        r"|configuration (?:error|invalid)|invalid configuration|requires setting the \w+ env",
    ),
    Rule(
        id="model",
        reason=_R.MODEL_NOT_FOUND,
        pattern=r"model[\w\"'`: ./\[\]@-]{0,80}(?:does not exist|doesn't exist|not exist"
        r"|not found|is not found"
        r"|is not supported when|not deployed|is disabled|has been (?:retired|deprecated"
        r"|decommissioned|removed|shut)"
        r"|was (?:retired|removed)|no longer (?:available|supported)|not available|is unavailable)"
        r"|models?/\S+ (?:is )?not found|no such model|unknown model|invalid model"
        r"|(?:un)?known provider/model"
        r"|issue with the selected model|(?:access to|invoke) (?:the|this) model"
        r"|no endpoints found|not on the free tier"
        r"|model_not_found|may not have access to it|failed to find (?:the )?model",
        codes=_words(
            """
            model_not_found providermodelnotfounderror modelnotfounderror
            model_not_available deploymentnotfound model_deprecated
            """
        ),
    ),
    Rule(
        id="model-404",
        reason=_R.MODEL_NOT_FOUND,
        pattern=r"^model: \S+$|\bmodel\b",
        statuses=(404,),
    ),
    Rule(
        id="auth",
        reason=_R.AUTH,
        pattern=r"(?:invalid|incorrect|missing|bad|wrong|expired|no|provide an?"
        r"|provided?) (?:\w+ )?(?:api[ _-]?key|x-api-key)"
        r"|api[ _-]?key (?:is |was )?(?:not valid|invalid|missing|expired|not (?:found|set"
        r"|provided)|incorrect|disabled)"
        r"|api_key missing|(?:please )?run /login|not logged in|log ?in again|sign(?:ing)? in again"
        r"|(?:token|session|credentials?|login) (?:is |has |was |have )?(?:been )?(?:expired"
        r"|invalid)\b"
        r"|(?:security|access|auth\w*) token.{0,40}(?:expired|invalid)|(?:invalid"
        r"|expired) (?:access |auth\w* |bearer )?token"
        r"|authentication (?:failed|required|error)|failed to authenticate|unauthenticated"
        r"|\bunauthorized\b|not authorized"
        r"|(?:refresh|renew)\w* (?:OAuth )?token.{0,40}failed|token refresh failed"
        r"|failed to refresh (?:OAuth )?token"
        r"|does not have (?:permission|\w+ Requests permission)|no auth credentials"
        r"|requires? authentication"
        r"|organization (?:must be verified to|is disabled|has been disabled)|access paused"
        r"|account (?:is )?(?:suspended|disabled|deactivated)"
        r"|api has not been used in project|failed to (?:sign in|login)\b"
        r"|认证失败|无效的(?:令牌|密钥)|令牌已过期",
        codes=_words(
            """
            authentication_error invalid_api_key authentication_failed unauthorized
            unauthenticated authenticationerror permissiondeniederror permission_error
            invalid_token token_expired api_key_invalid permission_denied
            oauth_org_not_allowed
            """
        ),
    ),
    # --- throttles -----------------------------------------------------------------------------
    Rule(
        id="upstream-throttle",
        reason=_R.RATE_LIMIT,
        rotate=False,
        pattern=r"provider returned error|rate-limited upstream|temporarily rate-limited upstream",
        statuses=(429,),
    ),
    Rule(
        id="exhausted",
        reason=_R.RATE_LIMIT,
        pattern=r"resource[_ ](?:has been )?exhausted",
    ),
    Rule(
        id="quota",
        reason=_R.USAGE_LIMIT,
        pattern=r"\bquota (?:has been |was |is )?(?:exceeded|exhausted|reached|hit)|(?:exceed"
        r"|exhaust)\w* .{0,30}\bquota\b",
    ),
    Rule(
        id="throttle",
        reason=_R.RATE_LIMIT,
        pattern=r"(?:api )?(?:been )?rate[ _-]?limit(?:ed|s|er|ing)?[ _-]?(?:exceeded|reached|hit"
        r"|error|is exceeded|has been|was)?\b"
        r"|too many requests|throttl(?:ed|ing)|request rate is too high|slow down|requests? limit"
        r"|exceeded retry limit, last status: 429"
        r"|(?:reached|exceeded) .{0,40}\b(?:RPM|TPM)\b|too many (?:concurrent"
        r"|tokens, please wait)|请求过于频繁|速率限制|リクエストが多すぎ",
        codes=_words(
            """
            rate_limit_error rate_limit_exceeded rate_limit resource_exhausted
            ratelimiterror throttlingexception too_many_requests too_many_requests_error
            rate_limited rate_limit_reached_error toomanyrequestserror throttling
            freeusagelimiterror
            """
        ),
    ),
    # --- transport -----------------------------------------------------------------------------
    Rule(
        id="certificate",
        reason=_R.TLS,
        pattern=r"certificate[_ ]verify[_ ]failed|self[- ]signed certificate"
        r"|unable to get (?:local )?issuer"
        r"|unable to verify the first certificate|certificate (?:has expired|is not valid"
        r"|verification failed|unknown)"
        r"|UNABLE_TO_VERIFY_LEAF|CERT_HAS_EXPIRED|DEPTH_ZERO_SELF_SIGNED",
        codes=("sslcertverificationerror",),
    ),
    Rule(
        id="bot-check",
        reason=_R.NETWORK,
        detail="challenge",
        pattern=r"just a moment\.\.\.|cf-challenge|attention required! \| cloudflare"
        r"|enable javascript and cookies to continue",
    ),
    Rule(
        id="timeout",
        reason=_R.TIMEOUT,
        pattern=r"timed[ -]?out|time-?out (?:error|exceeded|after|while|waiting|value)|(?:request"
        r"|read|connect\w*|idle|headers|response|body) time-?out"
        r"|deadline exceeded|provider unresponsive|stale (?:stream|attempts)|超时",
        codes=_words(
            """
            timeout readtimeout connecttimeout writetimeout pooltimeout timeouterror
            apitimeouterror deadline_exceeded headerstimeouterror bodytimeouterror etimedout
            und_err_headers_timeout und_err_body_timeout litellm.timeout
            """
        ),
    ),
    Rule(
        id="server-fault",
        reason=_R.SERVER_ERROR,
        pattern=r"an error occurred while processing|server had an error|internal server error"
        r"|bad gateway"
        r"|gateway time-?out",
    ),
    Rule(
        id="network",
        reason=_R.NETWORK,
        pattern=r"connection (?:refused|reset|error|closed|aborted|failed|lost)|ECONN(?:REFUSED"
        r"|RESET|ABORTED)|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|EPIPE"
        r"|(?:unable to|failed to|cannot|could not|can't) connect|getaddrinfo|name resolution"
        r"|dns (?:error|lookup)|no such host"
        r"|server disconnected|peer closed|socket (?:connection )?(?:was )?(?:closed|hang)"
        r"|socket hang up|fetch failed"
        r"|stream (?:disconnected|closed) before|error sending request|waiting for network"
        r"|network (?:error|is unreachable|unreachable)"
        r"|incomplete chunked read|BadRecordMac|bad record mac|tls alert|fatal alert"
        r"|\bterminated$|all connection attempts failed"
        r"|error decoding response body|premature (?:close|end)|remote end closed|broken pipe"
        r"|model stream ended|stream ended without",
        codes=_words(
            """
            connecterror connectionerror apiconnectionerror remoteprotocolerror readerror
            writeerror protocolerror connectionreseterror connectionrefusederror proxyerror
            econnrefused econnreset clientconnectorerror clientconnectordnserror closeerror
            serverdisconnectederror brokenpipeerror gaierror networkerror localprotocolerror
            """
        ),
    ),
    # --- the program itself --------------------------------------------------------------------
    Rule(
        id="no-program",
        reason=_R.NOT_INSTALLED,
        pattern=r"command not found$|^env: .{0,60}no such file or directory"
        r"|/env: .{0,60}no such file or directory"
        r"|^spawn(?:sync)? \S*(?:codex|claude|gemini|opencode|numasec|node)\S* ENOENT"
        r"|spawn node ENOENT"
        r"|(?:CLI|executable|command|binary) not (?:found|installed)"
        r"|could not find \w+ ?\w* command|failed to spawn command: no such file"
        r"|missing optional dependency|postinstall script was not run"
        r"|cannot find module .{0,200}(?:cli|sdk)\b",
    ),
    Rule(
        id="crash",
        reason=_R.CRASH,
        pattern=r"^(?:fatal error: .{0,80}(?:heap|allocation)|panic(?:\(|:|ked)"
        r"|thread '.{0,60}' .{0,20}panicked|segmentation fault"
        r"|traceback \(most recent call last\)|unhandled (?:promise )?rejection"
        r"|uncaught (?:exception|error)"
        r"|node:internal/.{0,100}|illegal instruction|bus error"
        r"|an unexpected critical error occurred|out of memory)"
        r"|javascript heap out of memory|segmentation fault at|oom kill",
    ),
    Rule(id="http-503", reason=_R.OVERLOADED, statuses=(503, 529)),
    Rule(
        id="server-error",
        reason=_R.SERVER_ERROR,
        pattern=r"internal server error|bad gateway|internal error"
        r"|an error occurred while processing|server (?:had an )?error while"
        r"|unexpected server error|server_error|upstream (?:error|connect error|request failed)"
        r"|something went wrong"
        r"|malformed response|empty or malformed|failed to parse json|incomplete json"
        r"|is not valid json|json parsing failed|gateway time-?out"
        r"|invalid json|unexpected EOF",
        codes=_words(
            """
            server_error api_error internal_server_error internal internalservererror
            bad_gateway apiservererror internal_error
            """
        ),
    ),
    Rule(
        id="format",
        reason=_R.FORMAT_ERROR,
        pattern=r"(?:unsupported|unknown|invalid|unexpected|unrecognized) (?:parameter|value"
        r"|schema|role|argument|field|type|signature|'|\")"
        r"|invalid (?:request|signature|json|schema)|tool_use.{0,20}ids? were found"
        r"|missing a thought_signature|parsing grammar"
        r"|extra inputs are not permitted|expected `thinking`|must have .{0,40}tool_result"
        r"|long context beta|is missing x-",
        codes=_words(
            """
            invalid_request_error badrequesterror invalid_argument validation_error
            unprocessableentityerror failed_precondition
            """
        ),
        statuses=(400, 422),
    ),
    # --- statuses alone ------------------------------------------------------------------------
    Rule(id="spawn-missing", reason=_R.NOT_INSTALLED, codes=("enoent", "enoexec", "enotdir")),
    Rule(id="spawn-forbidden", reason=_R.PERMISSION, codes=("eacces", "eperm")),
    Rule(id="spawn-too-long", reason=_R.PAYLOAD_TOO_LARGE, codes=("e2big",)),
    Rule(id="http-401", reason=_R.AUTH, statuses=(401, 407)),
    Rule(id="http-402", reason=_R.BILLING, statuses=(402,)),
    Rule(id="http-403", reason=_R.AUTH, statuses=(403,)),
    Rule(id="http-404", reason=_R.SERVER_ERROR, statuses=(404, 405, 410)),
    Rule(id="http-408", reason=_R.TIMEOUT, statuses=(408, 524)),
    Rule(id="http-413", reason=_R.PAYLOAD_TOO_LARGE, statuses=(413, 414, 431)),
    Rule(id="http-429", reason=_R.RATE_LIMIT, statuses=(425, 429)),
    Rule(id="http-451", reason=_R.CONTENT_POLICY, statuses=(451,)),
    Rule(
        id="http-5xx",
        reason=_R.SERVER_ERROR,
        statuses=tuple(s for s in range(500, 600) if s not in (503, 524, 529)),
    ),
    # Whatever of 4xx has no rule above.
    Rule(id="http-4xx", reason=_R.FORMAT_ERROR, statuses=tuple(range(400, 500))),
)

GENERAL_THROTTLES = frozenset({"throttle", "http-429"})
"""Rules whose wording says nothing about a window: a stated time of hours makes it a plan's."""
