"""The files of a project that say to which models its sessions fail over."""

import json
from pathlib import Path

import anyio
from tests.support.running_engine import agent, ended, engine_in, settings, until
from tests.support.scripts import script

from fallbackd.app.opencode_log import OpencodeLog
from fallbackd.app.projects import Projects
from fallbackd.engine.requests import NewWork


def chain(*models: str) -> str:
    return json.dumps({"agents": {"*": {"fallbackModels": models}}})


async def test_what_an_attempt_has_changed_decides_nothing_until_a_person_changes_it(
    tmp_path: Path,
) -> None:
    cwd = tmp_path / "tree"
    file = cwd / ".opencode" / "model-fallback.json"
    file.parent.mkdir(parents=True)
    file.write_text(chain("cheap/m"))
    writes = f"""
        cat >/dev/null
        printf %s '{chain("dear/m")}' > .opencode/model-fallback.json
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
        echo done
        """
    config = settings(agent("a", script(tmp_path, "a", writes)))

    def first() -> str:
        found = projects.of(str(cwd)).project
        return "" if found is None else found.roles["*"].chain[0].backend

    async with engine_in(tmp_path, config) as engine, anyio.create_task_group() as tasks:
        projects = Projects(engine, OpencodeLog(), home=str(tmp_path / "home"))
        await projects.look(str(cwd))
        tasks.start_soon(projects.run)
        assert first() == "cheap/m"
        work = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(cwd)))
        said = f"{work.delegation}.1 changed it, so it is not used"
        await until(lambda: said in str(projects.warnings(str(cwd))))
        assert first() == "cheap/m"
        (tmp_path / "go").touch()
        await ended(engine, work)
        file.write_text(chain("other/m", "cheap/m"))
        await until(lambda: first() == "other/m")
        assert projects.warnings(str(cwd)) == ()
        tasks.cancel_scope.cancel()
