"""
Calls of an agent framework to its providers, guarded by fallbackd. Blocking and async.

The framework keeps its own HTTP, streaming and keys. Before a call it asks who is usable
(`resolve`), after it it says what it saw (`report`), and the answer to a report is the next
candidate: the same once more, another credential, or another backend. What one process reports
protects all the others at once, and after an outage one of them tries while the rest go elsewhere.

    with Client() as client:
        answer = call(client, send, role="build", owner="my-framework")

`send` gets a `Candidate` and makes one call, without retries of its own.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fallbackd_client import RpcError
from fallbackd_client.aio import AsyncClient
from fallbackd_client.client import Client

REFUSED = -32003
MAX_CALLS = 8
"""For one question, all candidates and credentials together."""
AGAIN = ("role", "chain", "prompt_tokens", "allow_metered", "differs_from")
"""What was asked of `resolve`: the next candidate is found by the same."""


@dataclass(frozen=True)
class Candidate:
    """Who makes the call."""

    backend: str
    model: str | None = None
    credential: str | None = None
    """The label. Which key that is, the framework knows by itself."""
    position: int | None = None
    """Its place in the chain; 0 is the first choice."""
    lease: str | None = None
    """Held while this is the one trial after an outage."""
    turn: str | None = None
    """What was asked and what failed before, in the daemon's words: bounds hold over all calls."""


@dataclass(frozen=True)
class Answer:
    """What a provider said."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: tuple[int, int] = (0, 0)
    """Input and output."""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class NobodyLeft(Exception):
    """No candidate can be used now. `retry_at` is Unix seconds, where a time is known."""

    def __init__(self, retry_at: float | None, verdicts: list[dict[str, Any]]) -> None:
        reasons = ", ".join(f"{one['backend']}: {one['verdict']}" for one in verdicts)
        super().__init__(f"no backend is available now ({reasons})")
        self.retry_at = retry_at


def call(
    client: Client, send: Callable[[Candidate], Answer], *, owner: str, **wanted: Any
) -> Answer:
    """
    One question, answered by the first candidate that can.

    Args:
        wanted: Parameters of `resolve`: `role`, `backend`, `chain`, `session`, `prompt_tokens`,
            `allow_metered`, `differs_from`.

    Raises:
        NobodyLeft: All are out, or have failed for this question.
    """
    question = _Question(owner, wanted)
    try:
        told = client.call("resolve", question.first())
    except RpcError as error:
        raise _refused(error) from error
    for _ in range(MAX_CALLS):
        candidate = question.candidate(told)
        question.began()
        answer = problem = None
        try:
            answer = send(candidate)
        except OSError as error:  # refused, reset, timed out, no such host
            problem = error
        except BaseException:
            client.call("report", question.given_back(candidate))
            raise
        told = client.call("report", question.seen(candidate, answer, problem))
        if answer is not None and answer.is_good:
            return answer
        if told.get("next") is None and told.get("ignored"):
            try:
                told = client.call("resolve", question.first())
            except RpcError as error:
                raise _refused(error) from error
        elif told.get("next") is None:
            raise NobodyLeft(told.get("retry_at"), told.get("candidates", []))
    raise NobodyLeft(None, [])


async def call_async(
    client: AsyncClient,
    send: Callable[[Candidate], Awaitable[Answer]],
    *,
    owner: str,
    **wanted: Any,
) -> Answer:
    """The same as `call`, for a framework with an event loop."""
    question = _Question(owner, wanted)
    try:
        told = await client.call("resolve", question.first())
    except RpcError as error:
        raise _refused(error) from error
    for _ in range(MAX_CALLS):
        candidate = question.candidate(told)
        question.began()
        answer = problem = None
        try:
            answer = await send(candidate)
        except OSError as error:
            problem = error
        except Exception:
            # A cancelled call cannot speak any more: its lease runs out by itself.
            await client.call("report", question.given_back(candidate))
            raise
        told = await client.call("report", question.seen(candidate, answer, problem))
        if answer is not None and answer.is_good:
            return answer
        if told.get("next") is None and told.get("ignored"):
            try:
                told = await client.call("resolve", question.first())
            except RpcError as error:
                raise _refused(error) from error
        elif told.get("next") is None:
            raise NobodyLeft(told.get("retry_at"), told.get("candidates", []))
    raise NobodyLeft(None, [])


class _Question:
    """What is said to the daemon about one question. Knows no socket, so both loops share it."""

    def __init__(self, owner: str, wanted: Mapping[str, Any]) -> None:
        self._owner = owner
        self._wanted = dict(wanted)
        self._began_at = 0.0
        self._attempt = ""

    def first(self) -> dict[str, Any]:
        return {**self._wanted, "lease": True, "owner": self._owner}

    def began(self) -> None:
        self._began_at = time.time()
        self._attempt = f"call-{uuid.uuid4().hex}"

    def candidate(self, told: Mapping[str, Any]) -> Candidate:
        """From the answer of `resolve`, or of a `report` with its `next`."""
        named = told.get("next") or told
        lease = told.get("lease")
        return Candidate(
            backend=named["backend"],
            model=named.get("model"),
            credential=named.get("credential"),
            position=told.get("position"),
            lease=None if lease is None else lease["id"],
            turn=told.get("turn"),
        )

    def seen(
        self, candidate: Candidate, answer: Answer | None, problem: OSError | None
    ) -> dict[str, Any]:
        said = self._about(candidate)
        if answer is not None and answer.is_good:
            tokens_in, tokens_out = answer.tokens
            usage = {"input_tokens": tokens_in, "output_tokens": tokens_out}
            return {**said, "outcome": "success", "usage": usage}
        if answer is not None:
            evidence: dict[str, Any] = {
                "http_status": answer.status,
                "headers": dict(answer.headers),
                "body": answer.body,
            }
        else:
            evidence = {"exception": type(problem).__name__, "text": str(problem)}
        said |= {name: self._wanted[name] for name in AGAIN if name in self._wanted}
        return {**said, "outcome": "failure", "evidence": evidence, "next_lease": True}

    def given_back(self, candidate: Candidate) -> dict[str, Any]:
        return {**self._about(candidate), "outcome": "released"}

    def _about(self, candidate: Candidate) -> dict[str, Any]:
        said = {
            "backend": candidate.backend,
            "model": candidate.model,
            "credential": candidate.credential,
            "lease": candidate.lease,
            "turn": candidate.turn,
            "attempt": self._attempt,
            "session": self._wanted.get("session"),
            "started_at": self._began_at,
            "owner": self._owner,
        }
        return {name: value for name, value in said.items() if value is not None}


def _refused(error: RpcError) -> Exception:
    if error.code != REFUSED:
        return error
    data = error.data or {}
    return NobodyLeft(data.get("retry_at"), data.get("candidates", []))
