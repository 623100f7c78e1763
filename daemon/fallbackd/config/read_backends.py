"""`[backends.<id>]`: the user's fields over the built-in profile, or a new backend."""

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from fallbackd.backends import ALIASES, ENDPOINTS, KIND_NAMES, KINDS
from fallbackd.backends.http_calls import is_loopback
from fallbackd.backends.signatures import LATER
from fallbackd.backends.spec import Options
from fallbackd.config import profiles
from fallbackd.config.fields import BY_VALUE, Say, guess, join, read, show, table
from fallbackd.config.read_credentials import read_credentials
from fallbackd.config.read_http import (
    FILE_HINT,
    check_http,
    check_model,
    lack_of_address,
    lack_of_secrecy,
)
from fallbackd.config.schema import BackendTable
from fallbackd.core.health.scopes import owner_of
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend
from fallbackd.core.protocol import CredentialRef
from fallbackd_conversations.redact import redact, redact_command

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
            say(path, f"{show(key)} is no name for a backend; the table is left out.")
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
    """What the address of a backend says of it, also the one that its kind always has."""
    url = options.base_url
    if url is None and kind in ENDPOINTS and options.lacks is None:
        url = ENDPOINTS[kind].base_url
    if url is None:
        return {}
    host, is_local = _place(url)
    return {"provider": host, "loopback": is_local}


def _account(kind: str, options: Options) -> str | None:
    """How a shell names it, where it has a directory of its own."""
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
    if backend.kind == "generic-cli" and not options.command:
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
