"""Notifications: a real program and a real server get each of them once, whatever happens."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agents import THROTTLED, backend_script, chain, ok, program
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.survival.points import NOTIFY

SECRET_WORDS = "the words of the prompt"


class Hook:
    """A server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.status = 204
        self.has_changed = threading.Event()
        self.url = ""

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.posts if one["event"] == event]


@contextmanager
def listening() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if hook.status < 300:
                hook.posts.append(json.loads(body))
                hook.keys.append(self.headers["Idempotency-Key"])
            hook.has_changed.set()
            self.send_response(hook.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing to the terminal of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook/secret-token"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()


def notify_config(tmp_path: Path, url: str, *, more: str = "", script: str = "") -> str:
    """Two backends of which the first one is throttled, and both ways of notification."""
    told = tmp_path / "told"
    body = script or f'printf "%s|%s|%s\\n" "$1" "$2" "$3" >> {told}'
    command = program(tmp_path / "bin-notify", "tell", body)
    return (
        f"[notify]\ncommand = [{json.dumps(str(command))}, '{{event}}', '{{title}}', '{{text}}']\n"
        f"url = {json.dumps(url)}\n{more}\n"
        + backend_script(tmp_path, "first", THROTTLED)
        + backend_script(tmp_path, "second", ok("fine"))
        + chain("first", "second")
    )


def told(tmp_path: Path) -> list[str]:
    path = tmp_path / "told"
    return path.read_text().splitlines() if path.exists() else []


async def until(is_so: Any) -> None:
    with anyio.fail_after(HANG_S):
        while not is_so():
            await anyio.sleep(0.05)


async def failed_over(daemon: Daemon) -> str:
    await daemon.client.call("health", {"action": "clear", "target": "first"})
    asked = {"prompt": SECRET_WORDS, "backend": "first", "wait": "finished"}
    found = await daemon.client.call("delegate", asked)
    assert found["served_by"] == "second"
    name: str = found["delegation"]
    return name


async def test_a_program_and_a_server_are_told_once_and_without_the_prompt(
    tmp_path: Path,
) -> None:
    with listening() as hook:
        async with running(tmp_path, notify_config(tmp_path, hook.url)) as daemon:
            name = await failed_over(daemon)
            await until(lambda: hook.posts and told(tmp_path))
            (post,) = hook.posts
            assert post["event"] == "failed_over"
            assert post["title"] == "fallbackd: failed over"
            assert post["text"] == "first is unavailable (rate limit); continuing with second."
            assert (post["delegation"], post["backend"]) == (name, "second")
            assert hook.keys == [post["id"]]
            assert told(tmp_path) == [f"failed_over|{post['title']}|{post['text']}"]
            # The same again within ten minutes is no news.
            await failed_over(daemon)
            found = await run_client(daemon.socket, "notify", "test")
            assert (found.code, found.out) == (0, "command: delivered\nurl: delivered\n")
            events = [one["event"] for one in hook.posts]
            assert sorted(events) == ["failed_over", "recovered", "test"]
            assert SECRET_WORDS not in json.dumps(hook.posts) + "".join(told(tmp_path))
            shown = await run_client(daemon.socket, "config", "show")
            assert "secret-token" not in shown.out + daemon.log()


async def test_the_end_of_long_work_is_told_with_its_text_where_that_is_wanted(
    tmp_path: Path,
) -> None:
    slow = "cat >/dev/null; sleep 0.2; echo the answer"
    with listening() as hook:
        more = "events = []\nfinished_after_s = 0.1\ninclude_text = true"
        config = notify_config(tmp_path, hook.url, more=more)
        async with running(tmp_path, backend_script(tmp_path, "slow", slow) + config) as daemon:
            asked = {"prompt": SECRET_WORDS, "backend": "slow", "wait": "finished"}
            name = (await daemon.client.call("delegate", asked))["delegation"]
            await until(lambda: hook.posts)
            (post,) = hook.posts
            assert post["event"] == "finished"
            assert post["text"].startswith(f"{name} finished on slow after ")
            assert (post["prompt"], post["answer"]) == (SECRET_WORDS, "the answer")


@pytest.mark.parametrize("point", NOTIFY)
async def test_a_daemon_that_was_killed_in_the_middle_tells_it_once(
    tmp_path: Path, point: str
) -> None:
    with listening() as hook:
        async with running(tmp_path, notify_config(tmp_path, hook.url)) as daemon:
            await daemon.stop()
            daemon.program = ("-X", "fallbackd_failpoints", "-m", "fallbackd")
            daemon.env["FALLBACKD_FAILPOINTS"] = f"{point}=kill"
            await daemon.start()
            await daemon.client.call(
                "delegate", {"prompt": "x", "backend": "first", "wait": "accepted"}
            )
            assert await daemon.wait() == -9
            del daemon.env["FALLBACKD_FAILPOINTS"]
            await daemon.start()
            # The answer to one that comes later shows that the first one was dealt with.
            await until(lambda: hook.of("failed_over") and told(tmp_path))
            await run_client(daemon.socket, "notify", "test")
            assert len({one["id"] for one in hook.of("failed_over")}) == 1
            assert len(hook.of("failed_over")) <= (2 if point == "notify.posted" else 1)
            assert len([one for one in told(tmp_path) if one.startswith("failed_over")]) == 1


async def test_what_was_not_told_before_a_kill_is_told_after_it_and_what_was_is_not(
    tmp_path: Path,
) -> None:
    with listening() as hook:
        more = "repeat_after_s = 0"
        async with running(tmp_path, notify_config(tmp_path, hook.url, more=more)) as daemon:
            first = await failed_over(daemon)
            await until(lambda: hook.posts and told(tmp_path))
            hook.status = 503
            hook.has_changed.clear()
            second = await failed_over(daemon)
            await anyio.to_thread.run_sync(hook.has_changed.wait, HANG_S)
            await daemon.kill()
            hook.status = 204
            await daemon.start()
            await until(lambda: len(hook.of("failed_over")) >= 2 and len(told(tmp_path)) >= 2)
            await run_client(daemon.socket, "notify", "test")
            assert [one["delegation"] for one in hook.of("failed_over")] == [first, second]
            assert len([one for one in told(tmp_path) if one.startswith("failed_over")]) == 2


async def test_a_program_that_hangs_holds_up_nothing_and_runs_alone(tmp_path: Path) -> None:
    here = tmp_path / "alone"
    script = (
        f"mkdir {here} || echo two >> {tmp_path}/told\n"
        f"echo begun >> {tmp_path}/told\n"
        f'while [ ! -e "$HOME/goes" ]; do sleep 0.05; done\nrmdir {here}'
    )
    with listening() as hook:
        more = 'repeat_after_s = 0\nevents = ["failed_over"]'
        config = notify_config(tmp_path, hook.url, more=more, script=script)
        async with running(tmp_path, config) as daemon:
            await failed_over(daemon)
            await until(lambda: told(tmp_path))
            await failed_over(daemon)  # answered while the program hangs
            assert told(tmp_path) == ["begun"]
            (daemon.home / "goes").touch()
            await until(lambda: len(told(tmp_path)) == 2 and len(hook.posts) == 2)
            assert told(tmp_path) == ["begun", "begun"]


async def test_without_a_way_the_trial_says_what_to_configure(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        found = await run_client(daemon.socket, "notify", "test")
        assert found.code == 2
        assert "[notify]" in found.err


async def test_a_program_that_fails_is_said_by_the_trial(tmp_path: Path) -> None:
    config = notify_config(tmp_path, "http://127.0.0.1:1/", script="echo no display >&2; exit 3")
    async with running(tmp_path, config) as daemon:
        found = await run_client(daemon.socket, "notify", "test")
        assert found.code == 1
        assert "tell ended with status 3: no display" in found.out
        assert "url: the server cannot be asked (ConnectError); look at its address" in found.out
