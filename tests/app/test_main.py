"""The command line of the daemon."""

import json
from pathlib import Path

import pytest

import fallbackd_client
from fallbackd.app.main import main
from fallbackd_client import __version__


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fallbackd {__version__}\n"


def test_a_wrong_flag_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--no-such-flag"])
    assert ended.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("[defaults]\nsettle_s = 2\n", 0, "good"),
        ("[defaults]\nsettle_s = 2000\n", 0, "defaults.settle_s"),
        ("nonsense = = 5", 78, "TOML"),
        (
            '[gateway]\nenabled = true\n[backends.b]\nkind = "openai-http"\nmodel = "m"\n'
            'base_url = "http://127.0.0.1:41411/v1"\n',
            78,
            "error: backends.b.base_url",
        ),
    ],
)
def test_a_configuration_is_checked_without_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, status: int, said: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert main(["--check-config", "--config", str(path)]) == status
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_no_configuration_is_a_good_one_and_a_missing_one_that_was_named_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "none.toml")
    monkeypatch.setenv("FALLBACKD_CONFIG", path)
    assert main(["--check-config"]) == 0
    assert "built-in" in capsys.readouterr().out
    assert main(["--check-config", "--config", path]) == 78
    assert capsys.readouterr().err == f"error: {path}: there is no such file\n"


def test_the_schema_of_the_configuration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["BackendTable"]["additionalProperties"] is False


def test_daemon_and_client_have_the_same_version() -> None:
    assert __version__ == fallbackd_client.__version__
