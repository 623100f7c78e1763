"""
One attempt: build its call, feed its parser, judge its end, post its events.

Decides nothing. Whatever happens here ends in exactly one `AttemptEnded`.
"""

from collections.abc import Mapping
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct, structs

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.effects import StartAttempt
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptGaveUp,
    AttemptRetrying,
    AttemptStarted,
    Event,
    Woke,
)
from fallbackd.core.exchange import (
    Call,
    Chunk,
    CommandLine,
    Evidence,
    Exit,
    GivenUp,
    HttpRequest,
    NotStarted,
    Observation,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
    ServedPrompt,
    ToolStarted,
    Work,
)
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.redact import redact
from fallbackd.core.scopes import find_backend
from fallbackd.core.state import Delegation
from fallbackd.core.watch import EffectsWord, Watch, see, shift
from fallbackd.engine.judging import judge, no_ones_fault, unexplained
from fallbackd.engine.runs import Runs
from fallbackd.engine.world import Settings, Transports, World
from fallbackd.ports.clock import Clock
from fallbackd.ports.transport import Running, Transport

log = structlog.get_logger("attempts")

MAX_NOTICE_CHARS = 500
"""A longer answer is an answer, whatever words it holds."""
PROGRESS_S = 0.25
"""Output is told to subscribers at most this often for one attempt."""


class Progress(Struct, frozen=True, kw_only=True):
    """`attempt.output`: how far the log has grown. No `seq`, not journaled."""

    attempt: AttemptId
    delegation: str
    session: str
    backend: BackendId
    offset: int
    at: float
    phase: str | None = None


class Host(Protocol):
    """What an attempt asks of the engine."""

    clock: Clock
    settings: Settings
    world: World
    runs: Runs

    async def handle(self, event: Event) -> object: ...

    def progress(self, progress: Progress) -> None: ...


class LiveAttempt:
    """An attempt that runs now: what cannot be stored."""

    def __init__(self, order: StartAttempt, *, started_at: float) -> None:
        self.order = order
        self.watch = Watch(started_at=started_at)
        self.running: Running | None = None
        self._stop_grace_s: float | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stop_grace_s is not None

    def stop(self, grace_s: float) -> None:
        """Also before it has started: then nothing is, or it is stopped as soon as it is there."""
        self._stop_grace_s = grace_s
        if self.running is not None:
            self.running.stop(grace_s=grace_s)

    def shift(self, by_s: float) -> None:
        """The wall clock was set: what was seen moves with it."""
        self.watch = shift(self.watch, by_s)

    def opened(self, running: Running) -> None:
        self.running = running
        if self._stop_grace_s is not None:
            running.stop(grace_s=self._stop_grace_s)


class Prepared(Struct, frozen=True, kw_only=True):
    """What the engine knows of a delegation that core does not."""

    prompt: str
    env: Mapping[str, str]
    delegation: Delegation


async def run_attempt(host: Host, live: LiveAttempt, prepared: Prepared) -> None:
    """Perform a `StartAttempt`."""
    order = live.order
    try:
        ended = await _run(host, live, prepared)
    except Exception as error:  # a bug in a backend or transport is that backend's failure
        log.exception("attempt.broke", attempt=order.attempt, backend=order.backend)
        gone = live.running is None or await _is_gone(live.running)
        ended = AttemptEnded(
            attempt=order.attempt,
            failure=make_failure(
                Reason.CRASH,
                now=host.clock.now(),
                detail="internal",
                confidence="structured",
                signature="fallbackd/internal",
                evidence=redact(f"{type(error).__name__}: {error}"),
            ),
            gone=gone,
        )
    if ended.failure is not None:
        ended = structs.replace(ended, has_route=host.world.has_route())
    await host.handle(structs.replace(ended, luck=host.world.luck()))


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


