"""Signatures of throttles, transport and programs, then what a status means on its own."""

from fallbackd.classify.rules import Rule, words
from fallbackd.core.failures import Reason

_R = Reason

# Programs whose absence is the absence of the backend.
_PROGRAMS = (
    r"(?:[\w./~-]{0,100}/)?(?:claude|codex|gemini|opencode|numasec|copilot|aider|goose|qwen|kimi"
    r"|crush|hermes|ollama|node|bun|npx|uvx)"
)

FAULT_RULES: tuple[Rule, ...] = (
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
        r"|exhaust)\w{0,40} .{0,30}\bquota\b",
    ),
    # With this status it is the server that has too much to do, not the caller.
    Rule(id="slow-down", reason=_R.OVERLOADED, pattern=r"\bslow[ _]?down\b", statuses=(503,)),
    Rule(
        id="throttle",
        reason=_R.RATE_LIMIT,
        pattern=r"(?:api )?(?:been )?rate[ _-]?limit(?:ed|s|er|ing)?[ _-]?(?:exceeded"
        r"|reached|hit|error|is exceeded|has been|was)?\b|too many requests"
        r"|throttl(?:ed|ing)|request rate is too high|concurrent (?:connections|requests)"
        r"|requests too quickly|pace your requests|request concurrency"
        r"|exceeded your current requests|并发数过高|zu viele anfragen|trop de requêtes"
        r"|demasiadas (?:solicitudes|peticiones)|muitas (?:solicitações|requisições)"
        r"|too many (?:concurrent|tokens, please wait)|速率限制|リクエストが多すぎ",
        codes=words(
            """
            rate_limit_error rate_limit_exceeded rate_limit resource_exhausted
            ratelimiterror throttlingexception too_many_requests too_many_requests_error
            rate_limited ratelimitexceeded requests_too_quickly rate_limit_reached_error
            toomanyrequestserror throttling
            freeusagelimiterror
            """
        ),
    ),
    # --- transport -----------------------------------------------------------------------------
    Rule(
        id="bot-check",
        reason=_R.NETWORK,
        detail="challenge",
        retry=False,
        pattern=r"just a moment\.\.\.|attention required! \| cloudflare",
    ),
    Rule(
        id="timeout",
        reason=_R.TIMEOUT,
        pattern=r"timed[ -]?out|time-?out (?:error|exceeded|after|while|waiting|value)"
        r"|deadline (?:exceeded|expired)|no response from provider|stream stalled"
        r"|no data for \d|due to timeout|stream idle timeout|provider unresponsive"
        r"|stale (?:stream|attempts)|超时",
        codes=words(
            """
            timeout readtimeout connecttimeout writetimeout pooltimeout timeouterror
            apitimeouterror timeout_error deadline_exceeded headerstimeouterror etimedout
            bodytimeouterror sockettimeoutexception httptimeoutexception connecttimeouterror
            readtimeouterror apiconnectiontimeouterror
            und_err_headers_timeout und_err_body_timeout litellm.timeout
            """
        ),
    ),
    Rule(
        id="server-fault",
        reason=_R.SERVER_ERROR,
        pattern=r"an error occurred while processing|server had an error",
    ),
    Rule(
        id="network",
        reason=_R.NETWORK,
        pattern=r"connection (?:refused|reset|error|closed|aborted|failed|lost|dropped|terminated)"
        r"|net::ERR_|other side closed|sent GOAWAY|network connection was lost"
        r"|EOF while reading|ERR_INTERNET_DISCONNECTED|\bECONN(?:REFUSED|RESET|ABORTED)"
        r"|EPROTO\b|service not known|EAI_AGAIN|EPIPE|could not resolve (?:host|proxy)"
        r"|network is unreachable|no route to host|temporary failure in name resolution"
        r"|connection broken|empty reply from server"
        r"|(?:unable to|failed to|cannot|could not|can't) connect|getaddrinfo"
        r"|dns (?:error|lookup)|no such host"
        r"|socket (?:connection )?(?:was )?(?:closed|hang)|socket hang up|fetch failed"
        r"|stream (?:disconnected|closed) before|error sending request|waiting for network"
        r"|incomplete chunked read|BadRecordMac|tls alert|fatal alert|\bterminated$"
        r"|error decoding response body|remote end closed|model stream ended",
        codes=words(
            """
            connecterror connectionerror apiconnectionerror remoteprotocolerror readerror
            writeerror protocolerror connectionreseterror connectionrefusederror proxyerror
            chunkedencodingerror incompleteread maxretryerror newconnectionerror sslerror
            sslexception
            connectexception unknownhostexception connectionclosederror endpointconnectionerror
            noroutetohostexception clientpayloaderror contentlengtherror
            econnrefused econnreset clientconnectorerror clientconnectordnserror closeerror
            remotedisconnected serverdisconnectederror brokenpipeerror gaierror networkerror
            localprotocolerror
            """
        ),
    ),
    # --- the program itself --------------------------------------------------------------------
    Rule(
        id="no-program-line",
        reason=_R.NOT_INSTALLED,
        pattern=rf"^(?:\S{{1,40}}: (?:line \d+: |\d+: )?)?['\"]?{_PROGRAMS}['\"]?: (?:command"
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
        id="no-program",
        reason=_R.NOT_INSTALLED,
        pattern=r"/env: .{0,60}no such file or directory"
        r"|(?:CLI|executable|command|binary) not (?:found|installed)"
        r"|could not find \w{1,40} ?\w{0,40} command|failed to spawn command: no such file"
        r"|missing optional dependency|postinstall script was not run",
    ),
    Rule(
        id="missing-helper",
        reason=_R.CRASH,
        retry=False,
        pattern=r"^(?:error: )?spawn \S{1,200} ENOENT",
    ),
    Rule(id="output-cut", reason=_R.CRASH, detail="output_cut", codes=("output_cut",)),
    Rule(
        id="no-leave",
        reason=_R.PERMISSION,
        pattern=r"permission denied \(os error|EACCES: permission denied"
        r"|operation not permitted \(os error",
    ),
    Rule(id="http-503", reason=_R.OVERLOADED, statuses=(503, 529)),
    Rule(id="http-401", reason=_R.AUTH, statuses=(401,)),
    Rule(id="http-402", reason=_R.BILLING, statuses=(402,)),
    Rule(id="http-403", reason=_R.AUTH, statuses=(403,)),
    Rule(id="http-429", reason=_R.RATE_LIMIT, statuses=(425, 429)),
    Rule(id="http-413", reason=_R.PAYLOAD_TOO_LARGE, statuses=(413, 414, 431)),
    Rule(
        id="server-error",
        reason=_R.SERVER_ERROR,
        pattern=r"bad gateway|internal error|unexpected server error"
        r"|upstream (?:error|connect error|request failed)|something went wrong"
        r"|failed to parse json|is not valid json|invalid json(?! payload)"
        r"|produced invalid content|unexpected EOF",
        codes=words(
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
        r"|schema|role|argument|field|type|signature|'|\")|missing a thought_signature"
        r"|extra inputs are not permitted|expected `thinking`|long context beta"
        r"|is missing x-|does not support (?:tools|parameters)|unable to submit request"
        r"|must be defined when|\binvalid_request_error\b|invalid json payload"
        r"|does not support (?:\w{1,20} )?(?:input|images?)|temperature must be"
        r"|must be a response to a prece|\bbad request\b|tool use concurrency"
        r"|non-empty content|(?:session|conversation) (?:was )?not found"
        r"|no (?:conversation|session) found|must alternate|no tool output found"
        r"|without its required|function call turn comes|unexpected `?tool_use"
        r"|must be non-empty|provider not provided|unprocessable entity"
        r"|is not supported in this model",
        codes=words(
            """
            invalid_request_error badrequesterror invalid_argument validation_error
            unprocessableentityerror failed_precondition unsupportedparamserror
            ai_typevalidationerror typevalidationerror invalid_request_body
            """
        ),
    ),
    # --- statuses alone ------------------------------------------------------------------------
    Rule(id="spawn-missing", reason=_R.NOT_INSTALLED, codes=("enoent", "enoexec", "enotdir")),
    Rule(id="spawn-forbidden", reason=_R.PERMISSION, codes=("eacces", "eperm")),
    Rule(id="spawn-too-long", reason=_R.PAYLOAD_TOO_LARGE, codes=("e2big",)),
    Rule(id="http-404", reason=_R.SERVER_ERROR, statuses=(404, 405, 410)),
    Rule(id="http-408", reason=_R.TIMEOUT, statuses=(408, 524)),
    Rule(id="http-451", reason=_R.CONTENT_POLICY, statuses=(451,)),
    Rule(
        id="http-5xx",
        reason=_R.SERVER_ERROR,
        statuses=tuple(s for s in range(500, 600) if s not in (503, 524, 529)),
    ),
    # Whatever of 4xx has no rule above.
    Rule(id="http-4xx", reason=_R.FORMAT_ERROR, statuses=tuple(range(400, 500))),
    # A crash tells least: whatever else its own line states is the cause.
    Rule(
        id="crash",
        reason=_R.CRASH,
        pattern=r"^(?:fatal error: .{0,80}(?:heap|allocation)|panic(?:\(|:|ked)|thread"
        r" '.{0,60}' .{0,20}panicked|segmentation fault|traceback \(most recent call"
        r" last\)|unhandled (?:promise )?rejection|uncaught \w{0,30}(?:exception"
        r"|error)|fatal runtime error|terminate called after|fatal python error"
        r"|memoryerror$|.{0,60}exited with (?:code 13[4-9]|signal)|.{0,40}crashed"
        r" unexpectedly|.{0,60}overflowed its stack|node:\w{1,40}[:/].{0,100}"
        r"|illegal instruction|bus error|an unexpected critical error occurred|out"
        r" of memory|killed$|aborted \(|\w{1,40} has crashed|.{0,40}\(core dumped\)"
        r"|fatal error: all goroutines|the application panicked|oh no: bun has"
        r" crashed|signal: (?:killed|aborted|segmentation))|maximum call stack"
        r"|javascript heap out of memory|oom kill|unhandled 'error' event"
        r"|fatal: out of memory",
    ),
)
