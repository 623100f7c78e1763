"""Programs that are not there, are no programs, or are read by code that has a bug."""

from pathlib import Path

import pytest
from msgspec import structs
from tests.support.running_engine import (
    agent,
    ended,
    engine_in,
    settings,
    state_of,
    tried,
    until,
    work,
)
from tests.support.scripts import runs_of, script
from tests.transports.programs import is_alive, read_pid

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import Chunk, Exit, Observation, Outcome
from fallbackd.engine.requests import NewWork, Refused

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"


def _reason(engine: object, backend: str) -> str:
    outage = engine.snapshot().health[f"backend:{backend}"].outage  # type: ignore[attr-defined]
    assert outage is not None
    return str(outage.reason.value)


@pytest.mark.parametrize("what", ["missing", "no-program", "directory"])
async def test_what_is_no_program_is_skipped_and_shown(tmp_path: Path, what: str) -> None:
    (tmp_path / "no-program").write_text("#!/bin/sh\necho no\n")
    (tmp_path / "directory").mkdir()
    a = agent("a", str(tmp_path / what))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        assert state_of(engine, "a") == "broken"
        assert _reason(engine, "a") in ("not_installed", "permission")
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert tried(done) == [("b", None)]
        assert done.verdicts[0].verdict in ("not_installed", "broken")


async def test_a_program_that_is_installed_later_is_used_at_once(tmp_path: Path) -> None:
    a = agent("a", str(tmp_path / "a"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        assert (await work(engine, backend="a")).served_by == "b"
        script(tmp_path, "a", ANSWERS)
        assert (await work(engine, backend="a")).served_by == "a"
        (tmp_path / "a").unlink()
        assert (await work(engine, backend="a")).served_by == "b"


async def test_a_program_on_the_path_of_the_children_is_found(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin", "agent-of-mine", ANSWERS)
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    config = settings(agent("a", "agent-of-mine"))
    async with engine_in(tmp_path, config, environ=environ) as engine:
        assert await engine.text(await work(engine, backend="a")) == "answer of agent-of-mine"


async def test_a_program_whose_interpreter_is_missing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(agent("a", str(path)), b)) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        assert tried(done)[0][1] in ("not_installed", "permission")


class _Broken:
    """A parser with a bug."""

    def __init__(self, options: Options) -> None: ...

    def feed(self, chunk: Chunk) -> list[Observation]:
        raise RuntimeError("a bug while reading")

    def finish(self, exit: Exit) -> Outcome:
        raise RuntimeError("a bug at the end")


def _unmade(options: Options) -> _Broken:
    raise RuntimeError("a bug at the beginning")


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ('echo >> "$PLACE/a.runs"; echo word; exec sleep 1000', _Broken),
        ('echo >> "$PLACE/a.runs"; cat >/dev/null', _Broken),
        ('echo >> "$PLACE/a.runs"; cat >/dev/null', _unmade),
    ],
)
async def test_a_bug_of_a_backend_is_its_own_failure(
    tmp_path: Path, body: str, made: type[_Broken]
) -> None:
    kinds = {"broken": structs.replace(KINDS["generic-cli"], name="broken", parser=made)}
    body = 'echo $$ > "$PLACE/a.pid"; ' + body
    a = agent("a", script(tmp_path, "a", body), kind="broken")
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b), kinds=kinds) as engine:
        done = await work(engine, backend="a")
        assert done.served_by == "b"
        failure = done.attempts[0].failure
        assert failure is not None
        assert (failure.reason.value, failure.detail) == ("crash", "internal")
        assert done.attempts[0].gone is True
        if runs_of(tmp_path, "a"):
            assert not is_alive(await read_pid(tmp_path / "a.pid"))


async def test_a_transport_with_a_bug_fails_its_attempts_only(tmp_path: Path) -> None:
    class Broken:
        async def open(self, *words: object, **more: object) -> None:
            raise TypeError("not for this transport")

        async def aclose(self) -> None: ...

    config = settings(agent("a", "true"), agent("b", "true"))
    async with engine_in(tmp_path, config, transport=Broken()) as engine:  # type: ignore[arg-type]
        done = await work(engine, backend="a")
        assert done.state == "refused"
        assert tried(done) == [("a", "crash"), ("b", "crash")]
        assert (await work(engine, backend="a")).is_ended


async def test_new_settings_hold_for_what_comes_and_leave_what_runs(tmp_path: Path) -> None:
    gated = """
        cat >/dev/null; echo >> "$PLACE/a.runs"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        exit 75
        """
    a = agent("a", script(tmp_path, "a", gated))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    c = agent("c", script(tmp_path, "c", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        await engine.set_settings(settings(b, c))
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert done.served_by == "b"
        assert (await work(engine, backend="c")).served_by == "c"
        with pytest.raises(Refused):
            await engine.delegate(NewWork(prompt="x", backend="a"))


async def test_a_backend_that_was_removed_is_not_hopped_to(tmp_path: Path) -> None:
    gated = """
        cat >/dev/null; echo >> "$PLACE/a.runs"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        exit 75
        """
    a = agent("a", script(tmp_path, "a", gated))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        begun = await engine.delegate(NewWork(prompt="x", backend="a"))
        await until(lambda: runs_of(tmp_path, "a") == 1)
        await engine.set_settings(settings(a))
        (tmp_path / "go").touch()
        done = await ended(engine, begun)
        assert done.state == "refused"
        assert [(one.backend, one.verdict) for one in done.verdicts][1] == ("b", "not_configured")


async def test_what_an_agent_left_in_the_background_is_said_to_have_been_ended(
    tmp_path: Path,
) -> None:
    body = "cat >/dev/null\nsleep 1000 >/dev/null 2>&1 &\necho the server runs"
    config = settings(agent("a", script(tmp_path, "a", body)))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        assert (done.state, await engine.text(done)) == ("succeeded", "the server runs")
        [warning] = done.warnings
        assert "left in the background were ended with it: sleep" in warning