async def _run(host: Host, live: LiveAttempt, prepared: Prepared) -> AttemptEnded:
    order = live.order
    settings, world = host.settings, host.world
    backend = find_backend(settings.policy, order.backend)
    if backend is None or backend.kind not in world.kinds:
        return _not_started(host, order, f"backend {order.backend!r} is no longer configured")
    kind = world.kinds[backend.kind]
    options = settings.options_of(order.backend)
    delegation = prepared.delegation
    prompt = prepared.prompt
    prompt_path = host.runs.prompt_path(delegation.delegation)
    try:
        directory = host.runs.prepare(order.attempt)
        cwd = delegation.cwd or str(host.runs.work_path(delegation.delegation))
        if order.handoff is not None:
            prompt = order.handoff + prompt
            prompt_path = host.runs.write_prompt(order.attempt, prompt)
    except OSError as error:
        what = f"{host.runs.root} cannot be written"
        failure = no_ones_fault("no_place", what, error.strerror, now=host.clock.now())
        return AttemptEnded(attempt=order.attempt, failure=failure)
    work = Work(
        prompt=prompt,
        prompt_path=str(prompt_path),
        cwd=cwd,
        scratch=str(directory),
        model=order.model,
        effort=order.effort,
        session=delegation.session,
        permissions=delegation.permissions,
        mode=delegation.mode,
        env=prepared.env,
        files=_texts(world, kind),
        inherited={name: world.environ[name] for name in kind.reads_env if name in world.environ},
    )
    try:
        call = kind.start(work, options)
    except ValueError as error:
        return _not_started(host, order, str(error), reason=Reason.FORMAT_ERROR)
    before = None
    if backend.plain_output and delegation.permissions != "read":
        before = await anyio.to_thread.run_sync(world.fingerprint, cwd)
    reader = _Reader(host, live, kind, options, prepared, cwd=cwd)
    transport = _transport(world.transports, call)
    if live.is_stopped:
        return _not_started(host, order, "stopped before it was started", reason=Reason.CANCELLED)
    running = await transport.open(
        call, attempt=order.attempt, directory=str(directory), env=marks(prepared, order)
    )
    live.opened(running)
    await host.handle(AttemptStarted(attempt=order.attempt, pid=running.pid))
    broken: Exception | None = None
    async for chunk in running.chunks():
        if broken is not None:
            continue  # to the end: only that proves that it is gone
        try:
            await reader.feed(chunk)
        except Exception as error:
            broken = error
            running.stop(grace_s=0)
    if broken is not None:
        raise broken
    ended = await reader.finish(running.exit)
    if ended.failure is not None and ended.effects != "seen":
        changed = await _changed(world, cwd, before)
        if changed:
            ended = structs.replace(ended, effects="seen", changed_files=changed)
    return ended


def marks(prepared: Prepared, order: StartAttempt) -> dict[str, str]:
    """Variables by which children are known, and by which they know where they are."""
    return {
        "FALLBACKD_DELEGATION": prepared.delegation.delegation,
        "FALLBACKD_ATTEMPT": order.attempt,
    }


async def _changed(
    world: World, cwd: str, before: Mapping[str, tuple[int, int]] | None
) -> tuple[str, ...]:
    """Files that are new, other or gone since the start; empty where nobody looked."""
    if before is None:
        return ()
    after = await anyio.to_thread.run_sync(world.fingerprint, cwd)
    if after is None:
        return ()
    found = {path for path, seen in after.items() if before.get(path) != seen}
    found.update(path for path in before if path not in after)
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
    host: Host, order: StartAttempt, text: str, *, reason: Reason = Reason.NOT_CONFIGURED
) -> AttemptEnded:
    return AttemptEnded(
        attempt=order.attempt,
        failure=make_failure(
            reason,
            now=host.clock.now(),
            confidence="structured",
            signature="fallbackd/cannot_start",
            evidence=redact(text),
        ),
    )


