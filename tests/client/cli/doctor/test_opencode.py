"""The plugin of opencode, as its configuration names it."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.client.cli.doctor.scene import Home, told
from tests.support.agents import program

from fallbackd.config.profiles import known_programs
from fallbackd_client import __version__
from fallbackd_client.cli.doctor.daemon import Service, look_at_daemon
from fallbackd_client.cli.doctor.programs import look_at_opencode
from fallbackd_client.cli.share import OPENCODE_2_PLUGIN, OPENCODE_PLUGIN, shared


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


def test_a_later_version_is_named_and_no_older_one_is_advised(tmp_path: Path) -> None:
    home = Home(tmp_path)
    path = program(home.bin, "opencode", "echo opencode v3.0.0")
    says = "opencode 3.0.0 is not supported yet: fallbackd works with versions 1 and 2"
    says += f"; {path} gets no work, and its sessions are not protected"
    assert told(look_at_opencode(home.machine())) == [("warning", says, "")]
    config = configured(home, plugin_of(f"file://{shared(OPENCODE_PLUGIN)}"))
    ((level, what, fix),) = told(look_at_opencode(home.machine()))
    assert (level, fix) == ("warning", "")
    assert what == f"{says}; it does not load the plugin that {config} names"
    configured(home, plugin_of(f"file://{shared(OPENCODE_PLUGIN)}").replace("plugin", "plugins", 1))
    assert told(look_at_opencode(home.machine())) == [("warning", what, "")]
    entry = {"state": "broken", "reason": "not_configured", "detail": "version"}
    status = {"health": {"a": {"state": "healthy"}, "opencode": entry}}
    known = {"programs": known_programs(), "daemon": {"version": __version__, "pid": 7}}
    assert look_at_daemon(home.machine(), Service(), {**known, **status}) == []


@pytest.mark.parametrize("version", ["2.1.4", "2.0.3"])
def test_version_2_is_said_to_be_unverified(tmp_path: Path, version: str) -> None:
    home = Home(tmp_path)
    program(home.bin, "opencode", f"echo opencode v{version}")
    ((level, what, fix),) = told(look_at_opencode(home.machine()))
    assert (level, fix) == ("note", "")
    assert what.startswith(f"opencode {version} is unverified: ")
    second = f"file://{shared(OPENCODE_2_PLUGIN)}"
    assert f'"plugins": ["{second}"]' in what
    first = f"file://{shared(OPENCODE_PLUGIN)}"
    config = configured(home, json.dumps({"plugin": [first], "plugins": [second]}))
    ((_, what, _),) = told(look_at_opencode(home.machine()))
    assert f"; it does not load {first}, which {config} names and which is for opencode 1" in what
    assert what.endswith(f"; its sessions are protected through the plugin that {config} names")


def test_the_entry_for_version_2_is_an_error_where_version_1_is_to_load_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    program(home.bin, "opencode", "echo 1.18.33")
    path = configured(home, plugin_of(f"file://{shared(OPENCODE_2_PLUGIN)}"))
    ((level, what, fix),) = told(look_at_opencode(home.machine()))
    assert (level, what.endswith("which is for opencode 2")) == ("error", True)
    subprocess.run(["sh", "-c", fix], check=True)
    assert json.loads(path.read_text())["plugin"] == [f"file://{shared(OPENCODE_PLUGIN)}"]


OWN = {
    "model": "fallbackd/team",
    "mcp": {"fallbackd": {"type": "local", "command": ["/opt/fallbackd/bin/fallbackd-client"]}},
    "provider": {"fallbackd": {"options": {"apiKey": "{file:~/.local/state/fallbackd/token}"}}},
}
"""What `mcp install opencode` and `gateway setup opencode` write."""


def test_what_is_ours_elsewhere_in_the_file_is_no_plugin(tmp_path: Path) -> None:
    home = Home(tmp_path)
    configured(home, json.dumps(OWN, indent=2))
    assert look_at_opencode(home.machine()) == []


@pytest.mark.parametrize("indent", [None, 2])
def test_the_fix_changes_the_plugin_alone(tmp_path: Path, indent: int | None) -> None:
    home = Home(tmp_path)
    others = ["./other.ts", "a+b*[c]", "fallbackd"]
    path = configured(home, json.dumps({**OWN, "plugin": others}, indent=indent))
    ((_, what, fix),) = told(look_at_opencode(home.machine()))
    assert "the npm package fallbackd" in what
    subprocess.run(["sh", "-c", fix], check=True)
    ours = f"file://{shared(OPENCODE_PLUGIN)}"
    assert json.loads(path.read_text()) == {**OWN, "plugin": [*others[:2], ours]}


def test_a_package_is_replaced_where_its_name_means_something_to_sed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    path = configured(home, plugin_of("other", "@x/fallbackd.*[a+b]#{1}&^$|"))
    ((_, _, fix),) = told(look_at_opencode(home.machine()))
    subprocess.run(["sh", "-c", fix], check=True)
    ours = f"file://{shared(OPENCODE_PLUGIN)}"
    assert json.loads(path.read_text()) == {"plugin": ["other", ours]}


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    kept = home.write(home.path / "dotfiles" / "opencode.json", plugin_of("fallbackd"))
    link = home.private(home.path / ".config" / "opencode") / "opencode.json"
    link.symlink_to(kept)
    ((_, _, fix),) = told(look_at_opencode(home.machine()))
    subprocess.run(["sh", "-c", fix], check=True)
    assert link.is_symlink()
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
    assert (level, fix) == ("note", "fallbackd-client hooks install opencode")
    assert what == "opencode has no plugin of fallbackd, so that its sessions are not protected"


@pytest.mark.parametrize("rival", ["opencode-model-fallback@1", "./plugins/rate-limit-fallback.ts"])
def test_another_plugin_that_sends_failed_messages_again_is_a_warning_beside_ours(
    tmp_path: Path, rival: str
) -> None:
    home = Home(tmp_path)
    configured(home, plugin_of(rival))
    assert look_at_opencode(home.machine()) == []
    configured(home, plugin_of([rival, {"x": 1}], f"file://{shared(OPENCODE_PLUGIN)}"))
    ((level, what, _),) = told(look_at_opencode(home.machine()))
    assert level == "warning"
    assert f"opencode loads {rival} beside the plugin of fallbackd" in what
