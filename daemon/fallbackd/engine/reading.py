"""Reads one attempt: chunks become events, and its exit one `AttemptEnded`."""

from functools import partial

import anyio.to_thread
import structlog
from msgspec import structs

from fallbackd.backends.repairs import is_signed_elsewhere, words_of
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.events import (
    AttemptAnswered,
    AttemptEnded,
    AttemptGaveUp,
    AttemptRetrying,
    ConversationSeen,
    Woke,
)
from fallbackd.core.failures import NO_CONVERSATION, REPAIRABLE, Failure
from fallbackd.core.protocol import (
    DAEMON_LOST,
    FOREIGN_LISTENER,
    Chunk,
    Conversation,
    Evidence,
    Exit,
    FiguresSeen,
    GivenUp,
    NoAnswer,
    NotStarted,
    Observation,
    Outcome,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
    ToolEnded,
    ToolStarted,
    Usage,
)
from fallbackd.core.reasons import Reason
from fallbackd.core.watch import see, worse
from fallbackd.engine.credentials import SECRET_ERRORS, without_secret
from fallbackd.engine.judging import (
    daemon_lost,
    foreign_listener,
    judge,
    no_ones_fault,
    off_the_loop,
    rebooted,
    unexplained,
    without_quotations,
)
from fallbackd.engine.live import LiveAttempt, LiveHost, Prepared, Progress, Teller
from fallbackd_conversations.turns import is_plain_id

log = structlog.get_logger("attempts")

MAX_NOTICE_CHARS = 500
"""A longer answer is an answer, whatever words it holds."""
PROGRESS_S = 0.25
"""Subscribers are notified of output at most this often for one attempt."""


