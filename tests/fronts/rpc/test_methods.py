"""Each method over a scripted engine: what is asked of it, and the shape that comes back."""

from typing import Any

import msgspec
import pytest
from tests.support.engine import NOW, delegation
from tests.support.front import Front, front

from fallbackd.config.fields import Problem
from fallbackd.core.authority import Authority
from fallbackd.core.callers.lease import Resolution
from fallbackd.core.decision import Decision, PutHealth
from fallbackd.core.events import HealthCleared, HealthMarked, HealthPaused, HealthResumed, Reported
from fallbackd.core.failures import make_failure
from fallbackd.core.health import Health, Outage
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, ScopeId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Hop, Keys, Verdict
from fallbackd_client.wire.methods import METHODS


async def result(served: Front, method: str, /, **params: Any) -> Any:
    async with served.peer() as peer:
        found = await peer.call(method, **params)
        assert "error" not in found, found
        return found["result"]


async def error(served: Front, method: str, /, **params: Any) -> Any:
    async with served.peer() as peer:
        return (await peer.call(method, **params))["error"]


# --- delegate ----------------------------------------------------------------------------------


async def test_delegate_hands_its_params_on_and_returns_what_was_accepted() -> None:
    async with front() as served:
        served.host.authority = Authority(who="attempt", inside=(DelegationId("d0"),))
        found = await result(
            served,
            "delegate",
            prompt="do it",
            platform="codex",
            session_id="s1",
            chain=["codex", {"backend": "gemini", "tier": "api", "model": "m"}],
            wait="accepted",
            timeout_s=9,
            request_id="r1",
            env={"A": "b"},
            metadata={"k": [1]},
            parent="d9",
        )
        assert (found["delegation"], found["state"]) == ("d1", "running")
        (work,) = served.engine.works
        assert (work.prompt, work.backend, work.session) == ("do it", "codex", "s1")
        assert work.chain == (
            Entry(backend=BackendId("codex")),
            Entry(backend=BackendId("gemini"), model="m", tier="api"),
        )
        assert (work.timeout_s, work.request_id) == (9, "r1")
        assert work.parent is None, "its own word is not taken"
        assert served.engine.authorities == [served.host.authority]
        assert (work.env, work.metadata) == ({"A": "b"}, {"k": [1]})
        assert served.engine.calls == []


async def test_mode_and_waiting_are_handed_on_as_they_were_said() -> None:
    async with front() as served:
        served.engine.ended.set()
        await result(served, "delegate", prompt="x")
        await result(
            served, "delegate", prompt="x", wait="accepted", queue=False, mode="interactive"
        )
        first, second = served.engine.works
        assert (first.mode, first.wait, first.queue) == (None, "settled", True)
        assert (second.mode, second.wait, second.queue) == ("interactive", "accepted", False)


async def test_settled_returns_unfinished_work_after_the_settle_time() -> None:
    async with front() as served:
        found = await result(served, "delegate", prompt="x", settle_s=0)
        assert found["state"] == "running"
        assert served.engine.calls == [("wait", ("settled", 0))]


async def test_settled_uses_the_configured_time_where_none_is_given() -> None:
    async with front() as served:
        served.engine.ended.set()
        await result(served, "delegate", prompt="x")
        assert served.engine.calls == [("wait", ("settled", 5.0))]


@pytest.mark.parametrize("wait", ["settled", "finished"])
async def test_a_wait_that_is_over_is_a_result_and_an_error_where_that_is_wanted(
    wait: str,
) -> None:
    async with front() as served:
        shown = await result(served, "delegate", prompt="x", wait=wait, wait_s=0)
        assert (shown["state"], shown["wait_over"]) == ("running", True)
        found = await error(served, "delegate", prompt="x", wait=wait, wait_s=0, strict_wait=True)
        assert found["code"] == -32007
        assert found["data"] == {"kind": "wait_over", "delegation": "d2", "state": "running"}
        assert (await result(served, "delegation.get", delegation="d1"))["state"] == "running"


async def test_consent_and_the_author_reach_the_engine() -> None:
    async with front() as served:
        found = await result(
            served,
            "delegate",
            prompt="x",
            wait="accepted",
            differs_from=["claude"],
            allow_metered=True,
        )
        assert found["warnings"] == []
        [work] = served.engine.works
        assert (work.differs_from, work.allow_metered) == (("claude",), True)


