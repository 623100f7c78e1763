"""What is asked for: prompts, directories, variables, names."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_engine import (
    agent,
    engine_in,
    settings,
    state_of,
    tried,
    until,
    work,
)
from tests.support.scripts import script

from fallbackd.core.authority import Authority
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.policy import Entry, Role
from fallbackd.engine.requests import Invalid, NewWork, NotPermitted, Refused
from fallbackd.lib.directories import identities

ANSWERS = "cat >/dev/null; echo answer of $(basename $0)"


async def test_a_prompt_of_any_bytes_comes_through_stdin_as_it_is(tmp_path: Path) -> None:
    body = 'cat > "$PLACE/got"; echo done'
    prompt = "a bell \a, a \r\n, ünïcode 🙂 and $(touch x) `id`\n\n"
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, prompt, backend="a")
        assert done.state == "succeeded"
        assert (tmp_path / "got").read_bytes() == prompt.encode()


async def test_a_prompt_of_five_megabytes_comes_through_stdin_whole(tmp_path: Path) -> None:
    body = "wc -c"
    prompt = "0123456789abcdef" * (5 * 65_536)
    async with engine_in(tmp_path, settings(agent("a", script(tmp_path, "a", body)))) as engine:
        done = await work(engine, prompt, backend="a")
        assert await engine.text(done) == str(len(prompt))


async def test_a_program_that_reads_no_prompt_may_still_answer(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", "echo early")))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, "x" * 1_000_000, backend="a")
        assert await engine.text(done) == "early"


async def test_a_prompt_with_a_nul_is_refused_for_every_kind_of_backend(tmp_path: Path) -> None:
    in_argv = {"prompt_in_argv": True, "stdin": "none"}
    a = agent("a", script(tmp_path, "a", 'echo "$1"'), "{prompt}", options=in_argv)
    b = agent("b", script(tmp_path, "b", ANSWERS))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        for backend in ("a", "b"):
            with pytest.raises(Invalid, match="NUL"):
                await engine.delegate(NewWork(prompt="a \0 b", backend=backend))
            assert (await work(engine, "a and b", backend=backend)).state == "succeeded"
        assert len(await engine.delegations()) == 2


@pytest.mark.parametrize("prompt", ["", "  \n\t "])
async def test_an_empty_prompt_is_refused(tmp_path: Path, prompt: str) -> None:
    async with engine_in(tmp_path, settings(agent("a", "cat"))) as engine:
        with pytest.raises(Invalid, match="prompt is empty"):
            await engine.delegate(NewWork(prompt=prompt, backend="a"))
        assert not (tmp_path / "runs").exists()


async def test_work_without_a_directory_gets_an_empty_one_of_its_own(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", "cat >/dev/null; pwd; ls -A")))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a")
        place = tmp_path / "runs" / done.delegation / "work"
        assert await engine.text(done) == str(place)


async def test_work_happens_at_the_real_path_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    config = settings(agent("a", script(tmp_path, "a", "cat >/dev/null; pwd -P; echo $PWD")))
    async with engine_in(tmp_path, config) as engine:
        done = await work(engine, backend="a", cwd=str(tmp_path / "link"))
        assert done.cwd == str(tmp_path / "real")
        assert await engine.text(done) == f"{tmp_path}/real\n{tmp_path}/real"


async def test_the_directory_that_was_judged_is_the_one_that_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for place in (own / "below", other):
        place.mkdir(parents=True)
    link = own / "link"
    link.symlink_to("below")

    async def replace_link(**_: object) -> None:
        link.unlink()
        link.symlink_to(other)

    inside = Authority(
        who="attempt", inside=(DelegationId("d1"),), directories=(str(own),), permissions="full"
    )
    async with engine_in(tmp_path, settings(agent("a", "cat"))) as engine:
        monkeypatch.setattr(engine.readiness, "look_at_candidates", replace_link)
        asked = NewWork(prompt="x", backend="a", cwd=str(link))
        found = await engine.delegate(asked, authority=inside)
        assert found.cwd == str(own / "below")
        assert found.cwd_ids == identities(str(own / "below"))
        with pytest.raises(NotPermitted, match="may let others write"):
            await engine.delegate(asked, authority=inside)


async def test_an_agent_lets_others_write_where_it_began_whatever_its_path_leads_to_now(
    tmp_path: Path,
) -> None:
    place, other = tmp_path / "project", tmp_path / "other"
    for each in (place, other):
        each.mkdir()
    config = settings(agent("a", script(tmp_path, "a", "sleep 600")))
    async with engine_in(tmp_path, config) as engine:
        outer = await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(place)))
        attempt = await until(lambda: engine.snapshot().active[outer.delegation].running)
        place.rename(tmp_path / "moved")
        place.symlink_to(other)
        authority = engine.authority_of((attempt.attempt,))
        assert authority.directories == (str(place),)
        asked = NewWork(prompt="x", backend="a", cwd=str(other))
        with pytest.raises(NotPermitted, match="may let others write"):
            await engine.delegate(asked, authority=authority)


async def test_a_directory_that_is_replaced_while_work_starts_ends_it_and_marks_no_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "project"
    place.mkdir()
    config = settings(agent("a", script(tmp_path, "a", "cat >/dev/null; touch here")))
    async with engine_in(tmp_path, config) as engine:
        look = engine.planted.begin

        async def replace(*given: Any, **more: Any) -> Any:
            place.rename(tmp_path / "moved")
            place.mkdir()
            return await look(*given, **more)

        monkeypatch.setattr(engine.planted, "begin", replace)
        done = await work(engine, backend="a", cwd=str(place))
        assert done.message == (
            f"{place} cannot be worked in any more: "
            "it is another directory now than when the work was accepted"
        )
        assert not list(place.iterdir())
        assert state_of(engine, "a") == "healthy"


@pytest.mark.parametrize(
    ("cwd", "words"),
    [
        ("relative/path", "is relative"),
        (".", "is relative"),
        ("/no/such/directory", "cannot be used"),
        ("{place}/missing/../file-dir", "cannot be used"),
        ("{place}/file", "not a directory"),
        ("{place}/dangling", "cannot be used"),
        ("/nul\0", "no NUL"),
    ],
)
async def test_a_directory_that_cannot_be_is_refused(tmp_path: Path, cwd: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file-dir").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    async with engine_in(tmp_path, settings(agent("a", "cat"))) as engine:
        with pytest.raises(Invalid, match=words):
            await engine.delegate(
                NewWork(prompt="x", backend="a", cwd=cwd.replace("{place}", str(tmp_path)))
            )
        assert engine.snapshot().active == {}


async def test_a_directory_behind_a_link_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as over:
        os.waitid(os.P_PID, over.pid, os.WEXITED | os.WNOWAIT)  # it has no directory any more
        async with engine_in(tmp_path, settings(agent("a", "cat"))) as engine:
            cwd = f"/proc/{over.pid}/cwd"
            with pytest.raises(Invalid, match="cannot be used"):
                await engine.delegate(NewWork(prompt="x", backend="a", cwd=cwd))


async def test_a_directory_outside_the_allowed_ones_is_refused(tmp_path: Path) -> None:
    for name in ("allowed", "allowed-too", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "allowed" / "way-out").symlink_to(tmp_path / "other")
    config = settings(
        agent("a", script(tmp_path, "a", ANSWERS)),
        defaults={"allowed_roots": (str(tmp_path / "allowed"),)},
    )
    async with engine_in(tmp_path, config) as engine:
        for name in ("other", "allowed-too", "allowed/way-out", "allowed/../other"):
            with pytest.raises(NotPermitted, match="outside allowed_roots"):
                await engine.delegate(NewWork(prompt="x", backend="a", cwd=str(tmp_path / name)))
        done = await work(engine, backend="a", cwd=str(tmp_path / "allowed"))
        assert done.state == "succeeded"


async def test_the_whole_machine_and_the_whole_home_are_too_broad(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config) as engine:
        for cwd in ("/", "//", "/tmp/..", str(tmp_path / "home")):
            with pytest.raises(NotPermitted, match="too broad for an agent"):
                await engine.delegate(NewWork(prompt="x", backend="a", cwd=cwd))
    broad = settings(agent("a", script(tmp_path, "a", ANSWERS)), defaults={"allow_broad_cwd": True})
    async with engine_in(tmp_path, broad) as engine:
        done = await work(engine, backend="a", cwd=str(tmp_path / "home"))
        assert done.state == "succeeded"


async def test_a_directory_that_vanishes_ends_the_work_and_marks_nobody(
    tmp_path: Path,
) -> None:
    place = tmp_path / "project"
    place.mkdir()
    a = agent("a", script(tmp_path, "a", f"cat >/dev/null; rmdir '{place}'; exit 75"))
    b = agent("b", script(tmp_path, "b", ANSWERS))
    c = agent("c", script(tmp_path, "c", ANSWERS))
    async with engine_in(tmp_path, settings(a, b, c)) as engine:
        done = await work(engine, backend="a", cwd=str(place))
        assert done.state == "failed"
        assert done.message is not None
        assert done.message.startswith(f"{place} cannot be worked in any more")
        assert [backend for backend, _ in tried(done)] == ["a", "b"]
        assert [state_of(engine, name) for name in ("b", "c")] == ["healthy", "healthy"]


async def test_only_named_variables_reach_a_backend(tmp_path: Path) -> None:
    body = "cat >/dev/null; echo one=$ONE two=$TWO"
    a = agent("a", script(tmp_path, "a", body), allow_env=("ONE",))
    b = agent("b", script(tmp_path, "b", body), allow_env=("TWO",))
    async with engine_in(tmp_path, settings(a, b)) as engine:
        done = await work(engine, backend="a", env={"ONE": "1", "TWO": "2"})
        assert await engine.text(done) == "one=1 two="
        with pytest.raises(NotPermitted, match="LD_PRELOAD"):
            await engine.delegate(NewWork(prompt="x", backend="a", env={"LD_PRELOAD": "x"}))


@pytest.mark.parametrize(
    ("value", "words"), [("a\0b", "NUL"), ("x" * 131_072, "longer than"), ("ü" * 65_536, "longer")]
)
async def test_a_variable_that_no_program_can_be_given_is_refused(
    tmp_path: Path, value: str, words: str
) -> None:
    counts = "cat >/dev/null; printenv ONE | wc -c"
    a = agent("a", script(tmp_path, "a", counts), allow_env=("ONE",))
    async with engine_in(tmp_path, settings(a)) as engine:
        with pytest.raises(Invalid, match=f"ONE .*{words}"):
            await engine.delegate(NewWork(prompt="x", backend="a", env={"ONE": value}))
        assert engine.snapshot().active == {}
        longest = "x" * (131_072 - len("ONE=") - 1)
        done = await work(engine, backend="a", env={"ONE": longest})
        assert await engine.text(done) == str(len(longest) + 1)


async def test_values_of_variables_are_in_no_record(tmp_path: Path) -> None:
    a = agent("a", script(tmp_path, "a", ANSWERS), allow_env=("KEY",))
    async with engine_in(tmp_path, settings(a), store="sqlite") as engine:
        await work(engine, "prompt-words", backend="a", env={"KEY": "value-of-the-key"})
    for path in tmp_path.glob("records.sqlite*"):
        data = path.read_bytes()
        assert b"value-of-the-key" not in data
        assert b"prompt-words" not in data


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"session": "a\nb"}, "session"),
        ({"session": ""}, "session"),
        ({"session": "x" * 201}, "session"),
        ({"role": "\x1b[31m"}, "role"),
        ({"chain": "nobody"}, "no chain 'nobody'"),
        ({"chain": ()}, "chain is empty"),
    ],
)
async def test_a_name_that_cannot_be_is_refused(
    tmp_path: Path, asked: dict[str, Any], words: str
) -> None:
    async with engine_in(tmp_path, settings(agent("a", "cat"))) as engine:
        with pytest.raises(Invalid, match=words):
            await engine.delegate(NewWork(prompt="x", **asked))
        assert engine.snapshot().active == {}


async def test_no_name_of_a_caller_becomes_part_of_a_path(tmp_path: Path) -> None:
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)))
    async with engine_in(tmp_path, config) as engine:
        name = "../../../escape"
        done = await work(engine, backend="a", session=name, request_id=name, role=name)
        assert done.state == "succeeded"
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [done.delegation]
        assert not list(tmp_path.parent.glob("escape*"))


async def test_an_unknown_backend_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    async with engine_in(tmp_path, settings(agent("a", "cat"))) as engine:
        chain = (Entry(backend=BackendId("a")), Entry(backend=BackendId("nobody")))
        for asked in (NewWork(prompt="x", backend="nobody"), NewWork(prompt="x", chain=chain)):
            with pytest.raises(Refused, match="no backend 'nobody'; known are a") as refused:
                await engine.delegate(asked)
            assert refused.value.rejection.kind == "unknown_backend"
        assert list((tmp_path / "runs").iterdir()) == []


async def test_a_role_that_nearly_is_a_configured_one_is_refused_and_named(tmp_path: Path) -> None:
    reviewer = Role(name="reviewer", chain=(Entry(backend=BackendId("a")),))
    config = settings(agent("a", script(tmp_path, "a", ANSWERS)), roles={"reviewer": reviewer})
    async with engine_in(tmp_path, config) as engine:
        with pytest.raises(Invalid, match="did you mean 'reviewer'"):
            await engine.delegate(NewWork(prompt="x", role="revewer"))
        assert (await work(engine, role="Reviewer-Agent")).state == "succeeded"
        done = await work(engine, role="nobody", backend="a")
        assert done.state == "succeeded"
        assert any("'nobody'" in warning for warning in done.warnings)