class _Reader:
    """Feeds one parser and turns what it says into events."""

    def __init__(
        self,
        host: Host,
        live: LiveAttempt,
        kind: BackendKind,
        options: Options,
        prepared: Prepared,
        *,
        cwd: str,
    ) -> None:
        self._host = host
        self._live = live
        self._kind = kind
        self._prepared = prepared
        self._cwd = cwd
        self._parser = kind.parser(options)
        self._retrying = False
        self._gave_up = False
        self._looped = False
        self._told_at = 0.0

    async def feed(self, chunk: Chunk) -> None:
        host, live = self._host, self._live
        seen = self._parser.feed(chunk)
        now = host.clock.now()
        for one in seen:
            had_answer = live.watch.answered_at is not None
            live.watch = see(live.watch, one, now=now)
            if isinstance(one, ProviderAnswered | ToolStarted) and (
                self._retrying or not had_answer
            ):
                self._retrying = False
                await host.handle(AttemptAnswered(attempt=live.order.attempt))
            await self._post(one)
        if not self._looped and live.watch.repeats >= self._loop_steps():
            self._looped = True
            await host.handle(
                Woke(
                    delegation=live.order.delegation,
                    attempt=live.order.attempt,
                    watch=live.watch,
                    luck=host.world.luck(),
                )
            )
        # A clock that was set back must not silence it.
        if not 0 <= now - self._told_at < PROGRESS_S and live.running is not None:
            self._told_at = now
            host.progress(
                Progress(
                    attempt=live.order.attempt,
                    delegation=live.order.delegation,
                    session=self._prepared.delegation.session,
                    backend=live.order.backend,
                    offset=live.running.log_bytes,
                    at=now,
                    phase=live.watch.phase,
                )
            )

    def _loop_steps(self) -> int:
        return self._host.settings.policy.defaults.loop_steps

    async def _post(self, seen: Observation) -> None:
        host, attempt = self._host, self._live.order.attempt
        match seen:
            case Retrying():
                failure = self._judge(seen.evidence)
                if failure is not None:
                    self._retrying = True
                    await host.handle(
                        AttemptRetrying(attempt=attempt, failure=failure, wait_s=seen.wait_s)
                    )
            case GivenUp():
                failure = self._judge(seen.evidence)
                if failure is not None and not self._gave_up:
                    self._gave_up = True
                    await host.handle(AttemptGaveUp(attempt=attempt, failure=failure))
            case _:
                pass

    def _judge(self, evidence: Evidence) -> Failure | None:
        host = self._host
        return judge(
            evidence,
            host.settings,
            self._kind,
            self._live.order.backend,
            now=host.clock.now(),
            conceal=host.world.conceal,
        )

    def _notice(self, reply: Reply) -> Failure | None:
        """A limit notice that is the whole answer is none."""
        if len(reply.text) > MAX_NOTICE_CHARS:
            return None
        return self._judge(Evidence(text=reply.text, stream="stdout", exit_code=0))

    async def finish(self, exit: Exit) -> AttemptEnded:
        host, live = self._host, self._live
        outcome = self._parser.finish(exit)
        exit_code = None
        if isinstance(exit, ProcessExit):
            exit_code = exit.code if exit.signal is None else -exit.signal
        watch = live.watch
        failure: Failure | None = None
        usage = watch.usage
        effects: EffectsWord = watch.effects
        if isinstance(outcome, Reply):
            usage = outcome.usage if outcome.usage.input_tokens else usage
            if (notice := self._notice(outcome)) is not None:
                return AttemptEnded(
                    attempt=live.order.attempt,
                    failure=notice,
                    exit_code=exit_code,
                    effects=effects,
                    usage=usage,
                    gone=exit.gone,
                )
            name = self._prepared.delegation.delegation
            if not await anyio.to_thread.run_sync(host.runs.keep_answer, name, outcome.text):
                log.warning("answer.held", delegation=name, problem="it cannot be written yet")
        elif isinstance(exit, NotStarted) and exit.path == self._cwd:
            what = f"{self._cwd} cannot be worked in any more"
            failure = no_ones_fault("no_cwd", what, exit.text, now=host.clock.now())
        else:
            evidence = outcome
            if watch.answered_at is not None and not evidence.answered:
                evidence = structs.replace(evidence, answered=True)
            failure = self._judge(evidence) or unexplained(now=host.clock.now())
        return AttemptEnded(
            attempt=live.order.attempt,
            failure=failure,
            exit_code=exit_code,
            effects=effects,
            usage=usage,
            gone=exit.gone,
            answered=watch.answered_at is not None or failure is None,
        )
