"""What became of a call through the gateway can be asked later, without what was said."""

import json
from pathlib import Path

from tests.support.gateway import gate


async def test_a_call_is_explained_and_listed_without_its_words(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.api.behave("one", "429", retry_after_s=3600)
        answer = await g.ask()
        name = answer.headers["x-fallbackd-exchange"]
        told = await g.daemon.client.call("explain", {"delegation": name})
        assert (told["state"], told["requested"], told["served_by"]) == ("succeeded", "one", "two")
        events = [one["event"] for one in told["decisions"]]
        assert events == ["Resolved", "Asked", "Reported", "Asked"]
        failed = told["decisions"][2]
        assert failed["evidence"]["reason"] == "rate_limit"
        verdicts = {one["backend"]: one["verdict"] for one in failed["candidates"]}
        assert verdicts["two"] == "chosen"
        again = await g.ask()
        listed = (await g.daemon.client.call("exchange.list", {"limit": 5}))["exchanges"]
        assert [one["exchange"] for one in listed] == [again.headers["x-fallbackd-exchange"], name]
        assert [one["calls"] for one in listed] == [1, 2]
        assert "say it" not in json.dumps([told, listed])


async def test_a_call_that_fails_or_is_left_is_listed_as_that(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        for name in ("one", "two"):
            g.api.behave(name, "429", retry_after_s=3600)
        assert (await g.ask()).status_code == 429
        assert (await g.ask()).status_code == 503
        await g.daemon.client.call("health", {"action": "clear"})
        g.api.behave("one", "hang_mid")
        async with g.client.stream(
            "POST", g.path(), json=g.body(), headers={"x-api-key": g.token}
        ) as answer:
            async for _ in answer.aiter_raw():
                break
        g.api.behave("one", "ok")
        assert (await g.ask()).status_code == 200
        listed = (await g.daemon.client.call("exchange.list", {}))["exchanges"]
        states = [one["state"] for one in listed]
        assert states == ["succeeded", "cancelled", "failed", "failed"]
