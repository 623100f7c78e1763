"""What the table of a backend says about HTTP: its fields fit its kind, and each other."""

from typing import Any
from urllib.parse import urlsplit

from fallbackd.backends import ENDPOINTS
from fallbackd.backends.http_calls import KEYS_BY_HOST, MODES, MODES_BY_PROVIDER, mode_of
from fallbackd.backends.spec import Options
from fallbackd.config.fields import Say, guess, join, show

_ONLY_HTTP = (
    "api_mode",
    "connect_timeout_s",
    "headers",
    "max_output_tokens",
    "read_timeout_s",
    "tls_ca_file",
    "tls_client_cert",
    "tls_client_key",
    "tls_verify",
)
FILE_HINT = "must be the path of a file, absolute or from ~/"


def check_http(kind: str, given: dict[str, Any], path: str, say: Say) -> None:  # by field
    """Say what cannot be, take it out of `given`, and put in the mode that a provider means."""
    if kind not in ENDPOINTS:
        for name in _ONLY_HTTP:
            if name in given:
                say(join(path, name), f"has no effect: {kind} is no HTTP API.")
        return
    mode = given.get("api_mode")
    if mode is None:
        meant = MODES_BY_PROVIDER.get(str(given.get("provider", "")).lower())
        if meant is not None:
            given["api_mode"] = meant
    elif mode not in MODES or (MODES[mode] == "hermes_chat" and kind != "hermes-api"):
        modes = [one for one in MODES if one != "hermes_chat" or kind == "hermes-api"]
        names = ", ".join(map(show, modes))
        known = f"is not one of {names}.{guess(str(mode), modes)}"
        say(join(path, "api_mode"), f"{show(mode)} {known} It is chosen by the URL.")
        del given["api_mode"]
    if "tls_client_key" in given and "tls_client_cert" not in given:
        say(join(path, "tls_client_key"), "has no effect without tls_client_cert.")
        del given["tls_client_key"]
    if given.get("tls_verify") is False:
        cure = "better name the certificate of the server in tls_ca_file."
        say(join(path, "tls_verify"), f"is off: whoever stands between may read the key; {cure}")


def check_model(kind: str, options: Options, path: str, say: Say) -> None:
    """The public APIs refuse a request that names no model; a server of one's own may have one."""
    endpoint = ENDPOINTS.get(kind)
    if endpoint is None or options.model or endpoint.model:
        return
    host = urlsplit(options.base_url or endpoint.base_url).hostname
    if host in KEYS_BY_HOST:
        cure = "only entries of chains that name a model can be answered."
        say(join(path, "model"), f"is missing, and {host} answers nobody who names none: {cure}")


def is_plain_http(kind: str, options: Options) -> bool:
    """An API that shows nothing before its whole answer."""
    endpoint = ENDPOINTS.get(kind)
    return endpoint is not None and mode_of(endpoint, options) == "hermes_chat"
