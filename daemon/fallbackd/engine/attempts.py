"""
One attempt: build its call, feed its parser, judge its end, post its events.

Decides nothing. Whatever happens here ends in exactly one `AttemptEnded`. One that an earlier
daemon has begun is taken up where it is found: it runs, it has ended, or it was never started.
"""

import errno

import anyio
import anyio.to_thread
import structlog
from msgspec import structs

from fallbackd.backends.spec import BackendKind, NotConfigured, Options
from fallbackd.core.effects import StartAttempt
from fallbackd.core.events import AttemptEnded, AttemptStarted
from fallbackd.core.failures import Reason, make_failure
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.protocol import Call, CommandLine, HttpRequest, ServedPrompt, Work
from fallbackd.core.watch import Watch
from fallbackd.core.work.resumption import CONTINUE, not_resumed
from fallbackd.engine.carrying import GivenPast, carried, place_of
from fallbackd.engine.confinement import confined, confinement_of, explained, footprint_of
from fallbackd.engine.credentials import carrying, credential_of
from fallbackd.engine.environment import Transports, World
from fallbackd.engine.judging import no_ones_fault, rebooted, unexplained
from fallbackd.engine.live import Fingerprint, LiveAttempt, LiveHost, Prepared
from fallbackd.engine.reading import Reader
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Running, Transport, Unsent

log = structlog.get_logger("attempts")

ROOM_LOOK_S = 0.2
ROOM_BOUND_S = 30.0
"""How long one that is to be stopped waits for the descriptors that it takes to stop it."""


async def run_attempt(host: LiveHost, live: LiveAttempt, prepared: Prepared) -> None:
    """Perform a `StartAttempt`."""
    order = live.order
    try:
        ended = await _run(host, live, prepared)
    except Exception as error:  # a bug in a backend or transport is that backend's failure
        log.exception("attempt.broke", attempt=order.attempt, backend=order.backend)
        gone = await _is_proven_gone(host, live)
        ended = AttemptEnded(
            attempt=order.attempt,
            failure=make_failure(
                Reason.CRASH,
                now=host.clock.now(),
                detail="internal",
                confidence="structured",
                signature="fallbackd/internal",
                evidence=host.world.redact(f"{type(error).__name__}: {error}"),
            ),
            gone=gone,
        )
    if ended.failure is not None:
        ended = structs.replace(ended, has_route=host.world.has_route())
    hit("attempt.ended.before")
    await host.handle(structs.replace(ended, luck=host.world.luck()))
    hit("attempt.ended.after")


