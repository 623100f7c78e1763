"""
One attempt: take it up or begin it, feed its parser, judge its end, post its events.

Decides nothing. Whatever happens here ends in exactly one `AttemptEnded`. One that an earlier
daemon has begun is resumed as it is found: running, ended, or never started.

A new daemon orders every attempt that was under way when the previous run ended once more, under
its own id. Its directory says what to do: no `claim`: it was never started, and is fenced so that
no other daemon will start it; a `claim` and a live runner, which waits at the socket `line`; or an
`exit.json`. Identity is pid, start time and boot id. The parser is rebuilt from the recorded bytes,
with the times of then; replayed output is one summary, and expired throttles are ignored. Attempts
of an earlier boot are closed, not repeated. A request over HTTP ends with its daemon; without a
recorded end it is asked again, within the budget, and no backend is marked. Prompts on opencode's
server continue: `served.json` says where, or proves that the prompt was opened and never posted.
"""

import errno
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio.abc import TaskGroup
from msgspec import Struct, structs

from fallbackd.backends.spec import BackendKind, NotConfigured, Options
from fallbackd.backends.variables import INSTEAD_OF_FILE, instead_of_file
from fallbackd.core.decision import StartAttempt, StopAttempt
from fallbackd.core.events import AttemptEnded, AttemptStarted
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.ids import AttemptId, BackendId, DelegationId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Call, CommandLine, HttpRequest, Residency, ServedPrompt, Work
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation
from fallbackd.core.routing.candidates import shell_of
from fallbackd.core.scopes import find_backend
from fallbackd.core.watch import Watch, worse
from fallbackd.core.work.sessions import CONTINUE, not_resumed
from fallbackd.core.work.workspaces import may_write
from fallbackd.engine.confinement import (
    confined,
    confinement_of,
    copies_of,
    explained,
    footprint_of,
    is_looser,
    with_own_roots,
)
from fallbackd.engine.credentials import (
    carrying,
    credential_of,
    environ_of,
    given_variables,
    keeping,
    with_variables,
)
from fallbackd.engine.environment import Settings, Transports, World
from fallbackd.engine.judging import no_ones_fault, rebooted, unexplained
from fallbackd.engine.live import Fingerprint, Held, LiveAttempt, LiveHost, Prepared
from fallbackd.engine.quota import heard_at_end
from fallbackd.engine.reading import Reader
from fallbackd.engine.repairing import Asked, repaired
from fallbackd.engine.takeover import GivenPast, carried, from_record, on_record, place_of
from fallbackd.engine.workspaces import in_words, is_left_out, of_kind
from fallbackd.lib.descriptors import is_shortage
from fallbackd.lib.directories import expand
from fallbackd.lib.failpoints import hit
from fallbackd.ports.store import Store
from fallbackd.ports.transport import Running, Transport, Unsent

MAX_FILES = 50


async def with_tracks(
    host: LiveHost,
    prepared: Prepared,
    ended: AttemptEnded,
    *,
    cwd: str,
    before: Fingerprint | None,
    started_at: float,
) -> AttemptEnded:
    """
    Args:
        before: The directory at the start; None: unknown.
    """
    if before is not None:
        changed = await _changed(host, prepared, cwd, before)
    else:
        changed = await _changed_since(host.world, cwd, started_at)
    if changed:
        effects = worse(ended.effects, "seen")
        return structs.replace(ended, effects=effects, changed_files=changed)
    if before is None and ended.effects == "none":
        return structs.replace(ended, effects="possible")  # what was deleted is not seen
    return ended


async def _changed(
    host: LiveHost, prepared: Prepared, cwd: str, before: Fingerprint
) -> tuple[str, ...]:
    """Files that are new, other or gone since the start."""
    after = await anyio.to_thread.run_sync(host.world.fingerprint, cwd)
    if after is None:
        return ()
    prepared.looked.keep(after, now=host.clock.now())
    found = {path for path, seen in after.items() if before.get(path) != seen}
    found.update(path for path in before if path not in after)
    return tuple(sorted(found)[:MAX_FILES])


