"""The plugin of opencode, as its configuration names it."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home, told
from tests.support.agents import program

from fallbackd_client.cli.doctor.opencode import look_at_opencode
from fallbackd_client.cli.share import OPENCODE_PLUGIN, shared


def configured(home: Home, text: str, name: str = "opencode.json") -> Path:
    return home.write(home.path / ".config" / "opencode" / name, text)


def plugin_of(*entries: object) -> str:
    return json.dumps({"plugin": list(entries)})


@pytest.mark.parametrize("entry", ["fallbackd-opencode", "@fallbackd/opencode-plugin@latest"])
def test_a_package_that_is_not_ours_to_publish_is_an_error(tmp_path: Path, entry: str) -> None:
    home = Home(tmp_path)
    path = configured(home, plugin_of([entry, {"budgetMs": 50}]))
    ((level, what, fix),) = told(look_at_opencode(home.machine()))
    assert level == "error"
    assert f"the npm package {entry}" in what
    subprocess.run(["sh", "-c", fix], check=True)
    ((named, _),) = json.loads(path.read_text())["plugin"]
    assert named == f"file://{shared(OPENCODE_PLUGIN)}"
    assert look_at_opencode(home.machine()) == []


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    configured(home, plugin_of("file:///nowhere/opencode-plugin/src/index.ts"))
    ((level, what, fix),) = told(look_at_opencode(home.machine()))
    assert (level, "which is not there" in what, bool(fix)) == ("error", True, True)


def test_the_file_of_a_checkout_is_well_and_comments_are_none_of_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    program(home.bin, "opencode", "exit 0")
    text = f'{{ "plugin": [\n// "fallbackd-opencode",\n"file://{shared(OPENCODE_PLUGIN)}", ] }}'
    configured(home, text, "opencode.jsonc")
    assert look_at_opencode(home.machine()) == []


def test_an_opencode_without_the_plugin_is_worth_a_note(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert look_at_opencode(home.machine()) == []
    program(home.bin, "opencode", "exit 0")
    ((level, what, fix),) = told(look_at_opencode(home.machine()))
    assert (level, fix) == ("note", "")
    assert f'"plugin": ["file://{shared(OPENCODE_PLUGIN)}"]' in what