def fallen() -> Any:
    failure = make_failure(Reason.RATE_LIMIT, now=NOW, reset_s=60, signature="x/y")
    return delegation(
        "d1",
        state="succeeded",
        active=BackendId("opencode"),
        served_by=BackendId("opencode"),
        tier_served="api",
        attempts=(
            Attempt(
                attempt=AttemptId("d1.1"),
                backend=BackendId("codex"),
                tier="primary",
                state="failed",
                started_at=NOW,
                failure=failure,
                exit_code=75,
                log_path="/runs/d1/1/output.log",
            ),
            Attempt(
                attempt=AttemptId("d1.2"),
                backend=BackendId("opencode"),
                state="succeeded",
                started_at=NOW,
                log_path="/runs/d1/2/output.log",
            ),
            Attempt(
                attempt=AttemptId("d1.3"),
                backend=BackendId("opencode"),
                tier="api",
                state="succeeded",
                started_at=NOW,
            ),
        ),
        hops=(
            Hop(
                at=NOW,
                from_backend=BackendId("codex"),
                to_backend=BackendId("opencode"),
                trigger="reactive",
                reason="rate_limit",
                evidence="too many",
            ),
        ),
        verdicts=(
            Verdict(backend=BackendId("codex"), verdict="rate_limited", state="rate_limited"),
            Verdict(backend=BackendId("opencode"), verdict="chosen"),
        ),
        usage=Usage(input_tokens=5, output_tokens=7, cost_usd=0.5),
    )


async def test_a_delegation_that_fell_back_has_every_field_of_its_story() -> None:
    async with front() as served:
        served.engine.found["d1"] = fallen()
        served.engine.answers["d1"] = "the answer"
        found = await result(served, "delegation.get", delegation="d1")
    assert found["text"] == "the answer"
    assert found["requested"] == found["requested_platform"] == found["fallback_from"] == "codex"
    assert found["active"] == found["active_platform"] == found["served_by"] == "opencode"
    assert found["fallback_reason"].startswith("rate_limit")
    assert found["tiers_attempted"] == ["primary", "api"]
    assert found["log_path"] == "/runs/d1/2/output.log"
    assert [one["attempt"] for one in found["attempts"]] == ["d1.1", "d1.2", "d1.3"]
    assert found["attempts"][0]["failure"]["stated_reset_s"] == 60
    (hop,) = found["hops"]
    assert (hop["from"], hop["to"], hop["trigger"], hop["evidence"]) == (
        "codex",
        "opencode",
        "reactive",
        "too many",
    )
    assert [one["verdict"] for one in found["candidates"]] == ["rate_limited", "chosen"]
    assert found["usage"] == {"input_tokens": 5, "output_tokens": 7, "cost_usd": 0.5}
    for name in ("question", "handed_back", "tmux_window", "retry_at", "failure", "role"):
        assert found[name] is None


async def test_a_delegation_without_a_hop_says_so_by_nulls() -> None:
    async with front() as served:
        served.engine.found["d1"] = delegation("d1")
        found = await result(served, "delegation.get", delegation="d1")
    assert found["fallback_from"] is None
    assert found["fallback_reason"] is None
    assert found["served_by"] is None
    assert found["hops"] == found["attempts"] == []


async def test_waiting_for_a_delegation() -> None:
    async with front() as served:
        served.engine.found["d1"] = delegation("d1")
        late = await result(served, "delegation.wait", delegation="d1", timeout_s=0)
        assert (late["state"], late["wait_over"]) == ("running", True)
        strict = {"delegation": "d1", "timeout_s": 0, "strict_wait": True}
        assert (await error(served, "delegation.wait", **strict))["code"] == -32007
        served.engine.end("d1", state="succeeded", text="done")
        found = await result(served, "delegation.wait", delegation="d1")
        assert (found["text"], found["wait_over"]) == ("done", False)


async def test_an_unknown_delegation_is_an_error() -> None:
    async with front() as served:
        for method in ("delegation.get", "delegation.wait", "delegation.cancel", "explain"):
            assert (await error(served, method, delegation="dx"))["code"] == -32001


