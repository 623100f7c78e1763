"""The prompts on a helper server, and which of them an event is for."""

from typing import Protocol

from fallbackd.transports.opencode.told import ToldEvent


class Listener(Protocol):
    """A prompt that uses the server."""

    attempt: str

    def has_started(self, pid: int) -> bool:
        """Whether this process is one of its tools."""
        ...

    def hear(self, event: ToldEvent) -> None: ...

    def joined(self) -> None:
        """Another prompt uses the server too from now on."""
        ...

    def reconnected(self) -> None:
        """The event stream had a gap."""
        ...

    def server_over(self) -> None: ...


class Listeners:
    def __init__(self) -> None:
        self._by_session: dict[str, Listener] = {}

    def add(self, session: str, listener: Listener) -> None:
        self._by_session[session] = listener

    def remove(self, listener: Listener) -> None:
        for session in [s for s, each in self._by_session.items() if each is listener]:
            del self._by_session[session]

    def all(self) -> set[Listener]:
        return set(self._by_session.values())

    def attempts_of(self, pid: int) -> tuple[str, ...]:
        """All of them, first the one whose tool a process is, where that can be determined."""
        listeners = list(self.all())
        if len(listeners) > 1:
            listeners.sort(key=lambda each: not each.has_started(pid))
        return tuple(each.attempt for each in listeners)

    def dispatch(self, event: ToldEvent) -> None:
        properties = event["properties"]
        info = properties.get("info")
        if event.get("type") == "session.created" and isinstance(info, dict):
            # A subagent's session belongs to the prompt of its parent.
            parent = self._by_session.get(str(info.get("parentID")))
            if parent is not None:
                self.add(str(info.get("id")), parent)
        listener = self._by_session.get(str(properties.get("sessionID")))
        if listener is not None:
            listener.hear(event)
