"""Which scopes a candidate touches, and which one a failure is about."""

import pytest
from tests.core.test_health import failed
from tests.support.playbook import T0, fail

from fallbackd.core.failures import Failure
from fallbackd.core.health import Health
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.scopes import failed_scope, is_scope_of, own_health, scopes_of, touched


def backend(**more: object) -> Backend:
    return Backend(id=BackendId("svc"), kind="openai-http", **more)  # type: ignore[arg-type]


RICH = backend(model="m", provider="api.example", quota="plan", credentials=("k1", "k10"))


def test_a_candidate_touches_backend_model_credential_quota_and_provider() -> None:
    assert scopes_of(RICH, "m", "k1") == (
        "backend:svc",
        "model:svc/m",
        "credential:api.example/k1",
        "credential:api.example/k1+model:m",
        "quota:plan",
        "provider:api.example",
    )
    assert scopes_of(backend(), None, None) == ("backend:svc", "model:svc/default")


@pytest.mark.parametrize(
    ("reason", "rich", "bare"),
    [
        (Reason.RATE_LIMIT, "credential:api.example/k1+model:m", "backend:svc"),
        (Reason.USAGE_LIMIT, "quota:plan", "backend:svc"),
        (Reason.OVERLOADED, "model:svc/m", "backend:svc"),
        (Reason.SERVER_ERROR, "backend:svc", "backend:svc"),
        (Reason.NETWORK, "provider:api.example", "backend:svc"),
        (Reason.TIMEOUT, "backend:svc", "backend:svc"),
        (Reason.CRASH, "backend:svc", "backend:svc"),
        (Reason.EMPTY_RESULT, "backend:svc", "backend:svc"),
        (Reason.BILLING, "credential:api.example/k1", "backend:svc"),
        (Reason.AUTH, "credential:api.example/k1", "backend:svc"),
        (Reason.NOT_INSTALLED, "backend:svc", "backend:svc"),
        (Reason.MODEL_NOT_FOUND, "model:svc/m", "backend:svc"),
        (Reason.MANUAL, "backend:svc", "backend:svc"),
    ],
)
def test_the_default_scope_of_a_reason(reason: Reason, rich: str, bare: str) -> None:
    assert failed_scope(fail(reason), RICH, "m", "k1") == rich
    assert failed_scope(fail(reason), backend(), None, None) == bare


@pytest.mark.parametrize(
    ("model", "credential", "scope"),
    [
        (None, "k1", "credential:svc/k1"),
        ("m", None, "backend:svc"),
        ("m", "k1", "credential:svc/k1+model:m"),
    ],
)
def test_a_throttle_is_about_the_credential_with_the_model(
    model: str | None, credential: str | None, scope: str
) -> None:
    assert failed_scope(fail(Reason.RATE_LIMIT), backend(), model, credential) == scope


def test_a_usage_limit_without_a_quota_group_is_about_the_credential() -> None:
    assert failed_scope(fail(Reason.USAGE_LIMIT), backend(), "m", "k1") == "credential:svc/k1"


@pytest.mark.parametrize("reason", [Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.BILLING])
@pytest.mark.parametrize(
    ("named", "rich", "agent", "bare"),
    [
        ("model", "credential:api.example/k1+model:m", "model:svc/opus", "model:svc/default"),
        ("credential", "credential:api.example/k1", "backend:svc", "backend:svc"),
    ],
)
def test_a_limit_closes_what_it_names(
    reason: Reason, named: str, rich: str, agent: str, bare: str
) -> None:
    limit = fail(reason, scope=named)
    assert failed_scope(limit, RICH, "m", "k1") == rich
    assert failed_scope(limit, backend(), "opus", None) == agent
    assert failed_scope(limit, backend(), None, None) == bare
    assert bare in scopes_of(backend(), None, None)


def test_a_limit_of_a_model_without_a_name_is_that_of_the_account_that_programs_share() -> None:
    limit = fail(Reason.USAGE_LIMIT, scope="model")
    assert failed_scope(limit, backend(quota="google"), None, None) == "quota:google"
    assert failed_scope(limit, backend(quota="google"), "pro", None) == "model:svc/pro"


def test_a_scope_that_a_failure_names_wins() -> None:
    named: Failure = fail(Reason.RATE_LIMIT, scope="provider:x")
    assert failed_scope(named, RICH, "m", "k1") == "provider:x"


def test_touched_scopes_are_those_on_record_of_any_model_and_credential() -> None:
    names = [
        "model:svc/other",
        "credential:api.example/k1+model:z",
        "credential:api.example/k10",
        "credential:api.example/k100",
        "model:svc2/m",
        "backend:svc2",
    ]
    health = {ScopeId(one): Health(scope=ScopeId(one)) for one in names}
    assert set(touched(RICH, health)) == {
        "backend:svc",
        "quota:plan",
        "provider:api.example",
        "model:svc/other",
        "credential:api.example/k1+model:z",
        "credential:api.example/k10",
    }


def test_scopes_that_are_not_on_record_belong_to_a_backend_too() -> None:
    for name in ("model:svc/any", "credential:api.example/k1", "quota:plan", "backend:svc"):
        assert is_scope_of(RICH, ScopeId(name))
    for name in ("model:other/m", "credential:api.example/k2", "quota:x"):
        assert not is_scope_of(RICH, ScopeId(name))


def test_of_several_credentials_the_best_one_counts() -> None:
    out = failed(None, fail(Reason.RATE_LIMIT), at=0)
    health = {ScopeId("credential:api.example/k1"): out}
    assert own_health(RICH, health, now=T0 + 1)[0].state == "healthy"
    health[ScopeId("credential:api.example/k10")] = out
    assert own_health(RICH, health, now=T0 + 1)[0].state == "rate_limited"


def test_a_mark_on_another_model_leaves_the_backend_healthy() -> None:
    health = {ScopeId("model:svc/other"): failed(None, fail(Reason.OVERLOADED), at=0)}
    assert own_health(RICH, health, now=T0 + 1)[0].state == "healthy"
