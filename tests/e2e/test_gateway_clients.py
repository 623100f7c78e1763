"""The real clients through the gateway: a backend that fails is answered for by the next one."""

import json
from pathlib import Path

import pytest
from tests.e2e.gateway_scene import API_OF, APIS, CLIENTS, SDKS, GatewayScene, gateway_scene
from tests.e2e.sitting import Person
from tests.e2e.tmux import Tmux, tmux_server


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


async def test_keep_alives_before_an_answer_disturb_no_client(tmp_path: Path) -> None:
    async with gateway_scene(tmp_path, hold="whole", gateway="keepalive_s = 1") as s:
        s.fail("slow", pause_s=0.8)
        for client in CLIENTS:
            done = await s.run(client)
            assert done.answered, (client, done)
        for api in APIS:
            assert s.tries(api)[1] == 0


class Through(Person):
    """Before claude, which is pointed at the gateway."""

    def __init__(self, s: GatewayScene, tmux: Tmux) -> None:
        super().__init__(s, tmux, "claude")
        self._token = s.token

    @property
    def env(self) -> dict[str, str]:
        env = {**super().env, "ANTHROPIC_AUTH_TOKEN": self._token}
        del env["CLAUDE_CODE_OAUTH_TOKEN"]
        return env


async def test_a_person_in_claude_goes_on_while_the_first_backend_fails_between_two_tools(
    tmp_path: Path,
) -> None:
    async with gateway_scene(tmp_path) as s:
        with tmux_server() as tmux:
            person = Through(s, tmux)
            await person.start("--allowedTools", "Bash")
            first = "echo first >> tools"
            s.provider.behave("one-messages", "tool", command=first, until=first, then="503")
            second = "echo second >> tools"
            s.provider.behave("two-messages", "tool", command=second, each_turn=True)
            await person.says("use your tools", then="PONG-OK")
            assert (s.home.work / "tools").read_text().split() == ["first", "second"]
            failed = s.provider.first_failure("one-messages")
            assert failed is not None
            tried = s.tries("messages")[0]
            s.provider.behave("two-messages", "ok", text="THE-NEXT-TURN")
            await person.says("and now", then="THE-NEXT-TURN")
            s.provider.behave("two-messages", "ok", text="ONE-MORE-TURN")
            await person.says("and then", then="ONE-MORE-TURN")
            assert s.tries("messages")[0] == tried
            shown = tmux.shown(person.window)
            assert "API Error" not in shown
            assert "overloaded" not in shown.lower()
