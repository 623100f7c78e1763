"""
One request of a caller, answered by the first backend that can.

    resolve (with a lease) ─▶ pass on ─▶ report ─▶ the next one, or the answer

The head of an answer is held until its provider has said something that only a provider can say;
until then a failure leads to the next backend, unseen by the caller. After that a failure is told
in the words of the API, and the connection is closed in the middle of the body: no client takes
that for a whole answer. With `hold = "whole"` nothing is sent before all has arrived.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import anyio
import msgspec
from msgspec import Struct

from fallbackd.backends import passage
from fallbackd.backends.passage import AnswerWatch, Passage, Unreadable
from fallbackd.backends.spec import NotConfigured
from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Evidence, HttpRequest, HttpResponse
from fallbackd.core.turn import Turn
from fallbackd.engine.api import Engine
from fallbackd.engine.credentials import carrying, credential_of
from fallbackd.fronts.gateway import choosing
from fallbackd.fronts.gateway.affinity import session_of
from fallbackd.fronts.gateway.settings import Rules
from fallbackd.ports.passing import PassedOn, PassOn

HOP = "x-fallbackd-hop"
"""How often a request has passed a daemon like this one: one that comes back goes round."""
STALL_S = 180.0
"""Silence within an answer that has begun, where the backend sets none."""
WHOLE_S = 600.0
"""For an answer that comes in one piece, where the backend sets no limit."""


class AnswerHead(Struct, frozen=True, kw_only=True):
    """The head of what is sent back."""

    status: int
    headers: list[tuple[str, str]]


class ToCaller(Protocol):
    """Where an answer goes: `begin` once, then `send`."""

    async def begin(self, reply: AnswerHead) -> None: ...

    async def send(self, data: bytes) -> None: ...


class Refusal(Exception):
    """Nothing is passed on, or nothing more. Told in the words of the API."""

    def __init__(self, status: int, message: str, code: str, *, retry_after: float | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.retry_after_s = retry_after


class Aborted(Exception):
    """The answer cannot be finished: the connection is to be closed without its end."""


class NotAnswered(Struct, frozen=True, kw_only=True):
    """What a backend did instead of answering; its own words, where it said some."""

    evidence: Evidence
    reply: AnswerHead | None = None
    body: bytes = b""


class Exchange:
    """
    Args:
        headers: Of the request, names in lower case.
        session: The conversation, so that it stays with one backend; None: it has none.
    """

    def __init__(
        self,
        engine: Engine,
        pass_on: PassOn,
        rules: Rules,
        asked: Passage,
        *,
        headers: list[tuple[str, str]],
        body: bytes,
        caller: ToCaller,
        owner: str | None = None,
    ) -> None:
        self._engine = engine
        self._pass_on = pass_on
        self._rules = rules
        self._asked = asked
        self._named = dict(headers)
        self._headers = passage.forwarded(headers)
        self._body = body
        self._caller = caller
        self._owner = owner
        self._session = session_of(self._named, asked, body)
        self._attempts = 0
        self._is_begun = False
        self._reason = ""
        """Why the first backend did not answer."""

    async def run(self) -> None:
        """
        Raises:
            Refusal: Before anything was sent.
            Aborted: In the middle of the answer.
        """
        hops = self._named.get(HOP, "0")
        if not hops.isdecimal() or int(hops) >= 2:
            raise Refusal(508, "this request has come back to where it began", "loop")
        self._headers[HOP] = str(int(hops) + 1)
        engine, policy = self._engine, self._engine.settings.policy
        name = self._named.get("x-fallbackd-chain") or self._asked.model
        found = choosing.wanted(name, policy)
        entries = choosing.fitting(found, engine.settings, engine.world.kinds, self._asked.mode)
        if not entries:
            raise Refusal(
                404,
                f"no backend that speaks this API ({self._asked.mode}) is configured for"
                f" {name or 'requests without a model'}: configure one of a kind that ends in"
                " -http, with its model",
                "no_backend",
            )
        asks: Mapping[str, Any] = {
            "session": self._session,
            "role": found.role,
            "chain": entries,
            "allow_metered": self._rules.allow_metered
            or self._named.get("x-fallbackd-allow-metered") == "1",
            "owner": self._owner,
        }
        chosen = await engine.resolve(**asks, lease=True)
        turn = chosen.turn
        last: NotAnswered | None = None
        retry_at = chosen.retry_at
        while chosen.backend is not None:
            started_at = engine.clock.now()
            reported = _Report(engine, asks, chosen, turn, started_at)
            try:
                failed = await self._try(chosen, _entry_of(entries, chosen), found.model, reported)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await reported.released()
                raise
            if failed is None:
                return
            last = failed
            answer = await reported.failed(failed.evidence)
            if answer.failure is not None and not self._reason:
                self._reason = answer.failure.reason.value
            if answer.next is None or self._named.get("x-fallbackd-failover") == "0":
                await _give_back(engine, asks, answer)
                retry_at = answer.retry_at
                break
            chosen, turn = answer.next, answer.turn
        await self._give_up(last, retry_at)

    async def _try(
        self, chosen: Resolution, entry: Entry, asked: str | None, report: "_Report"
    ) -> NotAnswered | None:
        """None: the caller has the whole answer."""
        self._attempts += 1
        try:
            request = self._request(chosen, entry, asked)
        except NotConfigured as error:
            return NotAnswered(
                evidence=Evidence(text=str(error), stream="exception", code="NotConfigured")
            )
        except Unreadable as error:
            raise Refusal(400, str(error), "invalid_body") from error
        passed = await self._pass_on(request)
        try:
            return await self._answer(passed, chosen, report)
        finally:
            with anyio.CancelScope(shield=True):
                await passed.aclose()

    def _request(self, chosen: Resolution, entry: Entry, asked: str | None) -> HttpRequest:
        engine = self._engine
        backend = engine.settings.policy.backends[entry.backend]
        kind = engine.world.kinds[backend.kind]
        assert kind.endpoint is not None
        options = engine.settings.options_of(backend.id)
        credential = credential_of(options, chosen.credential)
        environ = engine.world.environ
        request = passage.call_of(
            kind.endpoint,
            options,
            self._asked,
            model=choosing.model_for(entry, backend, asked),
            headers=self._headers,
            body=self._body,
            credential=credential,
            inherited={name: environ[name] for name in kind.reads_env if name in environ},
        )
        carried = carrying(request, credential, options)
        assert isinstance(carried, HttpRequest)
        return carried

    async def _answer(
        self, passed: PassedOn, chosen: Resolution, report: "_Report"
    ) -> NotAnswered | None:
        is_streamed = self._asked.is_streamed
        hold_s = self._rules.hold_s if is_streamed else self._limit_s(chosen, WHOLE_S)
        give_up_at = anyio.current_time() + hold_s
        watch = AnswerWatch(self._asked.mode)
        head: HttpResponse | None = None
        with anyio.move_on_at(give_up_at):
            head = await passed.head()
            if head is None:
                return NotAnswered(evidence=watch.finish(passed.exit) or Evidence())
        if head is None:
            return _silent(hold_s)
        is_good = head.status < 300
        is_whole = not is_good or not is_streamed or self._rules.hold == "whole"
        held = bytearray()
        while True:
            limit_s = self._limit_s(chosen, STALL_S)
            data: bytes | None = None
            is_late = True
            deadline = max(give_up_at, anyio.current_time() + limit_s) if held else give_up_at
            if self._is_begun:
                deadline = anyio.current_time() + limit_s
            with anyio.move_on_at(deadline):
                data = await passed.read()
                is_late = False
            if is_late:
                break
            if data is None:
                return await self._finish(passed, watch, head, bytes(held), report)
            watch.feed(data)
            if self._is_begun:
                await self._go_on(watch, data, report)
                continue
            held += data
            if len(held) > passage.MAX_WHOLE_BYTES:
                break
            if watch.has_failed and is_good:
                evidence = watch.finish(head) or Evidence()
                return NotAnswered(evidence=evidence, reply=_reply(head), body=bytes(held))
            is_full = len(held) > passage.MAX_HELD_BYTES
            if not is_whole and (watch.is_committed or is_full):
                await self._begin(head, chosen)
                await self._caller.send(bytes(held))
        silent = _silent(limit_s if held else hold_s)
        if self._is_begun:
            await self._break_off(silent.evidence, report)
        return silent

    async def _go_on(self, watch: AnswerWatch, data: bytes, report: "_Report") -> None:
        """After the beginning: pieces go on as they come, but for one that is damaged."""
        if watch.has_failed:
            if watch.is_told:
                await self._caller.send(data)
            evidence = watch.finish(HttpResponse(status=200)) or Evidence()
            await self._break_off(evidence, report, is_told=watch.is_told)
        await self._caller.send(data)

    async def _finish(
        self,
        passed: PassedOn,
        watch: AnswerWatch,
        head: HttpResponse,
        held: bytes,
        report: "_Report",
    ) -> NotAnswered | None:
        evidence = watch.finish(passed.exit, is_side=bool(self._asked.side))
        if self._is_begun:
            if evidence is not None:
                await self._break_off(evidence, report)
        elif evidence is not None:
            return NotAnswered(evidence=evidence, reply=_reply(head), body=held)
        else:
            await self._begin(head, report.chosen)
            await self._caller.send(held)
        await report.succeeded(watch)
        return None

    async def _break_off(
        self, evidence: Evidence, report: "_Report", *, is_told: bool = False
    ) -> None:
        """
        Mark the backend before the caller knows: it may try again at once.

        Raises:
            Aborted: Always.
        """
        answer = await report.failed(evidence)
        await _give_back(self._engine, report.asks, answer)
        if not is_told:
            text = f"{report.chosen.backend} broke off its answer"
            await self._caller.send(passage.error_event(self._asked.mode, text))
        raise Aborted

    async def _begin(self, head: HttpResponse, chosen: Resolution) -> None:
        self._is_begun = True
        reply = _reply(head)
        reply.headers.extend(self._said(chosen.backend, chosen.model))
        await self._caller.begin(reply)

    def _said(self, backend: str | None, model: str | None) -> list[tuple[str, str]]:
        said = {
            "x-fallbackd-served-by": backend,
            "x-fallbackd-model": model,
            "x-fallbackd-attempts": str(self._attempts),
            "x-fallbackd-fallback-reason": self._reason or None,
        }
        return [(name, value) for name, value in said.items() if value]

    async def _give_up(self, last: NotAnswered | None, retry_at: float | None) -> None:
        """The answer of the last backend as it gave it; where there is none, one of our own."""
        wait_s = None if retry_at is None else max(1.0, retry_at - self._engine.clock.now())
        is_error = last is not None and last.reply is not None and last.reply.status >= 300
        if last is not None and last.reply is not None and is_error:
            headers = last.reply.headers + self._said(None, None)
            if wait_s is not None and "retry-after" not in dict(headers):
                headers.append(("retry-after", str(round(wait_s))))
            await self._caller.begin(AnswerHead(status=last.reply.status, headers=headers))
            await self._caller.send(last.body)
            return
        if last is None:
            text = "no backend is available now" if wait_s else "no backend can be used"
        else:
            text = f"every backend failed; the last one: {last.evidence.text or 'no answer'}"
            text = self._engine.world.redact(text)[:500]
        raise Refusal(503, text + ": fallbackd-client health", "unavailable", retry_after=wait_s)

    def _limit_s(self, chosen: Resolution, otherwise: float) -> float:
        backend = self._engine.settings.policy.backends.get(chosen.backend or "")  # type: ignore[call-overload]
        own = (
            None
            if backend is None
            else (backend.stall_s if otherwise == STALL_S else backend.first_answer_s)
        )
        return float(own or otherwise)


class _Report:
    """What became of one call; said once."""

    def __init__(
        self,
        engine: Engine,
        asks: Mapping[str, Any],
        chosen: Resolution,
        turn: Turn | None,
        started_at: float,
    ) -> None:
        self._engine = engine
        self.asks = asks
        self.chosen = chosen
        self._is_said = False
        self._call: dict[str, Any] = {
            **asks,
            "backend": chosen.backend,
            "model": chosen.model,
            "credential": chosen.credential,
            "lease": chosen.lease_id,
            "turn": turn,
            "started_at": started_at,
        }

    async def succeeded(self, watch: AnswerWatch) -> None:
        self._is_said = True
        await self._engine.report(**self._call, outcome="success", usage=watch.usage)

    async def failed(self, evidence: Evidence) -> ReportAnswer:
        self._is_said = True
        return await self._engine.report(
            **self._call, outcome="failure", evidence=evidence, next_lease=True
        )

    async def released(self) -> None:
        """The caller has gone: nobody is to blame."""
        if not self._is_said and self.chosen.lease_id is not None:
            await self._engine.report(**self._call, outcome="released")


async def _give_back(engine: Engine, asks: Mapping[str, Any], answer: ReportAnswer) -> None:
    """The lease of a next one that will not be called."""
    unused = answer.next
    if unused is not None and unused.lease_id is not None:
        await _Report(engine, asks, unused, answer.turn, engine.clock.now()).released()


def _entry_of(entries: tuple[Entry, ...], chosen: Resolution) -> Entry:
    named = [one for one in entries if one.backend == chosen.backend]
    return next((one for one in named if one.model in (None, chosen.model)), named[0])


def _silent(limit_s: float) -> NotAnswered:
    text = f"no answer within {limit_s:g} s"
    return NotAnswered(evidence=Evidence(text=text, stream="exception", exception="ReadTimeout"))


def _reply(head: HttpResponse) -> AnswerHead:
    return AnswerHead(status=head.status, headers=passage.returned(list(head.headers.items())))


def told(mode: Any, refusal: Refusal) -> tuple[AnswerHead, bytes]:
    """A refusal as an answer."""
    body = msgspec.json.encode(
        passage.error_body(mode, refusal.status, refusal.message, refusal.code)
    )
    headers = [("content-type", "application/json")]
    if refusal.retry_after_s is not None:
        headers.append(("retry-after", str(round(refusal.retry_after_s))))
    return AnswerHead(status=refusal.status, headers=headers), body
