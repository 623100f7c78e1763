"""
The start of an attempt: may it begin, where does it work, with which prompt and command line.

Each step raises `CannotBegin` with the failure that the attempt ends with.
"""

from collections.abc import Mapping

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from fallbackd.backends.spec import BackendKind, NotConfigured, Options
from fallbackd.core.effects import StartAttempt
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import AttemptId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Call, CommandLine, HttpRequest, ServedPrompt, Work
from fallbackd.core.records import Delegation
from fallbackd.core.routing.candidates import shell_of
from fallbackd.core.watch import Watch
from fallbackd.core.work.resumption import CONTINUE, not_resumed
from fallbackd.core.work.workspaces import may_write
from fallbackd.engine.carrying import GivenPast, carried, on_record, place_of
from fallbackd.engine.confinement import (
    confined,
    confinement_of,
    copies_of,
    footprint_of,
    with_own_roots,
)
from fallbackd.engine.credentials import (
    carrying,
    credential_of,
    environ_of,
    given_variables,
    keeping,
)
from fallbackd.engine.environment import Transports, World
from fallbackd.engine.judging import no_ones_fault
from fallbackd.engine.live import Fingerprint, LiveAttempt, LiveHost, Prepared
from fallbackd.engine.planted import in_words, is_left_out, of_kind
from fallbackd.engine.repairing import Asked, repaired
from fallbackd.lib.directories import expand
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Running, Transport

_GATEWAY_VARIABLE = "FALLBACKD_GATEWAY_TOKEN"


class CannotBegin(Exception):
    """An attempt that cannot begin, or is not found again."""

    def __init__(self, failure: Failure, *, gone: bool = True) -> None:
        super().__init__(failure.evidence)
        self.failure = failure
        self.gone = gone
        """There is proof that nothing of it runs."""


class Underway(Struct, frozen=True, kw_only=True):
    running: Running
    warnings: tuple[str, ...] = ()
    before: Fingerprint | None = None
    """Its directory just before the start; None: unknown, or not looked at."""
    given: GivenPast


class _Place(Struct, frozen=True, kw_only=True):
    """Where it works, and its prompt."""

    directory: str
    cwd: str
    prompt: str
    prompt_path: str


async def begin(
    host: LiveHost, live: LiveAttempt, prepared: Prepared, kind: BackendKind, options: Options
) -> Underway:
    """
    Raises:
        CannotBegin: Nothing of it runs.
    """
    order, world = live.order, host.world
    await _check(host, order, prepared, kind, options)
    given = GivenPast(prompt=CONTINUE, resume=order.resume)
    if order.resume is None:
        earlier = host.runs.earlier_path(order.attempt)
        given = await carried(host, prepared, kind, options, path=earlier)
    has_program = kind.program(options) is not None
    place = _laid_out(host, order, prepared, given, works=has_program)
    planted = await _planted(host, order, prepared, kind, options, place) if has_program else {}
    await _keep_git(host, order, prepared.delegation, place.cwd)
    call = _call(
        host, live, prepared, kind, options, given=given, place=place, planted=tuple(planted)
    )
    before = None
    if has_program and prepared.delegation.permissions != "read":
        before = prepared.looked.recent(now=host.clock.now())
        if before is None:
            before = await anyio.to_thread.run_sync(world.fingerprint, place.cwd)
    if live.is_stopped:
        what = "stopped before it was started"
        raise CannotBegin(cannot_start(host, what, reason=Reason.CANCELLED))
    hit("attempt.open.before")
    live.may_run = True
    # Its limits count from here: a conversation may have been taken in for it, which takes long.
    live.watch = Watch(started_at=host.clock.now())
    # A daemon that leaves must not stop what it has half started.
    with anyio.CancelScope(shield=True):
        running = await _transport(world.transports, call).open(
            call,
            attempt=order.attempt,
            directory=place.directory,
            env=marks(host.world, prepared, order),
        )
    hit("attempt.open.after")
    warnings: tuple[str, ...] = ()
    if planted:
        what = in_words(planted, cwd=place.cwd)
        warnings = (
            f"{order.backend} was started without the configuration of this project, since {what};"
            " look at it; work in a new session uses it",
        )
    return Underway(running=running, before=before, given=given, warnings=warnings)