async def _is_proven_gone(host: LiveHost, live: LiveAttempt) -> bool:
    """End what an attempt may have started. False: there is no proof of its end."""
    if live.running is not None:
        return await _is_gone(live.running)
    if not live.may_run:
        return True
    attempt = live.order.attempt
    directory = str(host.runs.attempt_path(attempt))
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
    settings, world = host.settings, host.world
    running, given = None, GivenPast(prompt="")
    if order.taken_up:
        directory = str(host.runs.attempt_path(order.attempt))
        live.may_run = True
        hit("attempt.attach.before")
        found = await _attach(host, live, directory)
        hit("attempt.attach.after")
        is_unsent = isinstance(found, Unsent)
        running = None if isinstance(found, Unsent) else found
        live.may_run = running is not None
        if running is None and order.rebooted:
            return AttemptEnded(attempt=order.attempt, failure=rebooted(now=host.clock.now()))
        if running is None and order.was_started and not is_unsent:
            failure = unexplained(now=host.clock.now())
            return AttemptEnded(attempt=order.attempt, failure=failure, gone=False)
    backend = find_backend(settings.policy, order.backend)
    if backend is None or backend.kind not in world.kinds:
        gone = running is None or await _is_gone(running)
        ended = _not_started(host, order, f"backend {order.backend!r} is no longer configured")
        return structs.replace(ended, gone=gone)
    kind = world.kinds[backend.kind]
    options = settings.options_of(order.backend)
    delegation = prepared.delegation
    looks = kind.program(options) is not None and delegation.permissions != "read"
    before = None
    is_anew = order.taken_up and running is None
    if is_anew:
        live.watch = Watch(started_at=host.clock.now())
    if running is None:
        begun = await _begin(host, live, prepared, kind, options, looks=looks)
        if isinstance(begun, AttemptEnded):
            return begun
        running, before, given = begun
    else:
        host.recall(delegation.delegation, running.pid)
    cwd = place_of(host.runs, delegation)
    live.opened(running)  # first: what breaks from here on ends it by its own runner
    reader = Reader(host, live, kind, options, prepared, cwd=cwd)
    await host.handle(
        AttemptStarted(
            attempt=order.attempt,
            pid=running.pid,
            anew=is_anew,
            carried=given.how,
            carried_why=given.why,
            conversation=None if given.how is None else given.resume,
        )
    )
    hit("attempt.started")
    broken: Exception | None = None
    if order.taken_up:
        await reader.begin_behind(running.recorded_bytes)
    async for chunk in running.chunks():
        if broken is not None:
            continue  # to the end: only that proves that it is gone
        hit("attempt.chunk")
        try:
            await reader.feed(chunk)
        except Exception as error:
            broken = error
            running.stop(grace_s=0)
    if broken is not None:
        raise broken
    ended = await reader.finish(running.exit)
    is_confined = footprint_of(settings, world, order.backend, delegation.permissions) is not None
    if ended.failure is not None and is_confined:
        ended = structs.replace(ended, failure=explained(ended.failure))
    # Who shows its tools has done nothing where it has shown none.
    shows_tools = kind.structured and not backend.plain_output
    is_begun = not shows_tools or ended.effects != "none"
    if ended.failure is not None and looks and is_begun:
        if before is not None:
            changed = await _changed(host, prepared, cwd, before)
        else:
            changed = await _changed_since(world, cwd, live.watch.started_at)
        if changed:
            ended = structs.replace(ended, effects="seen", changed_files=changed)
        elif before is None and ended.effects == "none":
            ended = structs.replace(ended, effects="possible")  # what was deleted is not seen
    return ended


async def _attach(host: LiveHost, live: LiveAttempt, directory: str) -> Running | Unsent | None:
    """
    One after another, as file descriptors allow: what runs goes on by itself until then.

    Raises:
        OSError: It cannot be told what was started there.
    """
    attempt = live.order.attempt
    looks_after_stop = 0
    while True:
        async with host.attaching:
            if host.world.has_room() or not host.is_following():
                try:
                    return await host.world.attach(attempt=attempt, directory=directory)
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
        looks_after_stop += live.is_stopped
        if looks_after_stop * ROOM_LOOK_S > ROOM_BOUND_S:
            raise OSError(errno.EMFILE, "no file descriptor is free to stop it")
        await anyio.sleep(ROOM_LOOK_S)


