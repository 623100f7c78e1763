"""
Credentials by reference: on their way to a call, and looked at before they are used.

The secret itself is found by the transport. A look sees whether it is there, and whether it is
another one than before: also before a restart, since a keyed digest of it is kept with the records.
The key is not in the database.
"""

import json
import re
from collections.abc import Mapping
from typing import Protocol

from msgspec import structs

from fallbackd.backends.http_calls import key_variables
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.backends.variables import among
from fallbackd.core.events import CredentialSeen
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.health import Outage, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Backend
from fallbackd.core.protocol import (
    Call,
    CommandLine,
    CredentialRef,
    HttpRequest,
    NotStarted,
    ServedPrompt,
)
from fallbackd.core.reasons import Reason
from fallbackd.core.scopes import credential_scope, find_backend
from fallbackd.engine.environment import Settings, World
from fallbackd.lib.directories import expand
from fallbackd.lib.secretvalues import is_name_of_secret
from fallbackd.ports.store import Store
from fallbackd.ports.transport import KEY_NAME_BYTES, Clock, SecretSeen

SECRET_ERRORS = frozenset({"NO_SECRET", "OLD_SECRET"})
ASK_AGAIN_S = 30.0
"""A command whose credential is out of use is asked this often for another one."""


def credential_of(options: Options, label: str | None) -> CredentialRef | None:
    return next((one for one in options.credentials if one.label == label), None)


def _variables_of(
    settings: Settings, kinds: Mapping[str, BackendKind], backend: Backend
) -> frozenset[str]:
    """The variables of the daemon that hold a credential of this backend."""
    options = settings.options_of(backend.id)
    if options.credentials:
        return frozenset(ref.name for ref in options.credentials if ref.source == "env")
    endpoint = kinds[backend.kind].endpoint if backend.kind in kinds else None
    return frozenset() if endpoint is None else frozenset(key_variables(endpoint, options)[0])


def secret_variables(settings: Settings, kinds: Mapping[str, BackendKind]) -> frozenset[str]:
    """The variables of the daemon that hold a credential of any backend, or a secret of its own."""
    found = (_variables_of(settings, kinds, one) for one in settings.policy.backends.values())
    return settings.own_variables.union(*found)


def given_variables(settings: Settings, world: World, id: BackendId) -> tuple[str, ...]:
    """
    The variables of the daemon that the program of this backend is given, beside those for every
    program: those of its kind, of the program's own settings and of `allow_env`, but none that is a
    credential of another backend. Its own login it keeps also where an HTTP backend has its key in
    the same variable.
    """
    backend = find_backend(settings.policy, id)
    if backend is None or backend.kind not in world.kinds:
        return ()
    kind, options = world.kinds[backend.kind], settings.options_of(id)
    of_programs, of_requests = set(settings.own_variables), set[str]()
    for other in settings.policy.backends.values():
        if other.id != id:
            taken = of_requests if other.is_http else of_programs
            taken |= _variables_of(settings, world.kinds, other)
    of_kind = among(world.environ, kind.variables)
    environ = {
        **world.inheritable,
        **{name: world.environ[name] for name in of_kind},
        **options.env,
    }
    wanted = of_kind | _named(kind, world, environ) | set(backend.allow_env)
    own = set() if options.credentials else set(kind.setup.variables)
    given = (wanted & world.environ.keys()) - of_programs - (of_requests - own)
    return tuple(sorted(given))


def _named(kind: BackendKind, world: World, environ: Mapping[str, str]) -> set[str]:
    """Variables that the user's own settings of the program name."""
    found: set[str] = set()
    for place, pattern in kind.named.items():
        path = expand(place, environ, home=world.home)
        text = None if path is None else world.read_text(path)
        found.update(re.findall(pattern, text or ""))
    return found


def environ_of(settings: Settings, world: World, id: BackendId) -> dict[str, str]:
    """The environment of the program of this backend, but for what a call adds to it."""
    given = given_variables(settings, world, id)
    return {
        **world.inheritable,
        **{name: world.environ[name] for name in given},
        **settings.options_of(id).env,
    }


