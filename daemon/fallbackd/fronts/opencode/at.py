"""A session at its server: its calls, and what they say when it or the server is gone."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from fallbackd.fronts.opencode.convert import EventFields
from fallbackd.ports.opencode import INSIDE, Called, Link


class Failed(Exception):
    """A step could not be done: says which one and why."""


class SessionGone(Exception):
    """The session is not there any more."""


class Lost(Exception):
    """The server is not there any more. It may come back, and the session with it."""


class At(Struct, frozen=True, kw_only=True):
    """A session at its server."""

    link: Link
    session: str
    directory: str = ""
    heard: Callable[[], list[EventFields]] = list
    """Its messages by its events, where the server cannot say them."""

    async def call(self, method: str, path: str = "", *, body: EventFields | None = None) -> Called:
        """
        Raises:
            SessionGone, Lost.
        """
        called = await self.link.call(
            method, f"/session/{self.session}{path}", body=body, directory=self.directory
        )
        if called.status == 404:
            raise SessionGone
        if called.status == 0 and not await self._is_there():
            raise Lost
        return called

    async def _is_there(self) -> bool:
        for path in ("/global/health", "/config"):
            found = await self.link.call("GET", path, limit_s=2.0)
            if found.is_good:
                return True
        return False

    async def messages(self) -> list[EventFields]:
        """
        Raises:
            Failed, SessionGone, Lost.
        """
        called = await self.call("GET", "/message")
        if called.status == 400 and (heard := self.heard()):
            return heard
        if not called.is_good or not isinstance(called.body, list):
            why = called.problem or "an answer that is no list"
            raise Failed(f"reading the session's messages ({why})")
        return [one for one in called.body if isinstance(one, dict)]

    async def info(self) -> EventFields:
        """Of the session itself. Raises `SessionGone`, `Lost`; what cannot be read is empty."""
        called = await self.call("GET")
        return called.body if isinstance(called.body, dict) else {}


async def tell_parent(at: At, state: Literal["moving", "failed"], text: str = "") -> None:
    """What the parent of a subagent is to make of its end. Known only inside of opencode."""
    if at.link.is_inside:
        body = {"session": at.session, "state": state, "text": text}
        await at.link.call("POST", f"{INSIDE}child", body=body)
