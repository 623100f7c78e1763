"""
One attempt: take it up or begin it, feed its parser, judge its end, post its events.

Decides nothing. Whatever happens here ends in exactly one `AttemptEnded`. One that an earlier
daemon has begun is resumed as it is found: running, ended, or never started.
"""

import errno

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec import structs

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.effects import StartAttempt
from fallbackd.core.events import AttemptEnded, AttemptStarted
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.engine.carrying import from_record, place_of
from fallbackd.engine.confinement import explained, footprint_of
from fallbackd.engine.credentials import given_variables, with_variables
from fallbackd.engine.judging import no_ones_fault, rebooted, unexplained
from fallbackd.engine.live import LiveAttempt, LiveHost, Prepared
from fallbackd.engine.reading import Reader
from fallbackd.engine.starting import CannotBegin, Underway, begin, cannot_start
from fallbackd.engine.tracks import with_tracks
from fallbackd.lib.descriptors import is_shortage
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Running, Unsent

log = structlog.get_logger("attempts")

ROOM_LOOK_S = 0.2
ROOM_BOUND_S = 30.0
"""How long one that is to be stopped waits for the descriptors that it takes to stop it."""


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
    """Whether an attempt that has shown no tool has used none."""
    backend = find_backend(host.settings.policy, name)
    return kind.structured and not (backend is not None and backend.plain_output)


async def _found(host: LiveHost, live: LiveAttempt) -> Running | None:
    """
    What an earlier daemon has begun; None: it was never started.

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
        raise CannotBegin(rebooted(now=host.clock.now()))
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
