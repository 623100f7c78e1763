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
        pattern=r"(?:api )?(?:been )?rate[ _-]?limit(?:ed|s|er|ing)?[ _-]?(?:exceeded|reached|hit"
        r"|error|is exceeded|has been|was)?\b"
        r"|too many requests|throttl(?:ed|ing)|request rate is too high|slow down|requests? limit"
        r"|exceeded retry limit, last status: 429"
        r"|(?:call|token|request) rate limit|per-minute rate limit|concurrent (?:connections"
        r"|requests)"
        r"|requests too quickly|pace your requests|request concurrency|max RPM"
        r"|exceeded your current requests|并发数过高|频率限制"
        r"|zu viele anfragen|trop de requêtes|demasiadas (?:solicitudes|peticiones)"
        r"|muitas (?:solicitações|requisições)|troppe richieste|слишком много запросов"
        r"|طلبات كثيرة"
        r"|(?:reached|exceeded) .{0,40}\b(?:RPM|TPM)\b|too many (?:concurrent"
        r"|tokens, please wait)|请求过于频繁|速率限制|リクエストが多すぎ",
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
        pattern=r"just a moment\.\.\.|cf-challenge|attention required! \| cloudflare"
        r"|enable javascript and cookies",
    ),
    Rule(
        id="timeout",
        reason=_R.TIMEOUT,
        pattern=r"timed[ -]?out|time-?out (?:error|exceeded|after|while|waiting|value)|(?:request"
        r"|read|connect\w{0,40}|idle|headers|response|body) time-?out"
        r"|deadline (?:exceeded|expired)|no response from provider|a timeout occurred"
        r"|stream stalled|no data for \d|due to timeout|stream idle timeout"
        r"|context deadline exceeded|provider unresponsive"
        r"|stale (?:stream|attempts)|超时",
        codes=words(
            """
            timeout readtimeout connecttimeout writetimeout pooltimeout timeouterror
            apitimeouterror timeout_error deadline_exceeded headerstimeouterror etimedout
            bodytimeouterror
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
        pattern=r"connection (?:refused|reset|error|closed|aborted|failed|lost|dropped|terminated)"
        r"|\bterminated\b(?=\s{0,3}(?:$|at ))|(?:network )?socket disconnected|net::ERR_"
        r"|other side closed|received from peer|sent GOAWAY|network connection was lost"
        r"|EOF while reading|ERR_INTERNET_DISCONNECTED"
        r"|\bECONN(?:REFUSED|RESET|ABORTED)|\bENOTFOUND|dial tcp|EPROTO\b|service not known"
        r"|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|EPIPE"
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
        codes=words(
            """
            connecterror connectionerror apiconnectionerror remoteprotocolerror readerror
            writeerror protocolerror connectionreseterror connectionrefusederror proxyerror
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
        pattern=rf"^(?:\S{{1,40}}: (?:line \d+: |\d+: )?)?['\"]?{_PROGRAMS}['\"]?:"
        r" (?:command )?not found"
        rf"|^\S{{1,20}}: command not found: {_PROGRAMS}\b"
        rf"|^'{_PROGRAMS}' is not recognized|^exec: \"{_PROGRAMS}\": executable file not found"
        rf"|^(?:error: )?spawn(?:sync)? \S{{0,200}}?{_PROGRAMS}(?:\.\w{{1,4}})? ENOENT"
        rf"|^.{{0,60}}no such file or directory: '{_PROGRAMS}'"
        r"|^(?:/usr/bin/)?env: .{0,60}no such file or directory"
        rf"|^(?:error: )?cannot find module '\S{{0,200}}{_PROGRAMS}\S{{0,80}}'"
        rf"|^{_PROGRAMS}: no such file or directory$|^fork/exec {_PROGRAMS}: no such file"
        rf"|^the term '{_PROGRAMS}' is not recognized"
        rf"|^(?:error: )?could not find [`'\"]?{_PROGRAMS}[`'\"]?(?: code)? (?:binary|command|cli)"
        rf"|^{_PROGRAMS}(?: code| cli)? (?:is )?not (?:found|installed)\b"
        rf"|^(?:error: )?{_PROGRAMS}(?: code)? executable not found",
    ),
    Rule(
        id="no-program",
        reason=_R.NOT_INSTALLED,
        pattern=r"command not found$|/env: .{0,60}no such file or directory"
        r"|(?:CLI|executable|command|binary) not (?:found|installed)"
        r"|could not find \w{1,40} ?\w{0,40} command|failed to spawn command: no such file"
        r"|missing optional dependency|postinstall script was not run"
        r"|cannot find module .{0,200}(?:cli|sdk)\b",
    ),
    Rule(
        id="missing-helper",
        reason=_R.CRASH,
        retry=False,
        pattern=r"^(?:error: )?spawn \S{1,200} ENOENT",
    ),
    Rule(id="output-cut", reason=_R.CRASH, detail="output_cut", codes=("output_cut",)),
    Rule(
        id="crash",
        reason=_R.CRASH,
        pattern=r"^(?:fatal error: .{0,80}(?:heap|allocation)|panic(?:\(|:|ked)"
        r"|thread '.{0,60}' .{0,20}panicked|segmentation fault"
        r"|traceback \(most recent call last\)|unhandled (?:promise )?rejection"
        r"|uncaught \w{0,30}(?:exception|error)|fatal runtime error|terminate called after"
        r"|fatal python error|memoryerror$|.{0,60}exited with (?:code 13[4-9]|signal)"
        r"|.{0,40}crashed unexpectedly|.{0,60}overflowed its stack"
        r"|node:\w{1,40}[:/].{0,100}|illegal instruction|bus error"
        r"|an unexpected critical error occurred|out of memory|killed$|aborted \("
        r"|\w{1,40} has crashed"
        r"|.{0,40}\(core dumped\)|fatal error: all goroutines|the application panicked"
        r"|oh no: bun has crashed|signal: (?:killed|aborted|segmentation))"
        r"|maximum call stack|(?:runner|server) process has terminated|requires more system memory"
        r"|javascript heap out of memory|segmentation fault at|oom kill"
        r"|unhandled 'error' event|fatal: out of memory",
    ),
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
        pattern=r"internal server error|bad gateway|internal error"
        r"|an error occurred while processing|server (?:had an )?error while"
        r"|unexpected server error|server_error|upstream (?:error|connect error|request failed)"
        r"|something went wrong"
        r"|malformed response|empty or malformed|failed to parse json|incomplete json"
        r"|is not valid json|json parsing failed|gateway time-?out"
        r"|invalid json(?! payload)|produced invalid content|unexpected EOF",
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
        r"|schema|role|argument|field|type|signature|'|\")"
        r"|invalid (?:request|signature|json|schema)|tool_use.{0,20}ids? were found"
        r"|missing a thought_signature|parsing grammar"
        r"|extra inputs are not permitted|expected `thinking`|must have .{0,40}tool_result"
        r"|long context beta|is missing x-|invalid argument\b|does not support (?:tools|parameters)"
        r"|unable to submit request|must be defined when|\binvalid_request_error\b"
        r"|invalid json payload"
        r"|does not support (?:\w{1,20} )?(?:input|images?)|temperature must be"
        r"|must be a response to a prece|\bbad request\b|tool use concurrency"
        r"|type validation failed|non-empty content|(?:session|conversation) (?:was )?not found"
        r"|no (?:conversation|session) found|must alternate|no tool output found"
        r"|without its required|function call turn comes|unexpected `?tool_use"
        r"|must be non-empty|provider not provided|field required|unprocessable entity"
        r"|is not supported in this model|unsupported (?:content|media)",
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
)
