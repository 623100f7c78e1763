"""What is logged can be read by anybody and does a terminal no harm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fallbackd.app.logs import clean

SCRIPT = """
import structlog
from fallbackd.app import logs
logs.set_up(format={format!r}, level="info")
log = structlog.get_logger()
log.debug("not.shown")
log.info("health.moved", backend="codex", nothing=None, words="a\\x1b[31mb\\x07\\u202e")
import logging
logging.getLogger("asyncio").warning("told by %s", "a library")
try:
    hidden = "local-value-of-a-variable"
    raise KeyError("Authorization: Bearer abcdef0123456789abcdef")
except KeyError:
    log.exception("rpc.failed")
"""


def logged(format: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(format=format)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("format", ["console", "json"])
def test_lines_are_clean_and_tracebacks_show_no_values(format: str) -> None:
    found = logged(format)
    assert "health.moved" in found
    assert "not.shown" not in found
    assert "\x1b" not in found
    assert "\x07" not in found
    assert "\u202e" not in found
    assert "nothing" not in found
    assert "KeyError" in found
    assert "local-value" not in found.replace('hidden = "local-value-of-a-variable"', "")
    assert "abcdef0123456789" not in found


def test_json_is_one_object_a_line() -> None:
    first, library, second = (json.loads(line) for line in logged("json").splitlines())
    assert (library["logger"], library["words"]) == ("asyncio", "told by a library")
    assert (first["event"], first["level"], first["backend"]) == ("health.moved", "info", "codex")
    assert second["exception"].startswith("Traceback")


def test_values_of_every_kind_are_cleaned() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd\x00"

    found = clean({"list": ["a\nb", 1, True], "map": {"k": Odd()}, "f": 1.5}, str)
    assert found == {"list": ["a\\x0ab", 1, True], "map": {"k": "odd\\x00"}, "f": 1.5}


@pytest.mark.parametrize(
    "scope",
    [
        "credential:127.0.0.1:8080/k1",
        "credential:one/work-2",
        "credential:openrouter/k1+model:qwen/qwen3-coder:free",
        "model:one/gpt-5.1",
    ],
)
def test_a_line_says_which_credential_it_is_about(scope: str) -> None:
    assert clean({"scope": scope}, str) == {"scope": scope}


@pytest.mark.parametrize(
    "text",
    [
        "credential:hunter2hunter2",
        "credential: hunter2/hunter2",
        "credential:one/sk-hunter2hunter2",
        "credential:one/k1+model:token=hunter2",
        "credential:one/k1 token: hunter2",
    ],
)
def test_a_secret_is_hidden_where_the_name_of_a_credential_stands(text: str) -> None:
    assert "hunter2" not in clean({"scope": text}, str)["scope"]
    assert "hunter2" not in clean({"words": text}, str)["words"]
    known = clean({"scope": "credential:one/k1"}, lambda text: text.replace("k1", "[secret]"))
    assert known == {"scope": "credential:one/[secret]"}


def test_a_log_that_cannot_be_written_changes_nothing() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(format="console") + "\nprint('at the end')"],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "at the end\n")


def test_in_the_journal_each_line_has_its_priority_and_no_time_of_its_own(tmp_path: Path) -> None:
    place = tmp_path / "stderr"
    with place.open("w") as file:
        seen = os.fstat(file.fileno())
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(format="console")],
            env={**os.environ, "JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino}"},
            stderr=file,
            check=True,
        )
    first, library, failed, *traceback = place.read_text().splitlines()
    assert first.startswith("<6>health.moved ")
    assert "[info" not in first
    assert library.startswith("<4>library.spoke ")
    assert failed.startswith("<3>rpc.failed")
    assert traceback
    assert all(line.startswith("<3>") for line in traceback)


def test_instants_are_shown_as_times_and_a_sentence_stands_alone() -> None:
    script = (
        "import structlog\nfrom fallbackd.app import logs\n"
        "logs.set_up(format={format!r}, level='info')\nlog = structlog.get_logger()\n"
        "log.info('moved', until_at=1795424286.5, dropped_at=3.0)\n"
        "log.info('started', pid=7, sentence='it is ready')\n"
    )

    def lines(format: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", script.format(format=format)],
            env={**os.environ, "TZ": "UTC"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stderr.splitlines()

    moved, started = lines("console")
    assert "until_at=2026-11-23T08:58:06+00:00" in moved
    assert "dropped_at=3.0" in moved
    assert started == "it is ready"
    assert json.loads(lines("json")[0])["until_at"] == 1795424286.5
    assert json.loads(lines("json")[1])["pid"] == 7
