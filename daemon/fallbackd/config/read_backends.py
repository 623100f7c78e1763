"""`[backends.<id>]`: the user's fields over the built-in profile, or a new backend."""

import os
import re
import shlex
from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from fallbackd.backends import ALIASES, ENDPOINTS, KIND_NAMES, KINDS
from fallbackd.backends.http_calls import (
    KEYS_BY_HOST,
    MODES,
    MODES_BY_PROVIDER,
    is_loopback,
    is_open,
    mode_of,
    why_open,
)
from fallbackd.backends.signatures import LATER
from fallbackd.backends.spec import Endpoint, Options
from fallbackd.config import profiles
from fallbackd.config.fields import BY_VALUE, Say, convert, guess, join, read, show, table
from fallbackd.config.schema import BackendTable, CredentialTable
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend
from fallbackd.core.protocol import CredentialRef
from fallbackd.core.scopes import owner_of
from fallbackd_conversations.redact import redact, redact_command

_Source = Literal["env", "file", "command", "systemd"]
_SOURCES: tuple[_Source, ...] = ("env", "file", "command", "systemd")
_WRITE = {
    "env": BY_VALUE,
    "file": 'must be the path of a file, absolute or from ~/, as in file = "~/.config/acme.key"',
    "command": 'write it as a list, without a shell: command = ["pass", "show", "acme"]',
    "systemd": "must be the name that LoadCredential= of the unit gives it",
    "field": 'must be names with dots between them, as in field = "tokens.access_token"',
    "into": "must be the name of an environment variable",
}


def read_credentials(
    raw: object, path: str, say: Say, *, is_http: bool
) -> tuple[CredentialRef, ...]:
    """
    Args:
        path: Of the backend's table.
        is_http: Its requests carry the secret; else its program finds it in a variable.
    """
    here = join(path, "credentials")
    if raw is None:
        return ()
    if not isinstance(raw, list):
        say(here, 'must be a list: credentials = [{ label = "main", env = "NAME" }].')
        return ()
    found: list[CredentialRef] = []
    for number, value in enumerate(raw):
        place = join(here, number)
        one = _credential(value, place, say, is_http=is_http)
        if one is None:
            continue
        if any(one.label == other.label for other in found):
            say(place, f"the label {show(one.label)} is taken; it is left out.")
            continue
        found.append(one)
    return tuple(found)


def _credential(raw: object, path: str, say: Say, *, is_http: bool) -> CredentialRef | None:
    if not isinstance(raw, Mapping):
        # Possibly the key itself: not shown.
        say(path, f"{BY_VALUE}; it is left out.")
        return None
    given = _fields(raw, path, say)
    if given is None:
        return None
    source = _source(given, path, say)
    if source is None:
        return None
    _say_unknown(raw, path, say)
    place: Any = given[source]
    into = given.get("into")
    if is_http and into is not None:
        say(join(path, "into"), "has no effect: requests carry the credential themselves.")
        into = None
    elif not is_http and into is None:
        if source != "env":
            cure = 'name the variable that the program reads, as in into = "ACME_API_KEY"'
            say(join(path, "into"), f"is missing: {cure}; it is left out.")
            return None
        into = str(place)
    found = CredentialRef(
        label=given.get("label") or _label(source, place),
        source=source,
        field=given.get("field"),
        into=into,
    )
    if source == "command":
        return msgspec.structs.replace(found, argv=tuple(place))
    return msgspec.structs.replace(found, name=str(place))


def _source(given: Mapping[str, Any], path: str, say: Say) -> _Source | None:
    """The one place that is named; None: there is none, or there are several."""
    sources = [one for one in _SOURCES if one in given]
    if len(sources) == 1:
        return sources[0]
    what = f"names {len(sources)} places: give one of env, file, command or systemd"
    say(path, f"{what if sources else BY_VALUE}; it is left out.")
    return None


def _say_unknown(raw: Mapping[str, object], path: str, say: Say) -> None:
    types = CredentialTable.__annotations__
    for key in raw:
        if key not in types:
            say(join(path, key), f"has no effect; {BY_VALUE}.{guess(key, types)}")


