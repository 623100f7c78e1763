"""Cases about chains, suggestions, the registry of marks, execution and callers of their own."""

from pathlib import Path

import pytest
from tests.acceptance.cases import Case, differences, load, name_of, play, stage


@pytest.mark.parametrize("case", load("chain") + load("suggest") + load("registry"), ids=name_of)
async def test_a_case_of_the_registry_holds(case: Case, tmp_path: Path) -> None:
    await play(tmp_path, case)


@pytest.mark.parametrize("case", load("execute"), ids=name_of)
async def test_a_case_of_execution_holds(case: Case, tmp_path: Path) -> None:
    await play(tmp_path, case)


@pytest.mark.parametrize("case", load("callers"), ids=name_of)
async def test_a_case_of_callers_of_their_own_holds(case: Case, tmp_path: Path) -> None:
    await play(tmp_path, case)


async def test_lines_are_judged_as_the_cases_say(tmp_path: Path) -> None:
    async with stage(tmp_path, {}) as played:
        told = []
        for case in load("detect"):
            evidence = {key: case[key] for key in ("text", "stream", "exit_code")}
            found = await played.call("classify", {"kind": "generic", "evidence": evidence})
            told += differences(found, case["expect"], where=case["id"])
        assert told == []


async def test_a_line_behind_many_others_is_read(tmp_path: Path) -> None:
    """Case 000-082."""
    text = "a harmless line\n" * 257 + "HTTP 429 Too Many Requests\n"
    async with stage(tmp_path, {}) as played:
        evidence = {"text": text, "stream": "stderr", "exit_code": 1}
        found = await played.call("classify", {"kind": "generic", "evidence": evidence})
        assert (found["reason"], found["hop"]) == ("rate_limit", True)