_NAME = re.compile(r"\b[A-Z][A-Z0-9_]{2,100}\b")
_SPEAKS_OF_IT = frozenset({Reason.AUTH, Reason.NOT_CONFIGURED, Reason.UNKNOWN})


def with_variables(failure: Failure, world: World, given: tuple[str, ...]) -> Failure:
    """The failure of a program that names a variable which the daemon has and did not give it."""
    names = _NAME.findall(failure.evidence) if failure.reason in _SPEAKS_OF_IT else []
    kept = [one for one in dict.fromkeys(names) if one in world.environ and one not in given]
    kept = [one for one in kept if is_name_of_secret(one) and one not in world.inheritable]
    if not kept:
        return failure
    hint = (
        f" ({', '.join(kept)} is set for the daemon, but not given to this backend: name it in"
        " allow_env of the backend)"
    )
    return structs.replace(failure, evidence=failure.evidence + hint)


def kept_back(settings: Settings, world: World) -> tuple[str, ...]:
    """Variables of the daemon that look like keys, and that neither it nor any program is given."""
    used = set(secret_variables(settings, world.kinds))
    for one in settings.policy.backends:
        used.update(given_variables(settings, world, one))
    return tuple(
        name
        for name, value in sorted(world.environ.items())
        if value
        and is_name_of_secret(name)
        and name not in used
        and name not in world.inheritable
        and name not in ("CREDENTIALS_DIRECTORY", "PWD", "OLDPWD")
    )


def keeping(call: Call, names: tuple[str, ...]) -> Call:
    """The call of a program that is given these variables of the daemon too."""
    match call:
        case CommandLine():
            return structs.replace(call, keeps=names)
        case ServedPrompt():
            run = call.otherwise
            return structs.replace(
                call,
                server=structs.replace(call.server, keeps=names),
                otherwise=None if run is None else structs.replace(run, keeps=names),
            )
        case _:
            return call


def carrying(call: Call, credential: CredentialRef | None, options: Options) -> Call:
    """
    The call with its credential, where the kind has not placed it itself.

    A program gets the chosen one in its variable, and none of the others that it would inherit.
    """
    if credential is None:
        return call
    match call:
        case HttpRequest():
            return call if call.credential else structs.replace(call, credential=credential)
        case CommandLine():
            return _with_variable(call, credential, options)
        case ServedPrompt():
            otherwise = call.otherwise and _with_variable(call.otherwise, credential, options)
            return structs.replace(
                call,
                # A server keeps what it was started with.
                key=f"{call.key} {credential.label}",
                server=_with_variable(call.server, credential, options),
                otherwise=otherwise,
            )


def _with_variable(call: CommandLine, credential: CredentialRef, options: Options) -> CommandLine:
    if call.credential is not None:
        return call
    others = {one.name for one in options.credentials if one.source == "env"}
    others |= {one.into for one in options.credentials if one.into is not None}
    return structs.replace(
        call, credential=credential, unset=(*call.unset, *sorted(others - {credential.into}))
    )


def without_secret(exit: NotStarted, *, now: float) -> Failure:
    """The credential's own trouble: another one may do, and so may another backend."""
    is_old = exit.error == "OLD_SECRET"
    return structs.replace(
        make_failure(
            Reason.AUTH if is_old else Reason.NOT_CONFIGURED,
            now=now,
            detail="expired" if is_old else "no_secret",
            confidence="structured",
            signature=f"fallbackd/{'old' if is_old else 'no'}_secret",
            evidence=exit.text,
            rotate=True,
        ),
        needs_human=True,
    )


DIGESTS_KEY = "credential_digests"


class CredentialHost(Protocol):
    store: Store
    clock: Clock
    settings: Settings
    world: World