async def _begin(
    host: LiveHost,
    live: LiveAttempt,
    prepared: Prepared,
    kind: BackendKind,
    options: Options,
    *,
    looks: bool,
) -> tuple[Running, Fingerprint | None, GivenPast] | AttemptEnded:
    """Start it. The fingerprint of its directory is of the moment before."""
    order, world = live.order, host.world
    delegation = prepared.delegation
    prompt = prepared.prompt
    if prompt is None:
        what = "the prompt cannot be read back"
        failure = no_ones_fault("no_prompt", what, "its file is gone", now=host.clock.now())
        return AttemptEnded(attempt=order.attempt, failure=failure)
    if prepared.missing:
        ended = _not_started(
            host,
            order,
            f"the caller's {', '.join(prepared.missing)} went with the daemon that was given it",
        )
        assert ended.failure is not None
        failure = structs.replace(ended.failure, marks_health=False)
        return structs.replace(ended, failure=failure)
    if kind.program(options) is not None:
        await host.follow_workspaces()
        if (why := host.why_not_there(delegation)) is not None:
            what = f"{delegation.cwd} cannot be worked in any more"
            failure = no_ones_fault("workspace", what, why, now=host.clock.now())
            return AttemptEnded(attempt=order.attempt, failure=failure)
    if order.resume is not None and not kind.resumes(options):
        why = f"{order.backend!r} is now configured with a command of its own"
        return AttemptEnded(attempt=order.attempt, failure=not_resumed(why, now=host.clock.now()))
    prompt_path = host.runs.prompt_path(delegation.delegation)
    earlier_path = host.runs.earlier_path(order.attempt)
    given = GivenPast(prompt=CONTINUE, resume=order.resume)
    if order.resume is None:
        given = await carried(host, prepared, kind, options, path=str(earlier_path))
    try:
        directory = host.runs.prepare(order.attempt)
        cwd = place_of(host.runs, delegation)
        if not delegation.cwd:
            host.runs.make_work(delegation.delegation)
        if given.text:
            host.runs.write_earlier(order.attempt, given.text)
        if given.prompt != prompt or order.handoff is not None:
            prompt = f"{order.handoff or ''}{given.prompt}"
            prompt_path = host.runs.write_prompt(order.attempt, prompt)
    except OSError as error:
        what = f"{host.runs.root} cannot be written"
        failure = no_ones_fault("no_place", what, error.strerror, now=host.clock.now())
        return AttemptEnded(attempt=order.attempt, failure=failure)
    credential = credential_of(options, order.credential)
    if credential is None and order.credential is not None:
        what = f"credential {order.credential!r} of {order.backend!r} is no longer configured"
        return _not_started(host, order, what, marks=False)
    work = Work(
        prompt=prompt,
        prompt_path=str(prompt_path),
        cwd=cwd,
        scratch=str(directory),
        model=order.model,
        effort=order.effort,
        credential=credential,
        session=delegation.session,
        resume=given.resume,
        earlier=given.said,
        permissions=delegation.permissions,
        mode=delegation.mode,
        env=prepared.env,
        files=_texts(world, kind),
        inherited={name: world.environ[name] for name in kind.reads_env if name in world.environ},
    )
    try:
        call = kind.start(work, options)
    except NotConfigured as error:
        return _not_started(host, order, str(error))
    except ValueError as error:
        return _not_started(host, order, str(error), reason=Reason.FORMAT_ERROR)
    call = carrying(call, credential, options)
    call = confined(call, confinement_of(host.settings, world, order.backend, work))
    before = prepared.looked.recent(now=host.clock.now()) if looks else None
    if looks and before is None:
        before = await anyio.to_thread.run_sync(world.fingerprint, cwd)
    if live.is_stopped:
        return _not_started(host, order, "stopped before it was started", reason=Reason.CANCELLED)
    hit("attempt.open.before")
    live.may_run = True
    # A daemon that leaves must not stop what it has half started.
    with anyio.CancelScope(shield=True):
        running = await _transport(world.transports, call).open(
            call, attempt=order.attempt, directory=str(directory), env=marks(prepared, order)
        )
    hit("attempt.open.after")
    return running, before, given


def marks(prepared: Prepared, order: StartAttempt) -> dict[str, str]:
    """Variables by which children are known, and by which they know where they are."""
    return {
        "FALLBACKD_DELEGATION": prepared.delegation.delegation,
        "FALLBACKD_ATTEMPT": order.attempt,
    }


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
    return tuple(sorted(found)[:50])


async def _changed_since(world: World, cwd: str, started_at: float) -> tuple[str, ...]:
    """What was written since then, where nobody remembers how it was before."""
    after = await anyio.to_thread.run_sync(world.fingerprint, cwd)
    since_ns = int(started_at * 1e9)
    found = (path for path, (mtime_ns, _) in (after or {}).items() if mtime_ns >= since_ns)
    return tuple(sorted(found)[:50])


def _texts(world: World, kind: BackendKind) -> dict[str, str]:
    return {path: text for path in kind.reads if (text := world.read_text(path)) is not None}


def _transport(transports: Transports, call: Call) -> Transport:
    match call:
        case CommandLine():
            return transports.command
        case HttpRequest():
            return transports.http
        case ServedPrompt():
            return transports.served


def _not_started(
    host: LiveHost,
    order: StartAttempt,
    text: str,
    *,
    reason: Reason = Reason.NOT_CONFIGURED,
    marks: bool = True,
) -> AttemptEnded:
    failure = make_failure(
        reason,
        now=host.clock.now(),
        confidence="structured",
        signature="fallbackd/cannot_start",
        evidence=host.world.redact(text),
    )
    if not marks:
        failure = structs.replace(failure, marks_health=False)
    return AttemptEnded(attempt=order.attempt, failure=failure)
