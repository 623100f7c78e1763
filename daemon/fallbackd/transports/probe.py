"""Free looks at backends: `PROGRAM --version`, and one small HTTP request."""

import os
import signal
import subprocess
from collections.abc import Mapping

import anyio
import anyio.to_thread

from fallbackd.core.protocol import HttpRequest, NoAnswer
from fallbackd.ports.probe import Fetched
from fallbackd.ports.transport import Transport
from fallbackd.transports.process.environment import child_environment

LIMIT_S = 8.0
MAX_BODY_BYTES = 1024 * 1024
MAX_VERSION_CHARS = 80


class FreeProbe:
    """See `ports.probe.Probe`. Of a program the answer is kept until its file changes."""

    def __init__(self, http: Transport, *, environ: Mapping[str, str]) -> None:
        self._http = http
        self._environ = environ
        self._versions: dict[tuple[str, int], str | None] = {}

    async def version(self, program: str) -> str | None:
        try:
            key = (program, os.stat(program).st_mtime_ns)
        except OSError:
            return None
        if key not in self._versions:
            self._versions[key] = await self._ask(program)
        return self._versions[key]

    async def _ask(self, program: str) -> str | None:
        environ = child_environment(self._environ, added={}, unset=(), marks={})
        try:
            process = await anyio.open_process(
                [program, "--version"],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environ,
                start_new_session=True,
            )
        except (OSError, ValueError):
            return None
        said = b""
        try:
            with anyio.move_on_after(LIMIT_S):
                assert process.stdout is not None
                async for chunk in process.stdout:
                    said += chunk
                    if len(said) > 10_000:
                        break
                await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    try:
                        os.killpg(process.pid, signal.SIGKILL)
                    except OSError:
                        pass
                await process.aclose()
        lines = said.decode("utf-8", "replace").strip().splitlines()
        line = "".join(one for one in lines[0] if one.isprintable()).strip() if lines else ""
        return line[:MAX_VERSION_CHARS] or None

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
                return Fetched(exit=NoAnswer(exception="TimeoutError", text="no answer in time"))
            return Fetched(exit=running.exit, body=body[:MAX_BODY_BYTES])
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(directory.cleanup)
