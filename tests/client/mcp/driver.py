"""The server as a client meets it: a process with two pipes, against a scripted daemon."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.daemon import ROOT

LIMIT_S = 60.0
META = "io.modelcontextprotocol/"
STATELESS = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}


class Session:
    """One server. Messages that were not asked for are kept in `told`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.told: list[dict[str, Any]] = []
        self._last_id = 0

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def say(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def read(self) -> dict[str, Any]:
        """The next message; every line has to be one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server has closed its output"
        found: dict[str, Any] = json.loads(line)
        assert found["jsonrpc"] == "2.0"
        return found

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self._last_id += 1
        self.say(id=self._last_id, method=method, params=params or {})
        return self._last_id

    def answer_to(self, request_id: object) -> dict[str, Any]:
        while True:
            found = self.read()
            if "method" not in found and found.get("id") == request_id:
                return found
            self.told.append(found)

    def until(self, method: str) -> dict[str, Any]:
        """The next message of the server's own with this method."""
        while (found := self.read()).get("method") != method:
            self.told.append(found)
        return found

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self.answer_to(self.send(method, params))

    def initialize(self, version: str = "2025-11-25", **capabilities: Any) -> dict[str, Any]:
        info = {"name": "a-client", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info}
        found: dict[str, Any] = self.request("initialize", params)["result"]
        self.say(method="notifications/initialized")
        return found

    def call(self, tool: str, meta: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """The result of one tool."""
        return self.answer_to(self.begin(tool, meta, **given))["result"]

    def begin(self, tool: str, meta: Mapping[str, Any] | None = None, **given: Any) -> int:
        params = {"name": tool, "arguments": given, **({} if meta is None else {"_meta": meta})}
        return self.send("tools/call", params)


@contextmanager
def session(
    socket: str | Path | None, *arguments: str, cwd: Path | None = None, **env: str
) -> Iterator[Session]:
    """`env`: all of it, beside what Python needs."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fallbackd_client.cli.main"),
            *(() if socket is None else ("--socket", str(socket))),
            *("mcp", *arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT / "client"), "PATH": os.environ["PATH"], **env},
    )
    try:
        yield Session(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.stdout.close()
        process.wait(LIMIT_S)