async def test_the_log_is_read_in_pieces() -> None:
    async with front() as served:
        found = await result(served, "delegation.log", delegation="d1", attempt="2", offset=1)
        assert (found["text"], found["next_offset"], found["ended"]) == ("bc", 3, True)
        assert served.engine.calls == [("log", ("2", 1, 65_536))]


# --- health ------------------------------------------------------------------------------------


async def broken(served: Front, backend: str) -> None:
    outage = Outage(
        state="broken",
        reason=Reason.MANUAL,
        detail="mine",
        since_at=NOW - 100,
        until_at=NOW + 500,
        source="person",
        last_failure_at=NOW - 100,
    )
    record = Health(scope=ScopeId(f"backend:{backend}"), outage=outage)
    await served.engine.store.transact(Keys(), lambda _: Decision(changes=(PutHealth(record),)))


async def test_health_lists_every_backend_in_order_or_the_unhealthy_ones() -> None:
    async with front() as served:
        await broken(served, "opencode")
        found = (await result(served, "health"))["health"]
        assert list(found) == ["codex", "opencode", "gemini"]
        one = found["opencode"]
        assert (one["state"], one["reason"], one["detail"]) == ("broken", "manual", "mine")
        assert one["marked_broken_at"] == one["since_at"] == NOW - 100
        assert (one["ttl_seconds"], one["seconds_remaining"]) == (600, 500)
        assert one["scopes"][0]["scope"] == "backend:opencode"
        found = (await result(served, "health", only="unhealthy"))["health"]
        assert list(found) == ["opencode"]


async def test_health_actions_reach_the_engine_under_old_and_new_names() -> None:
    async with front() as served:
        events = served.engine.events
        marked = await result(
            served, "health", action="mark", platform="codex", reason="r", ttl=5, note="n"
        )
        assert list(marked["health"]) == ["codex"]
        assert events.pop() == HealthMarked(target="codex", reason="r", ttl_s=5, note="n")
        cleared = await result(served, "health", action="mark", target="codex", ttl_seconds=0)
        assert cleared["cleared"] == ["codex"]
        assert cleared["health"]["codex"]["state"] == "healthy"
        assert events.pop() == HealthCleared(target="codex")
        assert await result(served, "health", action="clear") == {"cleared": ["codex"]}
        assert events.pop() == HealthCleared(target=None)
        await result(served, "health", action="pause", target="codex", note="n")
        assert events.pop() == HealthPaused(target="codex", note="n")
        await result(served, "health", action="resume", target="codex")
        assert events.pop() == HealthResumed(target="codex")


async def test_health_of_what_nobody_knows_is_an_error() -> None:
    async with front() as served:
        found = await error(served, "health", action="get", target="nope")
        assert found["code"] == -32001
        assert "codex" in found["message"]
        assert (await error(served, "health", action="mark"))["code"] == -32602


# --- callers that talk to providers themselves -------------------------------------------------


async def test_resolve_with_nobody_is_refused_with_the_time_and_the_verdicts() -> None:
    async with front() as served:
        served.engine.resolution = Resolution(
            backend=None,
            retry_at=NOW + 300,
            candidates=(Verdict(backend=BackendId("codex"), verdict="broken", until_at=NOW + 300),),
        )
        found = await error(served, "resolve", backend="codex")
    assert found["code"] == -32003
    assert found["data"]["retry_at"] == NOW + 300
    assert found["data"]["candidates"][0]["verdict"] == "broken"


async def test_resolve_says_a_lease_only_where_one_was_asked_for() -> None:
    async with front() as served:
        served.engine.resolution = Resolution(backend="codex", trigger="preemptive")
        found = await result(served, "resolve", backend="codex")
        assert (found["backend"], found["trigger"]) == ("codex", "preemptive")
        assert "lease" not in found
        assert (await result(served, "resolve", lease=True))["lease"] is None
        served.engine.resolution = Resolution(
            backend="codex", lease_id="l1", lease_generation=3, lease_expires_at=NOW
        )
        found = await result(served, "resolve", lease=True)
        assert found["lease"] == {
            "id": "l1",
            "generation": 3,
            "expires_at": NOW,
            "owner": None,
        }