class CredentialLooks:
    """Looks at the credentials of backends; says only what the records do not say yet."""

    def __init__(self, host: CredentialHost) -> None:
        self._host = host
        self._digests: dict[tuple[BackendId, str], bytes] = {}
        self._kept: dict[tuple[BackendId, str], bytes] | None = None
        """Digests as the store has them; None: not read yet."""
        self._asked_at: dict[tuple[BackendId, str], float] = {}

    async def recall(self) -> None:
        """Read what an earlier run has kept."""
        if self._kept is None:
            text = await self._host.store.get_meta(DIGESTS_KEY)
            self._kept = _read_digests(text)
            self._digests = {**self._kept, **self._digests}

    async def keep(self) -> None:
        """Keep what was seen. Call it when what follows from that is on record."""
        if self._digests != self._kept:
            self._kept = dict(self._digests)
            rows = [(*key, digest.hex()) for key, digest in sorted(self._kept.items())]
            await self._host.store.set_meta(DIGESTS_KEY, json.dumps(rows))

    async def seen(self, name: BackendId) -> list[CredentialSeen]:
        host = self._host
        backend = find_backend(host.settings.policy, name)
        if backend is None or not backend.enabled:
            return []
        found = []
        for ref in host.settings.options_of(name).credentials:
            if ref.label not in backend.credentials:
                continue
            outages = self._outages(credential_scope(backend, ref.label))
            event = await self._look(name, ref, outages)
            if event is not None:
                found.append(event)
        return found

    def _outages(self, scope: ScopeId) -> Mapping[ScopeId, Outage]:
        """Outages of the credential that are in force, with any model."""
        now = self._host.clock.now()
        return {
            record.scope: record.outage
            for record in self._host.store.peek().health.values()
            if record.scope.partition("+model:")[0] == scope
            and record.outage is not None
            and view(record, now=now).state in ("rate_limited", "broken")
        }

    async def _look(
        self, name: BackendId, ref: CredentialRef, outages: Mapping[ScopeId, Outage]
    ) -> CredentialSeen | None:
        host, key = self._host, (name, ref.label)
        now = host.clock.now()
        # Running a program is no look: only for one that cannot be used as it is.
        if ref.source == "command" and not (outages and self._may_ask(key, now)):
            return None
        seen = await host.world.secrets.look(ref, fresh=ref.source == "command")
        own = _own_outage(outages)
        if seen.problem is not None:
            reason = Reason.AUTH if seen.is_old else Reason.NOT_CONFIGURED
            if _says_it(own, reason, now=now):
                return None
            return CredentialSeen(
                backend=name, credential=ref.label, reason=reason, detail=seen.problem
            )
        before = self._digests.get(key)
        if seen.digest is not None:
            self._digests[key] = seen.digest
        changed = bool(outages) and self._is_changed(ref, seen, before, outages)
        is_mended = own is not None and own.source == "readiness"
        if not (is_mended or changed):
            return None
        return CredentialSeen(backend=name, credential=ref.label, changed=changed)

    def _may_ask(self, key: tuple[BackendId, str], now: float) -> bool:
        """Test whether its program may be run again, and note this as the last time."""
        if 0 <= now - self._asked_at.get(key, -ASK_AGAIN_S) < ASK_AGAIN_S:
            return False
        self._asked_at[key] = now
        return True

    def _is_changed(
        self,
        ref: CredentialRef,
        seen: SecretSeen,
        before: bytes | None,
        outages: Mapping[ScopeId, Outage],
    ) -> bool:
        if seen.digest is None:
            return False
        if before is not None and before[:KEY_NAME_BYTES] == seen.digest[:KEY_NAME_BYTES]:
            return seen.digest != before
        # Nothing to compare with: only a file says by itself when it was changed.
        failed_at = max(one.last_failure_at for one in outages.values())
        is_newer = seen.changed_at is not None and seen.changed_at > failed_at
        return ref.source == "file" and is_newer


def _own_outage(outages: Mapping[ScopeId, Outage]) -> Outage | None:
    """Outage of the credential itself, whatever the model."""
    return next((one for scope, one in outages.items() if "+model:" not in scope), None)


def _says_it(own: Outage | None, reason: Reason, *, now: float) -> bool:
    """Test whether the record of a credential needs no further look at what is wrong."""
    if own is None:
        return False
    return own.until_at is None or (own.reason is reason and own.until_at - now > 60)


def _read_digests(text: str | None) -> dict[tuple[BackendId, str], bytes]:
    """Nothing where what is kept cannot be read: marks stay as they are."""
    try:
        rows = json.loads(text or "[]")
        return {(BackendId(name), label): bytes.fromhex(hexed) for name, label, hexed in rows}
    except (ValueError, TypeError):
        return {}
