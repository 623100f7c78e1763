"""What the table of a backend says about HTTP: its fields fit its kind, and each other."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from fallbackd.backends import ENDPOINTS
from fallbackd.backends.http_calls import (
    KEYS_BY_HOST,
    MODES,
    MODES_BY_PROVIDER,
    is_open,
    mode_of,
    why_open,
)
from fallbackd.backends.spec import Endpoint, Options
from fallbackd.config.fields import Say, guess, join, show
from fallbackd.config.schema import BackendTable

_ONLY_HTTP = (
    "api_mode",
    "connect_timeout_s",
    "default",
    "embeddings",
    "headers",
    "insecure_http",
    "max_output_tokens",
    "omit",
    "read_timeout_s",
    "rename",
    "tls_ca_file",
    "tls_client_cert",
    "tls_client_key",
    "tls_verify",
)
FILE_HINT = "must be the path of a file, absolute or from ~/"


def check_http(kind: str, given: dict[str, Any], path: str, say: Say) -> None:  # by field
    """Say what cannot be, take it out of `given`, and put in the mode that a provider means."""
    endpoint = ENDPOINTS.get(kind)
    if endpoint is None:
        for name in _ONLY_HTTP:
            if name in given:
                say(join(path, name), f"has no effect: {kind} is no HTTP API.")
        return
    _check_mode(endpoint, given, path, say)
    _check_embeddings(endpoint, given, path, say)
    _check_parameters(given, path, say)
    if "tls_client_key" in given and "tls_client_cert" not in given:
        say(join(path, "tls_client_key"), "has no effect without tls_client_cert.")
        del given["tls_client_key"]
    if given.get("tls_verify") is False:
        cure = "better name the certificate of the server in tls_ca_file."
        say(join(path, "tls_verify"), f"is off, so the key can be read in transit; {cure}")


def _check_mode(endpoint: Endpoint, given: dict[str, Any], path: str, say: Say) -> None:
    mode = given.get("api_mode")
    if mode is None:
        meant = MODES_BY_PROVIDER.get(str(given.get("provider", "")).lower())
        if meant is not None:
            given["api_mode"] = meant
        return
    if mode not in MODES or (MODES[mode] == "hermes_chat" and not endpoint.is_hermes):
        modes = [one for one in MODES if one != "hermes_chat" or endpoint.is_hermes]
        names = ", ".join(map(show, modes))
        known = f"is not one of {names}.{guess(str(mode), modes)}"
        say(join(path, "api_mode"), f"{show(mode)} {known} It is chosen by the URL.")
        del given["api_mode"]


_ASKED = frozenset({"contents", "input", "messages", "model", "prompt", "stream"})
"""What a request is about, and how its answer comes."""
_ACTING = frozenset(
    {"background", "conversation", "mcp_servers", "n", "previous_response_id", "tools"}
)
"""What makes a request one of another kind, which only its caller can."""


def _check_embeddings(endpoint: Endpoint, given: dict[str, Any], path: str, say: Say) -> None:
    own = Options(api_mode=given.get("api_mode"), base_url=given.get("base_url"))
    mode = mode_of(endpoint, own)
    if "embeddings" in given and mode in ("messages", "hermes_chat"):
        say(join(path, "embeddings"), f"has no effect: the API of this backend ({mode}) has none.")
        del given["embeddings"]


def _check_parameters(given: dict[str, Any], path: str, say: Say) -> None:
    """Say which changes of requests cannot be, and take them out."""

    def refuse(key: str, name: str, why: str) -> None:
        say(join(join(path, key), name), f"{why}; it is left out.")

    def may_be(key: str, name: str, other: str, value: object) -> bool:
        if name in _ASKED or other in _ASKED | _ACTING or (name == "store" and value is True):
            refuse(key, name, "what a caller asks for is not changed")
        elif not _is_json(value):
            refuse(key, name, f"{show(value)} is no JSON")
        else:
            return True
        return False

    if "omit" in given:
        given["omit"] = tuple(one for one in given["omit"] if may_be("omit", one, "", None))
    for key in ("rename", "default"):
        if key in given:
            given[key] = {
                name: value
                for name, value in given[key].items()
                if may_be(key, name, value if key == "rename" else name, value)
            }


def _is_json(value: object) -> bool:
    match value:
        case float():
            return isfinite(value)
        case dict():
            return all(map(_is_json, value.values()))
        case list():
            return all(map(_is_json, value))
        case _:
            return value is None or isinstance(value, bool | int | str)


def lack_of_address(
    kind: str, raw: object, given: Mapping[str, Any], path: str, say: Say
) -> str | None:
    """
    Why the address of the kind is not what the user meant, where no other can be used.

    The keys are sent to the address. So the default holds only for a table without an address,
    not even an unreadable one, that names no other provider.
    """
    endpoint = ENDPOINTS.get(kind)
    if endpoint is None or "base_url" in given:
        return None
    host = urlsplit(endpoint.base_url).netloc
    cure = f"{join(path, 'base_url')} to the address of its API, with http:// or https://"
    keys = raw if isinstance(raw, Mapping) else ()
    written = next((key for key in keys if _is_address_key(key)), None)
    if written is not None:
        lacks = f"its {show(written)} cannot be used: set {cure}"
    else:
        provider = str(given.get("provider") or "").strip().lower()
        if provider in ("", host, urlsplit(endpoint.base_url).hostname, *endpoint.vendors):
            return None
        lacks = f"no address of provider {show(given['provider'])} is known: set {cure}"
    say(path, f"{lacks}. Until then nothing is sent, and {host} is not asked in its place.")
    return lacks


def lack_of_secrecy(kind: str, options: Options, path: str, say: Say) -> str | None:
    """Why a key must not leave for where `base_url` points, where one certainly would."""
    url = options.base_url
    if kind not in ENDPOINTS or url is None or not is_open(url, options):
        return None
    parts = urlsplit(url)
    if not options.credentials and parts.hostname not in KEYS_BY_HOST:
        return None
    lacks = why_open(url)
    say(join(path, "base_url"), f"{lacks}. Until then nothing is sent.")
    return lacks


_KNOWN_KEYS = frozenset(BackendTable.__struct_fields__)
_ADDRESS_KEYS = ("baseurl", "url", "apibase", "apiurl", "endpoint", "apiendpoint", "address")


def _is_address_key(key: object) -> bool:
    """`base_url`, or a key that was probably meant as it."""
    if key == "base_url" or not isinstance(key, str) or key in _KNOWN_KEYS:
        return key == "base_url"
    import difflib  # most files have no such key

    plain = re.sub(r"[^a-z]", "", key.lower()[:100])
    return plain in _ADDRESS_KEYS or bool(difflib.get_close_matches(plain, ["baseurl"], cutoff=0.8))


def check_model(kind: str, options: Options, path: str, say: Say) -> None:
    """The public APIs refuse a request that names no model; a server of one's own may have one."""
    endpoint = ENDPOINTS.get(kind)
    if endpoint is None or options.model or endpoint.model or options.embeddings:
        return
    host = urlsplit(options.base_url or endpoint.base_url).hostname
    if host in KEYS_BY_HOST:
        cure = "only entries of chains that name a model can be answered."
        say(join(path, "model"), f"is missing, and {host} needs one: {cure}")
