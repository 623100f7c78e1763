"""Configuration that one attempt leaves in its directory is not obeyed by the next agent there."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.running_engine import agent, ended, engine_in, settings, tried, until, work
from tests.support.scripts import says, script

from fallbackd.backends import KINDS
from fallbackd.core.records import Delegation
from fallbackd.engine.api import Engine
from fallbackd.engine.environment import Settings
from fallbackd.engine.requests import NewWork

LIMITED = "echo 'rate limit reached' >&2; exit 75"
FILES = {
    "claude": (
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".claude/agents/general.md",
        ".claude/skills/s/SKILL.md",
        ".mcp.json",
    ),
    "codex": (
        ".codex/config.toml",
        ".codex/hooks.json",
        ".codex/hooks/h",
        ".codex/agents/a.toml",
        ".codex/rules/r.rules",
    ),
    "opencode": (
        "opencode.json",
        "opencode.jsonc",
        ".opencode/opencode.json",
        ".opencode/plugin/p.js",
        ".opencode/tools/t.js",
    ),
    "gemini": (
        ".env",
        ".gemini/.env",
        ".gemini/settings.json",
        ".gemini/extensions/e/gemini-extension.json",
        ".gemini/policies/p.toml",
    ),
}
ANSWERS = says({"type": "result", "subtype": "success", "is_error": False, "result": "yes"})
WITHOUT = {"claude": "--setting-sources user", "codex": 'trust_level="untrusted"'}
"""What says so in the arguments; the other programs have nothing for it."""


def programs(place: Path, body: str = LIMITED) -> Mapping[str, str]:
    """Programs of these names that keep their arguments, and fail."""
    (place / "programs").mkdir()
    for name in FILES:
        script(
            place / "programs", name, f'echo "$@" >> "$PLACE/{name}.runs"; cat >/dev/null\n{body}'
        )
    return {"PATH": f"{place / 'programs'}:/usr/bin:/bin"}


def runs(place: Path, name: str) -> list[str]:
    """The arguments of each run of a program."""
    path = place / "programs" / f"{name}.runs"
    return path.read_text().splitlines() if path.exists() else []


def writing(place: Path, path: str, body: str = LIMITED) -> str:
    return script(
        place,
        "a",
        f'cat >/dev/null; mkdir -p "$(dirname {path})"; echo planted >> {path}\n{body}',
    )


def both(place: Path, kind: str, path: str, **more: object) -> Settings:
    """A program that changes `path` and fails, then one of this kind."""
    options = {"serve": False} if kind == "opencode" else {}
    second = agent(kind, kind=kind, options=options)
    return settings(agent("a", writing(place, path)), second, **more)  # type: ignore[arg-type]


def tree(place: Path) -> Path:
    (place / "tree").mkdir()
    return place / "tree"


def warned(done: Delegation) -> str:
    return "\n".join(done.warnings)


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize(("kind", "path"), [(kind, one) for kind in FILES for one in FILES[kind]])
async def test_the_next_agent_does_not_obey_what_the_one_before_has_changed(
    tmp_path: Path, kind: str, path: str, *, existed: bool
) -> None:
    cwd = tree(tmp_path)
    if existed:
        (cwd / path).parent.mkdir(parents=True, exist_ok=True)
        (cwd / path).write_text("of its user\n")
    config = both(tmp_path, kind, path)
    async with engine_in(tmp_path, config, environ=programs(tmp_path)) as engine:
        done = await work(engine, backend="a", cwd=str(cwd))
    assert (cwd / path).read_text().endswith("planted\n"), "it stays for a person to look at"
    named = next(one for one in KINDS[kind].project.places if path.startswith(one))
    assert f"{done.attempts[0].attempt} changed {named}" in warned(done)
    if kind in WITHOUT:
        (argv,) = runs(tmp_path, kind)
        assert WITHOUT[kind] in argv
        assert f"{kind} was started without the configuration of this project" in warned(done)
    else:
        assert runs(tmp_path, kind) == []
        failure = done.attempts[1].failure
        assert failure is not None
        assert not failure.marks_health
        assert f"{kind} is not started" in failure.evidence


@pytest.mark.parametrize("kind", FILES)
async def test_what_was_there_before_is_obeyed(tmp_path: Path, kind: str) -> None:
    cwd = tree(tmp_path)
    for path in FILES[kind]:
        (cwd / path).parent.mkdir(parents=True, exist_ok=True)
        (cwd / path).write_text("of its user\n")
    config = both(tmp_path, kind, "main.py")
    async with engine_in(tmp_path, config, environ=programs(tmp_path)) as engine:
        done = await work(engine, backend="a", cwd=str(cwd))
    (argv,) = runs(tmp_path, kind)
    assert WITHOUT.get(kind, "--none") not in argv
    assert done.warnings == ()


async def test_another_backend_of_the_same_agent_with_a_command_of_its_own_is_not_started(
    tmp_path: Path,
) -> None:
    second = script(tmp_path, "b", 'echo >> "$PLACE/b.runs"; cat')
    config = settings(
        agent("a", writing(tmp_path, ".claude/settings.json")), agent("b", second, kind="claude")
    )
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a", cwd=str(tree(tmp_path)))
    assert tried(done) == [("a", "rate_limit"), ("b", "not_configured")]
    assert not (tmp_path / "b.runs").exists()


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_next_work_of_the_session_does_not_obey_it_and_another_session_does(
    tmp_path: Path, *, restarted: bool
) -> None:
    cwd, path, clock = tree(tmp_path), ".claude/settings.json", ManualClock()
    environ = programs(tmp_path, ANSWERS)
    config = settings(
        agent("a", writing(tmp_path, path, "echo done")), agent("claude", kind="claude")
    )
    given: dict[str, Any] = {"store": "sqlite", "environ": environ, "clock": clock}

    async def asked_twice(engine: Engine) -> None:
        clock.advance(1)
        for session in ("s", "t"):
            await work(engine, backend="claude", cwd=str(cwd), session=session)

    async with engine_in(tmp_path, config, **given) as engine:
        first = await work(engine, backend="a", cwd=str(cwd), session="s")
        assert "agents that start in this directory obey it" in warned(first)
        if not restarted:
            await asked_twice(engine)
    if restarted:
        async with engine_in(tmp_path, config, **given) as engine:
            await asked_twice(engine)
    with_it = [WITHOUT["claude"] not in argv for argv in runs(tmp_path, "claude")]
    assert with_it == [False, True]


async def test_what_a_person_changes_while_no_attempt_runs_is_obeyed(tmp_path: Path) -> None:
    cwd, path = tree(tmp_path), ".claude/settings.json"
    environ = programs(tmp_path)
    config = settings(
        agent("a", writing(tmp_path, path, "echo done")), agent("claude", kind="claude")
    )
    async with engine_in(tmp_path, config, environ=environ) as engine:
        await work(engine, backend="a", cwd=str(cwd), session="s")
        (cwd / path).write_text("{}")
        done = await work(engine, backend="claude", cwd=str(cwd), session="s", failover=False)
    (argv,) = runs(tmp_path, "claude")
    assert WITHOUT["claude"] not in argv
    assert done.warnings == ()


async def test_work_that_waited_for_the_directory_does_not_obey_it(tmp_path: Path) -> None:
    cwd, path = tree(tmp_path), ".claude/settings.json"
    gate = 'while [ ! -e "$PLACE/go" ]; do sleep 0.02; done; echo done'
    environ = programs(tmp_path)
    config = settings(agent("a", writing(tmp_path, path, gate)), agent("claude", kind="claude"))
    async with engine_in(tmp_path, config, environ=environ) as engine:
        first = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(cwd)))
        await until(lambda: (cwd / path).exists())
        second = await engine.delegate(NewWork(prompt="x", backend="claude", cwd=str(cwd)))
        (tmp_path / "go").touch()
        await ended(engine, first)
        await ended(engine, second)
    assert WITHOUT["claude"] in runs(tmp_path, "claude")[0]


@pytest.mark.parametrize("restarted", [False, True])
async def test_later_work_in_a_directory_below_does_not_obey_it(
    tmp_path: Path, *, restarted: bool
) -> None:
    cwd = tree(tmp_path)
    for name in ("sub", "old/.claude"):
        (cwd / name).mkdir(parents=True)
    (cwd / "old/.claude/settings.json").write_text("{}")
    environ = programs(tmp_path, ANSWERS)
    # Longer ago than the times of files are exact.
    then = cwd.stat().st_ctime + 0.5
    await until(lambda: time.time() > then)
    config = settings(
        agent("a", writing(tmp_path, "sub/.claude/settings.json", "echo done")),
        agent("claude", kind="claude"),
    )
    given: dict[str, Any] = {"store": "sqlite", "environ": environ}

    async def work_below(engine: Engine) -> None:
        for name in ("sub", "old"):
            await work(engine, backend="claude", cwd=str(cwd / name), session="s")

    async with engine_in(tmp_path, config, **given) as engine:
        await work(engine, backend="a", cwd=str(cwd), session="s")
        if not restarted:
            await work_below(engine)
    if restarted:
        async with engine_in(tmp_path, config, **given) as engine:
            await work_below(engine)
    with_it = [WITHOUT["claude"] not in argv for argv in runs(tmp_path, "claude")]
    assert with_it == [False, True]


async def test_work_ends_after_a_restart_where_an_attempt_was_set_aside(tmp_path: Path) -> None:
    config = settings(agent("a", writing(tmp_path, "notes", "echo done")))
    given: dict[str, Any] = {"store": "sqlite"}
    async with engine_in(tmp_path, config, **given) as engine:
        await work(engine, backend="a", cwd=str(tree(tmp_path)))
    (directory,) = (path.parent for path in (tmp_path / "runs").glob("*/1/pinned"))
    directory.rename(f"{directory}.void-e5dadf2f")
    async with engine_in(tmp_path, config, **given) as engine:
        assert (await work(engine, backend="a", cwd=str(tmp_path / "tree"))).state == "succeeded"


@pytest.mark.parametrize("below", ["", "sub"])
async def test_work_from_inside_does_not_obey_what_the_attempt_around_it_has_changed(
    tmp_path: Path, below: str
) -> None:
    cwd = tree(tmp_path)
    inner, path = cwd / below, f"{below or '.'}/.claude/settings.json"
    (cwd / "sub").mkdir()
    gate = 'while [ ! -e "$PLACE/go" ]; do sleep 0.02; done; echo done'
    environ = programs(tmp_path)
    config = settings(agent("a", writing(tmp_path, path, gate)), agent("claude", kind="claude"))
    async with engine_in(tmp_path, config, environ=environ) as engine:
        outer = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(cwd)))
        await until(lambda: (cwd / path).exists())
        await work(
            engine, backend="claude", cwd=str(inner), parent=outer.delegation, failover=False
        )
        (tmp_path / "go").touch()
        await ended(engine, outer)
    assert WITHOUT["claude"] in runs(tmp_path, "claude")[0]


async def test_what_an_attempt_has_changed_before_a_restart_is_known_after_it(
    tmp_path: Path,
) -> None:
    cwd, path = tree(tmp_path), ".claude/settings.json"
    gate = f'while [ ! -e "$PLACE/go" ]; do sleep 0.02; done\n{LIMITED}'
    environ = programs(tmp_path)
    config = settings(agent("a", writing(tmp_path, path, gate)), agent("claude", kind="claude"))
    async with engine_in(tmp_path, config, store="sqlite", environ=environ, leaves=True) as engine:
        found = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(cwd)))
        await until(lambda: (cwd / path).exists())
    async with engine_in(tmp_path, config, store="sqlite", environ=environ) as engine:
        (tmp_path / "go").touch()
        done = await ended(engine, found)
    assert WITHOUT["claude"] in runs(tmp_path, "claude")[0]
    assert "was started without the configuration" in warned(done)


async def test_a_link_to_what_an_attempt_can_change_is_looked_through(tmp_path: Path) -> None:
    cwd = tree(tmp_path)
    (cwd / "shared").mkdir()
    (cwd / "shared" / "settings.json").write_text("{}")
    (cwd / ".claude").symlink_to("shared")
    config = both(tmp_path, "claude", "shared/settings.json")
    async with engine_in(tmp_path, config, environ=programs(tmp_path)) as engine:
        await work(engine, backend="a", cwd=str(cwd))
    assert WITHOUT["claude"] in runs(tmp_path, "claude")[0]
