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
        pattern=r"(?:matching|by) your (?:data|privacy|guardrail)[\w ]*polic|data policy",
    ),
    Rule(
        id="region",
        reason=_R.CONTENT_POLICY,
        detail="region",
        pattern=r"not available in your country"
        r"|(?:country|region|location|territory)\b[\w, ]{0,40}not (?:supported"
        r"|available|allowed)"
        r"|not (?:supported|available) in your (?:country|region|location)",
        codes=("unsupported_country_region_territory",),
    ),
    Rule(
        id="content-policy",
        reason=_R.CONTENT_POLICY,
        pattern=r"content[_ ](?:filter|policy|moderation|management)"
        r"|safety (?:system|filter|policy)"
        r"|(?:request|candidate|output|response|prompt) (?:was |is )?blocked"
        r"|blocked (?:due to|by|for) .{0,30}(?:safety|prohibited|content|policy)"
        r"|new_sensitive|requires moderation|\bSAFETY_CHECK|flagged (?:as|for|by)|敏感|违规"
        r"|inappropriate content|usage polic|content exists risk|responsible ai"
        r"|matched public code|safety reasons|rejected as a result of our safety",
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
        r"|unable to get (?:local )?issuer|unable to verify the first certificate"
        r"|certificate (?:has expired|is not valid|verification failed|unknown)"
        r"|UNABLE_TO_VERIFY_LEAF|DEPTH_ZERO_SELF_SIGNED",
        codes=("sslcertverificationerror",),
    ),
    # --- login ---------------------------------------------------------------------------------
    Rule(
        id="revoked",
        reason=_R.AUTH,
        detail="revoked",
        pattern=r"\binvalid_grant\b|\brefresh_token_reused\b"
        r"|refresh token (?:has already been used|was already used|not found or"
        r" invalid|was revoked|has been revoked)"
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
        pattern=r"set an auth method|must specify the \w{1,40} environment variable"
        r"|no (?:\w{1,40} )?(?:provider|model|llm)s? (?:(?:is|are) )?configured"
        r"|error loading config|model provider [`'\"]?[\w.-]{1,60}[`'\"]? not found"
        r"|api_key client option must be set|configuration is invalid|llm not set"
        r"|config file at .{0,200}is not valid|invalid configuration"
        r"|requires setting the \w{1,40} env",
    ),
    Rule(
        id="verified-for-parameter",
        reason=_R.FORMAT_ERROR,
        pattern=r"verified to (?:generate|use) (?:reasoning|the parameter)",
    ),
    Rule(
        id="model",
        reason=_R.MODEL_NOT_FOUND,
        pattern=r"model[\w\"'`: ./\[\]@-]{0,80}(?:does not exist|doesn't exist|not exist|not"
        r" found|is not found|is not supported when|not deployed|is disabled|has"
        r" been (?:retired|deprecated|decommissioned|removed|shut)|was (?:retired"
        r"|removed)|no longer (?:available|supported)|not available|is unavailable)"
        r"|no such model|unknown model|invalid model"
        r"|model (?:id |identifier )(?:\S{1,200} )?(?:is )?invalid|not a valid model"
        r"|unsupported model|no such deployment|no model named"
        r"|model [`'\"]?[\w./:-]{1,80}[`'\"]? is not supported"
        r"|requested model is not supported|on-demand throughput isn't supported"
        r"|publisher model|is not available with the .{0,30}plan"
        r"|access to the (?:requested |specified )?model\b(?! regist)"
        r"|no allowed providers are available|issue with the selected model"
        r"|(?:access to|invoke) (?:the|this) model|no endpoints found|model_not_found"
        r"|may not have access to it",
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
        pattern=r"\bmodel\b",
        statuses=(404,),
    ),
    Rule(
        id="auth",
        reason=_R.AUTH,
        pattern=r"unable to locate credentials|insufficient permissions|missing scopes"
        r"|bad credentials|credential is only|no authentication information|access denied"
        r"|authorization (?:is )?required|reported as leaked|subscription key"
        r"|not eligible for|api[ _-]?key is (?:missing|required|blocked)"
        r"|failed to (?:get|fetch|obtain) \w{1,40} token"
        r"|(?:oauth|access|refresh) token (?:revoked|expired)|re-?authenticate"
        r"|(?:invalid|incorrect|missing|bad|wrong|expired|no|provide an?|provided?)"
        r" (?:\w{1,40} )?(?:api[ _-]?key|x-api-key)"
        r"|api[ _-]?key (?:is |was )?(?:not valid|invalid|missing|expired|not"
        r" (?:found|set|provided)|incorrect|disabled)|log ?in again"
        r"|(?:token|session|credentials?|login) (?:is |has |was |have )?(?:been"
        r" )?(?:expired|invalid)\b|authentication (?:failed|required|error)"
        r"|failed to authenticate|unauthenticated|\bunauthorized\b|not authorized"
        r"|no auth credentials|requires? authentication|access paused"
        r"|failed to (?:sign in|login)\b|无效的(?:令牌|密钥)",
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
