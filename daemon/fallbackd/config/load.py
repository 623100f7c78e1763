"""
The text of the file becomes what is in force. Pure: no file is read here.

An error means that the file as a whole cannot be used, and that the last good configuration
stays. Everything else is a warning: the field is left out, its neighbours live.
"""

import os.path
import tomllib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, field

from fallbackd.backends import ALIASES
from fallbackd.backends.spec import Options
from fallbackd.classify.rules import Rule
from fallbackd.config import profiles
from fallbackd.config.fallback_file import NEWER, OLDER
from fallbackd.config.fields import (
    Problem,
    Say,
    convert,
    guess,
    in_force,
    instead,
    join,
    problem,
    read,
    show,
    table,
)
from fallbackd.config.import_hermes import FILE_NAME as HERMES
from fallbackd.config.import_jkz import ALL as JKZ
from fallbackd.config.importing import Imported, overlay
from fallbackd.config.read_backends import Backends, read_backends
from fallbackd.config.read_chains import (
    KnownNames,
    Signature,
    read_authority,
    read_chains,
    read_roles,
    read_signatures,
)
from fallbackd.config.schema import (
    File,
    Gateway,
    Interactive,
    Notify,
    Paths,
    Quota,
    ReasonTable,
)
from fallbackd.config.tables import (
    Opencode,
    ShareConfig,
    check_held,
    read_notify,
    read_opencode,
    read_share,
    without_circles,
)
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import REASONS, Defaults, Handoff, Policy, Price
from fallbackd.core.reasons import Reason, ReasonPolicy

VOICE_FILE = "voice-platform-health.json"
_TOP = tuple(one.encode_name for one in msgspec.structs.fields(File))


class Loaded(Struct, frozen=True, kw_only=True):
    """The result of one text. With `errors`, everything else is the built-in configuration."""

    policy: Policy
    options: Mapping[BackendId, Options]
    signatures: tuple[Signature, ...] = ()
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    refused: tuple[Problem, ...] = ()
    """Backends that are not used as they are written. A check counts them as errors; a daemon that
    runs uses the others."""
    imports: tuple[str, ...] = ()
    """Absolute, or beginning with `~/`."""
    export_voice: str | None = None
    """Absolute, or beginning with `~/`."""
    opencode: Opencode = Opencode()
    share: ShareConfig | None = None
    """None: health is not shared."""
    notify: Notify = Notify()
    gateway: Gateway = Gateway()
    interactive: Interactive = Interactive()
    quota: Quota = Quota()
    raw: Mapping[str, Any] = field(default_factory=dict)  # as TOML gives it
    """The file as it is written. May hold what must not be shown."""
    digest: str = ""
    """Of the content, where it was read from disk."""

    def rules_for(self, kind: str) -> tuple[Rule, ...]:
        """The user's signatures that hold for a kind, in the order of the file."""
        kind = ALIASES.get(kind, kind)
        return tuple(one.rule for one in self.signatures if one.kind in (None, kind))


Import = Callable[[str], Imported | Problem | None]
"""What lies at a place of `import` becomes tables; None: it is taken elsewhere."""


