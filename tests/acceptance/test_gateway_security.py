"""Who may ask the gateway, and what nobody learns."""

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from tests.support.agents import backend_script, program
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.gateway import KINDS, Gate, gate

BY_ANOTHER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
family, place = sys.argv[1:]
peer = socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET)
peer.settimeout(60)
peer.connect(place if family == "unix" else ("127.0.0.1", int(place)))
host = "x" if family == "unix" else "127.0.0.1:" + place
try:
    peer.sendall(f"GET /v1/models HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
    print(peer.recv(4096)[:12].decode())
except ConnectionError:
    print()
"""


def as_another_user(family: str, place: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", BY_ANOTHER, family, place],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd="/",
    )


def unix_socket(g: Gate) -> Path:
    return Path(g.daemon.socket).with_name("gateway.sock")


async def test_a_page_of_the_browser_gets_nothing(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        key = {"authorization": f"Bearer {g.token}"}
        asked = [
            await g.client.options("/v1/chat/completions", headers=key),
            await g.client.get("/v1/models", headers={**key, "origin": "http://localhost:3000"}),
            await g.client.get("/v1/models", headers={**key, "host": f"evil.example:{g.port}"}),
            await g.client.get("/", headers={"host": "evil.example"}),
            await g.client.post(g.path(), data={"model": "team"}, headers=key),
        ]
        assert [one.status_code for one in asked] == [405, 403, 403, 403, 415]
        for one in asked:
            assert one.json()["error"]["message"]
            assert not [name for name in one.headers if name.startswith("access-control")]
        assert g.api.log == []


@pytest.mark.parametrize("mode", KINDS)
async def test_a_refusal_is_told_in_the_words_of_the_api(tmp_path: Path, mode: str) -> None:
    async with gate(tmp_path, mode=mode) as g:
        answer = await g.client.post(g.path(), json=g.body())
        assert answer.status_code == 401
        error = answer.json()["error"]
        assert "gateway env" in error["message"]
        match mode:
            case "messages":
                assert answer.json()["type"] == "error"
                assert error["type"] == "authentication_error"
            case "generate_content":
                assert (error["code"], error["status"]) == (401, "UNAUTHENTICATED")
            case _:
                assert error["type"] == "authentication_error"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer TOKEN"},
        {"x-api-key": "TOKEN"},
        {"api-key": "TOKEN"},
        {"x-goog-api-key": "TOKEN"},
    ],
)
async def test_the_token_is_taken_wherever_a_client_sends_it_and_goes_no_further(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with gate(tmp_path) as g:
        sent = {name: text.replace("TOKEN", g.token) for name, text in headers.items()}
        answer = await g.client.post(g.path(), json=g.body(), headers=sent)
        assert answer.status_code == 200
        (call,) = g.api.calls("one")
        assert call.credential == ""


async def test_a_new_token_counts_at_once(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        old = g.token
        (Path(g.daemon.state_dir) / "gateway.token").write_text("another-token-of-the-user\n")
        refused = await g.client.get("/v1/models", headers={"x-api-key": old})
        assert refused.status_code == 401
        taken = await g.client.get("/v1/models", headers={"x-api-key": g.token})
        assert taken.status_code == 200


async def test_a_body_over_32_mib_is_refused(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        large = b'{"model":"team","x":"' + b"x" * (32 * 1024 * 1024) + b'"}'
        answer = await g.client.post(
            g.path(),
            content=large,
            headers={"authorization": f"Bearer {g.token}", "content-type": "application/json"},
        )
        assert answer.status_code == 413
        assert "32 MiB" in answer.json()["error"]["message"]
        assert g.api.log == []


async def test_modes_keep_the_token_and_the_socket_for_their_user(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        token = Path(g.daemon.state_dir) / "gateway.token"
        assert token.stat().st_mode & 0o777 == 0o600
        assert unix_socket(g).stat().st_mode & 0o777 == 0o600
        assert len(g.token) >= 43


async def test_the_socket_asks_for_no_token(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        transport = httpx2.AsyncHTTPTransport(uds=str(unix_socket(g)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://any") as client:
            answer = await client.post(g.path(), json=g.body(), timeout=HANG_S)
        assert answer.status_code == 200
        assert answer.headers["x-fallbackd-served-by"] == "one"


@pytest.mark.root
async def test_another_user_is_kept_from_the_socket_and_needs_the_token_over_tcp(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        path = unix_socket(g)
        by_modes = await anyio.to_thread.run_sync(as_another_user, "unix", str(path))
        assert "PermissionError" in by_modes.stderr
        # Where no mode is in the way the kernel says who asks.
        Path(g.daemon.runtime_dir).chmod(0o755)
        door = Path(g.daemon.runtime_dir) / "door"
        door.hardlink_to(path)
        door.chmod(0o666)
        by_word = await anyio.to_thread.run_sync(as_another_user, "unix", str(door))
        assert by_word.stdout.strip() == "", by_word
        over_tcp = await anyio.to_thread.run_sync(as_another_user, "tcp", str(g.port))
        assert over_tcp.stdout.strip() == "HTTP/1.1 401"


async def test_a_caller_who_hangs_up_closes_the_call_within_a_second(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "hang_mid")
        async with g.client.stream(
            "POST", g.path(), json=g.body(), headers={"x-api-key": g.token}
        ) as answer:
            async for _ in answer.aiter_raw():
                break
            assert len(g.api._connections) == 1
        with anyio.fail_after(1):
            while g.api._connections:
                await anyio.sleep(0.01)
        health = await g.daemon.client.call("health", {"action": "list"})
        assert health["health"]["one"]["state"] == "healthy"


async def test_the_token_and_what_was_said_are_nowhere(tmp_path: Path) -> None:
    secret = "the-words-of-the-prompt"
    async with gate(tmp_path) as g:
        token = g.token
        g.api.behave("one", "429")
        body = {**g.body(), "messages": [{"role": "user", "content": secret}]}
        for key in (token, "wrong-" + token):
            await g.client.post(g.path(), json=body, headers={"x-api-key": key})
        seen = [g.daemon.log()]
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    seen.append((entry / "cmdline").read_bytes().decode(errors="replace"))
                except OSError:
                    continue
        await g.daemon.stop()  # the journal of events is on disk then
        state = Path(g.daemon.state_dir)
        kept = (one for one in state.rglob("*") if one.is_file() and one.name != "gateway.token")
        seen += [one.read_bytes().decode("latin-1") for one in kept]
        for text in seen:
            assert token not in text
            assert secret not in text


async def test_a_backend_that_bills_each_call_answers_only_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, second_cost="metered") as g:
        g.api.behave("one", "429", retry_after_s=3600)
        assert (await g.ask()).status_code == 429
        refused = await g.ask()
        assert refused.status_code == 402
        assert refused.json()["error"]["code"] == "consent"
        assert g.api.calls("two") == []
        allowed = await g.ask(**{"x-fallbackd-allow-metered": "1"})
        assert allowed.headers["x-fallbackd-served-by"] == "two"


async def test_no_word_of_a_caller_chooses_an_address(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        body = {**g.body(), "model": "http://evil.example/v1", "base_url": "http://evil.example"}
        sent = {"x-api-key": g.token, "x-forwarded-host": "evil.example", "forwarded": "host=evil"}
        answer = await g.client.post(g.path(), json=body, headers=sent)
        assert answer.headers["x-fallbackd-served-by"] == "one"
        absolute = f"POST http://evil.example{g.path()} HTTP/1.1\r\nHost: 127.0.0.1:{g.port}\r\n"
        absolute += f"x-api-key: {g.token}\r\nContent-Length: 0\r\n\r\n"
        async with await anyio.connect_tcp("127.0.0.1", g.port) as line:
            await line.send(absolute.encode())
            with anyio.fail_after(HANG_S):
                assert (await line.receive()).startswith(b"HTTP/1.1 403")
        assert len(g.api.log) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_port_that_is_taken_is_said_and_the_daemon_works_without_it(
    tmp_path: Path, host: str
) -> None:
    """Also on ::1 alone: programs that find it under localhost would send their token there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        other.bind((host, 0))
        other.listen()
        port = other.getsockname()[1]
        text = f"[gateway]\nenabled = true\nport = {port}\n"
        async with running(tmp_path, config=text) as daemon:
            with anyio.fail_after(HANG_S):
                while not (said := await troubles(daemon)):
                    await anyio.sleep(0.02)
            why = f"{os.strerror(errno.EADDRINUSE)} ({host})"
            assert said == [f"the gateway cannot listen at port {port}: {why}"]
            assert not (daemon.runtime_dir / "fallbackd" / "gateway.sock").exists()


async def troubles(daemon: Daemon) -> list[str]:
    found = await daemon.client.call("status", {})
    return [
        one["message"] for one in found["daemon"].get("troubles", []) if one["kind"] == "gateway"
    ]


FROM_INSIDE = """
import os, socket, sys
def ask(place, *headers, model="team"):
    is_unix = isinstance(place, str)
    with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as peer:
        peer.settimeout(60)
        peer.connect(place if is_unix else ("127.0.0.1", place))
        body = '{"model":"%s","messages":[{"role":"user","content":"x"}]}' % model
        lines = ["POST /v1/chat/completions HTTP/1.1", "connection: close", *headers]
        lines += ["host: 127.0.0.1:A_PORT", "content-type: application/json"]
        lines += ["content-length: %d" % len(body), "", body]
        peer.sendall("\\r\\n".join(lines).encode())
        return peer.recv(4096)[9:12].decode()
own = "x-api-key: " + os.environ.get("FALLBACKD_GATEWAY_TOKEN", "")
person = "x-api-key: A_TOKEN"
"""
AWAY = """
import os, subprocess, sys
if len(sys.argv) == 1:
    for wrap in (["setsid", "-f"], ["env", "-i"], ["setsid", "-f", "env", "-i"]):
        read, write = os.pipe()
        subprocess.run([*wrap, sys.executable, "-I", __file__, str(write)], pass_fds=[write])
        os.close(write)
        print(os.read(read, 99).decode())
else:
    sys.path.insert(0, os.path.dirname(__file__))
    from asking import *
    os.write(int(sys.argv[1]), "".join(
        ask(place, *sent, model="paid") + " "
        for place, *sent in ((A_SOCKET,), (A_SOCKET, person), (A_PORT, person))
    ).encode())
"""
TRIES = {
    "by descent alone": ("ask(A_SOCKET)", "401"),
    "with the token of a person": ("ask(A_SOCKET, person)", "200"),
    "with the token of a person at the port": ("ask(A_PORT, person)", "200"),
    "with its own token": ("ask(A_SOCKET, own)", "200"),
    "with its own token at the port": ("ask(A_PORT, own)", "200"),
    "a backend that bills each call": ('ask(A_PORT, own, model="paid")', "403"),
    "such a backend, with the token of a person": ('ask(A_SOCKET, person, model="paid")', "403"),
    "such a backend, with that at the port": ('ask(A_PORT, person, model="paid")', "403"),
    "such a backend, with the header": (
        'ask(A_PORT, own, "x-fallbackd-allow-metered: 1", model="paid")',
        "403",
    ),
    "such a backend behind others": ('ask(A_SOCKET, own, model="both")', "200"),
}


async def ask_from_inside(g: Gate, tmp_path: Path, code: str, **params: object) -> str:
    values = {"A_PORT": str(g.port), "A_SOCKET": repr(str(unix_socket(g))), "A_TOKEN": g.token}
    asking = FROM_INSIDE
    for name, value in values.items():
        asking, code = asking.replace(name, value), code.replace(name, value)
    (tmp_path / "bin" / "asking.py").write_text(asking)
    (tmp_path / "bin" / "code.py").write_text(code)
    program(tmp_path / "bin", "agent", f"{sys.executable} {tmp_path}/bin/code.py 2>&1")
    given = {"backend": "agent", "prompt": "x", "cwd": str(g.daemon.work_dir), **params}
    done = await g.daemon.client.call("delegate", {**given, "wait": "finished"})
    assert done["state"] == "succeeded", (done["text"], done["message"])
    return str(done["text"])


def with_agent(tmp_path: Path) -> str:
    paid = """[backends.paid]
kind = "openai-http"
base_url = "{url}/v1"
model = "m"
cost = "metered"
"""
    return paid + backend_script(tmp_path / "bin", "agent", "exit 1")


CONTINUES = """
import http.client, json, os
def ask(**more):
    line = http.client.HTTPConnection("127.0.0.1", A_PORT)
    body = json.dumps({"model": "team", "input": "x", **more})
    own = {"x-api-key": os.environ["FALLBACKD_GATEWAY_TOKEN"], "content-type": "application/json"}
    line.request("POST", "/v1/responses", body, own)
    return json.load(line.getresponse())
own = ask()["id"]
said = [ask(previous_response_id=one) for one in (own, THEIRS, "resp_of_nobody")]
refused = [(one.get("error") or {}).get("message", "") for one in said[1:]]
print(json.dumps(["id" in said[0], *refused]))
"""


async def test_an_attempt_continues_only_answers_that_it_was_given(tmp_path: Path) -> None:
    async with gate(tmp_path, mode="responses", more=with_agent(tmp_path)) as g:
        theirs = (await g.ask(stream=False)).json()["id"]
        code = CONTINUES.replace("THEIRS", repr(theirs))
        is_continued, *refused = json.loads(
            await ask_from_inside(g, tmp_path, code, permissions="read")
        )
        assert is_continued
        for one in refused:
            assert "your delegation was given no such response" in one
        more = {**g.body(stream=False), "previous_response_id": theirs}
        own = await g.client.post(g.path(), json=more, headers={"x-api-key": g.token})
        assert own.status_code == 200


async def test_an_attempt_sends_its_own_token_and_spends_what_it_may(tmp_path: Path) -> None:
    both = 'both = ["paid", "one"]'
    async with gate(tmp_path, more=with_agent(tmp_path), chains=both) as g:
        code = "from asking import *\n" + "\n".join(f"print({one})" for one, _ in TRIES.values())
        said = await ask_from_inside(g, tmp_path, code, permissions="read")
        assert dict(zip(TRIES, said.split(), strict=True)) == {
            name: status for name, (_, status) in TRIES.items()
        }
        assert g.api.calls("three") == []
        (outer,) = (await g.daemon.client.call("delegation.list"))["delegations"]
        await g.ask()
        mine, *inside = (await g.daemon.client.call("exchange.list", {}))["exchanges"]
        assert mine["asked_by"] is None
        assert {one["asked_by"] for one in inside} == {f"{outer['delegation']}.1"}
        told = await g.daemon.client.call("explain", {"delegation": inside[0]["exchange"]})
        assert told["asked_by"] == f"{outer['delegation']}.1"
        code = 'from asking import *\nprint(ask(A_PORT, own, model="paid"), own)'
        status, _, own = (await ask_from_inside(g, tmp_path, code, allow_metered=True)).split()
        assert status == "200"
        assert len(g.api.calls("three")) == 1
        ended = await g.client.get("/v1/models", headers={"x-api-key": own})
        assert ended.status_code == 401
        assert "has ended" in ended.json()["error"]["message"]


async def test_a_process_that_leaves_its_parents_stays_inside_for_the_gateway(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, more=with_agent(tmp_path)) as g:
        said = await ask_from_inside(g, tmp_path, AWAY, permissions="read")
        assert said.split() == ["401", "403", "403"] * 3
        assert g.api.log == []
