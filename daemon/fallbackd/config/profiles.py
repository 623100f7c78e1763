"""
Built-in backends, chains, caps and scores: data that needs no configuration file.

The order of declaration matters: equal scores of `suggest` go to the backend that is first.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry

IN_SESSION = BackendId("in-session")
ANY = "*"
"""The chain for callers without one of their own."""

CODEX = BackendId("codex")
OPENCODE = BackendId("opencode")
GEMINI = BackendId("gemini")
NUMASEC = BackendId("numasec")
HERMES = BackendId("hermes-api")
CLAUDE = BackendId("claude")
AGY = BackendId("agy")

HERMES_KEY = "HERMES_API_KEY"
HERMES_LACKS = (
    "no Hermes server is set up: write a table [backends.hermes-api], or set HERMES_API_KEY for"
    " the daemon"
)
"""Its address is a port that any program of the machine may have taken."""

_BACKENDS = (
    Backend(
        id=OPENCODE,
        kind="opencode",
        name="OpenCode",
        context_tokens=128_000,
        shown_cap=100,
        scores={
            "size:tiny": 30,
            "size:small": 30,
            "scope:code": 20,
            "scope:refactor": 20,
            "scope:test": 20,
        },
    ),
    Backend(
        id=CODEX,
        kind="codex",
        name="Codex CLI",
        family="gpt",
        cost="subscription",
        context_tokens=200_000,
        shown_cap=50,
        scores={
            "size:large": 30,
            "size:xlarge": 30,
            "complexity:high": 20,
            "scope:code": 20,
            "scope:refactor": 20,
            "needs:reasoning": 35,
        },
    ),
    Backend(
        id=GEMINI,
        kind="gemini",
        name="Gemini CLI",
        family="gemini",
        cost="subscription",
        context_tokens=1_000_000,
        shown_cap=1_000_000,
        cap_unit="tokens",
        scores={
            "size:tiny": 20,
            "size:small": 20,
            "size:large": 25,
            "size:xlarge": 25,
            "complexity:extreme": 30,
            "scope:research": 25,
            "scope:analysis": 25,
            "needs:media": 35,
            "needs:context": 35,
        },
    ),
    Backend(
        id=NUMASEC,
        kind="numasec",
        name="Numasec",
        context_tokens=128_000,
        shown_cap=60,
        scores={"scope:security": 35, "scope:audit": 35},
    ),
    Backend(
        id=HERMES,
        kind="hermes-api",
        name="Hermes API server",
        lacks=HERMES_LACKS,
        provider="127.0.0.1:8088",
        loopback=True,
        cost="local",
        shown_cap=200,
    ),
    # Behind the others, so that it wins no tie against them.
    Backend(
        id=CLAUDE,
        kind="claude",
        name="Claude Code",
        family="claude",
        cost="subscription",
        context_tokens=200_000,
    ),
    # The successor of Gemini CLI. Unverified: its command line is that of its documentation.
    Backend(
        id=AGY,
        kind="generic-cli",
        name="Antigravity CLI (unverified)",
        family="gemini",
        cost="subscription",
        context_tokens=1_000_000,
        suggestible=False,
    ),
    # Nothing is started: the caller does the work. Only where a chain or a caller names it.
    Backend(id=IN_SESSION, kind=IN_SESSION_KIND, name="In the session", suggestible=False),
)


def of_kind(backend: Backend, options: Options) -> Backend:
    """The backend with what its kind and options make of it."""
    kind = KINDS.get(backend.kind)
    if kind is None:  # in the session
        return backend
    return structs.replace(
        backend,
        is_http=kind.endpoint is not None,
        keeps_to_reading=kind.keeps_to_reading,
        plain_output=kind.is_plain(options),
        greets=kind.greets,
    )


def _is_agent(backend: Backend) -> bool:
    starts_something = backend.kind in KINDS and not backend.is_http
    return starts_something and not backend.implicit


OPTIONS: Mapping[BackendId, Options] = {
    **{backend.id: Options(lacks=backend.lacks) for backend in _BACKENDS},
    # The option swallows the next word, whatever it is: the prompt has to be attached to it.
    AGY: Options(command=("agy", "--print={prompt}"), prompt_in_argv=True, stdin="none"),
}
"""Else nothing is set: command line, address and key of a profile are its kind's own defaults."""

BACKENDS: Mapping[BackendId, Backend] = {
    backend.id: of_kind(backend, OPTIONS[backend.id]) for backend in _BACKENDS
}


def built_in(
    environ: Mapping[str, str],
) -> tuple[dict[BackendId, Backend], dict[BackendId, Options]]:
    """Backends and options without a configuration file, for a daemon with these variables."""
    backends, options = dict(BACKENDS), dict(OPTIONS)
    if environ.get(HERMES_KEY, "").strip():
        backends[HERMES] = structs.replace(backends[HERMES], lacks=None)
        options[HERMES] = structs.replace(options[HERMES], lacks=None)
    return backends, options


def _chain(*ids: BackendId) -> tuple[Entry, ...]:
    return tuple(Entry(backend=id) for id in ids)


_CHAINS: Mapping[str, tuple[Entry, ...]] = {
    CLAUDE: _chain(CODEX, OPENCODE, GEMINI),
    CODEX: _chain(OPENCODE, CLAUDE, GEMINI),
    OPENCODE: _chain(CODEX, CLAUDE, GEMINI),
    GEMINI: _chain(OPENCODE, CODEX, CLAUDE),
    NUMASEC: _chain(OPENCODE, CODEX, CLAUDE),
    HERMES: _chain(OPENCODE, CODEX, CLAUDE, GEMINI),
}
"""Gemini CLI is last: it no longer serves personal accounts."""
_HERMES_AT: Mapping[str, int] = {CODEX: 1, OPENCODE: 1, GEMINI: 2, NUMASEC: 2}
"""How many stand before a Hermes server in these chains, where there is one."""
_FIRST = (CLAUDE, CODEX, OPENCODE, GEMINI)


def chains(backends: Mapping[BackendId, Backend]) -> dict[str, tuple[Entry, ...]]:
    """The built-in chains over these backends: `*` has every agent among them."""
    found = dict(_CHAINS)
    others = [id for id, one in backends.items() if _is_agent(one)]
    if backends[HERMES].lacks is None:
        others.append(HERMES)
        for name, at in _HERMES_AT.items():
            found[name] = (*_CHAINS[name][:at], Entry(backend=HERMES), *_CHAINS[name][at:])
    found[ANY] = _chain(*dict.fromkeys((*_FIRST, *others)))
    return found


def known_programs() -> list[dict[str, Any]]:  # name, and the fields of `Setup`
    """List the programs that `doctor` looks for, in the order of the kinds."""
    found = {
        name: msgspec.to_builtins(kind.setup)
        for kind in KINDS.values()
        if (name := kind.program(Options())) is not None
    }
    for backend in BACKENDS.values():
        kind = KINDS.get(backend.kind)
        name = None if kind is None else kind.program(OPTIONS[backend.id])
        if name is not None:
            found.setdefault(name, {})
    return [{"name": name, **known} for name, known in found.items()]
