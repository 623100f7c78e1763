"""
The two ways out: a program, and an address.

Each delivers one notification at a time, and the same one again where the daemon was killed before
it had noted the delivery. A program is then not started a second time: what starts it makes a file
first, which must not be there. A server is asked a second time with the same `Idempotency-Key`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from fallbackd.fronts.notify.rules import Notification
from fallbackd.lib.failpoints import hit
from fallbackd.transports.once import run_once

if TYPE_CHECKING:
    import httpx2

LIMIT_S = 30.0
"""How long a delivery may take."""


class Undelivered(Exception):
    """Why, as words for people, without the address."""


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
