"""The plugin's connection to the daemon, in the runtime that opencode brings with it."""

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.e2e import install
from tests.support.daemon import ROOT

HANG_S = 240.0
SOURCE = ROOT / "contrib" / "opencode-plugin" / "src"
LARGE = 1 << 22
"""More than the kernel takes of a message that is never read."""
CONNECTION = """
import { Daemon } from "%(source)s/rpc.ts"

const daemon = new Daemon(
  process.argv[2]!,
  () => console.log("open"),
  () => {
    daemon.tell("opencode.answer", { text: "x".repeat(%(large)d) })
    console.log("told")
  },
)
setInterval(() => undefined, 1000) // the process lives on without a connection
"""
BELOW_A_LONG_PATH = """
import { symlinkSync } from "node:fs"
import { dirname } from "node:path"

const long = `${process.env["HOME"]}/${"long-".repeat(40)}`
symlinkSync(dirname(process.argv[2]!), long)
process.argv[2] = `${long}/control.sock`
"""
PLUGIN = """
import plugin from "%(source)s/index.ts"

const said = new Promise<string>((resolve) => {
  const input: any = {
    serverUrl: "http://localhost:4096",
    directory: "/",
    client: {
      app: { log: async () => undefined },
      tui: { showToast: async ({ body }: any) => resolve(`${body.variant}: ${body.message}`) },
    },
  }
  void plugin(input).then(async (hooks: any) => {
    await hooks.config({ plugin: PLUGINS })
    await hooks["chat.message"]({ sessionID: "ses_1" }, { message: {} })
  })
})
console.log(await said)
"""
CALL = 'await daemon.call("status", {}).catch(() => console.log("lost"))\n'


