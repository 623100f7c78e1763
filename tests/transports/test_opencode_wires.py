"""The tables of version 2: what the code uses stands there, and the contract of 2.1.2 has it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.opencode2 import CONTRACT

from fallbackd.ports.opencode import INSIDE
from fallbackd.transports.opencode.second import SecondWire, _call_of
from fallbackd.transports.opencode.wires import CALLS, EVENTS, ROUTES, SHAPES

DAEMON = Path(__file__).parents[2] / "daemon" / "fallbackd"
ASKING = (DAEMON / "fronts/opencode", DAEMON / "transports/opencode")
CALL = re.compile(
    r'call\(\s*"(GET|POST|PATCH|DELETE)"(?:,\s*f?"(/[^"]*)")?'
    r'|"(GET|POST)", f"(/session/[^"]+)"'
)
PARTS = {
    "compaction failed": "compaction",
    "tool completed": "tool state",
    "tool error": "tool state",
}


def named(route: str) -> str:
    return re.sub(r":\w+", ":", route)


def test_each_route_is_in_the_contract_with_what_it_is_sent() -> None:
    has = {named(route): one for route, one in CONTRACT["routes"].items()}
    for name, row in ROUTES.items():
        found = has[named(f"{row.method} {row.path}")]
        assert {one.partition("[")[0] for one in row.query} <= set(found["query"]), name
        assert set(row.sends) <= set(found["body"]), name


def test_each_event_is_in_the_contract_with_the_fields_that_are_read() -> None:
    for kind, fields in EVENTS.items():
        has = CONTRACT["events"][kind]
        assert set(fields) <= {*has["required"], *has["optional"]}, kind


def test_each_shape_is_in_the_contract_with_the_fields_that_are_read() -> None:
    has: dict[str, set[str]] = {}
    for shape, one in CONTRACT["shapes"].items():
        fields = has.setdefault(PARTS.get(shape, shape), set())
        fields.update(one["required"], one["optional"])
    for shape, fields in SHAPES.items():
        assert set(fields) <= has[shape], shape


def test_every_route_is_used_and_every_call_names_known_ones() -> None:
    used = {route for routes in CALLS.values() for route in routes}
    assert used | {"events"} == set(ROUTES)


def asked_for() -> Iterator[tuple[str, str, str]]:
    """Calls of version 1 in the code, with where they are made."""
    for place in ASKING:
        for path in sorted(place.glob("*.py")):
            if path.name in ("second.py", "wires.py"):
                continue
            for found in CALL.finditer(path.read_text()):
                method, call = found[1] or found[3], found[2] or found[4]
                if call and not call.startswith(("{INSIDE}", INSIDE)):
                    yield path.name, method, re.sub(r"\{[^}]*\}", "x", call)


def test_every_call_of_version_1_that_the_code_makes_has_a_row() -> None:
    found = list(asked_for())
    assert len(found) > 12
    for place, method, call in found:
        rows = [_call_of(method, call)[0], _call_of(method, f"/session/x{call}")[0]]
        assert any(row in CALLS for row in rows), (place, method, call)


SECOND = (DAEMON / "transports/opencode/second.py").read_text()


def test_every_shape_and_route_that_the_code_names_is_in_the_tables() -> None:
    shapes = set(re.findall(r"""_shaped\(\s*"([^"]+)\"""", SECOND))
    routes = set(re.findall(r"""(?:self\.ask|_pages)\(\s*"([^"]+)\"""", SECOND))
    assert shapes
    assert shapes <= set(SHAPES)
    assert routes
    assert routes <= set(ROUTES)


async def test_what_is_not_in_a_table_is_neither_read_nor_asked_for() -> None:
    async def ask(*_: object, **__: object) -> None:
        raise AssertionError("asked")

    second = SecondWire(ask)  # type: ignore[arg-type]
    strange = {"type": "session.moved", "data": {"sessionID": "ses_1", "location": {}}}
    assert await second.heard(strange) == [{"type": "session.moved", "properties": {}}]
    for data in ({}, None, [], {"sessionID": 1}, {"sessionID": "s", "error": 7}):
        failed = {"type": "session.execution.failed", "data": data}
        assert all(isinstance(one, dict) for one in await second.heard(failed))
    with pytest.raises(KeyError):
        await second.ask("nothing")


PLUGIN = Path(__file__).parents[2] / "contrib" / "opencode-plugin"
OURS = {"redirected", "protected", "problem", "known", "call", "path", "body", "isBusy", "answer"}
"""Fields of the daemon's answers, and of what the files of the plugin tell each other."""
OURS |= {"kind", "session", "notice", "text", "budgetMs"}


def rows_of(file: str) -> dict[str, set[str]]:
    """What the table of the plugin says that one of its files uses."""
    rows = re.findall(r"^\| `([^|]+)` \| ([^|]+) \| ([\w.]+) \|$", README, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", fields)) for name, fields, at in rows if at == file}


README = (PLUGIN / "README.md").read_text()


@pytest.mark.parametrize(("file", "name"), [("second.ts", "ctx"), ("toast.ts", "context")])
def test_the_plugin_uses_of_version_2_what_its_table_has_and_no_more(file: str, name: str) -> None:
    code = re.sub(r"//.*|/\*\*.*?\*/", "", (PLUGIN / "src" / file).read_text())
    calls = re.findall(rf'\b{name}((?:\??\.\w+)+)\((?:"([^"]+)")?', code)
    used = {
        f"{name}{path.replace('?', '')}" + (f'("{hook}")' if hook else "") for path, hook in calls
    }
    rows = rows_of(file)
    assert used
    assert used == set(rows) - {"ctx", "service.json"}
    fields = {one for row in rows.values() for one in row}
    declared = re.findall(r"^(?:export )?type \w+ =(?: \{.*\}.*$|(?s:.*?)^\})", code, re.MULTILINE)
    read = {one for kind in declared for one in re.findall(r"(\w+)\??:(?=[ ])", kind)}
    outer = {"session", "command", "tool", "event", "ui", "toast", "router", "input", "options"}
    outer |= {"commands", "callback", "change", "one", "at"}
    assert read - OURS - outer <= fields, read - OURS - outer - fields
