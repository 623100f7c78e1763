"""Every contract of the import linter has teeth: an import that it forbids is found."""

import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract
from importlinter.domain.contract import Contract

TYPES: dict[str, type[Contract]] = {
    "layers": LayersContract,
    "forbidden": ForbiddenContract,
    "independence": IndependenceContract,
}
PLANTED = {
    "the layers of the daemon": ("fallbackd.lib.clock", "fallbackd.ports.transport"),
    "the rooms of core": ("fallbackd.core.health", "fallbackd.core.records"),
    "a plan performs nothing": ("fallbackd.core.work.steps", "fallbackd.core.work.apply"),
    "who is used is known without a case": (
        "fallbackd.core.routing.looking",
        "fallbackd.core.case",
    ),
    "classification knows little of core": ("fallbackd.classify.rules", "fallbackd.core.policy"),
    "edges do not know each other": ("fallbackd.stores.memory", "fallbackd.engine.runs"),
    "the client knows nothing of the daemon": (
        "fallbackd_client.paths",
        "fallbackd.lib.directories",
    ),
    "conversations know neither the daemon nor the client": (
        "fallbackd_conversations.turns",
        "fallbackd.lib.directories",
    ),
    "fronts do not know each other": (
        "fallbackd.fronts.gateway.routes",
        "fallbackd.fronts.rpc.endpoint",
    ),
    "only the rpc front knows the codes of its errors": (
        "fallbackd.engine.runs",
        "fallbackd_client.wire.codes",
    ),
    "only what serves callers speaks the wire": (
        "fallbackd.stores.memory",
        "fallbackd_client.wire.shapes",
    ),
}
"""By contract: which module imports which."""

_LINTER: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())[
    "tool"
]["importlinter"]
_BY_NAME: dict[str, dict[str, Any]] = {
    contract["name"]: {
        key: str(value) if isinstance(value, bool) else value for key, value in contract.items()
    }
    for contract in _LINTER["contracts"]
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    configuration.configure()
    return grimp.build_graph(*_LINTER["root_packages"], cache_dir=None)


def test_a_breach_of_every_contract_is_planted() -> None:
    assert set(PLANTED) == set(_BY_NAME)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_import_is_found(graph: grimp.ImportGraph, name: str) -> None:
    importer, imported = PLANTED[name]
    options = _BY_NAME[name]
    contract = TYPES[options["type"]](name, _LINTER, options)
    assert {importer, imported} <= graph.modules
    assert contract.check(deepcopy(graph), verbose=False).kept
    planted = deepcopy(graph)
    planted.add_import(importer=importer, imported=imported)
    assert not contract.check(planted, verbose=False).kept
