"""One prompt to the scripted provider: the real kind, the real transport, the real judgement."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct, structs
from tests.support.clock import ManualClock
from tests.support.provider import Provider

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import (
    CredentialRef,
    Evidence,
    Exit,
    GivenUp,
    HttpRequest,
    Observation,
    Outcome,
    ProviderAnswered,
    Reply,
    Work,
)
from fallbackd.transports.http.transport import HttpTransport

LIMIT_S = 60.0
"""Only a hang takes this long."""

KEY = CredentialRef(label="work", source="env", name="MY_KEY")
SECRET = "sk-test-0123456789abcdef"
DIALECTS = {
    "chat": ("openai-http", "/v1", "chat_completions"),
    "responses": ("openai-http", "/v1", "responses"),
    "anthropic": ("anthropic-http", "", "messages"),
    "google": ("google-http", "/v1beta", "generate_content"),
}
"""How the provider's dialects are asked for: kind, end of the base URL, mode."""


class Asked(Struct, frozen=True, kw_only=True):
    outcome: Outcome
    exit: Exit
    seen: tuple[Observation, ...]
    kind: str

    @property
    def answer(self) -> str:
        assert isinstance(self.outcome, Reply), self.outcome
        return self.outcome.text

    @property
    def failure(self) -> Failure:
        assert isinstance(self.outcome, Evidence), self.outcome
        found = classify(self.outcome, KINDS[self.kind].rules, now=0.0)
        assert found is not None
        return found

    @property
    def has_given_up(self) -> bool:
        return any(isinstance(one, GivenUp) for one in self.seen)

    @property
    def answers(self) -> int:
        return sum(isinstance(one, ProviderAnswered) for one in self.seen)


async def ask(
    p: Provider | None,
    place: Path,
    dialect: str = "chat",
    *,
    work: Mapping[str, Any] = {},
    environ: Mapping[str, str] = {"MY_KEY": SECRET},
    call: Mapping[str, Any] = {},
    stop_after: int | None = None,
    stop_when: Callable[[], Awaitable[object]] | None = None,
    **options: Any,
) -> Asked:
    """
    Ask the route `api`.

    Args:
        p: None: `base_url` is another server.
        call: Fields of the request to replace (`read_timeout_s`, `max_bytes`).
        stop_after: So many pieces of the body; for answers that never end.
        stop_when: What is waited for before it is stopped, whatever has come by then.
    """
    kind_name, suffix, mode = DIALECTS[dialect]
    kind = KINDS[kind_name]
    chosen = Options(
        **{"base_url": p and p.url("api") + suffix, "api_mode": mode, "model": "m1", **options}
    )
    fields: dict[str, Any] = {
        "prompt": "say pong",
        "prompt_path": "/p",
        "cwd": "/c",
        "scratch": str(place),
        "credential": KEY,
    }
    request = kind.start(Work(**{**fields, **work}), chosen)
    assert isinstance(request, HttpRequest)
    transport = HttpTransport(clock=ManualClock(), environ=environ, farewell_s=0.1)
    parser = kind.parser(chosen)
    seen: list[Observation] = []
    pieces = 0
    try:
        with anyio.fail_after(LIMIT_S):
            running = await transport.open(
                structs.replace(request, **call), attempt="d1.1", directory=str(place), env={}
            )
            async with anyio.create_task_group() as tasks:
                if stop_when is not None:

                    async def stop() -> None:
                        await stop_when()
                        running.stop(grace_s=0)

                    tasks.start_soon(stop)
                async for chunk in running.chunks():
                    seen.extend(parser.feed(chunk))
                    pieces += 1
                    if pieces == stop_after:
                        running.stop(grace_s=0)
    finally:
        await transport.aclose()
    outcome = parser.finish(running.exit)
    return Asked(outcome=outcome, exit=running.exit, seen=tuple(seen), kind=kind_name)