class Scene(Struct, kw_only=True):
    """A running program that uses the plugin's connection, and the place where it connects."""

    listener: socket.socket
    process: subprocess.Popen[str]

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(HANG_S)
        return connection

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def scene(tmp_path: Path, body: str, *, head: str = CONNECTION) -> Iterator[Scene]:
    assert install.is_installed(), "the agent CLIs are not installed: run `make e2e`"
    program = tmp_path / "program.ts"
    program.write_text(head % {"source": SOURCE, "large": LARGE} + body)
    with tempfile.TemporaryDirectory(prefix="fbd-") as short, socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{short}/control.sock")
        door.listen()
        door.settimeout(HANG_S)
        process = subprocess.Popen(
            ["timeout", str(HANG_S), install.BIN / "opencode", "run", program, door.getsockname()],
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "BUN_BE_BUN": "1",
                "FALLBACKD_SOCKET": f"{short}/nothing.sock",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield Scene(listener=door, process=process)
        finally:
            process.terminate()
            process.communicate()


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def test_a_daemon_that_ends_before_it_has_read_everything_is_missed_and_found_again(
    tmp_path: Path,
) -> None:
    with scene(tmp_path, CALL + "console.log(daemon.isOpen)\n" + CALL) as s:
        with s.accept() as connection:
            send(connection, {"method": "opencode.call", "params": {}})
            assert [s.says(), s.says()] == ["open", "told"]
        assert [s.says(), s.says()] == ["lost", "false"]
        with s.accept():
            assert s.says() == "open"


def test_a_socket_below_a_long_path_is_reached(tmp_path: Path) -> None:
    with scene(tmp_path, CALL, head=BELOW_A_LONG_PATH + CONNECTION) as s, s.accept():
        assert s.says() == "open"


def test_a_daemon_that_is_silent_is_left_and_one_that_answers_is_kept(tmp_path: Path) -> None:
    body = CALL.replace("await", "void") + (
        "while (!daemon.isOpen) await new Promise((resolve) => setTimeout(resolve, 10))\n"
        f"await daemon.ping({HANG_S * 1000:.0f})\n"
        "console.log(daemon.isOpen)\n"
        "await daemon.ping(1)\n"
        "console.log(daemon.isOpen)\n"
    )
    with scene(tmp_path, body) as s, s.accept() as connection:
        assert s.says() == "open"
        with connection.makefile("rb") as lines:
            assert json.loads(next(lines))["method"] == "status"
            ping = json.loads(next(lines))
        assert ping["method"] == "daemon.ping"
        send(connection, {"id": ping["id"], "error": {"message": "draining"}})
        assert s.says() == "true"
        assert {s.says(), s.says()} == {"lost", "false"}


def test_another_plugin_that_sends_failed_messages_again_is_named_in_a_warning(
    tmp_path: Path,
) -> None:
    plugins = ["opencode-wakatime", ["opencode-model-fallback@1", {"x": 1}]]
    head = PLUGIN.replace("PLUGINS", json.dumps(plugins))
    with scene(tmp_path, "", head=head) as s:
        shown = s.says()
        assert shown.startswith("warning: ")
        assert "opencode-model-fallback@1 is loaded beside fallbackd" in shown


SECOND = """
import plugin from "%(source)s/second.ts"

const hooks: any = {}
const messages: any[] = []
const commands: any[] = []
const context: any = {
  options: { budgetMs: 100000 },
  app: { version: "2.1.2" },
  location: { directory: "/work" },
  session: {
    get: async () => ({ model: { providerID: "a", id: "m/x" }, agent: "build" }),
    switchModel: async ({ model }: any) => console.log(`model ${model.providerID} ${model.id}`),
    synthetic: async ({ text }: any) => console.log(text),
    context: async () => ({ data: messages }),
    interrupt: async () => undefined,
    hook: async (name: string, callback: any) => void (hooks[name] = callback),
  },
  tool: { hook: async (name: string, callback: any) => void (hooks[name] = callback) },
  event: { subscribe: async function* () {} },
  command: { transform: async (change: any) => change({ add: (one: any) => commands.push(one) }) },
}
"""
REGISTERED = """
import { mkdirSync, writeFileSync } from "node:fs"

process.env["FALLBACKD_SOCKET"] = process.argv[2]
const state = `${process.env["HOME"]}/state`
process.env["XDG_STATE_HOME"] = state
mkdirSync(`${state}/opencode`, { recursive: true })
const service = { pid: process.pid, url: "http://127.0.0.1:49374", password: "pw" }
writeFileSync(`${state}/opencode/service.json`, JSON.stringify(service))
await plugin.setup(context)
await hooks.prompt({ sessionID: "ses_1" })
await commands[0].execute({ sessionID: "ses_1" })
"""
FAILED = """
const headers = new Headers({ "Retry-After": "60", "set-cookie": "secret", "x-key": "secret" })
await hooks["http.response"]({ sessionID: "ses_1", response: { status: 200, headers } })
await hooks["http.response"]({ sessionID: "ses_1", response: { status: 429, headers } })
const model = { providerID: "a", id: "m/x" }
const retried = { sessionID: "ses_1", model, decision: { retry: true } }
await hooks["retry"](retried)
console.log(`retry ${retried.decision.retry}`)
"""
ANSWERED = """
const metadata = { sessionID: "ses_c" }
const moved = { tool: "subagent", sessionID: "ses_1", metadata, error: { message: "no" } }
const waited = hooks["execute.after"](moved)
messages.push({ type: "assistant", finish: "stop", content: [{ type: "text", text: "found it" }] })
await waited
console.log(moved.error.message.replace("\\n", " "))
"""


def test_the_entry_for_opencode_2_announces_the_service_moves_a_message_and_shows_the_status(
    tmp_path: Path,
) -> None:
    answers = {
        "opencode.announce": {"url": "http://127.0.0.1:49374", "known": False},
        "opencode.resolve": {"model": "b/m", "redirected": True},
        "opencode.status": {"text": "all is well"},
    }
    asked: dict[str, Any] = {}
    with scene(tmp_path, REGISTERED, head=SECOND) as s, s.accept() as connection:
        with connection.makefile("rb") as lines:
            while "opencode.status" not in asked:
                call = json.loads(next(lines))
                asked[call["method"]] = call["params"]
                send(connection, {"id": call["id"], "result": answers[call["method"]]})
        said = {s.says(), s.says(), s.says()}
    assert "model b m" in said
    assert "all is well" in said
    known = asked["opencode.announce"]
    assert (known["url"], known["password"]) == ("http://127.0.0.1:49374", "pw")
    resolved = asked["opencode.resolve"]
    assert (resolved["model"], resolved["agent"]) == ("a/m/x", "build")
    assert resolved["server"] == known["url"]


def test_the_entry_for_opencode_2_hands_on_limits_stops_retries_and_waits_for_moved_subagents(
    tmp_path: Path,
) -> None:
    answers: dict[str, Any] = {
        "opencode.announce": {"url": "http://127.0.0.1:49374", "known": False},
        "opencode.resolve": {"model": "b/m", "redirected": True},
        "opencode.status": {"text": "all is well"},
        "opencode.event": {"heard": True},
    }
    events = []
    body = REGISTERED + FAILED + ANSWERED
    with scene(tmp_path, body, head=SECOND) as s, s.accept() as connection:
        lines = connection.makefile("rb")
        asked = ""
        while not (events and asked == "opencode.resolve"):
            call = json.loads(next(lines))
            asked = call["method"]
            if asked == "opencode.event":
                events.append(call["params"]["event"]["properties"])
                child = {"session": "ses_c", "state": "moving"}
                told = {"call": 1, "path": "/fallbackd/child", "body": child}
                send(connection, {"method": "opencode.call", "params": told})
            if "id" in call:
                send(connection, {"id": call["id"], "result": answers[asked]})
        said = [s.says() for _ in range(5)]
        lines.close()
    assert [(one["status"], one["headers"]) for one in events] == [(429, {"retry-after": "60"})]
    assert "retry false" in said
    assert "found it" in said[-1]


TOAST = """
import plugin from "%(source)s/toast.ts"

process.env["FALLBACKD_SOCKET"] = process.argv[2]
const toast = { show: (one: any) => console.log(`${one.variant}: ${one.message}`) }
const router = { current: () => ({ type: "session", sessionID: "ses_1" }) }
plugin.setup({ ui: { toast, router } })
setInterval(() => undefined, 1000)
"""


def test_the_interface_of_opencode_2_shows_the_notices_of_its_session_alone(
    tmp_path: Path,
) -> None:
    with scene(tmp_path, "", head=TOAST) as s, s.accept() as connection:
        with connection.makefile("rb") as lines:
            while (call := json.loads(next(lines)))["method"] != "events.subscribe":
                send(connection, {"id": call["id"], "result": {}})
        assert call["params"] == {"kinds": ["session.notice"]}
        send(connection, {"id": call["id"], "result": {"subscription": "e1", "seq": 1}})
        for session, text in (("ses_2", "another"), ("ses_1", "switched")):
            notice = {"kind": "session.notice", "notice": "fallback"}
            send(
                connection,
                {"method": "event", "params": {**notice, "session": session, "text": text}},
            )
        assert s.says() == "warning: switched"


def test_neither_entry_of_the_plugin_loads_what_is_for_the_other_one() -> None:
    first, second = ((SOURCE / name).read_text() for name in ("index.ts", "second.ts"))
    assert "second" not in first
    assert "toast" not in first.lower().replace("showtoast", "")
    for entry in (second, (SOURCE / "toast.ts").read_text()):
        assert "@opencode" not in entry
        assert "index.ts" not in entry
    for shared in ("children.ts", "rpc.ts"):
        assert "@opencode" not in (SOURCE / shared).read_text()
