"""Texts of the systems that came before, judged by the classifier. The data is `classify.json`."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.playbook import T0

from fallbackd.backends import KINDS
from fallbackd.classify.classifier import classify
from fallbackd.core.protocol import Evidence

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "classify.json").read_text("utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=[one["id"] for one in CASES])
def test_a_text_of_an_earlier_system_is_judged_alike(case: dict[str, Any]) -> None:
    kind = KINDS.get(case["kind"])
    rules = () if kind is None else kind.rules
    found = classify(Evidence(**case["evidence"]), rules, now=T0)
    expected = case["expect"]
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found.reason.value in expected["reason"]
    flags = {key: value for key, value in expected.items() if key != "reason"}
    assert {key: getattr(found, key) for key in flags} == flags
