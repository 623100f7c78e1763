"""
Failure signatures that hold for every backend, most specific first.

Wording comes before status: a provider says `overloaded` in a 400 and `insufficient balance` in
a 429. The first block names causes that others are mistaken for; statuses alone come last.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from fallbackd.classify.rules import Rule, Screen, words
from fallbackd.core.reasons import Reason

_R = Reason
# Programs whose absence is the absence of the backend.
_PROGRAMS = (
    r"(?:[\w./~-]{0,100}/)?(?:claude|codex|gemini|opencode|numasec|copilot|aider|goose|qwen|kimi"
    r"|crush|hermes|ollama|node|bun|npx|uvx)"
)

COMMON_RULES: tuple[Rule, ...] = (
    # The answer asked for is too long: a parameter, whatever it says of limits.
    Rule(
        "max-tokens",
        _R.FORMAT_ERROR,
        r"max_tokens: \d+ > \d+|maximum allowed number of output tokens"
        r"|maximum tokens you requested|supports at most \d+ (?:completion|output) tokens",
    ),
    # The request is too large (before every "limit" and "exceeded").
    # A budget for each minute, which says nothing about the window of the model.
    Rule("request-over-budget", _R.RATE_LIMIT, "too large for .{0,160}tokens per min"),
    Rule(
        "request-too-large-for-model",
        _R.PAYLOAD_TOO_LARGE,
        r"request too large for (?:model |gpt|[`\w])",
        hop=True,
    ),
    Rule(
        "context",
        _R.CONTEXT_OVERFLOW,
        r"context[_ -]?(?:length|window|size|limit)s?.{0,40}(?:exceed|overflow|reached|too)"
        r"|(?:exceed|over)\w{0,6}.{0,60}(?:context[ _-]?(?:length|window|size|limit)"
        r"|maximum allowed length)|maximum context length|prompt is too long|input is too long"
        r"|input token count.{0,80}exceed|too many (?:input )?tokens in"
        r"|(?:request|prompt) is ~?\d+ tokens \(limit"
        r"|max(?:imum)?_?(?:input|prompt)_?tokens.{0,20}exceed|maximum prompt length"
        r"|token count exceeds|exceeded (?:the )?model token limit|too large to process"
        r"|(?:history|context) is too long|context window exceeds|hit a token limit"
        r"|conversation (?:is )?too long|range of input length should be"
        r"|(?:longer|larger) than the (?:model's )?context|too many tokens in (?:the )?(?:prompt"
        r"|request)|body too large for \S{1,200} model.{0,40}tokens|(?:prompt|input|context) "
        r"exceeds (?:the )?max(?:imum)? length|(?:less than|exceeds?) `?max_(?:seq|model|input)_len"
        r"|max_new_tokens` must be|tokens, window of \S{1,80} is \d|context (?:is )?too large",
        codes=words(
            "context_length_exceeded contextwindowexceedederror contextoverflowerror "
            "window_exceeded "
            "tokens_limit_reached model_context_window_exceeded string_above_max_length"
        ),
    ),
    Rule(
        "payload",
        _R.PAYLOAD_TOO_LARGE,
        r"request entity too large|request too large \(max|body (?:is )?too large"
        r"|image (?:exceeds|(?:is )?too large|dimensions exceed)"
        r"|body exceed(?:s|ed) \w{0,5} ?\d\w{0,8} limit|request body: length limit exceeded",
        codes=("request_too_large", "payload_too_large"),
    ),
    # Google names the spent quota by id; its sentence speaks of billing whichever it is.
    Rule("quota-zero", _R.BILLING, r"\blimit: 0\b"),
    Rule(
        "quota-per-day",
        _R.USAGE_LIMIT,
        r"^\S{0,200}per-?day\S{0,200}$|quota_?id\W+\S{0,200}per-?day|per day per project",
        # The delay that comes with it is that of the quota per minute.
        until_midnight_in="America/Los_Angeles",
    ),
    Rule(
        "quota-per-minute",
        _R.RATE_LIMIT,
        r"^\S{0,200}per-?(?:project-?)?per-?minute\S{0,200}$|^\S{0,200}per-?minute\S{0,200}$"
        r"|quota_?id\W+\S{0,200}per-?minute",
    ),
    Rule(
        "free-models-per-day",
        _R.USAGE_LIMIT,
        "(?:rate limit exceeded: )?free-models-per-day",
        stands=True,
    ),
    Rule("rate-per-day", _R.USAGE_LIMIT, r"rate limit reached for .{1,160}\b(?:per day|TPD|RPD)\b"),
    Rule("rate-per-minute", _R.RATE_LIMIT, r"rate limit reached for .{1,160}\b(?:per min|TPM|RPM)"),
    # Money.
    Rule(
        "hour-quota",
        _R.USAGE_LIMIT,
        r"(?:hour|day|week|month)\w{0,40} allocated quota exceeded|too many tokens per day",
    ),
    Rule("tokens-per-minute-quota", _R.RATE_LIMIT, r"(?<!free )\ballocated quota exceeded"),
    Rule(
        "billing",
        _R.BILLING,
        r"insufficient[ _](?:credits?|balance|funds?|quota)|balance insufficient"
        r"|credit balance used up|used up credit balance|credit balance (?:is )?too low"
        r"|(?:spend|spending|budget) (?:limit|cap)|out of (?:credits?|funds|(?:extra )?usage\b)"
        r"|used up your (?:points|credits|balance)|billing (?:or|issue|hard)|key limit exceeded"
        r"|specified api usage limits|can only afford|fewer max_tokens"
        r"|free allocated quota exceeded|extra usage is required|all available credits"
        r"|account (?:is )?overdue|insufficient account|额度不足|budget has been exceeded"
        r"|account is not active|credits? (?:are |is )?(?:depleted|exhausted|used up)"
        r"|billing to be enabled|membership (?:has )?expired"
        r"|(?:free )?trial (?:has |period )?(?:ended|expired)|no (?:\w{1,40} )?credits? (?:left"
        r"|remaining)|(?:with|on) your \w{1,40} plan, upgrade to|quota exceeded\. check your plan"
        r"|active \w{1,40} subscription|账户余额|saldo insuficiente|solde insuffisant"
        r"|exceeded (?:\w{1,20} )?budget|unpaid invoice|invalid_payment_instrument",
        codes=words(
            "insufficient_quota billing_error billing_hard_limit_reached payment_required "
            "insufficient_credits insufficient_balance credits_exhausted arrearage "
            "account_deactivated_for_billing terminal_quota_exhausted billing_not_active "
            "exceeded_current_quota_error creditserror budgetexceedederror insufficient_user_quota "
            "budget_exceeded accountoverdueerror "
            "spend_limit_reached"
        ),
    ),
    # Plan windows.
    Rule(
        "usage-limit",
        _R.USAGE_LIMIT,
        r"(?:you(?:'ve| have) )?(?:hit|reached|exceeded|exhausted) (?:your|the)(?! (?:\w{1,40} "
        r"|per-(?:minute|second) ){0,3}(?:rate|context|token|length|size|rpm"
        r"|tpm)\b) .{0,30}\b(?:limit|quota)\b(?!.{0,20}per minute)"
        r"|(?:weekly|daily|monthly|hourly|5-hour) rate limit"
        r"|(?:the |your )?(?:usage|session|weekly|daily|monthly|5[- ]hours?|7[- ]days?|plan"
        r"|subscription|premium|individual|week)[- /\w]{0,20}(?:limit|quota)s? (?:has been |was "
        r"|is )?(?:reached|hit|exceeded|exhausted)|reached (?:the|your) (?:\w{1,20} ){0,2}request"
        r" limit|used (?:up )?all (?:of )?(?:your|the) (?:\w{1,20} ){0,3}(?:requests|quota"
        r"|messages)|(?:your|the) (?:\w{1,20} ){0,3}quota (?:is |has been )?used up|no quota left"
        r"|out of (?:premium|free) requests|quota will (?:be refreshed|refresh on)"
        r"|(?:weekly|daily|monthly|usage) allowance (?:\w{1,20} ){0,6}(?:used|reached|spent)"
        r"|(?:exceeded|reached|used up) (?:\w{1,20} ){0,2}(?:usage|daily|monthly) limit"
        r"|(?:usage|daily|monthly) limit (?:\w{1,20} ){0,2}(?:exceeded|reached|used up)"
        r"|(?:requests?|tokens?)[_ ]per[_ ]day|\b(?:TPD|RPD)\b|out of premium requests"
        r"|usage window|限额将在|达到.{0,12}上限|límite de uso|limite d'utilisation|nutzungslimit"
        r"|limite de uso|(?:使用量|利用)の?(?:上限|制限)|上限に達しま|حد الاستخدام",
        codes=words(
            "usage_limit_reached usage_limit_exceeded user_weekly_rate_limited rejected "
            "terminalquotaerror gousagelimiterror subscriptionusagelimiterror"
        ),
    ),
    Rule(
        "per-minute",
        _R.RATE_LIMIT,
        r"per minute limit|per[ -]minute quota|\b(?:quota|limit)s? (?:is |has been )?(?:exceeded"
        r"|reached)\b.{0,40}\bper[ -](?:minute|second)",
    ),
    # What a program guesses behind its own time-out ("may be under high load") is no cause.
    Rule("timed-out", _R.TIMEOUT, r"\brequest timed out\."),
    # Load.
    Rule(
        "overloaded",
        _R.OVERLOADED,
        r"\boverload(?:ed)?\b|server_is_overloaded|(?:at|no|exceeds?|over|insufficient) capacity"
        r"|high (?:demand|load|traffic)|no healthy upstream|request queue is full|server is busy"
        r"|heavy traffic|engine not available|peak load|tier capacity"
        r"|no available (?:channel|capacity|workers)|unable to process your request\b"
        r"|high volume of traffic|too busy now|cannot process the load|is currently loading"
        r"|reset reason: overflow|pending requests exceeded|überlastet",
        codes=words(
            "overloaded_error overloaded server_is_overloaded slow_down unavailable "
            "engine_overloaded_error serviceunavailableerror overloadederror"
        ),
    ),
    # The way there: a proxy says so, never the provider, and its words are those of a login.
    Rule("proxy-login", _R.LOCAL_NETWORK, detail="proxy_login", retry=False, statuses=(407,)),
    # Rules of the provider.
    Rule(
        "own-policy",
        _R.PROVIDER_POLICY,
        r"(?:matching|by) your (?:data|privacy|guardrail)[\w ]*polic|data policy",
    ),
    Rule(
        "region",
        _R.CONTENT_POLICY,
        r"not available in your country|(?:country|region|location|territory)\b[\w, ]{0,40}not "
        r"(?:supported|available|allowed)|not (?:supported|available) in your (?:country|region"
        r"|location)",
        detail="region",
        codes=("unsupported_country_region_territory",),
    ),
    Rule(
        "content-policy",
        _R.CONTENT_POLICY,
        r"content[_ ](?:filter|policy|moderation|management)|safety (?:system|filter|policy)"
        r"|(?:request|candidate|output|response|prompt) (?:was |is )?blocked"
        r"|blocked (?:due to|by|for) .{0,30}(?:safety|prohibited|content|policy)|new_sensitive"
        r"|sensitive[ _]words"
        r"|requires moderation|\bSAFETY_CHECK|flagged (?:as|for|by)|敏感|违规|inappropriate content"
        r"|usage polic|content exists risk|responsible ai|matched public code|safety reasons"
        r"|rejected as a result of our safety",
        codes=words(
            "content_filter content-filter content_policy_violation safety data_inspection_failed "
            "contentpolicyviolationerror"
        ),
    ),
    # Certificates: what fails for one is often said to be a login.
    Rule(
        "certificate",
        _R.TLS,
        "certificate[_ ]verify[_ ]failed|self[- ]signed certificate"
        "|unable to get (?:local )?issuer|unable to verify the first certificate"
        "|certificate (?:has expired|is not valid|verification failed|unknown)"
        "|UNABLE_TO_VERIFY_LEAF|DEPTH_ZERO_SELF_SIGNED",
        codes=("sslcertverificationerror",),
    ),
    # Login.
    Rule(
        "revoked",
        _R.AUTH,
        r"\binvalid_grant\b|\brefresh_token_reused\b|refresh token (?:has already been used"
        r"|was already used|not found or invalid|was revoked|has been revoked)"
        r"|(?:token|key|credential|access) (?:has been |was |is )revoked",
        detail="revoked",
        codes=words("token_revoked token_invalidated invalid_grant refresh_token_reused"),
    ),
    Rule(
        "no-login",
        _R.NOT_CONFIGURED,
        r"set an auth method|must specify the \w{1,40} environment variable"
        r"|no (?:\w{1,40} )?(?:provider|model|llm)s? (?:(?:is|are) )?configured"
        r"|error loading config|model provider [`'\"]?[\w.-]{1,60}[`'\"]? not found"
        r"|api_key client option must be set|configuration is invalid|llm not set"
        r"|config file at .{0,200}is not valid|invalid configuration"
        r"|requires setting the \w{1,40} env",
    ),
    Rule(
        "verified-for-parameter",
        _R.FORMAT_ERROR,
        "verified to (?:generate|use) (?:reasoning|the parameter)",
    ),
    Rule(
        "model",
        _R.MODEL_NOT_FOUND,
        r"model[\w\"'`: ./\[\]@-]{0,80}(?:does not exist|doesn't exist|not exist|not found"
        r"|is not found|is not supported when|not deployed|is disabled|has been (?:retired"
        r"|deprecated|decommissioned|removed|shut)|was (?:retired|removed)|no longer (?:available"
        r"|supported)|not available|is unavailable)|no such model|unknown model|invalid model"
        r"|model (?:id |identifier )(?:\S{1,200} )?(?:is )?invalid|not a valid model"
        r"|unsupported model|no such deployment|no model named"
        r"|model [`'\"]?[\w./:-]{1,80}[`'\"]? is not supported|requested model is not supported"
        r"|on-demand throughput isn't supported|publisher model"
        r"|is not available with the .{0,30}plan"
        r"|access to the (?:requested |specified )?model\b(?! regist)"
        r"|no allowed providers are available|issue with the selected model"
        r"|(?:access to|invoke) (?:the|this) model|no endpoints found|model_not_found"
        r"|may not have access to it",
        codes=words(
            "model_not_found providermodelnotfounderror modelnotfounderror model_not_available "
            "deploymentnotfound model_deprecated"
        ),
    ),
    Rule("model-404", _R.MODEL_NOT_FOUND, r"\bmodel\b", statuses=(404,)),
    Rule(
        "auth",
        _R.AUTH,
        r"unable to locate credentials|insufficient permissions|missing scopes|bad credentials"
        r"|credential is only|no authentication information|access denied"
        r"|authorization (?:is )?required|reported as leaked|subscription key|not eligible for"
        r"|api[ _-]?key is (?:missing|required|blocked)"
        r"|failed to (?:get|fetch|obtain) \w{1,40} token"
        r"|(?:oauth|access|refresh) token (?:revoked|expired)|re-?authenticate"
        r"|(?:invalid|incorrect|missing|bad|wrong|expired|no|provide an?|provided?) (?:\w{1,40} "
        r")?(?:api[ _-]?key|x-api-key)|api[ _-]?key (?:is |was )?(?:not valid|invalid|missing"
        r"|expired|not (?:found|set|provided)|incorrect|disabled)|log ?in again"
        r"|(?:token|session|credentials?|login) (?:is |has |was |have )?(?:been )?(?:expired"
        r"|invalid)\b|authentication (?:failed|required|error)|failed to authenticate"
        r"|unauthenticated|\bunauthorized\b|not authorized|no auth credentials"
        r"|requires? authentication|access paused|failed to (?:sign in|login)\b"
        r"|not logged in\b|no (?:valid )?oauth token"
        r"|无效的(?:令牌|密钥)",
        codes=words(
            "authentication_error invalid_api_key authentication_failed unauthorized "
            "unauthenticated authenticationerror permissiondeniederror permission_error "
            "invalid_token token_expired api_key_invalid permission_denied oauth_org_not_allowed "
            "invalid_authentication_error ip_not_authorized loadapikeyerror ai_loadapikeyerror "
            "fatalauthenticationerror autherror permissiondenied accessdeniedexception "
            "error_not_logged_in "
            "unrecognizedclientexception expiredtokenexception"
        ),
    ),
    # Throttles.
    Rule(
        "upstream-throttle",
        _R.RATE_LIMIT,
        "provider returned error|rate-limited upstream|temporarily rate-limited upstream",
        rotate=False,
        statuses=(429,),
    ),
    Rule("exhausted", _R.RATE_LIMIT, "resource[_ ](?:has been )?exhausted"),
    Rule(
        "quota",
        _R.USAGE_LIMIT,
        r"\bquota (?:has been |was |is )?(?:exceeded|exhausted|reached|hit)"
        r"|(?:exceed|exhaust)\w{0,40} .{0,30}\bquota\b",
    ),
    # With this status it is the server that has too much to do, not the caller.
    Rule("slow-down", _R.OVERLOADED, r"\bslow[ _]?down\b", statuses=(503,)),
    Rule(
        "throttle",
        _R.RATE_LIMIT,
        r"(?:api )?(?:been )?rate[ _-]?limit(?:ed|s|er|ing)?[ _-]?(?:exceeded|reached|hit|error"
        r"|is exceeded|has been|was)?\b|too many requests|throttl(?:ed|ing)"
        r"|request rate is too high|concurrent (?:connections|requests)|requests too quickly"
        r"|pace your requests|request concurrency|exceeded your current requests|并发数过高"
        r"|zu viele anfragen|trop de requêtes|demasiadas (?:solicitudes|peticiones)"
        r"|muitas (?:solicitações|requisições)|too many (?:concurrent|tokens, please wait)|速率限制"
        r"|リクエストが多すぎ",
        codes=words(
            "rate_limit_error rate_limit_exceeded rate_limit resource_exhausted ratelimiterror "
            "throttlingexception too_many_requests too_many_requests_error rate_limited "
            "ratelimitexceeded requests_too_quickly rate_limit_reached_error toomanyrequestserror "
            "throttling freeusagelimiterror"
        ),
    ),
    # Transport.
    Rule(
        "bot-check",
        _R.NETWORK,
        r"just a moment\.\.\.|attention required! \| cloudflare",
        detail="challenge",
        retry=False,
    ),
    Rule(
        "timeout",
        _R.TIMEOUT,
        r"timed[ -]?out|time-?out (?:error|exceeded|after|while|waiting|value)"
        r"|deadline (?:exceeded|expired)|no response from provider|stream stalled|no data for \d"
        r"|due to timeout|stream idle timeout|provider unresponsive|stale (?:stream|attempts)|超时",
        codes=words(
            "timeout readtimeout connecttimeout writetimeout pooltimeout timeouterror "
            "apitimeouterror timeout_error deadline_exceeded headerstimeouterror etimedout "
            "bodytimeouterror sockettimeoutexception httptimeoutexception connecttimeouterror "
            "readtimeouterror apiconnectiontimeouterror und_err_headers_timeout "
            "und_err_body_timeout litellm.timeout"
        ),
    ),
    Rule("server-fault", _R.SERVER_ERROR, "an error occurred while processing|server had an error"),
    Rule(
        "network",
        _R.NETWORK,
        r"connection (?:refused|reset|error|closed|aborted|failed|lost|dropped|terminated)"
        r"|net::ERR_|other side closed|sent GOAWAY|network connection was lost|EOF while reading"
        r"|ERR_INTERNET_DISCONNECTED|\bECONN(?:REFUSED|RESET|ABORTED)|EPROTO\b|service not known"
        r"|EAI_AGAIN|EPIPE|could not resolve (?:host|proxy)|network is unreachable"
        r"|no route to host|temporary failure in name resolution|connection broken"
        r"|empty reply from server|(?:unable to|failed to|cannot|could not|can't) connect"
        r"|getaddrinfo|dns (?:error|lookup)|no such host"
        r"|socket (?:connection )?(?:was )?(?:closed|hang)|socket hang up|fetch failed"
        r"|stream (?:disconnected|closed) before|error sending request|waiting for network"
        r"|incomplete chunked read|BadRecordMac|tls alert|fatal alert|\bterminated$"
        r"|error decoding response body|remote end closed|model stream ended",
        codes=words(
            "connecterror connectionerror apiconnectionerror remoteprotocolerror readerror "
            "writeerror protocolerror connectionreseterror connectionrefusederror proxyerror "
            "chunkedencodingerror incompleteread maxretryerror newconnectionerror sslerror "
            "sslexception connectexception unknownhostexception connectionclosederror "
            "endpointconnectionerror noroutetohostexception clientpayloaderror contentlengtherror "
            "econnrefused econnreset clientconnectorerror clientconnectordnserror closeerror "
            "remotedisconnected serverdisconnectederror brokenpipeerror gaierror networkerror "
            "localprotocolerror"
        ),
    ),
    # The program itself.
    Rule(
        "no-program-line",
        _R.NOT_INSTALLED,
        rf"^(?:\S{{1,40}}: (?:line \d+: |\d+: )?)?['\"]?{_PROGRAMS}['\"]?: (?:command"
        rf" )?not found|^\S{{1,20}}: command not found: {_PROGRAMS}\b"
        rf"|^'{_PROGRAMS}' is not recognized"
        rf"|^exec: \"{_PROGRAMS}\": executable file not found"
        rf"|^(?:error: )?spawn(?:sync)? \S{{0,200}}?{_PROGRAMS}(?:\.\w{{1,4}})? ENOENT"
        rf"|^.{{0,60}}no such file or directory: '{_PROGRAMS}'"
        rf"|^{_PROGRAMS}: no such file or directory$|^fork/exec {_PROGRAMS}: no such file"
        rf"|^the term '{_PROGRAMS}' is not recognized"
        rf"|^(?:error: )?could not find [`'\"]?{_PROGRAMS}[`'\"]?(?: code)? (?:binary"
        rf"|command|cli)|^{_PROGRAMS}(?: code| cli)? (?:is )?not (?:found|installed)\b"
        rf"|^(?:error: )?{_PROGRAMS}(?: code)? executable not found",
    ),
    Rule(
        "no-program",
        _R.NOT_INSTALLED,
        r"/env: .{0,60}no such file or directory|(?:CLI|executable|command|binary) not (?:found"
        r"|installed)|could not find \w{1,40} ?\w{0,40} command"
        r"|failed to spawn command: no such file|missing optional dependency"
        r"|postinstall script was not run|unable to access jarfile"
        r"|could not find or load main class|^\S{0,200}python[\d.]{0,6}: no module named ",
    ),
    Rule("missing-helper", _R.CRASH, r"^(?:error: )?spawn \S{1,200} ENOENT", retry=False),
    Rule("output-cut", _R.CRASH, detail="output_cut", codes=("output_cut",)),
    Rule(
        "no-leave",
        _R.PERMISSION,
        r"permission denied \(os error|EACCES: permission denied"
        r"|operation not permitted \(os error",
    ),
    Rule("http-503", _R.OVERLOADED, statuses=(503, 529)),
    Rule("http-401", _R.AUTH, statuses=(401,)),
    Rule("http-402", _R.BILLING, statuses=(402,)),
    Rule("http-403", _R.AUTH, statuses=(403,)),
    Rule("http-429", _R.RATE_LIMIT, statuses=(425, 429)),
    Rule("http-413", _R.PAYLOAD_TOO_LARGE, statuses=(413, 414, 431)),
    Rule(
        "server-error",
        _R.SERVER_ERROR,
        "bad gateway|internal (?:server )?error|unexpected server error"
        "|upstream (?:error|connect error|request failed)|something went wrong"
        "|failed to parse json|is not valid json|invalid json(?! payload)"
        "|produced invalid content|unexpected EOF",
        codes=words(
            "server_error api_error internal_server_error internal internalservererror bad_gateway "
            "apiservererror internal_error"
        ),
    ),
    Rule(
        "format",
        _R.FORMAT_ERROR,
        r"(?:unsupported|unknown|invalid|unexpected|unrecognized) (?:parameter|value|schema|role"
        r"|argument|field|type|signature|'|\")|missing a thought_signature"
        r"|extra inputs are not permitted|expected `thinking`|long context beta|is missing x-"
        r"|does not support (?:tools|parameters)|unable to submit request|must be defined when"
        r"|\binvalid_request_error\b|invalid json payload|does not support (?:\w{1,20} )?(?:input"
        r"|images?)|temperature must be|must be a response to a prece|\bbad request\b"
        r"|tool use concurrency|non-empty content|(?:session|conversation) (?:was )?not found"
        r"|no (?:conversation|session) found|must alternate|no tool output found"
        r"|without its required|function call turn comes|unexpected `?tool_use|must be non-empty"
        r"|provider not provided|unprocessable entity|is not supported in this model",
        codes=words(
            "invalid_request_error badrequesterror invalid_argument validation_error "
            "unprocessableentityerror failed_precondition unsupportedparamserror "
            "ai_typevalidationerror typevalidationerror invalid_request_body"
        ),
    ),
    # Statuses alone.
    Rule("spawn-missing", _R.NOT_INSTALLED, codes=("enoent", "enoexec", "enotdir")),
    Rule("spawn-forbidden", _R.PERMISSION, codes=("eacces", "eperm")),
    Rule("spawn-too-long", _R.PAYLOAD_TOO_LARGE, codes=("e2big",)),
    Rule("http-404", _R.SERVER_ERROR, statuses=(404, 405, 410)),
    Rule("http-408", _R.TIMEOUT, statuses=(408, 524)),
    Rule("http-451", _R.CONTENT_POLICY, statuses=(451,)),
    Rule(
        "http-5xx",
        _R.SERVER_ERROR,
        statuses=tuple(s for s in range(500, 600) if s not in (503, 524, 529)),
    ),
    # Whatever of 4xx has no rule above.
    Rule("http-4xx", _R.FORMAT_ERROR, statuses=tuple(range(400, 500))),
    # A crash tells least: whatever else its own line states is the cause.
    Rule(
        "crash",
        _R.CRASH,
        r"^(?:fatal error: .{0,80}(?:heap|allocation)|panic(?:\(|:|ked)|thread '.{0,60}' "
        r".{0,20}panicked|segmentation fault|traceback \(most recent call last\)"
        r"|unhandled (?:promise )?rejection|uncaught \w{0,30}(?:exception|error)|fatal runtime "
        r"error|terminate called after|fatal python error|memoryerror$|.{0,60}exited with (?:code"
        r" 13[4-9]|signal)|.{0,40}crashed unexpectedly|.{0,60}overflowed its stack"
        r"|(?:\S{1,40} )?line \d+: +\d+ (?:killed|aborted|bus error|segmentation fault|floating"
        r" point exception|illegal instruction)"
        r"|node:\w{1,40}[:/].{0,100}|illegal instruction|bus error|an unexpected critical error "
        r"occurred|out of memory|killed$|aborted \(|\w{1,40} has crashed|.{0,40}\(core dumped\)"
        r"|fatal error: all goroutines|the application panicked|oh no: bun has crashed"
        r"|signal: (?:killed|aborted|segmentation))|maximum call stack"
        r"|javascript heap out of memory|oom kill|unhandled 'error' event|fatal: out of memory",
    ),
)

GENERAL_FAULTS = frozenset({"server-fault", "server-error"})
"""Rules whose wording says little: what else is said before or behind decides."""

GENERAL_THROTTLES = frozenset({"throttle", "http-429"})
"""Rules whose wording says nothing about a window: a stated time of hours makes it a plan's."""


class Fitting:
    """
    Rules by what they ask for, so that a statement is compared with the few that may fit it: one
    pass in linear time rules out most patterns.
    """

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._by: dict[str | int, list[int]] = defaultdict(list)
        for at, rule in enumerate(rules):
            asked = (rule.pattern,) if rule.pattern else rule.statuses
            for one in (*rule.codes, *asked):
                self._by[one].append(at)
        screened = {one.pattern for one in rules if one.pattern and not one.is_users}
        self._screen = Screen(sorted(screened))
        self._users = frozenset(one.pattern for one in rules if one.pattern and one.is_users)

    def among(
        self, lines: Iterable[str], words: Iterable[str] = (), status: int | None = None
    ) -> list[Rule]:
        """The rules that may fit, in their order."""
        named: set[str | int] = {*words, *self._users}
        if status is not None:
            named.add(status)
        named.update(*map(self._screen.may_find, lines))
        places = {at for one in named for at in self._by.get(one, ())}
        return [self._rules[at] for at in sorted(places)]


@lru_cache(maxsize=64)
def fitting(rules: tuple[Rule, ...]) -> Fitting:
    return Fitting(rules)


@lru_cache(maxsize=1)
def common() -> Fitting:
    return Fitting(COMMON_RULES)