async def _changed_since(world: World, cwd: str, started_at: float) -> tuple[str, ...]:
    """Files written since then, where the state before is unknown."""
    after = await anyio.to_thread.run_sync(world.fingerprint, cwd)
    since_ns = int(started_at * 1e9)
    found = (path for path, (mtime_ns, _) in (after or {}).items() if mtime_ns >= since_ns)
    return tuple(sorted(found)[:MAX_FILES])


class CannotBegin(Exception):
    """An attempt that cannot begin, or is not found again."""

    def __init__(self, failure: Failure, *, gone: bool) -> None:
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
    """Working directory and prompt of an attempt."""

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
    reads = prepared.delegation.permissions == "read"
    writes = may_write(host.settings.policy, (Entry(backend=order.backend),), reads=reads)
    planted = (
        await _planted(host, order, prepared, kind, options, place, writes=writes)
        if has_program
        else {}
    )
    await _keep_git(host, order, prepared.delegation, place.cwd)
    call = _call(
        host, live, prepared, kind, options, given=given, place=place, planted=tuple(planted)
    )
    before = None
    if has_program and writes:
        await world.end_watchers(call, place.cwd)
    if has_program and not reads:
        before = prepared.looked.recent(now=host.clock.now())
        if before is None:
            before = await anyio.to_thread.run_sync(world.fingerprint, place.cwd)
    if live.is_stopped:
        what = "stopped before it was started"
        raise CannotBegin(cannot_start(host, what, reason=Reason.CANCELLED), gone=True)
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
    *,
    writes: bool,
) -> Mapping[str, AttemptId]:
    """Planted configuration that its program is started without. Raises `CannotBegin`."""
    found = await host.planted.begin(
        order.attempt,
        prepared.delegation,
        place.cwd,
        writes=writes,
        now=host.clock.now(),
    )
    found = of_kind(found, kind)
    if found and not is_left_out(kind, options):
        what = (
            f"{order.backend} is not started, since it would obey what an earlier attempt has"
            f" left: {in_words(found, cwd=place.cwd)}; look at it; work in a new session uses it"
        )
        raise CannotBegin(cannot_start(host, what, marks=False), gone=True)
    return found


async def _check(
    host: LiveHost, order: StartAttempt, prepared: Prepared, kind: BackendKind, options: Options
) -> None:
    now = host.clock.now()
    if prepared.prompt is None:
        what = "the prompt cannot be read back"
        raise CannotBegin(no_ones_fault("no_prompt", what, "its file is gone", now=now), gone=True)
    if prepared.missing:
        lost = ", ".join(prepared.missing)
        what = f"the caller's {lost} went with the daemon that was given it"
        raise CannotBegin(cannot_start(host, what, marks=False), gone=True)
    delegation = prepared.delegation
    has_program = kind.program(options) is not None
    if delegation.above and (what := _why_not_inside(host, order, delegation, kind, has_program)):
        raise CannotBegin(cannot_start(host, what, marks=False), gone=True)
    if has_program:
        await host.follow_workspaces()
        if (why := host.why_not_there(delegation)) is not None:
            what = f"{delegation.cwd} cannot be worked in any more"
            raise CannotBegin(no_ones_fault("workspace", what, why, now=now), gone=True)
    if order.resume is not None and not kind.resumes(options):
        why = f"{order.backend!r} is now configured with a command of its own"
        raise CannotBegin(not_resumed(why, now=now), gone=True)