async def test_a_report_takes_the_lease_as_resolve_gave_it() -> None:
    async with front() as served:
        served.engine.resolution = Resolution(
            backend="codex", lease_id="l1", lease_generation=3, lease_expires_at=NOW
        )
        lease = (await result(served, "resolve", lease=True))["lease"]
        for given in (lease, lease["id"]):
            await result(served, "report", backend="codex", outcome="released", lease=given)
        bare = await error(
            served, "report", backend="codex", outcome="released", lease={"generation": 3}
        )
        told = [one.lease for one in served.engine.events if isinstance(one, Reported)]
    assert told == ["l1", "l1"]
    assert bare["code"] == -32602


async def test_a_report_is_handed_on_and_answered_with_health() -> None:
    async with front() as served:
        found = await result(
            served,
            "report",
            platform="codex",
            outcome="failure",
            lease="l1",
            evidence={"http_status": 429, "headers": {"Retry-After": "5"}},
            usage={"input_tokens": 3},
        )
        [told] = served.engine.events
    assert list(found["health"]) == ["codex"]
    assert found["failure"] is None
    assert found["next"] is None
    assert isinstance(told, Reported)
    assert (told.backend, told.lease) == ("codex", "l1")
    assert told.failure is not None
    assert (told.failure.reason, told.failure.stated_reset_s) == (Reason.RATE_LIMIT, 5)
    assert told.usage == Usage(input_tokens=3)


THROTTLED = {"text": "Error: rate limit exceeded, retry after 20 seconds", "stream": "stderr"}


async def test_classify_returns_a_failure() -> None:
    async with front() as served:
        found = await result(served, "classify", evidence=THROTTLED)
    assert (found["reason"], found["stated_reset_s"]) == ("rate_limit", 20)


# --- the daemon --------------------------------------------------------------------------------


async def test_status_has_the_daemon_health_sessions_and_counts() -> None:
    async with front() as served:
        found = await result(served, "status")
    assert found["daemon"]["version"] == "9.9"
    assert found["daemon"]["uptime_s"] == 60
    assert found["daemon"]["config_errors"] == []
    assert list(found["health"]) == ["codex", "opencode", "gemini"]
    assert found["sessions"][0]["session"] == "s1"
    assert found["delegations"]["running"] == 0
    assert found["questions"] == []
    assert found["session"] is None


async def test_status_of_a_session_is_that_session() -> None:
    async with front() as served:
        found = await result(served, "status", session="s1", verbose=True)
        assert (found["session"]["original"], found["session"]["current"]) == (
            "codex",
            "opencode",
        )
        assert found["usage"] == []
        assert (await error(served, "status", session="nope"))["code"] == -32001


async def test_sessions() -> None:
    async with front() as served:
        assert (await result(served, "session.get", session="s1"))["original"] == "codex"
        assert len((await result(served, "session.list"))["sessions"]) == 1
        ended = await result(served, "session.end", session="s1")
        assert ended == {"session": "s1", "ended": True}
        assert (await error(served, "session.end", session="other"))["code"] == -32001
        assert (await result(served, "session.compacted", session="s1"))["session"] == "s1"


async def test_configuration() -> None:
    async with front() as served:
        assert (await result(served, "config.get"))["path"] == "/config.toml"
        assert (await result(served, "config.reload"))["changed"] is True
        assert (await result(served, "config.check"))["ok"] is True
        found = await result(served, "config.check", text="bad")
        assert (found["ok"], found["errors"]) == (False, [{"path": "", "message": "no TOML"}])


async def test_a_bad_configuration_is_an_error_with_its_places() -> None:
    async with front() as served:
        served.host.state = msgspec.structs.replace(
            served.host.state, errors=(Problem(path="chains", message="wrong"),)
        )
        found = await error(served, "config.reload")
    assert found["code"] == -32006
    assert found["data"]["errors"] == [{"path": "chains", "message": "wrong"}]


