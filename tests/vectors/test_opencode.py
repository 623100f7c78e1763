"""Cases of sessions of opencode servers, decided by the front over an engine."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs
from tests.support.playbook import policy_of
from tests.support.watching import Watching, watching

from fallbackd.api.opencode import periods, status_words
from fallbackd.api.shapes import session_usage
from fallbackd.core.events import Reported
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import REASONS, Policy
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.core.views import health_entry
from fallbackd.engine import callers, feedback
from fallbackd.fronts.opencode.front import notice_of, show

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "opencode.json").read_text("utf-8"))
SESSION = "ses_1"


def policy_for(case: Json) -> Policy:
    said = case.get("policy", {})
    made = policy_of(
        chains=said.get("chains", {}), roles=said.get("roles", {}), **said.get("defaults", {})
    )
    reasons = {
        **REASONS,
        **{
            Reason(name): structs.replace(REASONS[Reason(name)], **knobs)
            for name, knobs in said.get("reasons", {}).items()
        },
    }
    roles = {
        name: structs.replace(
            role,
            fallback_on=frozenset(Reason(one) for one in said["fallback_on"])
            if "fallback_on" in said
            else None,
        )
        for name, role in made.roles.items()
    }
    return structs.replace(
        made, reasons=reasons, roles=roles, served=frozenset(said.get("served", ()))
    )


class Driver:
    """Plays the steps of one case."""

    def __init__(self, w: Watching, logs: list[Any]) -> None:
        self.w = w
        self.logs = logs
        self.t0 = w.clock.now()

    async def step(self, step: Json) -> None:
        word = next(iter(step))
        await getattr(self, {"is": "is_", "pass": "pass_"}.get(word, word))(step[word], step)
        await self.w.rest()

    # --- what happens ----------------------------------------------------------------------

    async def begins(self, message: str, step: Json) -> None:
        more = {"parts": step["parts"]} if "parts" in step else {}
        self.w.server.begins(
            SESSION,
            message,
            step["on"],
            agent=step.get("agent", "build"),
            is_asked=step.get("is_asked", True),
            **more,
        )

    async def retries(self, text: str, step: Json) -> None:
        for attempt in range(1, step.get("times", 1) + 1):
            self.w.server.retries(SESSION, text, attempt=attempt)

    async def late(self, text: str, step: Json) -> None:
        for attempt in range(step["times"]):
            self.w.server.says_retry(SESSION, text, attempt=attempt + 2)
            await self.w.rest()
            self.w.clock.advance(step.get("every_s", 0))

    async def fails(self, status: int | None, step: Json) -> None:
        more = {"responseHeaders": step["headers"]} if "headers" in step else {}
        self.w.server.fails(SESSION, status, step.get("text", "no"), **more)

    async def tool(self, name: str, step: Json) -> None:
        self.w.server.uses_tool(SESSION, name)

    async def answers(self, usage: Json, step: Json) -> None:
        usage = {key: value for key, value in usage.items() if key != "at"} | (
            {"at": self.t0 + usage["at"]} if "at" in usage else {}
        )
        self.w.server.answers_with(SESSION, **usage)

    async def idle(self, _: Any, step: Json) -> None:
        self.w.server.idle(SESSION)

    async def compacted(self, _: Any, step: Json) -> None:
        self.w.server.event("session.compacted", sessionID=SESSION)

    async def deleted(self, _: Any, step: Json) -> None:
        self.w.server.event("session.deleted", info={"id": SESSION})

    async def forgets(self, _: Any, step: Json) -> None:
        """The server has no messages of the session any more."""
        self.w.server.messages[SESSION].clear()

    async def pass_(self, seconds: float, step: Json) -> None:
        self.w.clock.advance(seconds)

    async def until(self, at: float, step: Json) -> None:
        self.w.clock.advance(self.t0 + at - self.w.clock.now())

    async def limited(self, model: str, step: Json) -> None:
        """A client has run into a throttle there."""
        self.w.watched.know((model,))
        headers = {"retry-after": str(step["wait_s"])} if "wait_s" in step else {}
        await callers.report(
            self.w.engine,
            Reported(outcome="failure", backend=BackendId(model)),
            evidence=Evidence(stream="http", http_status=429, headers=headers),
        )

    async def marked(self, model: str, step: Json) -> None:
        self.w.watched.know((model,))
        await feedback.mark(
            self.w.engine, model, reason=step["reason"], ttl_s=step["ttl_s"], note=None
        )

    async def server_answers(self, answers: Mapping[str, int], step: Json) -> None:
        """To calls whose path ends so; to the others as it does."""
        self.w.server.answers = dict(answers)

    async def reverted_to(self, message: str, step: Json) -> None:
        """The revert is done, whatever the call says."""
        self.w.server.sessions[SESSION]["revert"] = {"messageID": message}

    async def redirect(self, model: str, step: Json) -> None:
        found = await self.w.watched.redirect(
            self.w.where(agent=step.get("agent", "build")), model=model
        )
        assert found.model == step["gives"]

    # --- what is seen ----------------------------------------------------------------------

    async def is_(self, said: Json, step: Json) -> None:
        server = self.w.server
        seen: Json = {
            "prompts": len(server.prompts),
            "aborts": server.count("/abort"),
            "reverts": server.count("/revert"),
            "calls": len(server.calls),
            "models": [
                f"{one['model']['providerID']}/{one['model']['modelID']}" for one in server.prompts
            ],
            "agents": [one.get("agent") for one in server.prompts],
            "parts": [one["parts"] for one in server.prompts],
        }
        for key, expected in said.items():
            if key in seen:
                assert seen[key] == expected, key
            else:
                await getattr(self, f"see_{key}")(expected)

    async def see_session(self, expected: Json | None) -> None:
        found = await self.w.watched.session(SESSION)
        if expected is None:
            assert found is None
            return
        assert found is not None
        for key, value in expected.items():
            if key in ("hops", "notices_sent", "rescue"):
                shown = {"hops": found.hops, "notices_sent": found.notices_sent}.get(key)
                assert (found.rescue is not None if shown is None else len(shown)) == value, key
            else:
                assert getattr(found, key) == value, key

    async def see_hop(self, expected: Json) -> None:
        hop = (await self.w.session()).hops[-1]
        seen = {"from": hop.from_backend, "to": hop.to_backend, "trigger": hop.trigger}
        assert {key: seen[key] for key in expected if key != "reason"} == {
            key: value for key, value in expected.items() if key != "reason"
        }
        assert hop.reason in expected.get("reason", [hop.reason])

    async def see_notices(self, expected: Mapping[str, int]) -> None:
        for kind, count in expected.items():
            assert len(self.w.told(kind)) == count, (kind, self.w.notices)

    async def see_notice_says(self, expected: Mapping[str, str]) -> None:
        for kind, words in expected.items():
            # The clock runs on while a busy machine does the steps.
            assert words in self.w.told(kind)[-1].replace("1h 59m", "2h")

    async def see_health(self, expected: Mapping[str, Json]) -> None:
        engine = self.w.engine
        for model, values in expected.items():
            entry = health_entry(
                BackendId(model), engine.snapshot(), engine.settings.policy, now=engine.clock.now()
            )
            for key, value in values.items():
                if key == "window_s":
                    assert entry["until_at"] - entry["since_at"] == value
                else:
                    assert entry[key] == value, (model, key)

    async def see_logged(self, expected: str) -> None:
        assert any(expected in str(one) for one in self.logs), self.logs

    async def see_usage(self, expected: Json) -> None:
        found = session_usage(await self.w.session(), ())
        rows = [one for one in found if one.period == "total"]
        seen = {
            "input_tokens": sum(one.input_tokens for one in rows),
            "output_tokens": sum(one.output_tokens for one in rows),
            "cost_usd": sum(one.cost_usd or 0 for one in rows),
        }
        assert seen == expected

    async def see_periods(self, expected: list[Json]) -> None:
        found = periods(await self.w.session())
        seen = [
            {
                "from": round(one.from_at - self.t0),
                "to": None if one.to_at is None else round(one.to_at - self.t0),
                "input_tokens": one.input_tokens,
                "output_tokens": one.output_tokens,
            }
            for one in found
        ]
        assert seen == expected

    async def see_status(self, expected: Json) -> None:
        session = await self.w.session()
        for verbose, headings in ((False, expected["headings"]), (True, expected["verbose"])):
            text = status_words(
                self.w.engine, SESSION, session, verbose=verbose, warnings=(), unprotected=None
            )
            seen = [one.strip("# ") for one in text.splitlines() if one.startswith("#")]
            assert seen == headings

    async def see_toasts(self, expected: int) -> None:
        told = [n for n in await self.w.engine.store.journal(after_seq=0) if notice_of(n, now=0.0)]
        for one in told:
            notice = notice_of(one, now=0.0)
            assert notice is not None
            await show(self.w.server, "", notice)
        assert len(self.w.server.toasts) == expected


@pytest.mark.parametrize("case", CASES, ids=[f"{one['id']}-{one['area']}" for one in CASES])
async def test_a_session_of_an_opencode_server_fares_as_it_did(case: Json, tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with watching(tmp_path, policy_for(case)) as w:
            driver = Driver(w, logs)
            for step in case["steps"]:
                await driver.step(step)


def test_every_case_has_its_own_id_and_its_own_words() -> None:
    ids = [one["id"] for one in CASES]
    assert len(set(ids)) == len(ids)
    assert all(one["says"] and one["steps"] for one in CASES)
