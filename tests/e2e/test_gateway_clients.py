"""The real clients through the gateway: a backend that fails is answered for by the next one."""

import json
from pathlib import Path

import pytest
from tests.e2e.gateway_scene import API_OF, APIS, CLIENTS, SDKS, gateway_scene


async def test_every_client_gets_the_answer_of_the_first_backend(tmp_path: Path) -> None:
    async with gateway_scene(tmp_path) as s:
        for client in CLIENTS:
            done = await s.run(client)
            assert done.answered, (client, done)
            if client in SDKS:
                assert json.loads(done.out)["end"] in ("stop", "completed", "end_turn")
        for api in APIS:
            assert s.tries(api)[1] == 0


@pytest.mark.parametrize("fault", ["429", "401", "503", "hang", "cut_early"])
async def test_a_first_backend_that_fails_is_met_once_by_all_clients(
    tmp_path: Path, fault: str
) -> None:
    async with gateway_scene(tmp_path) as s:
        s.fail(fault, **({"retry_after_s": 3600} if fault == "429" else {}))
        served = dict.fromkeys(APIS, 0)
        for client in CLIENTS:
            done = await s.run(client)
            assert done.answered, (client, done, s.daemon.log()[-3000:])
            served[API_OF[client]] += 1
        for api, count in served.items():
            first, second = s.tries(api)
            # All are of one host: where the network failed, the first to fail spoke for all.
            assert first <= 1, api
            assert second >= count
        assert any(s.tries(api)[0] for api in APIS)
