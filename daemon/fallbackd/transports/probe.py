"""Free looks at backends: `PROGRAM --version`, the use of its plan, and one small HTTP request."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import Process

from fallbackd.core.protocol import HttpRequest, Inquiry, NoAnswer
from fallbackd.lib import foreign_json, privatefile
from fallbackd.ports.transport import Fetched, Transport
from fallbackd.transports.process.environment import child_environment

LIMIT_S = 8.0
ANSWER_S = 20.0
LAST_S = 3.0
"""Time for a program to end by itself once its input is closed."""
MAX_BODY_BYTES = 1024 * 1024
MAX_VERSION_CHARS = 80


def _key(program: str) -> tuple[str, int] | None:
    try:
        return program, os.stat(program).st_mtime_ns
    except OSError:
        return None


def _of_package(program: str) -> str | None:
    """The version of the npm package that a program is in, and that is named like it."""
    place = Path(os.path.realpath(program)).parent
    for directory in (place, place.parent):
        try:
            found = foreign_json.decode(
                privatefile.read_file(directory / "package.json", max_bytes=MAX_BODY_BYTES)
            )
        except (OSError, ValueError, msgspec.DecodeError, RecursionError):
            continue
        package = found if isinstance(found, dict) else {}
        name, version = package.get("name"), package.get("version")
        if isinstance(name, str) and os.path.basename(program) in name:
            return version if isinstance(version, str) else None
    return None


@asynccontextmanager
async def _started(
    argv: Sequence[str], environ: Mapping[str, str], *, stdin: int = subprocess.DEVNULL
) -> AsyncIterator[Process]:
    """Start a program in a group of its own, which is ended with the block."""
    process = await anyio.open_process(
        argv,
        stdin=stdin,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environ,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except OSError:
                    pass
            await process.aclose()


async def _answer(said: AsyncIterator[bytes], inquiry: Inquiry) -> Mapping[str, Any] | None:
    rest, seen = b"", 0
    async for chunk in said:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            try:
                found = foreign_json.decode(line)
            except (ValueError, msgspec.DecodeError, RecursionError):
                continue
            if isinstance(found, dict) and inquiry.is_answer(found):
                return found
        seen += len(chunk)
        if seen > MAX_BODY_BYTES:
            return None
    return None


class FreeProbe:
    """See `ports.transport.Probe`. Of a program the answer is kept until its file changes."""

    def __init__(self, http: Transport, *, environ: Mapping[str, str]) -> None:
        self._http = http
        self._environ = environ
        self._versions: dict[tuple[str, int], str | None] = {}
        self._packaged: dict[tuple[str, int], str | None] = {}

    async def version(self, program: str) -> str | None:
        key = _key(program)
        if key is None:
            return None
        if key not in self._versions:
            self._versions[key] = await self._ask(program)
        return self._versions[key]

    def known_version(self, program: str) -> str | None:
        key = _key(program)
        if key is None:
            return None
        if key not in self._packaged:
            self._packaged[key] = _of_package(program)
        return self._versions.get(key) or self._packaged[key]

    async def _ask(self, program: str) -> str | None:
        environ = child_environment(self._environ, added={}, unset=(), marks={})
        said = b""
        try:
            async with _started([program, "--version"], environ) as process:
                with anyio.move_on_after(LIMIT_S):
                    assert process.stdout is not None
                    async for chunk in process.stdout:
                        said += chunk
                        if len(said) > 10_000:
                            break
                    await process.wait()
        except (OSError, ValueError):
            return None
        lines = said.decode("utf-8", "replace").strip().splitlines()
        line = "".join(one for one in lines[0] if one.isprintable()).strip() if lines else ""
        return line[:MAX_VERSION_CHARS] or None

    async def ask(
        self, program: str, inquiry: Inquiry, environ: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        given = child_environment(environ, added=inquiry.env, unset=(), marks={})
        try:
            async with _started([program, *inquiry.argv], given, stdin=subprocess.PIPE) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                with anyio.move_on_after(ANSWER_S):
                    await process.stdin.send(inquiry.lines)
                    found = await _answer(process.stdout, inquiry)
                    await process.stdin.aclose()
                    with anyio.move_on_after(LAST_S):  # it may be keeping a login that it renewed
                        await process.wait()
                    return found
        except (OSError, ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        return None

    async def fetch(self, request: HttpRequest) -> Fetched:
        import tempfile  # slow to load, and rarely needed

        body = b""
        directory = await anyio.to_thread.run_sync(tempfile.TemporaryDirectory)
        try:
            running = await self._http.open(
                request, attempt="probe", directory=directory.name, env={}
            )
            stopper = anyio.current_time() + LIMIT_S
            with anyio.move_on_after(LIMIT_S) as limit:
                async for chunk in running.chunks():
                    body += chunk.data
                    if len(body) > MAX_BODY_BYTES or anyio.current_time() > stopper:
                        running.stop(grace_s=0)
            if limit.cancelled_caught:
                running.stop(grace_s=0)
                return Fetched(
                    exit=NoAnswer(exception="TimeoutError", text="no answer in time", gone=True)
                )
            return Fetched(exit=running.exit, body=body[:MAX_BODY_BYTES])
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(directory.cleanup)