def load(
    text: str | None,
    *,
    path: str,
    take: Import = lambda _: None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """
    Read a configuration.

    Args:
        text: Content of the file; None where there is no file: the built-in configuration.
        path: Where the file lies, for messages and for relative paths in it.
        take: Reads configurations of other programs.
        environ: Of the daemon.
    """
    try:
        raw = tomllib.loads((text or "").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "cannot be read"
        if isinstance(error, RecursionError):
            why = "is nested too deeply"
        return unusable(path, f"is not valid TOML: {why}", environ)
    warnings: list[Problem] = []
    merged: Mapping[str, Any] = raw
    for value in raw["import"] if isinstance(raw.get("import"), list) else ():
        place = _place("import", value, path, lambda *_: None)
        imported = None if place is None else take(str(value) if value == JKZ else place)
        if isinstance(imported, Problem):
            warnings.append(imported)
        elif imported is not None:
            merged = overlay(merged, imported.tables)
            warnings += [problem(f"{value}: {one.what}", one.why) for one in imported.left]
    found = interpret(merged, path=path, environ=environ)
    return msgspec.structs.replace(found, raw=raw, warnings=(*warnings, *found.warnings))


def interpret(
    raw: Mapping[str, Any],  # as TOML gives it
    *,
    path: str,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Read what a file says, table by table. Never an error: only warnings, and what is refused."""
    warnings: list[Problem] = []

    def say(where: str, message: str) -> None:
        warnings.append(problem(where, message))

    for key in raw:
        if key not in _TOP:
            near = guess(key, _TOP)
            say(join("", key), f"is not a known table or key; it has no effect.{near}")
    defaults = _defaults(raw.get("defaults", {}), say)
    reasons = _reasons(raw.get("policy", {}), say)
    gateway = in_force(raw.get("gateway", {}), Gateway(), "gateway", say)
    refused: list[Problem] = []
    found = without_circles(
        gateway,
        read_backends(raw.get("backends", {}), environ, say),
        lambda where, message: refused.append(problem(where, message)),
    )
    opencode = read_opencode(raw["opencode"], say) if "opencode" in raw else Opencode()
    known = KnownNames(
        backends=dict(found.backends), left_out=found.left_out, quotas=opencode.quotas
    )
    chains = read_chains(raw.get("chains", {}), known, say)
    roles = read_roles(raw.get("roles", {}), chains, known, say)
    may = read_authority(raw.get("authority", {}), roles, say)
    check_held(gateway, {*chains, *roles, *known.backends}, say)
    signatures = read_signatures(raw["signatures"], say) if "signatures" in raw else ()
    is_given = isinstance(raw.get("chains"), Mapping) and profiles.ANY in raw["chains"]
    policy = Policy(
        defaults=defaults,
        handoff=in_force(raw.get("handoff", {}), Handoff(), "handoff", say),
        prices=_prices(raw.get("prices", {}), say),
        any_is_built_in=not is_given,
        reasons=reasons,
        backends=known.backends,
        chains=chains,
        roles=roles,
        may=may,
        rescues=opencode.enabled,
        quotas=opencode.quotas,
    )
    interactive = in_force(raw.get("interactive", {}), Interactive(), "interactive", say)
    quota = in_force(raw.get("quota", {}), Quota(), "quota", say)
    share = read_share(raw["share"], environ, say) if "share" in raw else None
    notify = read_notify(raw.get("notify", {}), say)
    imports = _imports(raw["import"], path, say) if "import" in raw else ()
    export_voice = None
    if "export_voice_health" in raw:
        export_voice = _place("export_voice_health", raw["export_voice_health"], path, say)
    return Loaded(
        policy=policy,
        options=_options(found, policy),
        signatures=signatures,
        warnings=tuple(warnings),
        refused=tuple(refused),
        imports=imports,
        export_voice=export_voice,
        opencode=opencode,
        share=share,
        notify=notify,
        gateway=gateway,
        interactive=interactive,
        quota=quota,
        raw=raw,
    )


def unusable(path: str, message: str, environ: Mapping[str, str]) -> Loaded:
    """The built-in configuration, with one error."""
    backends, options = profiles.built_in(environ)
    return Loaded(
        policy=Policy(backends=backends, chains=profiles.chains(backends), any_is_built_in=True),
        options=options,
        errors=(problem(path, message),),
    )


def _defaults(raw: object, say: Say) -> Defaults:
    plain = Defaults()
    given = read(raw, Defaults, "defaults", say, in_use=lambda name: getattr(plain, name))
    roots = given.get("allowed_roots")
    if roots:
        kept = []
        for number, root in enumerate(roots):
            if _is_rooted(root):
                kept.append(root)
            else:
                here = join("defaults.allowed_roots", number)
                say(here, f"{show(root)}: must be an absolute path or begin with ~/.")
        # A limit whose places are all unusable must not turn into no limit.
        given["allowed_roots"] = tuple(kept or roots)
    cwd = given.get("default_cwd")
    if cwd is not None and not _is_rooted(cwd):
        say("defaults.default_cwd", f"{show(cwd)}: must be an absolute path or begin with ~/.")
        del given["default_cwd"]
    return Defaults(**given)


def _prices(raw: object, say: Say) -> dict[str, Price]:
    plain = Price()
    prices: dict[str, Price] = {}
    for model, value in table(raw, "prices", say).items():
        here = join("prices", model)
        given = read(value, Price, here, say, in_use=lambda name: getattr(plain, name))
        if given:
            prices[model] = Price(**given)
    return prices


def _is_rooted(path: str) -> bool:
    return path.startswith(("/", "~/")) or path == "~"


def _reasons(raw: object, say: Say) -> dict[Reason, ReasonPolicy]:
    reasons = dict(REASONS)
    for key, value in table(raw, "policy", say).items():
        here = join("policy", key)
        fits, reason = convert(key, Reason)
        if not fits:
            near = guess(key, (known.value for known in REASONS))
            say(here, f"is not a failure reason; it has no effect.{near}")
        elif reason.row.window is None:
            say(here, "never takes a backend out of rotation; it has no effect.")
        else:
            reasons[reason] = _reason(reasons[reason], value, here, say)
    return reasons


def _reason(plain: ReasonPolicy, raw: object, path: str, say: Say) -> ReasonPolicy:
    given = read(raw, ReasonTable, path, say, in_use=lambda name: getattr(plain, name))
    made = msgspec.structs.replace(plain, **given)
    if made.max_window_s >= made.window_s:
        return made
    if "max_window_s" in given:
        where, least = join(path, "max_window_s"), show(made.window_s)
        say(where, f"{show(made.max_window_s)}: is less than window_s; {least} is used.")
    return msgspec.structs.replace(made, max_window_s=made.window_s)


def _options(found: Backends, policy: Policy) -> dict[BackendId, Options]:
    """The options of every backend, those included that only a chain names."""
    options = dict(found.options)
    opencode = options.get(profiles.OPENCODE, Options())
    for backend in policy.backends.values():
        if backend.implicit:
            options[backend.id] = msgspec.structs.replace(opencode, model=backend.model)
    return options


def _imports(raw: object, path: str, say: Say) -> tuple[str, ...]:
    if not isinstance(raw, list):
        say("import", f"{show(raw)}: must be a list of files; {instead(None)}.")
        return ()
    found: list[str] = []
    for number, value in enumerate(raw):
        here = join("import", number)
        place = _place(here, value, path, say)
        if place is None:
            continue
        if value == JKZ or os.path.basename(place) == HERMES:
            continue  # taken before
        if os.path.basename(place) not in (VOICE_FILE, NEWER, OLDER):
            known = f"{VOICE_FILE}, {NEWER}, {OLDER}, {HERMES} of Hermes and {JKZ}"
            say(here, f"{show(value)}: has no effect; {known} are imported.")
        elif place not in found:
            found.append(place)
    return tuple(found)


def _place(where: str, raw: object, path: str, say: Say) -> str | None:
    """A path that the file names: absolute, or from the home directory, or from the file's."""
    fits, place = convert(raw, Paths)
    if not fits or not place.isprintable():
        say(where, f"{show(raw)}: must be the path of a file; {instead(None)}.")
        return None
    if _is_rooted(place):
        return str(place)
    return os.path.join(os.path.dirname(os.path.abspath(path)), place)
