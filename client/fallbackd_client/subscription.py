"""Where a subscription to events stands, for both clients. Standard library only."""

from fallbackd_client.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fallbackd_client.calls import Json


class Dropped(Exception):
    """The daemon has ended the subscription: its events were not read in time."""


class Subscription:
    """
    Args:
        since: Events after this `seq`; None: from the moment of the subscription.
        kinds: Which of them; None: all.
        session: Of this one alone; None: of all.
        delegation: Of this one alone, with its text from the beginning; None: of all.
    """

    def __init__(
        self,
        since: int | None,
        kinds: "Iterable[str] | None",
        session: str | None,
        delegation: str | None = None,
    ) -> None:
        self.position = since
        """The `seq` of the last event that was handed out."""
        self._kinds = None if kinds is None else list(kinds)
        self._session = session
        self._delegation = delegation
        self._text_since: dict[str, Json] | None = None
        """Up to where its text was handed out."""

    def params(self) -> "dict[str, Json]":
        """Of the call that subscribes, for the first time or again."""
        wanted = {
            "since": self.position,
            "kinds": self._kinds,
            "session": self._session,
            "delegation": self._delegation,
            "text_since": self._text_since,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def begin(self, answer: "Json") -> str | None:
        """
        Take the answer to that call. Returns a warning, such as that the journal began anew.

        Raises:
            ProtocolError: It is no answer to it.
        """
        seq = answer.get("seq") if isinstance(answer, dict) else None
        if not isinstance(seq, int):
            raise ProtocolError("the answer to events.subscribe has no `seq`")
        # A lower one: the records were lost with the disk, and begin anew.
        self.position = seq if self.position is None else min(self.position, seq)
        warning: str | None = answer.get("warning")
        return warning

    def take(self, message: "dict[str, Json]") -> "dict[str, Json] | None":
        """
        The event to hand out; None: the message is none, or one that was handed out before.

        Raises:
            Dropped: No more events come on this connection.
        """
        event: Json = message.get("params")
        if message.get("method") != "event" or not isinstance(event, dict):
            return None
        if event.get("kind") == "subscription.dropped":
            raise Dropped
        seq = event.get("seq")
        if isinstance(seq, int):
            if self.position is not None and seq <= self.position:
                return None
            self.position = seq
        if event.get("kind") == "attempt.text" and self._delegation is not None:
            end = event["offset"] + len(event["text"])
            self._text_since = {"attempt": event["attempt"], "offset": end}
            if event.get("run"):
                self._text_since["run"] = event["run"]
        return event
