"""Where the files of an opencode project are looked for, and what a damaged one leaves in force."""

import json
from pathlib import Path

import pytest

from fallbackd.config.fallback_file import read_fallbacks
from fallbackd.config.project_files import MAY_DECIDE, FoundFiles, look, read_agent, stamp_of
from fallbackd.config.voice import read_voice
from fallbackd.core.ids import BackendId


class Places:
    def __init__(self, base: Path) -> None:
        self.home, self.project = base / "home", base / "home" / "project"
        self.below = self.project / "src" / "deep"
        self.below.mkdir(parents=True)

    def chain(self, folder: Path, model: str, *, name: str = "model-fallback.json") -> Path:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"agents": {"*": {"fallbackModels": [model]}}}))
        return file

    def agent(self, folder: Path, name: str, model: str) -> None:
        file = folder / "agents" / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"---\nfallback:\n  models:\n    - {model}\n---\n")

    def look(self, folder: Path) -> FoundFiles:
        return look(str(folder), home=str(self.home))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def chains(found: FoundFiles) -> dict[str, list[BackendId]]:
    roles = {} if found.project is None else found.project.roles
    return {name: [one.backend for one in role.chain] for name, role in roles.items() if role.chain}


def test_files_are_looked_for_up_to_the_root_of_the_project_and_the_nearest_wins(
    places: Places,
) -> None:
    (places.project / ".git").mkdir()
    places.chain(places.home / ".opencode", "above/m")
    places.agent(places.home / ".opencode", "above", "above/m")
    before = stamp_of(str(places.below), home=str(places.home))
    at_root = places.chain(places.project / ".opencode", "root/m")
    places.agent(places.project / ".opencode", "review", "root/m")
    places.agent(places.project / ".opencode", "plan", "root/m")
    places.agent(places.below / ".opencode", "plan", "near/m")
    found = places.look(places.below)
    assert chains(found) == {"*": ["root/m"], "review": ["root/m"], "plan": ["near/m"]}
    assert (found.path, found.stamp != before) == (str(at_root), True)
    places.chain(places.project / "src" / ".opencode", "near/m")
    assert chains(places.look(places.below))["*"] == ["near/m"]


def test_outside_of_a_work_tree_only_the_directory_itself_counts(places: Places) -> None:
    places.chain(places.project / ".opencode", "root/m")
    assert places.look(places.below).project is None
    assert chains(places.look(places.project)) == {"*": ["root/m"]}


def test_a_damaged_file_of_a_project_is_said_and_leaves_the_users_in_force(places: Places) -> None:
    user = places.home / ".config" / "opencode"
    places.chain(user, "user/m")
    broken = places.chain(places.project / ".opencode", "project/m")
    broken.write_text("{")
    found = places.look(places.project)
    assert (found.project, found.path, found.is_valid) == (None, str(broken), False)
    (said,) = found.warnings
    assert str(said).startswith(f"{broken}: ")
    places.agent(places.project / ".opencode", "review", "own/m")
    assert chains(places.look(places.project)) == {"*": ["user/m"], "review": ["own/m"]}


def test_a_damaged_file_leaves_the_patterns_of_the_user_in_force(places: Places) -> None:
    user = places.home / ".config" / "opencode"
    file = places.chain(user, "user/m")
    file.write_text(json.dumps({"patterns": ["come back later"]}))
    places.chain(places.project / ".opencode", "project/m").write_text("[]")
    assert [one.pattern for one in places.look(places.project).rules] == ["(?i)come\\ back\\ later"]


def test_what_each_file_in_reach_of_agents_may_decide_is_declared_field_by_field() -> None:
    assert {kind: set(kind.__struct_fields__) for kind in MAY_DECIDE} == {
        kind: set(fields) for kind, fields in MAY_DECIDE.items()
    }


@pytest.mark.parametrize(
    "place", ["~/.bashrc", "$(touch pwned)", "/bin/sh -c pwned", "http://192.0.2.1/v1"]
)
def test_no_file_in_reach_of_agents_names_a_place_a_command_or_an_address(place: str) -> None:
    keys = ("logPath", "agents", "logging", "command", "baseURL", "path", "reason")
    text = json.dumps(
        dict.fromkeys(keys, place)
        | {"marked_at": 1.0, "ttl_seconds": 9, "fallback": {"models": [place, "a/m"], "url": place}}
    )
    read = (
        read_fallbacks(text, path="f.json", home="/home/u"),
        read_agent(text, path="a.json", name="a", say=lambda *_: None),
        read_voice(f'{{"codex": {text}}}', path="v.json", now=2.0).marks[0],
    )
    assert [type(found) for found in read] == list(MAY_DECIDE)
    for found in read:
        for field, word in MAY_DECIDE[type(found)].items():
            assert word == "itself" or place not in str(getattr(found, field)), field