async def _keep_git(host: LiveHost, order: StartAttempt, delegation: Delegation, cwd: str) -> None:
    """Know again what git obeys there: the kernel's rules cannot close it alone."""
    permissions, inside = delegation.permissions, bool(delegation.above)
    held = footprint_of(host.settings, host.world, order.backend, permissions, inside=inside)
    if held is None or permissions != "workspace" or order.taken_up:
        return
    if known := await anyio.to_thread.run_sync(host.world.look_at_git, order.attempt, cwd):
        host.runs.keep_git(order.attempt, known)


async def _planted(
    host: LiveHost,
    order: StartAttempt,
    prepared: Prepared,
    kind: BackendKind,
    options: Options,
    place: _Place,
) -> Mapping[str, AttemptId]:
    """What its program is started without. Raises `CannotBegin` where it cannot be."""
    delegation, policy = prepared.delegation, host.settings.policy
    reads = delegation.permissions == "read"
    found = await host.planted.begin(
        order.attempt,
        delegation,
        place.cwd,
        writes=may_write(policy, (Entry(backend=order.backend),), reads=reads),
        now=host.clock.now(),
    )
    found = of_kind(found, kind)
    if found and not is_left_out(kind, options):
        what = (
            f"{order.backend} is not started, since it would obey what an earlier attempt has"
            f" left: {in_words(found, cwd=place.cwd)}; look at it; work in a new session uses it"
        )
        raise CannotBegin(cannot_start(host, what, marks=False))
    return found


async def _check(
    host: LiveHost, order: StartAttempt, prepared: Prepared, kind: BackendKind, options: Options
) -> None:
    now = host.clock.now()
    if prepared.prompt is None:
        what = "the prompt cannot be read back"
        raise CannotBegin(no_ones_fault("no_prompt", what, "its file is gone", now=now))
    if prepared.missing:
        lost = ", ".join(prepared.missing)
        what = f"the caller's {lost} went with the daemon that was given it"
        raise CannotBegin(cannot_start(host, what, marks=False))
    delegation = prepared.delegation
    is_free_agent = kind.endpoint is not None and kind.endpoint.is_hermes
    if is_free_agent and delegation.above and delegation.permissions != "full":
        what = (
            f"{order.backend} is an agent that cannot be held to `{delegation.permissions}`: work"
            " from inside a delegation uses it at `full` only"
        )
        raise CannotBegin(cannot_start(host, what, marks=False))
    if kind.program(options) is not None:
        await host.follow_workspaces()
        if (why := host.why_not_there(delegation)) is not None:
            what = f"{delegation.cwd} cannot be worked in any more"
            raise CannotBegin(no_ones_fault("workspace", what, why, now=now))
    if order.resume is not None and not kind.resumes(options):
        why = f"{order.backend!r} is now configured with a command of its own"
        raise CannotBegin(not_resumed(why, now=now))


def _laid_out(
    host: LiveHost, order: StartAttempt, prepared: Prepared, given: GivenPast, *, works: bool
) -> _Place:
    """
    Make its directories and files.

    Args:
        works: In a directory, as programs do and requests do not.
    """
    runs, delegation = host.runs, prepared.delegation
    prompt = given.prompt if order.handoff is None else f"{given.prompt}\n\n{order.handoff}"
    prompt_path = runs.prompt_path(delegation.delegation)
    try:
        directory = runs.prepare(order.attempt)
        cwd = place_of(runs, delegation)
        if works and not delegation.cwd:
            runs.make_work(delegation.delegation)
        if given.how is not None:
            runs.keep_given(order.attempt, on_record(given))
        if given.text:
            runs.write_earlier(order.attempt, given.text)
        if prompt != prepared.prompt:
            prompt_path = runs.write_prompt(order.attempt, prompt)
    except OSError as error:
        what = f"{runs.root} cannot be written"
        failure = no_ones_fault("no_place", what, error.strerror, now=host.clock.now())
        raise CannotBegin(failure) from error
    return _Place(directory=directory, cwd=cwd, prompt=prompt, prompt_path=prompt_path)