def _why_not_inside(
    host: LiveHost,
    order: StartAttempt,
    delegation: Delegation,
    kind: BackendKind,
    has_program: bool,
) -> str:
    """Reason why it is not used for work from inside a delegation; empty: it may be."""
    permissions = delegation.permissions
    is_free_agent = kind.endpoint is not None and kind.endpoint.is_hermes
    if is_free_agent and permissions != "full":
        return (
            f"{order.backend} is an agent that cannot be held to `{permissions}`: work from inside"
            " a delegation uses it at `full` only"
        )
    parent = delegation.parent and host.store.peek().active.get(delegation.parent)
    asker = (parent.active, parent.permissions) if parent else None
    if has_program and is_looser(
        host.settings, host.world, order.backend, permissions, asker=asker
    ):
        who = "the agent that asks" if asker is None else asker[0]
        return (
            f"the kernel has no Landlock to hold {order.backend} to `{permissions}`, to which {who}"
            " holds itself: from inside of it, delegate to an agent that does so too (codex)"
        )
    return ""


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
        raise CannotBegin(failure, gone=True) from error
    return _Place(directory=directory, cwd=cwd, prompt=prompt, prompt_path=prompt_path)


def _version(world: World, kind: BackendKind, options: Options) -> str:
    program = kind.program(options)
    path = None if program is None else world.find_program(program)
    return (path and world.probe.known_version(path)) or ""


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
        raise CannotBegin(cannot_start(host, what, marks=False), gone=True)
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
        runs_commands=runs_commands(host.settings, order.backend, delegation.role),
        mode=delegation.mode,
        env=prepared.env,
        planted=planted,
        files=texts_of(
            world, kind, {**environ_of(host.settings, world, order.backend), **prepared.env}
        ),
        inherited={name: world.environ[name] for name in kind.reads_env if name in world.environ},
        version=_version(world, kind, options),
    )
    inside = bool(delegation.above)
    work = with_own_roots(host.settings, world, order.backend, work, inside=inside)
    try:
        call = kind.start(work, options)
    except NotConfigured as error:
        raise CannotBegin(cannot_start(host, str(error)), gone=True) from error
    except ValueError as error:
        failure = cannot_start(host, str(error), reason=Reason.FORMAT_ERROR)
        raise CannotBegin(failure, gone=True) from error
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
    return equipped(
        call, work, host.settings, world, order.backend, cwd_ids=delegation.cwd_ids, inside=inside
    )


def equipped(
    call: Call,
    work: Work,
    settings: Settings,
    world: World,
    id: BackendId,
    *,
    cwd_ids: tuple[str, ...],
    inside: bool,
) -> Call:
    """The call with its credential, its variables and its confinement."""
    call = carrying(call, work.credential, settings.options_of(id))
    call = keeping(call, given_variables(settings, world, id))
    call = _with_gateway(call, world)
    return confined(
        call,
        confinement_of(settings, world, id, work, inside=inside),
        copies_of(settings, world, id, work.permissions, inside=inside),
        cwd_id=cwd_ids[0] if cwd_ids else "",
    )


def marks(world: World, prepared: Prepared, order: StartAttempt) -> dict[str, str]:
    """Variables by which children are known, by which they know where they are, and may ask."""
    return {
        "FALLBACKD_DELEGATION": prepared.delegation.delegation,
        "FALLBACKD_ATTEMPT": order.attempt,
        **_for_gateway(world, order.attempt),
    }


def _with_gateway(call: Call, world: World) -> Call:
    """The call with the gateway's token for a program that serves one attempt after another."""
    match call:
        case ServedPrompt(server=server):
            env = {**server.env, **_for_gateway(world, "")}
            return structs.replace(call, server=structs.replace(server, env=env))
        case CommandLine(residency=Residency(may_stay=True)):
            return structs.replace(call, env={**call.env, **_for_gateway(world, "")})
        case _:
            return call


def _for_gateway(world: World, attempt: str) -> dict[str, str]:
    token = world.gateway_token(attempt)
    if token is None:
        return {}
    return {"FALLBACKD_GATEWAY_TOKEN": token, INSTEAD_OF_FILE: instead_of_file(token)}


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


def runs_commands(settings: Settings, id: BackendId, role: str | None) -> bool:
    """Test whether it runs commands at `workspace` without asking."""
    backend = find_backend(settings.policy, id)
    return backend is not None and shell_of(settings.policy, backend, role) == "confined"


