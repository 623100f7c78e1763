from pathlib import Path

from tests.client.conftest import RunCli


def test_a_prepared_program_is_named(run_cli: RunCli, tmp_path: Path) -> None:
    answer = {"backend": "claude", "ready": True}
    words = ["prepare", "claude", "--cwd", str(tmp_path), "--permissions", "read"]
    ran = run_cli(words, {"prepare": answer})
    asked = {"backend": "claude", "cwd": str(tmp_path), "permissions": "read"}
    assert ran.params("prepare") == asked
    assert (ran.code, ran.out) == (0, "claude: a program is ready, or starting\n")


def test_a_program_that_takes_one_prompt_is_started_by_it(run_cli: RunCli) -> None:
    ran = run_cli(["prepare"], {"prepare": {"backend": "codex", "ready": False}})
    assert ran.params("prepare") == {"cwd": str(Path.cwd())}
    assert ran.out == "codex: the prompt will start it\n"
