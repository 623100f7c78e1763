import os
from pathlib import Path

from tests.client.cli.doctor.scene import Home
from tests.support.agents import program

from fallbackd_client.cli.doctor.findings import Machine, command


def test_places_follow_the_environment(tmp_path: Path) -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "relative"}
    machine = Machine(environ)
    assert machine.config == "/c/fallbackd/config.toml"
    assert machine.state_dir == "/h/.local/state/fallbackd"
    assert machine.socket == "/h/.local/state/fallbackd/control.sock"
    assert Machine({**environ, "FALLBACKD_CONFIG": "/x.toml"}).config == "/x.toml"


def test_a_daemon_that_answers_says_where_its_things_are() -> None:
    machine = Machine({"HOME": "/h"})
    machine.follow({"state_dir": "/s", "config_path": None})
    assert (machine.state_dir, machine.config) == ("/s", "/h/.config/fallbackd/config.toml")
    machine.follow({"state_dir": "s", "config_path": "/c.toml"})
    assert (machine.state_dir, machine.config) == ("/s", "/c.toml")


def test_a_command_that_is_not_there_has_a_status_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.machine().run("nosuch").status == 127
    program(home.bin, "such", "echo out; echo err >&2; exit 3")
    ran = home.machine().run("such")
    assert (ran.status, ran.out, ran.err) == (3, "out\n", "err\n")


def test_the_environment_of_a_process_is_read(tmp_path: Path) -> None:
    assert Machine({}).environ_of(os.getpid()) == dict(
        pair.split("=", 1)
        for pair in Path("/proc/self/environ").read_text().split("\0")
        if "=" in pair
    )
    assert Machine({}).environ_of(2**22 + 1) == {}


def test_words_are_quoted_where_they_have_to_be() -> None:
    assert command("rm", "a b", "c") == "rm 'a b' c"
