"""Moves to another backend, as sentences."""

import pytest

from fallbackd.core.reasons import Reason
from fallbackd_client.cli.views import _WHY, hop_sentence

NEVER_LEFT = {Reason.TASK_FAILED, Reason.CANCELLED, Reason.UNKNOWN}
"""No move follows them, or there is nothing more to say than their name."""


@pytest.mark.parametrize("reason", [one for one in Reason if one not in NEVER_LEFT])
def test_each_reason_that_leads_on_has_words(reason: Reason) -> None:
    assert reason.value in _WHY


def test_a_reason_of_a_later_daemon_is_said_by_its_name() -> None:
    hop = {"from": "a", "to": "b", "reason": "maintenance"}
    assert hop_sentence(hop, {}) == "a failed (maintenance); continuing with b."


def test_a_version_that_is_not_supported_is_not_called_a_missing_setup() -> None:
    hop = {"from": "a", "to": "b", "reason": "not_configured"}
    says = "a is of a version that is not supported; continuing with b."
    assert hop_sentence({**hop, "evidence": "version"}, {}) == says
    attempt = {"backend": "a", "failure": {"detail": "version"}}
    assert hop_sentence(hop, {"attempts": [attempt]}) == says


def test_a_move_to_another_model_of_the_same_backend_names_the_models() -> None:
    hop = {"from": "a", "to": "a", "from_model": "m1", "to_model": "m2", "reason": "overloaded"}
    assert hop_sentence(hop, {}) == "a [m1] is overloaded; continuing with a [m2]."
