"""One session of an opencode server, as far as it was seen."""

from collections import deque
from collections.abc import Sequence

import anyio

from fallbackd.fronts.opencode.convert import (
    Asked,
    Errored,
    Fact,
    Fields,
    facts,
    is_of_user,
    model_of,
)

MAX_WAITING = 1000
"""Facts of one session that wait behind a rescue; more are dropped, the oldest first."""


class Track:
    """One session, as far as it was seen."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.directory = ""
        self.message = ""
        """Of the user: the one that is being answered."""
        self.reply = ""
        self.model = ""
        self.agent: str | None = None
        self.is_answered = False
        self.may_have_written = False
        self.unfinished = 0
        self.retried_reply = ""
        self.retries_since_at = 0.0
        self.is_child: bool | None = None
        self.facts: deque[Fact] = deque(maxlen=MAX_WAITING)
        self.is_working = False
        self.lock = anyio.Lock()

    def retries(self, now: float) -> float:
        """The server asks for a reply again: since when it does."""
        if self.retried_reply != self.reply or not self.retries_since_at:
            self.retried_reply, self.retries_since_at = self.reply, now
        return self.retries_since_at

    def drop_errors(self) -> None:
        """
        Errors that wait are of the model that is left. They name no message: looked at later,
        they would be taken for errors of the next one.
        """
        kept = [one for one in self.facts if not isinstance(one, Errored)]
        self.facts.clear()
        self.facts.extend(kept)


def understand(track: Track, messages: Sequence[Fields], *, is_over: bool) -> None:
    """
    Which message is being answered, by which model: as the server has it now.

    Args:
        is_over: The turn has ended: a question without any reply failed before it was asked.
    """
    replies = [one for one in map(_asked_by, messages) if one is not None]
    questions = [one["info"] for one in messages if is_of_user(one)]
    if replies:
        fact, is_finished = replies[-1]
        track.message, track.reply = fact.message, fact.reply
        track.model, track.agent = fact.model, fact.agent or track.agent
        if not (is_over and is_finished):
            return
    replied = {fact.message for fact, _ in replies}
    for info in reversed(questions):
        model = model_of(info)
        if info.get("id") in replied or model is None:
            return
        track.message, track.reply, track.model = str(info.get("id")), "", model
        agent = info.get("agent")
        track.agent = agent if isinstance(agent, str) else track.agent
        return


def _asked_by(message: Fields) -> tuple[Asked, bool] | None:
    """What a message of a model answers, and whether it is a whole answer."""
    info = message.get("info")
    if not isinstance(info, dict):
        return None
    event = {"type": "message.updated", "properties": {"info": info}}
    asked = next((one for one in facts(event, now=0.0) or () if isinstance(one, Asked)), None)
    return None if asked is None else (asked, bool(info.get("finish")))
