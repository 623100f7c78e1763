import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.client.scripted import Script, Server, answering, serving

from fallbackd_client.cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str
    server: Server

    def params(self, method: str) -> dict[str, Any]:
        return self.server.params(method)


RunCli = Callable[..., Ran]


class Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def run_cli(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> RunCli:
    """Run one command line against a scripted daemon: `run_cli(["ping"], {"daemon.ping": {…}})`."""
    monkeypatch.delenv("FALLBACKD_DELEGATION", raising=False)
    monkeypatch.delenv("FALLBACKD_ATTEMPT", raising=False)
    monkeypatch.setenv("TZ", "UTC")

    def run(
        argv: list[str], answers: dict[str, Any] | Script | None = None, *, stdin: bytes = b""
    ) -> Ran:
        script = answers if callable(answers) else answering(answers or {})
        monkeypatch.setattr("sys.stdin", Stdin(stdin))
        path = tmp_path / "control.sock"
        with serving(path, script) as server:
            code = main(["--socket", str(path), *argv])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err, server)

    return run
