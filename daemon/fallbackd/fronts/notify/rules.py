"""
Notifications: the events of the journal that are announced, their words, and the ways out.

The rules are pure. Nothing of a prompt or an answer is in the words: what may be added to them is
added later.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from fallbackd.core.decision import Journaled
from fallbackd.core.health import Health
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation
from fallbackd.lib.failpoints import hit
from fallbackd.transports.once import run_once

if TYPE_CHECKING:
    import httpx2


NEAR = 0.8
"""This part of a cap is near."""
DAY_S = 86_400.0
_BACK = ("rate_limited", "broken", "cooldown")
"""States from which a backend recovers."""
_ABSENT = (Reason.NOT_INSTALLED, Reason.NOT_CONFIGURED)


class Notification(Struct, frozen=True, kw_only=True):
    id: str
    """Identity, kept for each try to deliver it."""
    event: str
    """A `NotifyEvent`, `finished` or `test`."""
    title: str
    text: str
    at: float
    key: str
    """Equal keys say the same."""
    delegation: str | None = None
    session: str | None = None
    backend: str | None = None
    prompt: str | None = None
    """Its beginning; only where text is included."""
    answer: str | None = None


class _About(Struct, frozen=True, kw_only=True):
    """An event, and what its record of the journal does not say."""

    entry: Journaled
    delegation: Delegation | None
    finished_after_s: float | None
    near: str | None
    was_absent: bool

    @property
    def fields(self) -> dict[str, Any]:  # event fields, any JSON
        return self.entry.note.fields


def notification_of(
    entry: Journaled,
    delegation: Delegation | None,
    *,
    finished_after_s: float | None,
    near: str | None = None,
    was_absent: bool = False,
) -> Notification | None:
    """
    Args:
        delegation: The one that the event is about, if any.
        was_absent: The scope of the event was out since it was not installed or not set up.
        near: What is said of a cap that the event's backend has nearly reached.
    """
    say = _SAY.get(entry.note.kind)
    if say is None:
        return None
    return say(
        _About(
            entry=entry,
            delegation=delegation,
            finished_after_s=finished_after_s,
            near=near,
            was_absent=was_absent,
        )
    )


def _hopped(about: _About) -> Notification | None:
    fields = about.fields
    if not fields.get("to"):
        return None
    reason = str(fields.get("reason") or "unknown")
    return _made(
        about.entry,
        "failed_over",
        "failed over",
        f"{fields.get('from')} is unavailable ({_words(reason)}); continuing with {fields['to']}.",
        f"{fields.get('from')} {fields['to']} {reason}",
    )


def _noticed(about: _About) -> Notification | None:
    """Notify of sessions of opencode; a delegation tells the same by events of its own."""
    fields = about.fields
    if about.entry.note.delegation is not None:
        return None
    if fields.get("notice") == "fallback":
        text = f"{fields.get('from')} is unavailable; continuing with {fields.get('to')}."
        key = f"{fields.get('from')} {fields.get('to')}"
        return _made(about.entry, "failed_over", "failed over", text, key)
    if fields.get("notice") == "outage":
        text = "No model is available for a session of opencode."
        return _made(about.entry, "all_unavailable", "no model is available", text, "")
    return None


def _ended(about: _About) -> Notification | None:
    fields = about.fields
    if fields.get("state") == "refused":
        if fields.get("detail") in ("outage_stop", "skipped"):
            return None
        text = "No backend in the chain is available for a delegation."
        return _made(about.entry, "all_unavailable", "no backend is available", text, "")
    if about.delegation is None or about.finished_after_s is None:
        return None
    return _finished(about.entry, about.delegation, about.finished_after_s)


def _moved(about: _About) -> Notification | None:
    fields = about.fields
    scope = str(fields.get("scope") or "")
    is_back = fields.get("to") == "healthy" and fields.get("from") in _BACK
    if not is_back or about.was_absent or not scope.startswith("backend:"):
        return None
    name = scope.removeprefix("backend:")
    return _made(about.entry, "recovered", "recovered", f"{name} is available again.", name)


def _opened(about: _About) -> Notification | None:
    name = str(about.fields.get("question"))
    text = f"A delegation waits for a decision. See it with: fallbackd-client questions ({name})"
    return _made(about.entry, "question", "a question is open", text, name)


def _plan_near(about: _About) -> Notification | None:
    fields = about.fields
    name, window_s = str(about.entry.note.backend), float(fields.get("window_s") or 0.0)
    window = _duration(window_s) if window_s < DAY_S else f"{window_s / DAY_S:.0f} days"
    used = float(fields.get("used_percent") or 0.0)
    text = f"{name} has used {used:.0f} % of its plan for {window}."
    return _made(about.entry, "limit_near", "a limit is near", text, f"{name} {window_s:.0f}")


def _standing_by(about: _About) -> Notification | None:
    name, until_at = str(about.entry.note.backend), about.fields.get("until_at")
    when = "until a repair" if until_at is None else f"{_duration(until_at - about.entry.note.at)}"
    text = f"A delegation waits for {name} ({when}). See it with: fallbackd-client standby"
    return _made(about.entry, "standby", "work waits for a backend", text, f"began {name}")


def _stood_by(about: _About) -> Notification | None:
    name, state = str(about.entry.note.backend), str(about.fields.get("state"))
    words = f"continues on {name}" if state == "started" else f"is {state}"
    text = f"A delegation that waited for a backend {words}."
    return _made(about.entry, "standby", "a wait has ended", text, f"ended {name} {state}")


def _cap_near(about: _About) -> Notification | None:
    if about.near is None:
        return None
    backend = str(about.entry.note.backend)
    return _made(about.entry, "limit_near", "a limit is near", about.near, backend)


_SAY: Mapping[str, Callable[[_About], Notification | None]] = {
    "delegation.hopped": _hopped,
    "session.notice": _noticed,
    "delegation.ended": _ended,
    "health.moved": _moved,
    "question.opened": _opened,
    "plan.near": _plan_near,
    "standby.began": _standing_by,
    "standby.ended": _stood_by,
    "attempt.ended": _cap_near,
}


class Absences:
    """Scopes that are unavailable because they are not installed. Installing one is not news."""

    def __init__(self, health: Iterable[Health]) -> None:
        self._scopes = {
            str(one.scope)
            for one in health
            if one.outage is not None and one.outage.reason in _ABSENT
        }

    def saw(self, entry: Journaled) -> bool:
        """Follow the journal. Returns whether the scope of this entry was absent before it."""
        fields = entry.note.fields
        scope = str(fields.get("scope") or "")
        was_absent = scope in self._scopes
        if entry.note.kind == "health.moved":
            is_absent = fields.get("to") == "broken" and fields.get("reason") in _ABSENT
            (self._scopes.add if is_absent else self._scopes.discard)(scope)
        return was_absent


def _finished(entry: Journaled, one: Delegation, after_s: float) -> Notification | None:
    took_s = entry.note.at - one.created_at
    if took_s < after_s:
        return None
    state = str(entry.note.fields.get("state"))
    word = {"succeeded": "finished", "cancelled": "was cancelled", "failed": "failed"}.get(
        state, f"ended ({_words(state)})"
    )
    text = f"{one.delegation} {word} on {one.served_by or one.active} after {_duration(took_s)}."
    return _made(entry, "finished", word, text, one.delegation)


def near_cap(backend: Backend, used: int) -> str | None:
    """Make what is said where the use of this hour is near the cap; None: it is not."""
    cap = backend.hourly_cap
    if cap is None or not NEAR * cap <= used < cap:
        return None
    return f"{backend.id} has used {used} of {cap} {backend.cap_unit} of this hour."


def _made(entry: Journaled, event: str, what: str, text: str, key: str) -> Notification:
    note = entry.note
    return Notification(
        id=f"{entry.seq}-{int(note.at)}",
        event=event,
        title=f"fallbackd: {what}",
        text=text,
        at=note.at,
        key=f"{event} {key}",
        delegation=note.delegation,
        session=note.session,
        backend=note.backend,
    )


def _words(word: str) -> str:
    return word.replace("_", " ")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


# --- the two ways out ----------------------------------------------------------------------------
# The two ways out: a program, and an address.
#
# Each delivers one notification at a time, and the same one again where the daemon was killed
# before it had noted the delivery. A program is then not started a second time: what starts it
# makes a file first, which must not be there. A server is asked a second time with the same
# `Idempotency-Key`.

LIMIT_S = 30.0
"""Limit of one delivery."""


class Undelivered(Exception):
    """The reason, as words for people, without the address."""


class Program:
    """
    Args:
        claims: Directory for the files by which a program is started once.
        environ: What programs inherit.
    """

    name = "command"
    tries = 1

    def __init__(self, command: tuple[str, ...], claims: Path, environ: Mapping[str, str]) -> None:
        self._command = command
        self._claims = claims
        self._environ = environ

    async def deliver(self, one: Notification) -> None:
        """
        Raises:
            Undelivered: It cannot be started, it failed, or it took too long and was ended.
        """
        claim = self._claims / one.id
        argv = substituted(self._command, one)
        await anyio.to_thread.run_sync(self._run, claim, argv, abandon_on_cancel=True)

    def forget(self, name: str) -> None:
        """Remove what the notification of this id was started by."""
        (self._claims / name).unlink(missing_ok=True)

    def tidy(self, *, up_to_seq: int) -> None:
        """Remove what is not needed any more: those deliveries are on record."""
        try:
            for path in list(self._claims.iterdir()):
                seq = path.name.partition("-")[0]
                if seq.isdecimal() and int(seq) <= up_to_seq:
                    path.unlink(missing_ok=True)
        except OSError:
            pass  # there is no such directory yet

    def _run(self, claim: Path, argv: list[str]) -> None:
        try:
            self._claims.mkdir(mode=0o700, parents=True, exist_ok=True)
            code, said = run_once(argv, claim=claim, environ=self._environ, limit_s=LIMIT_S)
        except TimeoutError:
            why = f"{argv[0]} took more than {LIMIT_S:.0f} s and was ended"
            raise Undelivered(why) from None
        except OSError as error:
            raise Undelivered(f"{argv[0]} cannot be run: {error.strerror or error}") from error
        if code != 0:
            raise Undelivered(f"{argv[0]} ended with status {code}: {said}".rstrip(": "))


def substituted(command: tuple[str, ...], one: Notification) -> list[str]:
    """The program itself is the user's; a value in its arguments never begins an option."""
    argv = [command[0]]
    for argument in command[1:]:
        made = argument
        for name in ("title", "text", "event"):
            value = str(getattr(one, name))
            made = made.replace(f"{{{name}}}", value)
        argv.append(f" {made}" if made.startswith("-") and not argument.startswith("-") else made)
    return argv