async def test_drain_and_shutdown() -> None:
    async with front() as served:
        drained = {"state": "draining", "running": 0, "waits_for": [], "calls": 0, "later": 0}
        assert await result(served, "daemon.drain") == drained
        assert (await result(served, "daemon.ping"))["state"] == "draining"
        assert await result(served, "daemon.undrain") == {"state": "running"}
        assert (await result(served, "daemon.ping"))["state"] == "running"
        await result(served, "daemon.shutdown", stop_work=True)
        assert served.host.told == ["shutdown True"]


async def test_suggest_and_usage_answer_without_any_history() -> None:
    async with front() as served:
        found = await result(served, "suggest", goal="g")
        assert (found["suggestion"], found["eta_s"], found["eta_display"]) == ("codex", 300, "5m")
        assert await result(served, "usage") == {"usage": [], "warnings": []}


async def test_the_contract_describes_itself() -> None:
    async with front() as served:
        found = await result(served, "rpc.discover")
    assert found["openrpc"].startswith("1.3.")
    assert [one["name"] for one in found["methods"]] == [one.name for one in METHODS]
    delegate = next(one for one in found["methods"] if one["name"] == "delegate")
    assert delegate["params"][0]["name"] == "prompt"
    assert delegate["params"][0]["required"]
    schemas = found["components"]["schemas"]
    for reference in references(found):
        kind, _, name = reference.removeprefix("#/components/").partition("/")
        assert name in found["components"][kind]
    assert "Event" in schemas
    assert delegate["result"]["schema"] == {"$ref": "#/components/schemas/Delegation"}


def references(value: Any) -> set[str]:
    match value:
        case dict():
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(one) for one in value.values()))
        case list():
            return set().union(*(references(one) for one in value))
    return set()


async def test_answers_of_every_reading_method_fit_the_types_that_are_promised() -> None:
    params = {
        "delegation.get": {"delegation": "d1"},
        "delegation.wait": {"delegation": "d1"},
        "delegation.log": {"delegation": "d1"},
        "explain": {"delegation": "d1"},
        "session.get": {"session": "s1"},
        "suggest": {"goal": "g"},
        "classify": {"evidence": {}},
        "classification.explain": {"evidence": {}},
    }
    async with front() as served:
        served.engine.found["d1"] = fallen()
        served.engine.ended.set()
        for method in METHODS:
            if method.read_only:
                found = await result(served, method.name, **params.get(method.name, {}))
                msgspec.convert(found, method.result, strict=True)


async def test_status_says_what_to_do_with_a_damaged_file_as_long_as_it_lies_there() -> None:
    async with front() as served:
        assert (await result(served, "status"))["daemon"]["store"] == "memory"
        served.engine.store.set_aside = (
            "/s/fallbackd.db.corrupt-1",
            "/s/fallbackd.db: sessions s1",
        )
        store = (await result(served, "status"))["daemon"]["store"]
    assert "; damaged file set aside as /s/fallbackd.db.corrupt-1" in store
    assert "; damaged record set aside as /s/fallbackd.db: sessions s1" in store
    assert store.endswith("remove it when nothing of it is needed any more")


@pytest.mark.parametrize(
    ("method", "field", "meant"),
    [
        ("delegate", "bakend", "backend"),
        ("delegate", "timout_s", "timeout_s"),
        ("events.subscribe", "kind", "kinds"),
    ],
)
async def test_a_misspelt_parameter_is_refused_by_the_name_that_was_meant(
    method: str, field: str, meant: str
) -> None:
    async with front() as served:
        found = await error(served, method, prompt="x", **{field: "y"})
        assert found["code"] == -32602
        assert f"did you mean `{meant}`" in found["message"]
        assert served.engine.works == []


async def test_a_parameter_of_a_later_version_is_ignored_with_a_warning() -> None:
    async with front() as served:
        served.engine.ended.set()
        found = await result(served, "delegate", prompt="x", colour="green")
        assert "`colour`" in found["warning"]


@pytest.mark.parametrize(
    ("kind", "says"), [("delegation.endet", "delegation.ended"), ("x", "known are: ")]
)
async def test_an_unknown_kind_of_event_is_refused(kind: str, says: str) -> None:
    async with front() as served:
        found = await error(served, "events.subscribe", kinds=[kind])
        assert found["code"] == -32602
        assert says in found["message"]