def _fields(raw: Mapping[str, object], path: str, say: Say) -> dict[str, Any] | None:  # by field
    """The fields that can be used; None where the place itself cannot."""
    types = CredentialTable.__annotations__
    given: dict[str, Any] = {}
    usable = True
    for key, value in raw.items():
        if key not in types:
            continue
        fits, read = convert(value, types[key])
        if fits and read is not None:
            given[key] = read
        elif key == "label":
            say(join(path, key), f"{show(value)}: must be one word; another is used.")
        else:  # possibly the key itself: not shown
            say(join(path, key) if key != "env" else path, f"{_WRITE[key]}; it is left out.")
            usable = False
    return given if usable else None


def _label(source: str, place: Any) -> str:  # of any field of the table
    """A name by the place, where the file gives none."""
    text = os.path.basename(place[0] if source == "command" else place)
    fits, label = convert(text, CredentialTable.__annotations__["label"])
    return str(label) if fits and label else source


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
                say(join(path, name), f"has no effect: {kind} is not an HTTP API.")
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
            refuse(key, name, f"{show(value)} is not JSON")
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
    Return why the kind's address is not what the user meant, where no other can be used.

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
    """Return why a key must not be sent to `base_url`, where one certainly would be."""
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


_ID = re.compile(r"[A-Za-z0-9][\w./@:+-]{0,127}", re.ASCII)
_SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie"}
)

_OF_BACKEND = frozenset(Backend.__struct_fields__) - {"id", "kind", "credentials"}
_OF_OPTIONS = frozenset(Options.__struct_fields__) - {"credentials"}

_PARAMETERS = "names of parameters, with a dot before a field inside of another one"
_HINTS = {
    "command": 'write it as a list, without a shell: command = ["program", "--flag"]',
    "headers": "must be a table of texts",
    "env": "must be a table of texts, each key the name of an environment variable",
    "omit": f"must be a list of {_PARAMETERS}",
    "rename": f"must be a table of {_PARAMETERS}, each with its other name, which has no dot",
    "default": f"must be a table of {_PARAMETERS}, each with its value",
    "writable": "must be a list of paths, each absolute or from ~/",
    "tls_ca_file": FILE_HINT,
    "tls_client_cert": FILE_HINT,
    "tls_client_key": FILE_HINT,
}


class Backends(Struct, frozen=True, kw_only=True):
    backends: Mapping[BackendId, Backend]
    """In the order of declaration: the profiles, then new ones as the file has them."""
    options: Mapping[BackendId, Options]
    left_out: frozenset[str] = frozenset()
    """Ids whose table could not become a backend: it has been said why."""


def read_backends(raw: object, environ: Mapping[str, str], say: Say) -> Backends:
    """
    Args:
        environ: Of the daemon: variables may set up a profile.
    """
    backends, options = profiles.built_in(environ)
    left_out: set[str] = set()
    for key, value in table(raw, "backends", say).items():
        path = join("backends", key)
        if not _ID.fullmatch(key):
            say(path, f"{show(key)} is not a valid backend name; the table is left out.")
            left_out.add(key)
            continue
        made = _backend(BackendId(key), value, path, say)
        if made is None:
            left_out.add(key)
            continue
        backend, its_options = made
        backends[backend.id] = backend
        options[backend.id] = its_options
    _say_shared_labels(backends, options, say)
    return Backends(
        backends=backends,
        options=options,
        left_out=frozenset(left_out),
    )


def _say_shared_labels(
    backends: Mapping[BackendId, Backend], options: Mapping[BackendId, Options], say: Say
) -> None:
    """Health is kept by provider and label: one label for two places is one fate for both."""
    first: dict[tuple[str, str], tuple[BackendId, CredentialRef]] = {}
    for backend in backends.values():
        for number, ref in enumerate(options[backend.id].credentials):
            place = msgspec.structs.replace(ref, into=None)
            other, known = first.setdefault((owner_of(backend), ref.label), (backend.id, place))
            if known != place:
                path = join(join(join("backends", backend.id), "credentials"), number)
                say(
                    join(path, "label"),
                    f"{show(ref.label)} is another place in {show(other)}, of the same provider:"
                    " what is wrong with one takes both out. Give it another label.",
                )


