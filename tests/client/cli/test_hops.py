"""Moves to another backend, as sentences."""

from typing import get_args

import pytest

from fallbackd.core.reasons import Reason
from fallbackd.core.records import VerdictWord
from fallbackd_client.cli.views import _WHY, cause, hop_sentence

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


ASKED = {"chosen", "healthy", "unproven", "affinity", "tried"}
"""Verdicts of candidates that are used, or were."""


@pytest.mark.parametrize("verdict", sorted(set(get_args(VerdictWord)) - ASKED))
def test_each_verdict_that_passes_a_candidate_over_has_words(verdict: str) -> None:
    assert verdict in _WHY


def test_a_column_says_what_happened_to_the_backend_and_no_code() -> None:
    says = cause("rate_limit: claude failed; continuing with codex.")
    assert says == "claude rate-limited"
    assert cause("paused: claude was skipped; continuing with codex.") == "claude paused"
    assert cause("unknown: claude failed; continuing with codex.") == "claude failed"
    assert cause("exited: no answer") == "exited: no answer"


def test_a_return_to_the_first_backend_is_no_failure_of_the_other_one() -> None:
    hop = {"from": "codex", "to": "claude", "trigger": "recovery", "reason": "recovered"}
    says = "claude is available again; continuing there instead of with codex."
    assert hop_sentence(hop, {}) == says