class Reader:
    """
    Feeds one parser and turns what it says into events.

    Of a re-attached attempt, earlier output is replayed with its own times and reported as one
    summary, so that throttles that have expired since are ignored.
    """

    def __init__(
        self,
        host: LiveHost,
        live: LiveAttempt,
        kind: BackendKind,
        options: Options,
        prepared: Prepared,
        *,
        cwd: str,
        anew: bool = False,
    ) -> None:
        """`anew`: the attempt is started once more, after a restart of the daemon."""
        self._host = host
        self._live = live
        self._kind = kind
        self._options = options
        self._prepared = prepared
        self._cwd = cwd
        # What an HTTP API is asked in may depend on the model of the attempt.
        model = live.order.model or options.model
        self._parser = kind.parser(structs.replace(options, model=model))
        self._conversation: str | None = None
        self._retrying = False
        self._failing_since: float | None = None
        """Time of its first failure since its last whole step."""
        self._has_whole_step = False
        self._gave_up = False
        self._looped = False
        self._told_at = 0.0
        self._behind_until: int | None = None
        """Size of the log at which the past ends; None: it has."""
        self._has_answered = False
        self._has_stepped = False
        self._untold: AttemptRetrying | AttemptGaveUp | None = None
        self._untold_at = 0.0
        # What an HTTP API has written before it was asked again is not continued.
        run = host.world.mint() if anew and kind.endpoint is not None else ""
        text = host.texts.begin(structs.replace(self._progress(), run=run))
        self._teller = Teller(self._progress, host.progress, text, host.world.secret_values)

    @property
    def conversation(self) -> str | None:
        """The agent's own, as its program named it."""
        return self._conversation

    def close(self) -> None:
        """Let what is kept of its text be dropped when there is too much."""
        self._teller.close()

    async def begin_behind(self, recorded_bytes: int) -> None:
        self._behind_until = recorded_bytes
        await self._catch_up()

    async def feed(self, chunk: Chunk) -> None:
        live = self._live
        seen = self._parser.feed(chunk)
        now = self._host.clock.now() if self._behind_until is None else chunk.at
        for one in seen:
            had_answer = live.watch.answered_at is not None
            live.watch = see(live.watch, one, now=now)
            if isinstance(one, ProviderAnswered | ToolStarted) and (
                self._retrying or not had_answer
            ):
                self._retrying = live.was_offline = False
                await self._tell(AttemptAnswered(attempt=live.order.attempt))
            if isinstance(one, ToolEnded) and not self._has_whole_step:
                self._has_whole_step = True
                self._failing_since = None
                await self._tell(AttemptAnswered(attempt=live.order.attempt, whole_step=True))
            await self._post(one, now)
        is_past = self._behind_until is not None
        self._teller.heard(seen, live.watch, is_past=is_past)
        if is_past:
            await self._catch_up()
            return
        if not self._looped and live.watch.repeats >= self._loop_steps():
            self._looped = True
            await self._look()
        # A clock that was set back must not silence it.
        if not 0 <= now - self._told_at < PROGRESS_S:
            self._told_at = now
            self._tell_progress()

    async def _catch_up(self) -> None:
        """Announce what the recorded past came to, and apply the limits again."""
        live = self._live
        assert live.running is not None
        assert self._behind_until is not None
        if live.running.log_bytes < self._behind_until:
            return
        self._behind_until = None
        if self._has_answered:
            answered = AttemptAnswered(attempt=live.order.attempt, whole_step=self._has_stepped)
            await self._tell(answered)
        if (untold := self._untold) is not None:
            if isinstance(untold, AttemptRetrying) and untold.wait_s is not None:
                passed_s = self._host.clock.now() - self._untold_at
                untold = structs.replace(untold, wait_s=max(0.0, untold.wait_s - passed_s))
            await self._tell(untold)
        await self._look()
        if live.watch.first_output_at is not None:
            self._tell_progress()

    async def _tell(self, event: AttemptAnswered | AttemptRetrying | AttemptGaveUp) -> None:
        if self._behind_until is None:
            await self._host.handle(event)
        elif isinstance(event, AttemptAnswered):
            self._has_answered = True
            self._has_stepped = self._has_stepped or event.whole_step
            self._untold = None
        else:
            self._untold = event

    async def _look(self) -> None:
        live = self._live
        await self._host.handle(
            Woke(
                delegation=live.order.delegation,
                attempt=live.order.attempt,
                watch=live.watch,
                luck=self._host.world.luck(),
            )
        )

    def _tell_progress(self) -> None:
        running = self._live.running
        if running is not None:
            self._host.progress(structs.replace(self._progress(), offset=running.log_bytes))

    def _progress(self) -> Progress:
        order = self._live.order
        return Progress(
            attempt=order.attempt,
            delegation=order.delegation,
            session=self._prepared.delegation.session,
            backend=order.backend,
            at=self._host.clock.now(),
        )

    def _loop_steps(self) -> int:
        return self._host.settings.policy.defaults.loop_steps

    async def _post(self, seen: Observation, now: float) -> None:
        attempt = self._live.order.attempt
        match seen:
            case Retrying():
                failure = await self._judge(seen.evidence, now)
                if failure is not None:
                    self._note_route(failure)
                    self._retrying = True
                    self._has_whole_step = False
                    if self._failing_since is None:
                        self._failing_since = now
                    self._untold_at = now
                    await self._tell(
                        AttemptRetrying(
                            attempt=attempt,
                            failure=failure,
                            wait_s=seen.wait_s,
                            since_at=self._failing_since,
                        )
                    )
            case GivenUp():
                failure = await self._judge(seen.evidence, now)
                if failure is not None and not self._gave_up:
                    self._note_route(failure)
                    self._gave_up = True
                    failure = self._or_repairable(failure, seen.evidence)
                    await self._tell(AttemptGaveUp(attempt=attempt, failure=failure))
            case FiguresSeen(figures=figures):
                if self._behind_until is None:
                    await self._host.keep_figures(self._live.order.backend, figures)
            case Conversation(id=conversation) if self._kind.resumes(self._options) and is_plain_id(
                conversation
            ):
                self._conversation = conversation
                await self._host.handle(
                    ConversationSeen(attempt=attempt, conversation=conversation)
                )
            case _:
                pass

    def _note_route(self, failure: Failure) -> None:
        """Note whether the machine has a route at the moment of the failure, not of the end."""
        if self._behind_until is None and failure.reason is Reason.NETWORK:
            live = self._live
            live.was_offline = live.was_offline or not self._host.world.has_route()

    def _lost(self, exit: Exit) -> Failure | None:
        """The failure of an end that the output does not show: unobserved, or never begun."""
        now = self._host.clock.now()
        match exit:
            case ProcessExit(rebooted=True):
                return rebooted(now=now)
            case NoAnswer(exception=name) if name == DAEMON_LOST:
                return daemon_lost(now=now)
            case NoAnswer(exception=name) if name == FOREIGN_LISTENER:
                return foreign_listener(exit.text, now=now)
            case NotStarted(error=error) if error in SECRET_ERRORS:
                return without_secret(exit, now=now)
            case NotStarted(path=path) if path == self._cwd:
                what = f"{self._cwd} cannot be worked in any more"
                return no_ones_fault("no_cwd", what, exit.text, now=now)
            case NotStarted(path=path) if path == self._directory():
                what = f"{path} cannot be written"
                return no_ones_fault("no_place", what, exit.text, now=now)
            case _:
                return None

    def _directory(self) -> str:
        return self._host.runs.attempt_path(self._live.order.attempt)

    async def _judge(self, evidence: Evidence, now: float | None = None) -> Failure | None:
        host = self._host
        judging = partial(
            judge,
            evidence,
            host.settings,
            self._kind,
            self._live.order.backend,
            now=host.clock.now() if now is None else now,
            conceal=host.world.conceal,
            model=host.world.taught.model(),
        )
        prompt = self._prepared.prompt or ""
        return await off_the_loop(
            evidence, lambda: without_quotations(judging(), prompt), beside=len(prompt)
        )

    def _of_attempt(self, usage: Usage) -> Usage:
        """Compute what this attempt used of a conversation whose totals its program reports."""
        before = self._prepared.delegation.past.conversation
        if not self._kind.counts_conversation or before is None or before.id != self._conversation:
            return usage
        return Usage(
            input_tokens=max(0, usage.input_tokens - before.usage.input_tokens),
            output_tokens=max(0, usage.output_tokens - before.usage.output_tokens),
            cost_usd=usage.cost_usd,
        )

    async def _notice(self, reply: Reply) -> Failure | None:
        """A limit notice that is the whole answer is none."""
        if not reply.may_be_notice or len(reply.text) > MAX_NOTICE_CHARS:
            return None
        return await self._judge(Evidence(text=reply.text, stream="stdout", exit_code=0))

    def _outcome(self, exit: Exit) -> Outcome:
        live, outcome = self._live, self._parser.finish(exit)
        if not isinstance(exit, ProcessExit) or not exit.unread_bytes:
            return outcome
        # It may have done anything in what was not read, and an answer has a hole there.
        live.watch = structs.replace(
            live.watch, tool_effects=worse(live.watch.tool_effects, "possible")
        )
        return Evidence(exit_code=_code_of(exit)) if isinstance(outcome, Reply) else outcome

    def _or_repairable(self, failure: Failure, evidence: Evidence) -> Failure:
        """
        A refused form of the request is no failure of the backend while a repair is known. A
        program that continues a conversation which its account has not signed is given it in
        another way.
        """
        repairs = self._live.repairs
        if failure.reason.row.is_limit:
            return failure
        if repairs is None:
            is_foreign = is_signed_elsewhere(evidence)
            session = {"reason": Reason.SESSION, "detail": NO_CONVERSATION, "marks_health": False}
            return structs.replace(failure, **session) if is_foreign else failure
        learned = repairs.learn(evidence)
        if not learned:
            return failure
        return structs.replace(
            failure,
            reason=Reason.FORMAT_ERROR,
            detail=REPAIRABLE,
            marks_health=False,
            evidence=f"{failure.evidence} (asked again with: {words_of(learned)})",
        )

    async def finish(self, exit: Exit) -> AttemptEnded:
        host, live = self._host, self._live
        outcome = self._outcome(exit)
        watch = live.watch
        failure: Failure | None = None
        usage = watch.usage
        ended = AttemptEnded(
            attempt=live.order.attempt,
            failure=None,
            exit_code=_code_of(exit),
            effects=watch.effects,
            outside=watch.outside,
            unfinished=watch.unfinished,
            gone=exit.gone,
        )
        if (lost := self._lost(exit)) is not None:
            failure = lost
        elif isinstance(outcome, Reply):
            usage = outcome.usage if outcome.usage.input_tokens else usage
            usage = self._of_attempt(usage)
            if (notice := await self._notice(outcome)) is not None:
                return structs.replace(ended, failure=notice, usage=usage)
            await self._keep(outcome)
        else:
            failure = await self._failure_of(outcome)
        said: tuple[str, ...] = ()
        if isinstance(outcome, Reply):
            said = (*outcome.warnings, *_left_behind(exit))
        order = live.order
        return structs.replace(
            ended,
            failure=failure,
            usage=host.settings.policy.priced(usage, order.backend, order.model),
            warnings=tuple(map(host.world.redact, said)),
            answered=watch.answered_at is not None or failure is None,
        )

    async def _keep(self, reply: Reply) -> None:
        """Keep an answer, and what has helped to get it."""
        if self._live.repairs is not None:
            self._live.repairs.keep()
        name = self._prepared.delegation.delegation
        self._teller.ended(reply.text)
        if not await anyio.to_thread.run_sync(self._host.runs.keep_answer, name, reply.text):
            log.warning("answer.held", delegation=name, problem="it cannot be written yet")

    async def _failure_of(self, evidence: Evidence) -> Failure:
        if self._live.watch.answered_at is not None and not evidence.answered:
            evidence = structs.replace(evidence, answered=True)
        found = await self._judge(evidence) or unexplained(now=self._host.clock.now())
        return self._or_repairable(found, evidence)


def _left_behind(exit: Exit) -> tuple[str, ...]:
    """Say in a sentence what was ended with a program that had answered."""
    if not isinstance(exit, ProcessExit) or not exit.left:
        return ()
    return (
        "programs that the agent left in the background were ended with it:"
        f" {', '.join(exit.left)}; start what has to keep running yourself",
    )


def _code_of(exit: Exit) -> int | None:
    """Exit code of a process; below zero, the number of the signal that ended it."""
    if not isinstance(exit, ProcessExit):
        return None
    return exit.code if exit.signal is None else -exit.signal
