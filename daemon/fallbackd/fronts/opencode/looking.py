"""How a session is at its server, at the word that a turn of it has failed."""

import anyio

from fallbackd.core.protocol import Evidence
from fallbackd.fronts.opencode.at import At, Failed, Lost, SessionGone
from fallbackd.fronts.opencode.convert import EventFields

END_LOOK_S = 0.05
END_LOOKS = 20
"""An error is said shortly before its session is idle (measured: up to 30 ms)."""


class Look:
    def __init__(self, at: At) -> None:
        self._at = at
        self.messages: list[EventFields] | None = None
        self.is_late = False
        self.is_gone = False
        self.is_lost = False

    async def at_messages(self) -> None:
        try:
            self.messages = await self._at.messages()
        except SessionGone:
            self.is_gone = True
        except Lost:
            self.is_lost = True
        except Failed:
            pass  # said by the rescue, if there is one

    async def at_retry(self, evidence: Evidence) -> None:
        """Whether the server still retries what the evidence tells of."""
        states = await self._states()
        if states is None:
            return  # a server that has no such call: the event is all there is
        status = states.get(self._at.session)
        is_retrying = isinstance(status, dict) and status.get("type") == "retry"
        text = status.get("message") if isinstance(status, dict) else None
        self.is_late = not (is_retrying and text in (None, evidence.text))

    async def for_end(self) -> None:
        """Wait for the turn to end; if the session keeps working, the error was not its end."""
        for _ in range(END_LOOKS):
            if self._at.session not in (await self._states() or {}):
                return
            await anyio.sleep(END_LOOK_S)
        self.is_late = True

    async def _states(self) -> EventFields | None:
        called = await self._at.link.call("GET", "/session/status", directory=self._at.directory)
        return called.body if called.is_good and isinstance(called.body, dict) else None