def _backend(id: BackendId, raw: object, path: str, say: Say) -> tuple[Backend, Options] | None:
    profile = profiles.BACKENDS.get(id)
    options = profiles.OPTIONS.get(id, Options())
    own = profile or _as_its_agent(id, raw)

    def in_use(name: str) -> object:
        return getattr(own if name in _OF_BACKEND else options, name, None)

    given = read(
        raw,
        BackendTable,
        path,
        say,
        in_use=in_use,
        by_hand=frozenset({"credentials", "kind"}),
        hints=_HINTS,
    )
    kind = _kind(id, given, path, say)
    if kind is None:
        return None
    if given.get("fallback_model", "") == given.get("model", own.model):
        say(join(path, "fallback_model"), "is the model of the backend itself and has no effect.")
    _drop_secrets(given, path, say)
    _drop_bad_url(given, path, say)
    check_http(kind, given, path, say)
    # Only what was accepted says where it asks.
    own = profile or _as_its_agent(id, given | {"kind": kind})

    lacks = lack_of_address(kind, raw, given, path, say)

    credentials = read_credentials(
        given.pop("credentials", None), path, say, is_http=kind in ENDPOINTS
    )
    options = _with_given(options, given, credentials)
    lacks = lacks or lack_of_secrecy(kind, options, path, say)
    options = msgspec.structs.replace(options, lacks=lacks)
    of_backend = {name: given[name] for name in _OF_BACKEND & given.keys()}
    check_model(kind, options, path, say)
    if profile is None or "base_url" in given:
        of_backend = _of_place(kind, options) | of_backend
    backend = msgspec.structs.replace(
        own,
        kind=kind,
        lacks=lacks,
        credentials=tuple(one.label for one in credentials),
        **of_backend,
    )
    backend = msgspec.structs.replace(backend, account=_account(kind, options))
    return _startable(profiles.of_kind(backend, options), options, path, say), options


def _as_its_agent(id: BackendId, raw: object) -> Backend:
    """
    An agent that is set up once more, for another account, is as the first one.

    Not where it asks another provider, or a model of which its agent says nothing.
    """
    given = raw if isinstance(raw, dict) else {}
    kind, env = given.get("kind"), given.get("env")
    like = profiles.BACKENDS.get(BackendId(kind)) if isinstance(kind, str) else None
    if like is None or like.kind != kind or like.is_http:
        return Backend(id=id, kind="")
    named = (*given, *(env if isinstance(env, dict) else ()))
    is_elsewhere = any(name.lower().endswith("base_url") for name in named)
    if is_elsewhere or (like.family is None and "model" in given):
        return Backend(id=id, kind="")
    return msgspec.structs.replace(like, id=id, name="")


def _with_given(
    options: Options, given: Mapping[str, Any], credentials: tuple[CredentialRef, ...]
) -> Options:
    made = msgspec.structs.replace(
        options, **{name: given[name] for name in _OF_OPTIONS & given.keys()}
    )
    return msgspec.structs.replace(
        made,
        credentials=credentials or made.credentials,
        env=_without_tilde(made.env) if made.env else made.env,
    )


def _of_place(kind: str, options: Options) -> dict[str, Any]:
    """Return the fields that follow from a backend's address, also one that its kind always has."""
    url = options.base_url
    if url is None and kind in ENDPOINTS and options.lacks is None:
        url = ENDPOINTS[kind].base_url
    if url is None:
        return {}
    host, is_local = _place(url)
    return {"provider": host, "loopback": is_local}


def _account(kind: str, options: Options) -> str | None:
    """Name the account as a shell does, where it has a directory of its own."""
    variable = KINDS[kind].setup.home if kind in KINDS else ""
    place = options.env.get(variable) if variable else None
    return None if place is None else f"{variable}={shlex.quote(place)}"


def _without_tilde(env: Mapping[str, str]) -> dict[str, str]:
    """No shell reads these values: `~/` at their beginning is the home directory all the same."""
    return {
        name: os.path.expanduser(value) if value.startswith("~/") else value
        for name, value in env.items()
    }


