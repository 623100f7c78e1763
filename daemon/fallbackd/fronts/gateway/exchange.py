"""
One request of a caller, answered by the first backend that can.

    resolve (with a lease) ─▶ pass on ─▶ report ─▶ the next one, or the answer

The head of an answer is held until its provider has said something that only a provider can say;
until then a failure leads to the next backend, unseen by the caller. After that it is reported
in the words of the API, and the connection is closed in the middle of the body: no client takes
that for a whole answer. With `hold = "whole"` nothing is sent before all has arrived.

A call of the gateway is not a delegation: `resolve` with a lease, one request that is passed on,
`report`, as for a caller that talks to a provider itself; nothing of it is stored. Calls of one
conversation overlap. Each keeps its turn itself (`ResolveRequested.keeps_turn`): what it has tried,
and whether it may cost money, is not its session's; each failure is evidence, and the first one
alone moves the session. `engine/exchanges` keeps the last ones in memory for `explain`.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import anyio
from msgspec import structs

from fallbackd.backends import passage
from fallbackd.backends.figures import in_headers
from fallbackd.backends.passage import AnswerWatch, Passage, Unreadable, prompt_tokens
from fallbackd.backends.repairs import Repair, proposed, words_of
from fallbackd.backends.spec import NotConfigured
from fallbackd.core.authority import Authority
from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Evidence, Usage
from fallbackd.core.reasons import FINAL, Reason
from fallbackd.core.records import Turn, Verdict
from fallbackd.core.routing.resolve import awaited
from fallbackd.core.scopes import find_backend
from fallbackd.engine import callers
from fallbackd.engine.api import Engine
from fallbackd.engine.exchanges import shown_usd
from fallbackd.engine.feedback import judged
from fallbackd.engine.judging import off_the_loop, texts_in
from fallbackd.engine.repairing import MOST, Asked
from fallbackd.engine.requests import Refused
from fallbackd.fronts.gateway import answers, choosing, patience, routes
from fallbackd.fronts.gateway.answers import (
    AnswerHead,
    NotAnswered,
    Refusal,
    ToCaller,
    status_of_error,
)
from fallbackd.fronts.gateway.incoming import Body
from fallbackd.fronts.gateway.makers import Maker, Makers, named_by_key
from fallbackd.fronts.gateway.outgoing import (
    HOP,
    Outgoing,
    OutwardCall,
    TranslatedAnswer,
    call_to,
    in_callers_words,
    next_hop,
    translation_words,
)
from fallbackd.fronts.gateway.patience import (
    CallerDeadline,
    Impatience,
    Patience,
    Pauses,
    Rules,
    patience_with,
    share_s,
    waits_s,
)
from fallbackd.fronts.gateway.relay import Relay
from fallbackd.fronts.gateway.routes import session_of
from fallbackd.ports.transport import PassedOn, PassOn

# --- reports -------------------------------------------------------------------------------------
# Reports the outcome of each call to the engine: health, leases and the next candidate.

_OF_THE_REQUEST = frozenset(
    {
        *(Reason.CONTENT_POLICY, Reason.CONTEXT_OVERFLOW),
        *(Reason.FORMAT_ERROR, Reason.PAYLOAD_TOO_LARGE),
    }
)
"""Reasons that say nothing of the backend: the conversation stays where its prompt is cached."""


class CallReport:
    """
    The outcome of one call; said once.

    A backend that the configuration has lost meanwhile has no health to be kept: what is said of
    it is dropped, and changes nothing for the caller.

    Args:
        proves: An answer shows that the backend works, and a call may be its one trial.
        stays: No other backend is asked.
        asked: The body of the request.
    """

    def __init__(
        self,
        engine: Engine,
        asks: Mapping[str, Any],
        chosen: Resolution,
        turn: Turn | None,
        *,
        proves: bool,
        stays: bool = False,
        asked: bytes | None = None,
    ) -> None:
        self._engine = engine
        self.asks = asks
        """Params of the next call of the same exchange."""
        self._proves = proves
        self._stays = stays
        self._asked = asked
        self.leaves = False
        """The refused part is one of the conversation: it moves to the next backend."""
        self._is_said = False
        self._call: dict[str, Any] = {
            **asks,
            "backend": chosen.backend,
            "model": chosen.model,
            "credential": chosen.credential,
            "lease": chosen.lease_id,
            "turn": turn,
            "started_at": engine.clock.now(),
        }

    def repeats(self, *, has_waited: bool = False) -> None:
        """
        Count one more request to the same candidate.

        Args:
            has_waited: Its provider has stated how long to wait before.
        """
        self._call["further"] = self._call.get("further", 0) + 1
        self._call["has_waited"] = has_waited or self._call.get("has_waited", False)

    async def answered(self) -> None:
        """Its provider has begun to answer: a trial is over, and others may ask it too."""
        if self._call["lease"] is not None:
            await self._say("answered")
            self._call["lease"] = None

    async def succeeded(self, usage: Usage) -> None:
        if self._proves:
            self._is_said = True
            await self._say("success", usage=usage)
        else:
            await self.released()

    async def failed(self, evidence: Evidence) -> ReportAnswer | None:
        """Report a failure. None: the backend is not configured any more."""
        self._is_said = True
        judging = partial(judged, self._engine, evidence, backend=self._call["backend"])
        failure = await off_the_loop(evidence, judging)
        is_of_request = failure is not None and failure.reason in _OF_THE_REQUEST
        if self._stays or (is_of_request and not self.leaves):
            await self._left_conversation()
            self.asks = {**self.asks, "session": None}
            self._call["session"] = None
        seen = Reported(**self._call, outcome="failure")
        with suppress(Refused):
            return await callers.report(
                self._engine,
                seen,
                evidence=evidence,
                asked=texts_in(self._asked),
                next_lease=self._proves,
            )
        return None

    async def _left_conversation(self) -> None:
        """Say that the next call of the conversation does not go on from this one."""
        if self._call["session"] is not None:
            with suppress(Refused):
                seen = Reported(**{**self._call, "lease": None}, outcome="released")
                await callers.report(self._engine, seen, outlives="nothing")

    async def broken(self, evidence: Evidence) -> ReportAnswer:
        """Report a failure in the middle of the answer: no other is asked."""
        answer = await self.failed(evidence) or ReportAnswer()
        await give_back(self._engine, self.asks, answer)
        return answer

    async def released(self) -> None:
        """The caller has disconnected, or the call says nothing of the backend."""
        if not self._is_said:
            self._is_said = True
            await self._say("released")

    async def _say(self, outcome: Literal["answered", "success", "released"], **more: Any) -> None:
        with suppress(Refused):
            seen = Reported(**self._call, outcome=outcome, **more)
            await callers.report(self._engine, seen, outlives="nothing")


async def give_back(engine: Engine, asks: Mapping[str, Any], answer: ReportAnswer) -> None:
    """The lease of a next one that will not be called."""
    unused = answer.next
    if unused is not None and unused.lease_id is not None:
        await CallReport(engine, asks, unused, answer.turn, proves=True).released()


# --- repairs -------------------------------------------------------------------------------------
# Requests that are changed where their backend is known to refuse them, or has just said so.


class RepairedCall:
    """The repairs of one call to one account. See `backends.repairs`."""

    def __init__(
        self, engine: Engine, backend: BackendId, credential: str | None, session: str | None
    ) -> None:
        self._engine = engine
        self._backend, self._credential, self._session = backend, credential, session
        self._tried: tuple[Repair, ...] = ()
        self.is_left = False
        """The refused part is one of the conversation, and no repair has helped."""

    def prepared(self, call: OutwardCall) -> OutwardCall:
        """The call without what its backend is known to refuse."""
        request = call.sendable
        if request is None:
            return call
        made, repairs = self._engine.repairs.prepared(
            self._engine.settings, self._asked(call), request
        )
        return call if made is request else call.with_repairs(made, repairs)

    def after(self, call: OutwardCall, evidence: Evidence) -> OutwardCall | None:
        """Make the request that is sent after a refusal; None: nothing that is known would help."""
        request = call.sendable
        if request is None or len(self._tried) >= MOST:
            return None
        made, repairs = proposed(evidence, request, without=frozenset(self._tried))
        if not repairs:
            self.is_left = any(one.about == "conversation" for one in self._tried)
            return None
        self._tried += repairs
        return call.with_repairs(made, repairs)

    def keep(self, call: OutwardCall) -> None:
        """Keep repairs that were answered: they are made for later calls at once."""
        if call.repaired:
            self._engine.repairs.keep(
                self._engine.settings, self._asked(call), call.repaired, call.foreign
            )

    def _asked(self, call: OutwardCall) -> Asked:
        return Asked(
            backend=self._backend,
            model=call.model,
            credential=self._credential,
            session=self._session,
        )


# --- the exchange --------------------------------------------------------------------------------

FAILOVER = "x-fallbackd-failover"
"""`0`: the first backend's failure goes back."""


