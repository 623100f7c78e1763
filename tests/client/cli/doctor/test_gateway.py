"""The gateway as `doctor` sees it: whether it answers, and the programs pointed at it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.client.cli.doctor.scene import Home, told
from tests.client.gateway.listening import TOKEN, listening
from tests.support.gateway import free_port

from fallbackd_client.cli.doctor.gateway import look_at_gateway
from fallbackd_client.client import Client
from fallbackd_client.gateway import TOOLS, Gateway
from fallbackd_client.settings.editing import Command


class Answering:
    """Stands for the daemon's control plane."""

    def __init__(self, gateway: dict[str, Any], trouble: str) -> None:
        self._gateway = gateway
        self._troubles = [{"kind": "gateway", "message": trouble}] if trouble else []

    def call(self, method: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        if method == "status":
            return {"daemon": {"troubles": self._troubles}}
        assert method == "config.get"
        return {"config": {"gateway": self._gateway}}


def look(home: Home, gateway: dict[str, Any], trouble: str = "") -> list[tuple[str, str, str]]:
    client: Any = Answering(gateway, trouble)
    assert isinstance(client, Answering)
    found: Client = client
    findings = look_at_gateway(home.machine(), found)
    assert findings is not None
    return told(findings)


def with_token(tmp_path: Path, token: str = TOKEN) -> Home:
    home = Home(tmp_path)
    home.write(home.state / "gateway.token", token + "\n")
    return home


def in_home(path: Path) -> str:
    return os.path.relpath(path, Path.home())


def set_up(home: Home, tool: str, port: int) -> None:
    one = TOOLS[tool]
    path = one.file(home.environ)
    token_file = str(home.state / "gateway.token")
    printer = home.bin / "fallbackd-client"
    if not printer.exists():
        home.write(printer, f"#!/bin/sh\n/bin/cat {token_file}\n", 0o755)
    command = Command(str(printer), ["gateway", "token"])
    gateway = Gateway(port, token=command, token_file=token_file)
    home.write(Path(path), one.part(path, gateway).put(""))
    for other in one.others(home.environ):
        home.write(Path(other.path), other.put(""))


def test_a_gateway_that_is_off_and_asked_by_no_program_is_well(tmp_path: Path) -> None:
    assert look(Home(tmp_path), {}) == []


def test_a_gateway_that_answers_in_each_protocol_is_well(tmp_path: Path) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        for tool in TOOLS:
            set_up(home, tool, port)
        assert look(home, {"enabled": True, "port": port}) == []


def taken(port: int, why: str = "Address already in use (127.0.0.1)") -> str:
    """The words of the daemon."""
    return f"the gateway cannot listen at port {port}: {why}"


def test_a_program_that_has_the_port_is_sent_nothing(tmp_path: Path) -> None:
    home = with_token(tmp_path)
    asked: list[str] = []
    with listening(models=["team"], asked=asked) as port:
        for tool in TOOLS:
            set_up(home, tool, port)
        ((level, what, fix),) = look(home, {"enabled": True, "port": port}, taken(port))
    assert asked == []
    assert level == "error"
    assert what == (
        f"{taken(port)}: another program has it;"
        " end that program, or give the gateway another [gateway] port"
    )
    assert fix == f"fallbackd-client config set gateway.port {port + 1}"


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0500A8C0:A1C3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     1        0 60 1 0
   1: 0100007F:A1C3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 70 1 0
   2: 0100007F:A1C4 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 80 1 0
   3: 0100007F:A1C5 0100007F:A1C3 01 00000000:00000000 00:00000000 00000000     0        0 90 1 0
"""
"""Port 41411 at a public address and at 127.0.0.1, 41412 at 127.0.0.1, and a connection."""


def test_the_program_that_has_the_port_is_named_and_a_free_port_is_the_fix(tmp_path: Path) -> None:
    home = with_token(tmp_path)
    home.below_root("/proc/net/tcp", TABLE)
    on = {"enabled": True, "port": 41411}
    ((_, what, fix),) = look(home, on, taken(41411))
    assert ": a program of root has it; " in what
    assert fix == "fallbackd-client config set gateway.port 41413"
    home.below_root("/proc/17/comm", "vite\n")
    home.below_root("/proc/18/comm", "nginx\n")
    for pid, inode in ((17, 70), (18, 60)):
        descriptors = home.root / f"proc/{pid}/fd"
        descriptors.mkdir()
        (descriptors / "3").symlink_to(f"socket:[{inode}]")
    ((_, what, _),) = look(home, on, taken(41411))
    assert ": vite (process 17) has it; " in what
    assert "nginx" not in what


def test_a_gateway_that_cannot_listen_for_another_reason_is_an_error_in_its_words(
    tmp_path: Path,
) -> None:
    home = with_token(tmp_path)
    for said in (taken(443, "Permission denied (127.0.0.1)"), taken(5000)):
        assert look(home, {"enabled": True, "port": 443}, said) == [("error", said, "")]


def settings_of(home: Home, tool: str) -> Path:
    return Path(TOOLS[tool].file(home.environ))


@pytest.mark.parametrize("tool", TOOLS)
def test_a_call_is_made_with_the_token_of_each_program(tmp_path: Path, tool: str) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, tool, port)
        old = home.write(home.path / "old", "the-old-one\n")
        home.write(home.bin / "fallbackd-client", f"#!/bin/sh\n/bin/cat {old}\n", 0o755)
        text = settings_of(home, tool).read_text()
        text = text.replace(TOKEN, "the-old-one")
        text = text.replace(in_home(home.state / "gateway.token"), in_home(old))
        settings_of(home, tool).write_text(text)
        ((level, what, fix),) = look(home, {"enabled": True, "port": port})
    assert level == "error"
    assert (
        what == f"{tool} cannot ask the gateway: its settings hold another token than the gateway's"
    )
    assert fix == f"fallbackd-client gateway setup {tool} --yes"


@pytest.mark.parametrize("tool", ["claude", "codex"])
def test_a_command_that_prints_no_token_is_named_without_what_it_says(
    tmp_path: Path, tool: str
) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, tool, port)
        home.write(home.bin / "fallbackd-client", "#!/bin/sh\necho secret >&2; exit 1\n", 0o755)
        ((level, what, _),) = look(home, {"enabled": True, "port": port})
        assert level == "error"
        assert what.endswith("/fallbackd-client gateway token` prints no token")
        (home.bin / "fallbackd-client").unlink()
        ((_, what, fix),) = look(home, {"enabled": True, "port": port})
    assert what.endswith("prints no token")
    assert fix == f"fallbackd-client gateway setup {tool} --yes"


@pytest.mark.parametrize(
    ("tool", "own"),
    [
        (
            "claude",
            ("/fallbackd-client gateway token", "/fallbackd-client x | sed 1q gateway token"),
        ),
        ("claude", ("gateway token", "it's gateway token")),
        ("codex", ('args = ["gateway", "token"]', 'args = ["--key", "k"]')),
        ("codex", ('args = ["gateway", "token"]', "args = 1")),
        ("opencode", ("{file:", "{env:")),
        ("opencode", ("{file:~/", "{file:~//")),
        ("gemini", (f"GEMINI_API_KEY={TOKEN}", f'GEMINI_API_KEY="{TOKEN}" # mine')),
    ],
)
def test_what_a_person_has_written_in_a_way_of_their_own_is_left_alone(
    tmp_path: Path, tool: str, own: tuple[str, str]
) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, tool, port)
        path = settings_of(home, tool)
        before = path.read_text()
        path.write_text(before.replace(*own))
        assert path.read_text() != before
        assert look(home, {"enabled": True, "port": port}) == []


def test_a_key_that_claude_sends_in_place_of_the_token_is_named(tmp_path: Path) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, "claude", port)
        path = settings_of(home, "claude")
        settings = json.loads(path.read_text())
        settings["env"]["ANTHROPIC_AUTH_TOKEN"] = "another"
        path.write_text(json.dumps(settings))
        ((level, what, _),) = look(home, {"enabled": True, "port": port})
    assert level == "error"
    assert "env.ANTHROPIC_AUTH_TOKEN of its settings is sent in place of the token" in what


@pytest.mark.parametrize(
    "printed", ["", "two\nlines", "with blanks", "schl\xfcssel", "\x1b[31m", "x" * 5000]
)
@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_no_token_is_sent_nowhere(tmp_path: Path, tool: str, printed: str) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, tool, port)
        odd = home.write(home.path / "odd", printed)
        home.write(home.bin / "fallbackd-client", f"#!/bin/sh\n/bin/cat {odd}\n", 0o755)
        path = settings_of(home, tool)
        text = path.read_text().replace(in_home(home.state / "gateway.token"), in_home(odd))
        path.write_text(text.replace(TOKEN, printed.partition("\n")[0].replace(" ", "\x7f")))
        found = look(home, {"enabled": True, "port": port})
    assert [level for level, _, _ in found] == ["error"]
    assert found[0][1].startswith(f"{tool} cannot ask the gateway: ")


def test_a_token_file_that_is_gone_is_named(tmp_path: Path) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, "opencode", port)
        path = settings_of(home, "opencode")
        path.write_text(path.read_text().replace("gateway.token{", "gone{"))
        ((_, what, _),) = look(home, {"enabled": True, "port": port})
    assert what.endswith(f"{home.state}/gone: No such file or directory")


def test_a_token_file_that_stops_a_confined_opencode_is_named(tmp_path: Path) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, "opencode", port)
        path = settings_of(home, "opencode")
        written = in_home(home.state / "gateway.token") + "{env:FALLBACKD_INSTEAD_OF_FILE}"
        path.write_text(path.read_text().replace(f"~/{written}", f"{home.state}/gateway.token"))
        ((level, what, fix),) = look(home, {"enabled": True, "port": port})
    assert level == "error"
    assert what.endswith("its settings name the token's file in a way that stops a confined one")
    assert fix == "fallbackd-client gateway setup opencode --yes"


@pytest.mark.parametrize("tool", TOOLS)
def test_a_program_that_no_backend_answers_is_a_warning(tmp_path: Path, tool: str) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"], lacks=TOOLS[tool].api) as port:
        set_up(home, tool, port)
        ((level, what, _),) = look(home, {"enabled": True, "port": port})
        assert level == "warning"
        assert what.startswith(f"no backend of the gateway answers {tool}: it speaks ")
    with listening(models=["team"], lacks=TOOLS[tool].api, others=True) as port:
        set_up(home, tool, port)
        assert look(home, {"enabled": True, "port": port}) == []


def test_a_gateway_without_a_backend_is_a_warning(tmp_path: Path) -> None:
    with listening(models=[]) as port:
        ((level, what, _),) = look(with_token(tmp_path), {"enabled": True, "port": port})
    assert level == "warning"
    assert "no backend" in what


def test_a_protocol_that_is_not_answered_is_named(tmp_path: Path) -> None:
    with listening(models=["team"], refuses="/v1/responses") as port:
        ((level, what, _),) = look(with_token(tmp_path), {"enabled": True, "port": port})
    assert (level, what) == ("error", "the gateway does not answer calls in responses")


def test_another_token_and_a_silent_port_are_errors(tmp_path: Path) -> None:
    home = with_token(tmp_path, "another")
    with listening(models=["team"]) as port:
        ((level, what, _),) = look(home, {"enabled": True, "port": port})
    assert level == "error"
    assert "does not accept the token" in what
    port = free_port()
    ((level, what, _),) = look(home, {"enabled": True, "port": port})
    assert level == "error"
    assert f"port {port}: nothing answers there" in what


@pytest.mark.parametrize("tool", TOOLS)
def test_a_program_that_asks_another_port_is_named_with_its_fix(tmp_path: Path, tool: str) -> None:
    home = with_token(tmp_path)
    set_up(home, tool, 5000)
    with listening(models=["team"]) as port:
        ((level, what, fix),) = look(home, {"enabled": True, "port": port})
    assert level == "error"
    assert what == f"{tool} asks the gateway at port 5000, and it listens at {port}"
    assert fix == f"fallbackd-client gateway setup {tool} --yes"
    ((_, what, fix),) = look(home, {})
    assert "which is off" in what
    assert fix == f"fallbackd-client gateway setup {tool} --undo --yes"


def test_gemini_that_is_set_up_and_logs_in_in_another_way_is_an_error(tmp_path: Path) -> None:
    home = with_token(tmp_path)
    with listening(models=["team"]) as port:
        set_up(home, "gemini", port)
        settings = home.path / ".gemini" / "settings.json"
        settings.write_text('{"security": {"auth": {"selectedType": "oauth-personal"}}}')
        ((level, what, fix),) = look(home, {"enabled": True, "port": port})
    assert level == "error"
    assert "settings.json does not choose the key" in what
    assert fix == "fallbackd-client gateway setup gemini --yes"
