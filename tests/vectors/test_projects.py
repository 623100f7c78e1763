"""Cases of files in which opencode projects say how their sessions fall back."""

import json
from pathlib import Path
from typing import Any

import pytest

from fallbackd.config.project_files import FoundFiles, look
from fallbackd.core.policy import REASONS, Project
from fallbackd.core.reasons import Reason

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "projects.json").read_text("utf-8"))


def make(case: Json, base: Path) -> tuple[Path, Path]:
    home, work = base / "home", base / "work"
    for place in (home, work, base / "elsewhere"):
        place.mkdir()
    for name, text in case["files"].items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
    for name, target in case.get("links", {}).items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(base / target)
    return home, work


def check(found: FoundFiles, case: Json) -> None:
    for key, expected in case["is"].items():
        project = found.project or Project()
        match key:
            case "chains":
                seen: Any = {
                    name: [one.backend for one in role.chain]
                    for name, role in project.roles.items()
                    if role.chain
                }
            case "windows":
                reason = project.reasons.get(Reason.RATE_LIMIT, REASONS[Reason.RATE_LIMIT])
                seen = [reason.window_s, reason.window_s + reason.cooldown_s]
            case "depth":
                role = project.roles["*"]
                seen = role.max_fallback_depth
            case "warnings":
                seen = len(found.warnings)
            case "warns_of":
                said = [str(one) for one in found.warnings]
                assert all(any(word in one for one in said) for word in expected), said
                continue
            case "patterns":
                seen = [(one.pattern, one.reason.value) for one in found.rules]
                expected = [tuple(one) for one in expected]
            case "own":
                seen = found.project is not None
            case "enabled":
                seen = project.enabled
            case _:
                seen = getattr(found.fallbacks, key)
        assert seen == expected, key


@pytest.mark.parametrize("case", CASES, ids=[f"{one['id']}-{one['area']}" for one in CASES])
def test_a_file_says_what_it_said(case: Json, tmp_path: Path) -> None:
    home, work = make(case, tmp_path)
    check(look(str(work), home=str(home)), case)


def test_every_case_has_its_own_id_and_its_own_words() -> None:
    ids = [one["id"] for one in CASES]
    assert len(set(ids)) == len(ids)
    assert all(one["says"] and one["is"] for one in CASES)
