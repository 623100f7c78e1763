"""Memory that the requests and answers of all callers may take together."""

import asyncio
from collections import deque
from contextlib import suppress

import anyio

from fallbackd.fronts.gateway.answers import Refusal

COPIES = 2
"""A body stands there as it came and as it leaves; an answer as it came and as it is read."""
FREE_BYTES = 64 * 1024
"""Bytes of each, which are not counted: nearly all requests, and what is held of a stream."""
LONG_BYTES = 1024 * 1024
"""Longer requests leave a quarter of the room to the others, and wait in a queue of their own."""
ROOM_LIMIT_S = 30.0
RETRY_S = 5.0


class Room:
    """Requests wait for it in turn; an answer that has begun takes it or is given up."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._taken = 0
        self._waiting: tuple[_Queue, _Queue] = deque(), deque()
        """Short ones, which go first, and long ones."""

    def _fits(self, size: int, *, is_long: bool) -> bool:
        # One alone may take all of it: the limit of a single request is another one.
        most = self.most_bytes * 3 // 4 if is_long else self.most_bytes
        return not self._taken or self._taken + size <= most

    def takes(self, size: int) -> bool:
        """Take it now. False: there is not as much."""
        if not self._fits(size, is_long=False):
            return False
        self._taken += size
        return True

    async def take(self, size: int) -> None:
        """
        Return when there is room.

        Raises:
            TimeoutError: There was none for too long.
        """
        is_long = size > LONG_BYTES * COPIES
        queue = self._waiting[is_long]
        if not queue and self._fits(size, is_long=is_long):
            self._taken += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append((size, turn))
        try:
            with anyio.fail_after(ROOM_LIMIT_S):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                with suppress(ValueError):  # it was left out when its turn came
                    queue.remove((size, turn))
                self._next()
            raise

    def give(self, size: int) -> None:
        self._taken -= size
        self._next()

    def _next(self) -> None:
        for is_long, queue in enumerate(self._waiting):
            while queue and self._fits(queue[0][0], is_long=bool(is_long)):
                size, turn = queue.popleft()
                if not turn.done():
                    self._taken += size
                    turn.set_result(None)


_Queue = deque[tuple[int, asyncio.Future[None]]]


class Share:
    """The part of the room that one request and its answer take."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._taken = self._body = 0

    async def take_for_body(self, size: int) -> None:
        """
        Raises:
            Refusal: There is no room for it.
        """
        counted = _counted(size)
        if not counted:
            return
        try:
            await self._room.take(counted)
        except TimeoutError as error:
            raise no_room() from error
        self._taken = self._body = counted

    def has_body(self, size: int) -> None:
        """Give back what was taken for a longer one."""
        surplus = self._body - _counted(size)
        if surplus > 0:
            self._taken = self._body = self._body - surplus
            self._room.give(surplus)

    def holds_body(self, size: int) -> bool:
        """Return whether there is room for so much more of the body."""
        if not self._takes(_counted(size)):
            return False
        self._body = self._taken
        return True

    def holds(self, size: int) -> bool:
        """Return whether there is room for an answer of this size, as far as it has come."""
        return self._takes(self._body + _counted(size) - self._taken)

    def _takes(self, more: int) -> bool:
        if more > 0:
            if not self._room.takes(more):
                return False
            self._taken += more
        return True

    def give_back(self) -> None:
        taken, self._taken, self._body = self._taken, 0, 0
        if taken:
            self._room.give(taken)


def no_room() -> Refusal:
    text = "long requests and answers take all the memory that they may; try again"
    return Refusal(503, text, "busy", retry_after=RETRY_S)


def _counted(size: int) -> int:
    return size * COPIES if size > FREE_BYTES else 0