class Webhook:
    """
    Args:
        find: Gives the client for an address.
    """

    name = "url"
    tries = 5

    def __init__(self, url: str, find: Callable[[str], "httpx2.AsyncClient"]) -> None:
        self._url = url
        self._find = find

    async def deliver(self, one: Notification) -> None:
        """
        Raises:
            Undelivered: No answer in time, or none that says yes.
        """
        try:
            with anyio.fail_after(LIMIT_S):
                response = await self._find(self._url).post(
                    self._url,
                    content=msgspec.json.encode(body_of(one)),
                    headers={"Content-Type": "application/json", "Idempotency-Key": one.id},
                )
        except TimeoutError:
            raise Undelivered(f"no answer within {LIMIT_S:.0f} s") from None
        except Exception as error:  # of any library below; its words may hold the address
            why = f"the server cannot be asked ({type(error).__name__}); look at its address in"
            raise Undelivered(f"{why} [notify] url, and whether it runs") from error
        hit("notify.posted")
        if not 200 <= response.status_code < 300:
            raise Undelivered(f"the server answered with status {response.status_code}")

    def forget(self, name: str) -> None:
        """Nothing is kept of it."""

    def tidy(self, *, up_to_seq: int) -> None:
        """Nothing is kept."""


def body_of(one: Notification) -> dict[str, Any]:
    found = msgspec.structs.asdict(one)
    del found["key"]
    return {name: value for name, value in found.items() if value is not None}


Way = Program | Webhook