def _call(
    host: LiveHost,
    live: LiveAttempt,
    prepared: Prepared,
    kind: BackendKind,
    options: Options,
    *,
    given: GivenPast,
    place: _Place,
    planted: tuple[str, ...],
) -> Call:
    world, delegation, order = host.world, prepared.delegation, live.order
    credential = credential_of(options, order.credential)
    if credential is None and order.credential is not None:
        what = f"credential {order.credential!r} of {order.backend!r} is no longer configured"
        raise CannotBegin(cannot_start(host, what, marks=False))
    work = Work(
        prompt=place.prompt,
        prompt_path=place.prompt_path,
        cwd=place.cwd,
        scratch=place.directory,
        model=order.model,
        effort=order.effort,
        credential=credential,
        session=delegation.session,
        resume=given.resume,
        history=given.history,
        earlier=given.said,
        permissions=delegation.permissions,
        runs_commands=_runs_commands(host, order, delegation.role),
        mode=delegation.mode,
        env=prepared.env,
        planted=planted,
        files=_texts(
            world, kind, {**environ_of(host.settings, world, order.backend), **prepared.env}
        ),
        inherited={name: world.environ[name] for name in kind.reads_env if name in world.environ},
    )
    inside = bool(delegation.above)
    work = with_own_roots(host.settings, world, order.backend, work, inside=inside)
    try:
        call = kind.start(work, options)
    except NotConfigured as error:
        raise CannotBegin(cannot_start(host, str(error))) from error
    except ValueError as error:
        failure = cannot_start(host, str(error), reason=Reason.FORMAT_ERROR)
        raise CannotBegin(failure) from error
    asked = Asked(
        backend=order.backend,
        model=order.model or options.model,
        credential=order.credential,
        session=delegation.session,
    )
    call, live.repairs = repaired(
        call,
        kind,
        options,
        known=host.repairs,
        settings=host.settings,
        asked=asked,
        delegation=delegation.delegation,
    )
    call = carrying(call, credential, options)
    call = keeping(call, given_variables(host.settings, world, order.backend))
    call = confined(
        call,
        confinement_of(host.settings, world, order.backend, work, inside=inside),
        copies_of(host.settings, world, order.backend, work.permissions, inside=inside),
        cwd_id=delegation.cwd_ids[0] if delegation.cwd_ids else "",
    )
    if isinstance(call, ServedPrompt) and (token := world.gateway_token("")) is not None:
        env = {**call.server.env, _GATEWAY_VARIABLE: token}
        call = structs.replace(call, server=structs.replace(call.server, env=env))
    return call


def marks(world: World, prepared: Prepared, order: StartAttempt) -> dict[str, str]:
    """Variables by which children are known, by which they know where they are, and may ask."""
    found = {
        "FALLBACKD_DELEGATION": prepared.delegation.delegation,
        "FALLBACKD_ATTEMPT": order.attempt,
    }
    if (token := world.gateway_token(order.attempt)) is not None:
        found[_GATEWAY_VARIABLE] = token
    return found


def cannot_start(
    host: LiveHost, text: str, *, reason: Reason = Reason.NOT_CONFIGURED, marks: bool = True
) -> Failure:
    """
    Args:
        marks: The backend is to blame.
    """
    failure = make_failure(
        reason,
        now=host.clock.now(),
        confidence="structured",
        signature="fallbackd/cannot_start",
        evidence=host.world.redact(text),
    )
    return failure if marks else structs.replace(failure, marks_health=False)


def _runs_commands(host: LiveHost, order: StartAttempt, role: str | None) -> bool:
    policy = host.settings.policy
    backend = find_backend(policy, order.backend)
    return backend is not None and shell_of(policy, backend, role) == "confined"


def _texts(world: World, kind: BackendKind, environ: Mapping[str, str]) -> dict[str, str]:
    found = {each: expand(each, environ, home=world.home) for each in kind.reads}
    texts = {each: world.read_text(path) for each, path in found.items() if path is not None}
    return {each: text for each, text in texts.items() if text is not None}


def _transport(transports: Transports, call: Call) -> Transport:
    match call:
        case CommandLine():
            return transports.command
        case HttpRequest():
            return transports.http
        case ServedPrompt():
            return transports.served