class Exchange:
    """`headers` are those of the request, names in lower case."""

    def __init__(
        self,
        engine: Engine,
        pass_on: PassOn,
        rules: Rules,
        asked: Passage,
        *,
        asker: Authority,
        headers: list[tuple[str, str]],
        body: Body,
        caller: ToCaller,
        pauses: Pauses,
        impatience: Impatience,
        choices: choosing.Choices,
        makers: Makers,
        outgoing: Outgoing,
    ) -> None:
        self._engine = engine
        self._pass_on = pass_on
        self._rules = rules
        self._asked = asked
        self._asker = asker
        self._named = dict(headers)
        self._headers = passage.forwarded(headers)
        self._body = body
        self._caller = caller
        self._pauses = pauses
        self._impatience = impatience
        self._arrived_at = anyio.current_time()
        self._silence_s = 0.0
        """Time for which a caller that has left heard nothing."""
        self._choices = choices
        self._makers = makers
        self._outgoing = outgoing
        self._deadline = CallerDeadline(self._named)
        self._attempts = 0
        self._session: str | None = None
        self._passed_over: tuple[Verdict, ...] = ()
        """Backends that cannot be asked this at all."""
        self._is_whole = False
        self._record = engine.exchanges.begin(
            engine.world.mint(),
            api=asked.mode,
            asked=asked.model,
            at=engine.clock.now(),
            asked_by=asker.attempt,
        )
        self._reason = ""
        """The reason why the first backend did not answer."""
        self._key = named_by_key(self._named.get("idempotency-key") if asked.acts else None, body)
        """Key of a request that acts; empty: it may not be sent twice at all."""
        self._may_have_begun = False
        """The last backend that was asked may be doing it."""
        self._repaired = ""
        """Repairs of the last request, in words."""

    async def run(self) -> None:
        """
        Raises:
            Refusal: Before anything was sent.
            Aborted: In the middle of the answer.
        """
        state = "failed"
        try:
            if await self._deadline.bounds(self._run):
                state = "succeeded"
        except anyio.get_cancelled_exc_class():
            state = "cancelled"
            raise
        finally:
            # What hears of its answer knows it too, so that it is not freed at once.
            self._body = Body(plain=None)
            self._record.reason = self._reason or None
            self._engine.exchanges.end(self._record, state, at=self._engine.clock.now())

    async def _run(self) -> bool:
        """Ask one after the other. Returns whether the caller has an answer."""
        found, entries, asks = self._begun()
        chosen = await self._resolve(asks)
        self._reason = choosing.why_not_first(chosen)
        turn, retry_at = chosen.turn, chosen.retry_at
        left, last = entries, None
        out = awaited(chosen.candidates) if self._asked.generates else None
        while chosen.backend is not None:
            reported = CallReport(
                self._engine,
                asks,
                chosen,
                turn,
                proves=self._asked.generates,
                stays=self._stays,
                asked=self._body.plain or b"",
            )
            entry = choosing.entry_of(entries, chosen)
            failed = await self._served_or_left(chosen, entry, found, reported)
            if failed is None:
                return True
            left = choosing.others(left, chosen)
            answer = await self._reported(failed, chosen, reported)
            asks = reported.asks
            if self._may_have_begun:
                await self._unfinished(failed, asks, answer)
            before = last
            last = answers.to_be_told(before, failed)
            if answer is None:  # the others are asked, as if it were no part of the chain
                if self._stays or not left:
                    break
                asks = {**asks, "chain": left}
                chosen = await self._resolve(asks)
                turn, retry_at = chosen.turn, chosen.retry_at
                if chosen.backend is None and last.unsuited:
                    last = None
                continue
            reason = Reason.UNKNOWN if answer.failure is None else answer.failure.reason
            last = answers.to_be_told(before, structs.replace(failed, reason=reason))
            if answer.next is None or reason in FINAL or self._stays:
                await give_back(self._engine, asks, answer)
                retry_at = answer.retry_at
                break
            chosen, turn = answer.next, answer.turn
        if last is None:
            self._refuse_without_answer(chosen)
        elif out is not None and last.is_refusal and not self._stays:
            raise answers.still_limited(out, last, now=self._engine.clock.now())
        await self._give_up(last, retry_at)
        return False

    def _begun(self) -> tuple[choosing.Wanted, tuple[Entry, ...], Mapping[str, Any]]:
        """Find what is wanted, the entries that can be asked, and what is asked of `resolve`."""
        self._headers[HOP] = next_hop(self._named)
        found, entries, credential = self._fitting()
        self._session = session_of(
            self._named,
            self._asked,
            self._body.plain or b"",
            is_role=found.role is not None,
            within=self._asker.inside,
        )
        self._record.requested = entries[0].backend
        return found, entries, self._asks(found, entries, credential, self._session)

    async def _served_or_left(
        self, chosen: Resolution, entry: Entry, found: choosing.Wanted, report: CallReport
    ) -> NotAnswered | None:
        try:
            return await self._served(chosen, entry, found, report)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._left(chosen, report)
            raise

    async def _left(self, chosen: Resolution, report: CallReport) -> None:
        """The caller did not wait for an answer."""
        waited_s, self._silence_s = self._silence_s, 0.0
        if self._hangs(chosen, waited_s):
            await report.broken(answers.silent(waited_s).evidence)
            text = f"{chosen.backend} is left: callers have hung up on its silence again and again"
            self._record.note("Reported", text, at=self._engine.clock.now())
        await report.released()

    def _hangs(self, chosen: Resolution, waited_s: float) -> bool:
        """
        Return whether the callers before, and this one with its wait, show that a candidate hangs.
        """
        candidate = (chosen.backend or "", chosen.model, chosen.credential)
        backend = find_backend(self._engine.settings.policy, BackendId(candidate[0]))
        first_s = patience_with(backend, self._rules, is_streamed=True).first_s
        return self._impatience.left(candidate, after_s=waited_s, first_s=first_s)

    def _patience_with(self, chosen: Resolution) -> Patience:
        """The backend's own limits, and for the first words what the caller still waits."""
        caller_s = waits_s(self._named)
        if caller_s is not None:
            is_last = self._asked.acts or self._stays or choosing.is_alone(chosen)
            left_s = caller_s - (anyio.current_time() - self._arrived_at)
            caller_s = share_s(left_s, is_last=is_last)
        return patience_with(
            find_backend(self._engine.settings.policy, BackendId(chosen.backend or "")),
            self._rules,
            is_streamed=self._asked.is_streamed,
            caller_s=caller_s,
        )

    @property
    def _stays(self) -> bool:
        """Return whether the first backend alone is asked."""
        is_bound = self._asked.previous is not None or self._makers.find(self._key) is not None
        return is_bound or self._named.get(FAILOVER) == "0"

    def _fitting(self) -> tuple[choosing.Wanted, tuple[Entry, ...], str | None]:
        """
        Find what the caller names, whom it may be asked of, and the account that alone can answer.

        Raises:
            Refusal: No backend can.
        """
        engine = self._engine
        name = self._named.get(routes.CHAIN) or self._asked.model
        found, fit = self._choices.find(
            name,
            engine.settings,
            engine.world.kinds,
            self._asked.mode,
            side=self._asked.side,
            model=self._asked.model,
        )
        settings, kinds = engine.settings, engine.world.kinds
        header = self._named.get(routes.CHAIN)
        refusal = choosing.unknown_name(
            header, self._asked.model, settings, kinds, self._asked.mode
        )
        if refusal is not None:
            raise refusal
        self._is_whole = self._rules.hold == "whole" or found.name in self._rules.hold_whole
        self._passed_over = fit.passed_over
        if not fit.entries:
            refusal = choosing.none_for(name, self._asked.mode, self._asked.side)
            at = engine.clock.now()
            self._record.note("Resolved", refusal.message, at=at, candidates=fit.passed_over)
            raise refusal
        backends = engine.settings.policy.backends
        entries = fit.entries
        if not self._asker.allow_metered:
            entries = choosing.unmetered(entries, backends)
            if not entries:
                raise choosing.all_metered(name, self._asker)
        self._makers.require_own(self._asked.previous, self._asker)
        of_one = self._asked.previous or self._key
        return found, *self._makers.fitting(of_one, entries, backends)

    def _asks(
        self,
        found: choosing.Wanted,
        entries: tuple[Entry, ...],
        credential: str | None,
        session: str | None,
    ) -> Mapping[str, Any]:
        """Make the params of `resolve`, and with each report again."""
        return {
            "session": session,
            "role": found.role,
            "chain": entries,
            "credential": credential,
            "prompt_tokens": self._prompt_tokens(entries),
            "allow_metered": self._asker.allow_metered
            and (self._rules.allow_metered or self._named.get("x-fallbackd-allow-metered") == "1"),
        }

    def _prompt_tokens(self, entries: tuple[Entry, ...]) -> int | None:
        """Estimated where a backend has a bound for it; None: there is none, or it is unknown."""
        backends = self._engine.settings.policy.backends
        bounds = [
            found.context_tokens
            for one in entries
            if (found := backends.get(one.backend)) is not None and found.context_tokens
        ]
        if not bounds or self._body.plain is None or self._asked.embeds:
            return None
        return prompt_tokens(self._body.plain, exact_from=min(bounds))

    def _refuse_without_answer(self, chosen: Resolution) -> None:
        """
        Raises:
            Refusal: No backend was asked, for a reason that the caller can change.
        """
        if self._stays and (of_one := self._asked.previous or self._key):
            raise self._makers.unavailable(of_one)
        answers.refuse_by_rule({one.verdict for one in (*chosen.candidates, *self._passed_over)})

    async def _resolve(self, asks: Mapping[str, Any]) -> Resolution:
        chosen = await callers.resolve(
            self._engine,
            ResolveRequested(**asks, keeps_turn=True),
            lease=self._asked.generates,
            outlives="nothing",
        )
        name = chosen.backend
        text = f"{name} is the first to ask" if name else "no backend is available now"
        if not self._asker.is_person:
            text += f"; asked from {self._asker.place}"
        at = self._engine.clock.now()
        candidates = (*chosen.candidates, *self._passed_over)
        self._record.note("Resolved", text, at=at, candidates=candidates)
        return chosen

    async def _reported(
        self, failed: NotAnswered, chosen: Resolution, report: CallReport
    ) -> ReportAnswer | None:
        """Report a failure. None: nothing is said against the backend, which is passed over."""
        if not failed.unsuited:
            answer = await report.failed(failed.evidence)
            if answer is not None:
                self._note_failure(chosen, answer)
            return answer
        await report.released()
        text = f"{chosen.backend} is passed over: {failed.unsuited}"
        self._record.note("Reported", text, at=self._engine.clock.now())
        verdict = Verdict(
            backend=BackendId(chosen.backend or ""),
            model=chosen.model,
            verdict="tried" if failed.evidence.exception else "protocol",
            reason=failed.unsuited,
        )
        self._passed_over = (*self._passed_over, verdict)
        return None

    async def _unfinished(
        self, failed: NotAnswered, asks: Mapping[str, Any], answer: ReportAnswer | None
    ) -> None:
        """
        Raises:
            Refusal: Always; whatever can be waited for, the request must not be sent again then.
        """
        why = failed.evidence.text
        if answer is not None:
            await give_back(self._engine, asks, answer)
            if answer.failure is not None:
                why = answer.failure.evidence
        raise answers.unfinished(self._engine.world.redact(why))

    def _note_failure(self, chosen: Resolution, answer: ReportAnswer) -> None:
        reason = "" if answer.failure is None else answer.failure.reason.value
        self._reason = self._reason or reason
        self._record.note(
            "Reported",
            f"{chosen.backend} did not answer: {reason or 'unknown'}",
            at=self._engine.clock.now(),
            candidates=answer.candidates,
            failure=answer.failure,
        )

    async def _served(
        self, chosen: Resolution, entry: Entry, found: choosing.Wanted, report: CallReport
    ) -> NotAnswered | None:
        """
        One candidate, asked twice where its failure is over at once. None: the caller has all.

        A pause that a provider asked other calls to make is made here too.
        """
        assert chosen.backend is not None
        candidate = (chosen.backend, chosen.model, chosen.credential)
        if not await self._pauses.over(self._engine, candidate):
            return patience.withdrawn(candidate)
        failed = await self._try(chosen, entry, found.model, report)
        if failed is None or failed.unsuited or chosen.lease_id is not None:
            return failed
        if self._may_have_begun:
            return failed
        is_alone = self._stays or choosing.is_alone(chosen)
        pause = await self._pauses.before_second(
            self._engine, candidate, failed.evidence, is_alone=is_alone
        )
        if pause is None:
            return failed
        report.repeats(has_waited=pause == "stated")
        return await self._try(chosen, entry, found.model, report)

    async def _try(
        self, chosen: Resolution, entry: Entry, asked: str | None, report: CallReport
    ) -> NotAnswered | None:
        """
        Ask once; once more for each repair with which a refused request may be answered. None: the
        caller has the whole answer.
        """
        try:
            call = call_to(
                self._engine, entry, asked, self._asked, headers=self._headers, body=self._body
            )
        except NotConfigured as error:
            return _not_configured(error)
        except Unreadable as error:
            return answers.unsuited(self._asked.mode, str(error))
        if call.translation is not None:
            text = translation_words(call, self._asked.mode, entry)
            self._record.note("Translated", text, at=self._engine.clock.now())
        repairing = RepairedCall(self._engine, entry.backend, chosen.credential, self._session)
        call = repairing.prepared(call)
        while True:
            failed = await self._sent(chosen, entry, call, report)
            if failed is None:
                repairing.keep(call)
                return None
            more = None if self._may_have_begun else repairing.after(call, failed.evidence)
            if more is None:
                report.leaves = repairing.is_left
                if call.translation is not None:
                    failed = in_callers_words(failed, call.translation)
                    failed = structs.replace(failed, is_translated=True)
                return answers.unless_aside(failed, self._asked)
            text = f"{chosen.backend} refused the form of the request; asked again with: "
            text += words_of(more.repaired[len(call.repaired) :])
            self._record.note("Repaired", text, at=self._engine.clock.now())
            call = more
            report.repeats()

    async def _sent(
        self, chosen: Resolution, entry: Entry, call: OutwardCall, report: CallReport
    ) -> NotAnswered | None:
        """One request. None: the caller has the whole answer."""
        try:
            request = self._outgoing.request_to(entry.backend, chosen.credential, call)
        except NotConfigured as error:
            return _not_configured(error)
        except Unreadable as error:
            return answers.unsuited(self._asked.mode, str(error))
        self._attempts += 1
        self._repaired = words_of(call.repaired)
        at = self._engine.clock.now()
        text = f"{chosen.backend} is asked"
        self._record.note(
            "Asked", f"{text} with: {self._repaired}" if self._repaired else text, at=at
        )
        patience = self._patience_with(chosen)
        bound = self._makers.bind(self._key, entry.backend, chosen.credential)
        passed = await self._pass_on(request)
        if call.translation is not None:
            passed = TranslatedAnswer(passed, call.translation, at=at)
        relay = self._relay(chosen, report, call.model, patience)
        asked_at = anyio.current_time()
        try:
            done = await self._relayed(relay, passed, asked_at=asked_at)
        finally:
            if not relay.is_silent:
                self._impatience.heard((entry.backend, chosen.model, chosen.credential))
            self._keep(relay.response_id, entry.backend, chosen.credential)
            relay.close()
            await passed.aclose()
        await self._keep_figures(relay, chosen, entry.backend)
        if isinstance(done, NotAnswered):
            if self._asked.acts:
                self._not_done(done, entry.backend, bound)
            is_too_early = patience.is_of_caller and done.evidence.exception == "ReadTimeout"
            if is_too_early and not self._hangs(chosen, anyio.current_time() - asked_at):
                return structs.replace(done, unsuited=f"{done.evidence.text}, the caller's limit")
            return done
        at = self._engine.clock.now()
        usage = self._priced(done.usage, entry.backend, call.model)
        self._record.answered(entry.backend, call.model, usage, at=at)
        await report.succeeded(usage)
        return None

    async def _relayed(
        self, relay: Relay, passed: PassedOn, *, asked_at: float
    ) -> NotAnswered | AnswerWatch:
        try:
            return await relay.run(passed)
        except Refusal as refusal:
            raise answers.unfinished(refusal.message) if self._asked.acts else refusal
        except anyio.get_cancelled_exc_class():
            if relay.is_silent and (self._caller.has_left or self._deadline.is_over):
                self._silence_s = anyio.current_time() - asked_at
            raise

    async def _keep_figures(self, relay: Relay, chosen: Resolution, backend: BackendId) -> None:
        """Keep what the head of an answer says of the plan or the key."""
        if relay.head is not None:
            at = self._engine.clock.now()
            seen = in_headers(
                relay.head.headers, now=at, model=chosen.model, credential=chosen.credential
            )
            await self._engine.keep_figures(backend, seen)

    def _priced(self, usage: Usage, backend: str, model: str | None) -> Usage:
        if model is None:
            return usage  # a body that was not read names another one
        return self._engine.settings.policy.priced(usage, BackendId(backend), model)

    def _keep(self, response: str, backend: BackendId, credential: str | None) -> None:
        is_stored = self._asked.is_stored
        inside = self._asker.inside
        self._makers.keep(response, backend, credential, is_stored=is_stored, inside=inside)

    def _not_done(self, failed: NotAnswered, backend: BackendId, bound: Maker | None) -> None:
        """Note a failure of a request that acts: it is sent again only if it was not begun."""
        self._may_have_begun = answers.may_have_begun(failed.evidence)
        if not self._may_have_begun:
            self._makers.free(self._key, bound)
            return
        text = f"not sent again: {backend} may have begun what the request asks for"
        self._record.note("Held", text, at=self._engine.clock.now())

    def _relay(
        self, chosen: Resolution, report: CallReport, model: str | None, patience: Patience
    ) -> Relay:
        async def begun(has_said: bool, used: Usage | None) -> list[tuple[str, str]]:
            self._deadline.begun()
            # Known from here on: it can be cancelled while it is made.
            self._keep(relay.response_id, BackendId(name), chosen.credential)
            if has_said:
                await report.answered()
            cost_usd = None if used is None else self._priced(used, name, model).cost_usd
            return self.said(chosen.backend, model, cost_usd=cost_usd)

        async def broken(evidence: Evidence) -> None:
            answer = await report.broken(evidence)
            reason = "unknown" if answer.failure is None else answer.failure.reason.value
            self._record.note(
                "Reported",
                f"{chosen.backend} broke off its answer: {reason}",
                at=self._engine.clock.now(),
                failure=answer.failure,
            )

        name = chosen.backend or ""
        relay = Relay(
            self._asked,
            self._caller,
            patience,
            name=name,
            is_whole=self._is_whole or not self._caller.takes_pieces,
            said=begun,
            broken=broken,
        )
        return relay

    def said(
        self,
        backend: str | None = None,
        model: str | None = None,
        *,
        cost_usd: float | None = None,
    ) -> list[tuple[str, str]]:
        """Headers of its answer: what became of it so far, and who answers."""
        said = {
            "x-fallbackd-served-by": backend,
            "x-fallbackd-model": model,
            "x-fallbackd-exchange": self._record.exchange,
            "x-fallbackd-attempts": str(self._attempts),
            "x-fallbackd-fallback-reason": self._reason or None,
            # Heeded by the clients of OpenAI and Anthropic, which send again by themselves.
            "x-should-retry": "false" if self._may_have_begun else None,
            # An answer that is passed on piece by piece has left before its cost is known.
            "x-fallbackd-cost-usd": None if cost_usd is None else shown_usd(cost_usd),
            "x-fallbackd-repaired": (self._repaired if backend else "") or None,
        }
        return [(name, value) for name, value in said.items() if value]

    async def _give_up(self, last: NotAnswered | None, retry_at: float | None) -> None:
        """The answer of the last backend as it gave it; where there is none, one of our own."""
        wait_s = None if retry_at is None else max(1.0, retry_at - self._engine.clock.now())
        status = None if last is None else status_of_error(last)
        if last is not None and last.reply is not None and status is not None:
            headers = [*last.reply.headers, ("content-length", str(len(last.body)))]
            headers += self.said()
            if wait_s is not None and "retry-after" not in dict(headers):
                headers.append(("retry-after", str(round(wait_s))))
            await self._caller.begin(AnswerHead(status=status, headers=headers))
            await self._caller.send(last.body)
            return
        if last is None:
            text = "no backend is available now" if wait_s else "no backend can be used"
        else:
            text = f"every backend failed; the last one: {last.evidence.text or 'no answer'}"
            text = self._engine.world.redact(text)[:500]
        raise Refusal(503, text + ": fallbackd-client health", "unavailable", retry_after=wait_s)


def _not_configured(error: NotConfigured) -> NotAnswered:
    evidence = Evidence(text=str(error), stream="exception", code="NotConfigured")
    return NotAnswered(evidence=evidence)
