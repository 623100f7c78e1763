"""One event that breaks is not the end of all others."""

from pathlib import Path

import anyio
import pytest
from tests.support.agents import program
from tests.support.running_engine import agent, engine_in, settings

from fallbackd.config.schema import Notify
from fallbackd.fronts.notify import front
from fallbackd.fronts.notify.front import NotifyFront
from fallbackd.transports.http.clients import Clients

HANG_S = 60.0


async def test_what_comes_after_an_event_that_breaks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = front.notification_of

    def breaks_first(entry, delegation, **more):  # type: ignore[no-untyped-def]
        if entry.note.fields.get("question") == "first":
            raise RuntimeError("a bug")
        return made(entry, delegation, **more)

    monkeypatch.setattr(front, "notification_of", breaks_first)
    out = tmp_path / "told"
    command = (str(program(tmp_path, "tell", f'echo "$1" >> {out}')), "{text}")
    async with engine_in(tmp_path, settings(agent("a", "/bin/cat"))) as engine:
        notify = NotifyFront(engine, tmp_path / "claims", lambda url: Clients().find(url, None))
        notify.configure(Notify(command=command))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(notify.run)
            with anyio.fail_after(HANG_S):
                while await engine.store.get_meta("notified:command") is None:
                    await anyio.sleep(0.01)
                for name in ("first", "second"):
                    await engine.note("question.opened", {"question": name})
                while not out.exists() or not out.read_text():
                    await anyio.sleep(0.01)
                place = str(engine.store.last_seq)
                while await engine.store.get_meta("notified:command") != place:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert "(second)" in out.read_text()
        assert len(out.read_text().splitlines()) == 1
        assert list((tmp_path / "claims").iterdir()) == []