def _kind(id: BackendId, given: dict[str, Any], path: str, say: Say) -> str | None:
    """The kind by its own name, or None where the table cannot become a backend."""
    profile = profiles.BACKENDS.get(id)
    here = join(path, "kind")
    raw = given.pop("kind", None)
    known = (*KIND_NAMES, *ALIASES, *LATER)
    if raw is None and profile is not None:
        return profile.kind
    name = ALIASES.get(raw, raw) if isinstance(raw, str) else None
    if name in KIND_NAMES:
        return name
    if raw is None and "command" in given:
        say(here, 'is missing; "generic-cli" is used.')
        return "generic-cli"
    if name in LATER:
        message = f"{show(raw)} has no effect yet"
    elif raw is None:
        near = guess(id, profiles.BACKENDS)
        message = f'is missing: write kind = "generic-cli" and a command.{near} As it is'
    else:
        names = ", ".join(show(one) for one in KIND_NAMES)
        message = f"{show(raw)} is not one of {names}.{guess(str(raw), known)} As it is"
    if profile is not None:
        say(here, f"{message}, the default {show(profile.kind)} is used.")
        return profile.kind
    say(here, f"{message}, the backend is left out.")
    return None


def _startable(backend: Backend, options: Options, path: str, say: Say) -> Backend:
    """The backend, disabled where it lacks what its kind cannot do without."""
    lacking: tuple[str, str] | None = None
    asks_for_text = any("{prompt}" in word for word in options.command)
    asks_for_file = any("{prompt_file}" in word for word in options.command)
    if backend.kind in ("generic-cli", "acp") and not options.command:
        lacking = "command", _HINTS["command"]
    elif asks_for_text and not options.prompt_in_argv:
        cure = "set prompt_in_argv = true, or use {prompt_file} or stdin; no prompt can be given."
        say(join(path, "command"), f"uses {{prompt}}: {cure}")
    elif backend.kind == "generic-cli" and options.stdin == "none":
        is_promptless = not (asks_for_text or asks_for_file)
        if is_promptless:
            say(join(path, "stdin"), '"none", and no {prompt_file} in the command: no prompt.')
    if lacking is None:
        return backend
    name, cure = lacking
    say(join(path, name), f"is missing: {cure}; the backend is disabled.")
    return msgspec.structs.replace(backend, enabled=False)


def _drop_secrets(given: dict[str, Any], path: str, say: Say) -> None:
    headers = given.get("headers")
    if headers:
        for name in [name for name in headers if name.lower() in _SECRET_HEADERS]:
            del headers[name]
            say(join(join(path, "headers"), name), f"{BY_VALUE}; it is left out.")
    command = given.get("command") or []
    for at, (word, shown) in enumerate(zip(command, redact_command(command), strict=True)):
        if word != shown:
            say(
                f"{join(path, 'command')}[{at}]",
                "looks like a secret, which every user of this machine can read in the list of"
                " processes; better set a variable for the daemon and name it in allow_env.",
            )
    for name, value in (given.get("env") or {}).items():
        if redact(value) != value:
            say(
                join(join(path, "env"), name),
                "looks like a secret; better set it for the daemon and name it in allow_env.",
            )


def _drop_bad_url(given: dict[str, Any], path: str, say: Say) -> None:
    url = given.get("base_url")
    if url is None:
        return
    here = join(path, "base_url")
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname)
        has_login = parts.username is not None or parts.password is not None
        has_login = has_login or redact(url) != url
        _ = parts.port
    except ValueError:
        fits = has_login = False
    if fits and not has_login and url.isprintable() and " " not in url:
        return
    del given["base_url"]
    if has_login:
        say(here, f"{BY_VALUE}; it is left out.")
    else:
        say(here, f"{show(url)}: must begin with http:// or https:// and a host; it is left out.")


def _place(url: str) -> tuple[str, bool]:
    """Host, with the port where it is written, and whether it is this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port is not None else ""
    return (f"[{host}]" if ":" in host else host) + port, is_loopback(host)
