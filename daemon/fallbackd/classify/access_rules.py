"""Signatures of what is not allowed: policies, regions, certificates, logins, models."""

from fallbackd.classify.rules import Rule, words
from fallbackd.core.failures import Reason

_R = Reason

ACCESS_RULES: tuple[Rule, ...] = (
    # --- the way there: a proxy says so, never the provider, and its words are those of a login ---
    Rule(
        id="proxy-login",
        reason=_R.LOCAL_NETWORK,
        detail="proxy_login",
        retry=False,
        statuses=(407,),
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
        pattern=r"unavailable in (?:your )?region|in certain regions|not available in your country"
        r"|(?:country|region|location|territory)\b[\w, ]{0,40}not (?:supported|available"
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
        r"|violat\w{1,40} (?:our |the )?(?:usage|content|safety) (?:polic|guideline)"
        r"|requires moderation|\bSAFETY_CHECK|flagged (?:as|for|by)"
        r"|harmful content|limited access to this content|敏感|违规"
        r"|inappropriate content|usage polic|content exists risk|responsible ai"
        r"|(?:response|prompt|output|content|request)s? (?:was |were )?(?:filtered|flagged)"
        r"|due to (?:safety|prohibited)|matched public code|safety reasons|input was flagged"
        r"|rejected as a result of our safety",
        codes=words(
            """
            content_filter content-filter content_policy_violation safety
            data_inspection_failed contentpolicyviolationerror
            """
        ),
    ),
    # --- certificates: what fails for one is often said to be a login -----------------------------
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
        codes=words(
            """
            token_revoked token_invalidated invalid_grant refresh_token_reused
            """
        ),
    ),
    Rule(
        id="no-login",
        reason=_R.NOT_CONFIGURED,
        pattern=r"missing environment variable|set an auth method"
        r"|must specify the \w{1,40} environment variable"
        r"|no (?:\w{1,40} )?(?:provider|model|llm)s? (?:(?:is|are) )?configured"
        r"|error loading config"
        r"|model provider [`'\"]?[\w.-]{1,60}[`'\"]? not found|api_key client option must be set"
        r"|configuration is invalid|llm not set"
        r"|config file at .{0,200}is not valid"
        r"|configuration (?:error|invalid)|invalid configuration|requires setting the \w{1,40} env",
    ),
    Rule(
        id="verified-for-parameter",
        reason=_R.FORMAT_ERROR,
        pattern=r"verified to (?:generate|use) (?:reasoning|the parameter)",
    ),
    Rule(
        id="model",
        reason=_R.MODEL_NOT_FOUND,
        pattern=r"model[\w\"'`: ./\[\]@-]{0,80}(?:does not exist|doesn't exist|not exist"
        r"|not found|is not found"
        r"|is not supported when|not deployed|is disabled|has been (?:retired|deprecated"
        r"|decommissioned|removed|shut)"
        r"|was (?:retired|removed)|no longer (?:available|supported)|not available|is unavailable)"
        r"|models?/\S{1,200} (?:is )?not found|no such model|unknown model|invalid model"
        r"|(?:un)?known provider/model"
        r"|model (?:id |identifier )(?:\S{1,200} )?(?:is )?invalid|not a valid model"
        r"|unsupported model"
        r"|no such deployment|no model named|model [`'\"]?[\w./:-]{1,80}[`'\"]? is not supported"
        r"|model name passed in"
        r"|requested model is not supported|on-demand throughput isn't supported"
        r"|not_?found_?error.{0,200}\bmodel\b|publisher model|entity was not found"
        r"|is not available with the .{0,30}plan|access to the (?:requested "
        r"|specified )?model\b(?! regist)"
        r"|no allowed providers are available|model .{0,60}(?:has been )?(?:sunset|discontinued)"
        r"|issue with the selected model|(?:access to|invoke) (?:the|this) model"
        r"|no endpoints found|not on the free tier"
        r"|model_not_found|may not have access to it|failed to find (?:the )?model",
        codes=words(
            """
            model_not_found providermodelnotfounderror modelnotfounderror
            model_not_available deploymentnotfound model_deprecated
            """
        ),
    ),
    Rule(
        id="model-404",
        reason=_R.MODEL_NOT_FOUND,
        pattern=r"^model: \S{1,200}$|\bmodel\b",
        statuses=(404,),
    ),
    Rule(
        id="auth",
        reason=_R.AUTH,
        pattern=r"unable to locate credentials|insufficient permissions|missing scopes"
        r"|bad credentials|credential is only"
        r"|no authentication information|access denied|authorization (?:is )?required"
        r"|reported as leaked|log ?out and sign ?in|could not be refreshed|subscription key"
        r"|not eligible for|api[ _-]?key is (?:missing|required|blocked)"
        r"|invalid (?:\w{1,40} )?credentials"
        r"|invalid authentication|login (?:is )?required|failed to (?:get|fetch"
        r"|obtain) \w{1,40} token"
        r"|(?:oauth|access|refresh) token (?:revoked|expired)|re-?authenticate|token missing"
        r"|didn't provide an api key|not authorized to use|credentials? (?:not found|missing)"
        r"|(?:invalid|incorrect|missing|bad|wrong|expired|no|provide an?"
        r"|provided?) (?:\w{1,40} )?(?:api[ _-]?key|x-api-key)"
        r"|api[ _-]?key (?:is |was )?(?:not valid|invalid|missing|expired|not (?:found|set"
        r"|provided)|incorrect|disabled)"
        r"|api_key missing|(?:please )?run /login|not logged in|log ?in again|sign(?:ing)? in again"
        r"|(?:token|session|credentials?|login) (?:is |has |was |have )?(?:been )?(?:expired"
        r"|invalid)\b"
        r"|(?:security|access|auth\w{0,40}) token.{0,40}(?:expired|invalid)|(?:invalid"
        r"|expired) (?:access |auth\w{0,40} |bearer )?token"
        r"|authentication (?:failed|required|error)|failed to authenticate|unauthenticated"
        r"|\bunauthorized\b|not authorized"
        r"|(?:refresh|renew)\w{0,40} (?:OAuth )?token.{0,40}failed|token refresh failed"
        r"|failed to refresh (?:OAuth )?token"
        r"|does not have (?:permission|\w{1,40} Requests permission)|no auth credentials"
        r"|requires? authentication"
        r"|organization (?:must be verified to|is disabled|has been disabled)|access paused"
        r"|account (?:is )?(?:suspended|disabled|deactivated)"
        r"|api has not been used in project|failed to (?:sign in|login)\b"
        r"|认证失败|无效的(?:令牌|密钥)|令牌已过期",
        codes=words(
            """
            authentication_error invalid_api_key authentication_failed unauthorized
            unauthenticated authenticationerror permissiondeniederror permission_error
            invalid_token token_expired api_key_invalid permission_denied
            oauth_org_not_allowed invalid_authentication_error ip_not_authorized
            loadapikeyerror ai_loadapikeyerror fatalauthenticationerror autherror
            permissiondenied accessdeniedexception unrecognizedclientexception
            expiredtokenexception
            """
        ),
    ),
)