def texts_of(world: World, kind: BackendKind, environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own settings files that its command line is made with."""
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


log = structlog.get_logger("attempts")

ROOM_LOOK_S = 0.2
ROOM_BOUND_S = 30.0
"""Longest wait of an attempt that is to be stopped for the descriptors that this takes."""


class RunningHost(LiveHost, Protocol):
    store: Store
    strays_ended: anyio.Event
    """No new attempt is made before it."""

    def held(self, delegation: DelegationId) -> Held | None: ...


class RunningAttempts:
    """The attempts that run now, each in a task of its own."""

    def __init__(self, host: RunningHost) -> None:
        self._host = host
        self._live: dict[AttemptId, LiveAttempt] = {}

    def start(self, order: StartAttempt, tasks: TaskGroup) -> None:
        live = LiveAttempt(order, started_at=self._started_at(order))
        self._live[order.attempt] = live
        tasks.start_soon(self._run, live, name=order.attempt)

    def stop(self, order: StopAttempt) -> None:
        if (found := self._live.get(order.attempt)) is not None:
            found.stop(order.grace_s)

    def get(self, attempt: AttemptId) -> LiveAttempt | None:
        return self._live.get(attempt)

    def shift(self, by_s: float) -> None:
        for live in self._live.values():
            live.shift(by_s)

    def unopened(self) -> int:
        """Attempts that will need descriptors and have none yet."""
        return sum(one.running is None for one in self._live.values())

    def is_following(self) -> bool:
        return any(one.running is not None for one in self._live.values())

    def _started_at(self, order: StartAttempt) -> float:
        found = self._host.store.peek().active.get(order.delegation) if order.taken_up else None
        attempt = None if found is None else found.attempt(order.attempt)
        return self._host.clock.now() if attempt is None else attempt.started_at

    async def _run(self, live: LiveAttempt) -> None:
        host, name = self._host, live.order.delegation
        delegation, held = host.store.peek().active.get(name), host.held(name)
        try:
            if delegation is not None and held is not None:
                backend = find_backend(host.settings.policy, live.order.backend)
                allowed = () if backend is None else backend.allow_env
                prepared = Prepared(
                    prompt=held.prompt,
                    env={k: v for k, v in held.env.items() if k in allowed},
                    missing=tuple(name for name in held.missing if name in allowed),
                    looked=held.looked,
                    delegation=delegation,
                )
                if not live.order.taken_up:
                    await host.strays_ended.wait()
                await run_attempt(host, live, prepared)
        finally:
            self._live.pop(live.order.attempt, None)


async def run_attempt(host: LiveHost, live: LiveAttempt, prepared: Prepared) -> None:
    """Perform a `StartAttempt`."""
    order = live.order
    if order.taken_up:
        host.planted.recall(order.attempt)
        if known := host.runs.git(order.attempt):
            host.world.recall_git(order.attempt, known)
    try:
        ended = await _run(host, live, prepared)
    except Exception as error:  # a bug in a backend or transport is that backend's failure
        if is_shortage(error):
            log.warning("attempt.short", attempt=order.attempt, error=str(error))
        else:
            log.exception("attempt.broke", attempt=order.attempt, backend=order.backend)
        gone = await _is_proven_gone(host, live)
        failure = _broken(host, error)
        ended = AttemptEnded(attempt=order.attempt, failure=failure, gone=gone)
    changed = await host.planted.end(order.attempt, now=host.clock.now())
    dropped = await _put_git_back(host, order.attempt)
    ended = structs.replace(ended, warnings=(*ended.warnings, *changed, *dropped))
    if ended.failure is not None:
        has_route = not live.was_offline and host.world.has_route()
        ended = structs.replace(ended, has_route=has_route)
    hit("attempt.ended.before")
    await host.handle(structs.replace(ended, luck=host.world.luck()))
    hit("attempt.ended.after")
    if live.heard_at_end is not None:
        await live.heard_at_end()


async def _put_git_back(host: LiveHost, attempt: AttemptId) -> tuple[str, ...]:
    """Drop what it has changed of what git runs and obeys. Returns a warning for people."""
    known = host.runs.git(attempt)
    try:
        changed = await anyio.to_thread.run_sync(host.world.put_git_back, attempt, known)
    except (OSError, msgspec.MsgspecError) as error:
        return (f"look at .git before you use git there: what was changed stays ({error})",)
    if not changed:
        return ()
    return (
        f"changes of {', '.join(changed)} were dropped, and are beside it as *.dropped: git runs"
        " what is there; permission `full` may change hooks, and settings that may name a program",
    )


def _broken(host: LiveHost, error: Exception) -> Failure:
    now, text = host.clock.now(), host.world.redact(f"{type(error).__name__}: {error}")
    if is_shortage(error):
        return no_ones_fault("shortage", "this machine has run short", text, now=now)
    return make_failure(
        Reason.CRASH,
        now=now,
        detail="internal",
        confidence="structured",
        signature="fallbackd/internal",
        evidence=text,
    )


async def _is_proven_gone(host: LiveHost, live: LiveAttempt) -> bool:
    """End what an attempt may have started. False: there is no proof of its end."""
    if live.running is not None:
        return await _is_gone(live.running)
    if not live.may_run:
        return True
    attempt = live.order.attempt
    directory = host.runs.attempt_path(attempt)
    try:
        return await host.world.end_leftover(directory, attempt=attempt)
    except Exception:
        log.exception("attempt.end_broke", attempt=attempt)
        return False


async def _is_gone(running: Running) -> bool:
    """Stop what a bug left running. False: there is no proof of its end."""
    try:
        return running.exit.gone
    except Exception:
        running.stop(grace_s=0)
    try:
        async for _ in running.chunks():
            pass
        return running.exit.gone
    except Exception:
        log.exception("attempt.drain_broke")
        return False


async def _run(host: LiveHost, live: LiveAttempt, prepared: Prepared) -> AttemptEnded:
    order = live.order
    try:
        running = await _found(host, live) if order.taken_up else None
        kind = await _kind_of(host, order, running)
        options = host.settings.options_of(order.backend)
        begun = await _begun(host, live, prepared, kind, options, running)
    except CannotBegin as error:
        return AttemptEnded(attempt=order.attempt, failure=error.failure, gone=error.gone)
    cwd = place_of(host.runs, prepared.delegation)
    live.opened(begun.running)  # first: what breaks from here on ends it by its own runner
    anew = order.taken_up and running is None
    reader = Reader(host, live, kind, options, prepared, cwd=cwd, anew=anew)
    try:
        await host.handle(
            AttemptStarted(
                attempt=order.attempt,
                pid=begun.running.pid,
                anew=anew,
                carried=begun.given.how,
                carried_why=begun.given.why,
                conversation=None if begun.given.how is None else begun.given.resume,
                warnings=begun.warnings,
            )
        )
        hit("attempt.started")
        await _read(live, reader, begun.running)
        ended = await reader.finish(begun.running.exit)
        live.heard_at_end = partial(
            heard_at_end, host, live, kind, begun.running.exit, reader.conversation
        )
    finally:
        reader.close()
    failure = ended.failure
    if failure is None:
        return ended
    permissions = prepared.delegation.permissions
    inside = bool(prepared.delegation.above)
    if footprint_of(host.settings, host.world, order.backend, permissions, inside=inside):
        failure = explained(failure)
    if kind.program(options) is not None:
        given = given_variables(host.settings, host.world, order.backend)
        failure = with_variables(failure, host.world, given)
    ended = structs.replace(ended, failure=failure)
    is_able = kind.program(options) is not None and permissions != "read"
    if not is_able or (ended.effects == "none" and _shows_tools(host, order.backend, kind)):
        return ended
    return await with_tracks(
        host, prepared, ended, cwd=cwd, before=begun.before, started_at=live.watch.started_at
    )


def _shows_tools(host: LiveHost, name: BackendId, kind: BackendKind) -> bool:
    """Test whether an attempt that has shown no tool has used none."""
    backend = find_backend(host.settings.policy, name)
    return kind.structured and not (backend is not None and backend.plain_output)


async def _found(host: LiveHost, live: LiveAttempt) -> Running | None:
    """
    Find what an earlier daemon has begun; None: it was never started.

    Raises:
        CannotBegin: It was started, and is gone.
    """
    order = live.order
    live.may_run = True
    hit("attempt.attach.before")
    found = await _attach(host, live, host.runs.attempt_path(order.attempt))
    hit("attempt.attach.after")
    is_unsent = isinstance(found, Unsent)
    running = None if isinstance(found, Unsent) else found
    live.may_run = running is not None
    if running is None and order.rebooted:
        raise CannotBegin(rebooted(now=host.clock.now()), gone=True)
    if running is None and order.was_started and not is_unsent:
        raise CannotBegin(unexplained(now=host.clock.now()), gone=False)
    return running


async def _kind_of(host: LiveHost, order: StartAttempt, running: Running | None) -> BackendKind:
    """
    Raises:
        CannotBegin: The backend went with the configuration of before.
    """
    backend = find_backend(host.settings.policy, order.backend)
    if backend is not None and backend.kind in host.world.kinds:
        return host.world.kinds[backend.kind]
    gone = running is None or await _is_gone(running)
    failure = cannot_start(host, f"backend {order.backend!r} is no longer configured")
    raise CannotBegin(failure, gone=gone)


async def _begun(
    host: LiveHost,
    live: LiveAttempt,
    prepared: Prepared,
    kind: BackendKind,
    options: Options,
    running: Running | None,
) -> Underway:
    """
    Raises:
        CannotBegin: It cannot be started.
    """
    if running is not None:
        host.recall(prepared.delegation.delegation, running.pid)
        given = from_record(host.runs.given(live.order.attempt))
        return Underway(running=running, given=given)
    await _find_room(host, live)
    host.beginning += 1
    try:
        return await begin(host, live, prepared, kind, options)
    finally:
        host.beginning -= 1


async def _find_room(host: LiveHost, live: LiveAttempt) -> None:
    """Start one after another where few descriptors are left."""
    while not live.is_stopped and (host.beginning or host.is_following()):
        if host.world.has_room(host.beginning):
            return
        await anyio.sleep(ROOM_LOOK_S)


async def _read(live: LiveAttempt, reader: Reader, running: Running) -> None:
    """Feed the reader to the end, also behind a failure of its own: only that proves the end."""
    if live.order.taken_up:
        await reader.begin_behind(running.recorded_bytes)
    broken: Exception | None = None
    async for chunk in running.chunks():
        if broken is not None:
            continue
        hit("attempt.chunk")
        try:
            await reader.feed(chunk)
        except Exception as error:
            broken = error
            running.stop(grace_s=0)
    if broken is not None:
        raise broken


async def _attach(host: LiveHost, live: LiveAttempt, directory: str) -> Running | Unsent | None:
    """
    Re-attach one after another, as this machine has room; running agents need no daemon meanwhile.

    Raises:
        OSError: It cannot be determined what was started there.
    """
    attempt = live.order.attempt
    looks_after_stop = 0
    while True:
        async with host.attaching:
            if host.world.has_room(host.beginning) or not host.is_following():
                try:
                    return await host.world.attach(attempt=attempt, directory=directory)
                except OSError as error:
                    if not is_shortage(error):
                        raise
        looks_after_stop += live.is_stopped
        if looks_after_stop * ROOM_LOOK_S > ROOM_BOUND_S:
            raise OSError(errno.EMFILE, "no file descriptor is free to stop it")
        await anyio.sleep(ROOM_LOOK_S)
