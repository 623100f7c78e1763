"""`doctor --fix` runs what the findings name, once each, and looks again."""

from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home

from fallbackd_client.cli.commands.doctor import fix
from fallbackd_client.cli.doctor.findings import ERROR, NOTE, WARNING, Finding


def test_each_command_runs_once_and_one_may_fix_several(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path)
    home.environ["PATH"] = "/usr/bin:/bin"
    done = home.path / "done"

    def examine() -> list[Finding]:
        if done.exists():
            return [
                Finding("daemon", ERROR, "still broken", "exit 3"),
                Finding("service", ERROR, "a shell of yours", "export XDG_RUNTIME_DIR=/run"),
                Finding("programs", NOTE, "a matter of taste", f"touch {home.path}/taste"),
                Finding("programs", WARNING, "not logged in", f"touch {home.path}/login"),
                Finding("service", WARNING, "nothing helps"),
            ]
        return [
            Finding("socket", ERROR, "the cause", f"echo $FALLBACKD_SOCKET > {done}"),
            Finding("daemon", ERROR, "what comes of it", f"touch {home.path}/needless"),
        ]

    fix(home.machine(), examine, yes=True)
    assert done.read_text() == f"{home.socket}\n"
    assert sorted(path.name for path in home.path.iterdir()) == ["done"]
    said = capfd.readouterr().err
    assert said.count("still broken") == 1
    assert "ended with exit status 3" in said
    assert "run this in your shell" in said
    assert "a matter of taste" not in said
