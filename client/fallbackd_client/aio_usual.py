"""The calls that most programs need, with arguments by name, on top of `AsyncClient.request`."""

import os
from contextlib import suppress

from fallbackd_client.calls import for_library
from fallbackd_client.errors import ClientError
from fallbackd_client.progress import LAST, PROGRESS

WITHDRAW_S = 1.0
"""How long a cancelled `delegate` waits to hear that its work is withdrawn."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
    from typing import TypeVar, Unpack

    from msgspec import Struct

    from fallbackd_client.arguments import (
        DelegateArguments,
        ReportArguments,
        ReportOutcome,
        ResolveArguments,
        StatusArguments,
    )
    from fallbackd_client.calls import Json
    from fallbackd_client.wire.envelope import Method
    from fallbackd_client.wire.methods.callers import ReportResult, ResolveResult
    from fallbackd_client.wire.methods.daemon import StatusResult
    from fallbackd_client.wire.shapes import Delegation

    P = TypeVar("P", bound=Struct)
    R = TypeVar("R")


class AsyncUsualCalls:
    """Of the async client, which says how a call is made."""

    async def call(self, method: str, params: "Mapping[str, Json] | None" = None) -> "Json":
        raise NotImplementedError

    async def request(self, method: "Method[P, R]", params: "P") -> "R":
        raise NotImplementedError

    def events(
        self,
        *,
        kinds: "Iterable[str] | None" = None,
        delegation: str | None = None,
    ) -> "AsyncGenerator[dict[str, Json], None]":
        raise NotImplementedError

    async def delegate(self, prompt: str, **arguments: "Unpack[DelegateArguments]") -> "Delegation":
        """
        Run a prompt on the best available backend; by default until it has ended.

        ```python
        async with AsyncClient() as client:
            work = await client.delegate("Explain this repository", cwd="/home/me/project")
            print(work.text if work.state == "succeeded" else work.message)
        ```

        With `wait_s` it returns after that time at the latest: `wait_over` is then true, and
        `wait` continues to wait. `timeout_s` stops the work. `cwd` may be relative to the current
        directory; without it the agent works in a directory of its own.

        Where its task is cancelled before it returns, the work is withdrawn: nothing else knows its
        name. With a `request_id` of the caller's it continues, and `cancel(request_id=…)` stops it.

        Raises:
            TypeError: An argument of another name.
        """
        import anyio

        from fallbackd_client.wire.methods.delegations import DELEGATE, DelegateParams

        given = for_library(arguments)
        name = given["request_id"] = given.get("request_id") or os.urandom(16).hex()
        try:
            return await self.request(DELEGATE, DelegateParams(prompt=prompt, **given))
        except anyio.get_cancelled_exc_class():
            if arguments.get("request_id") is None:
                with anyio.move_on_after(WITHDRAW_S, shield=True), suppress(ClientError):
                    await self.cancel(request_id=name)
            raise

    async def wait(self, delegation: str, *, timeout_s: float | None = None) -> "Delegation":
        """
        Wait for the end of a delegation, or until it asks a question.

        ```python
        work = await client.wait(work.delegation, timeout_s=30)
        if work.wait_over:
            print("still", work.state)
        ```
        """
        from fallbackd_client.wire.methods.delegations import (
            DELEGATION_WAIT,
            DelegationWaitParams,
        )

        params = DelegationWaitParams(delegation=delegation, timeout_s=timeout_s)
        return await self.request(DELEGATION_WAIT, params)

    async def cancel(
        self,
        delegation: str | None = None,
        *,
        request_id: str | None = None,
        session: str | None = None,
    ) -> "Delegation":
        """
        Stop a delegation, named by its id, the `request_id` that began it or its session. Returns
        when its processes have exited. A request that is still to come begins nothing.

        ```python
        print((await client.cancel(work.delegation)).state)
        ```
        """
        from fallbackd_client.wire.methods.delegations import (
            DELEGATION_CANCEL,
            DelegationCancelParams,
        )

        params = DelegationCancelParams(
            delegation=delegation, request_id=request_id, session=session
        )
        return await self.request(DELEGATION_CANCEL, params)

    async def status(self, **arguments: "Unpack[StatusArguments]") -> "StatusResult":
        """
        Return the daemon, the health of its backends, and its work.

        ```python
        for name, health in (await client.status()).health.items():
            print(name, health.state, health.reason or "")
        ```
        """
        from fallbackd_client.wire.methods.daemon import STATUS, StatusParams

        return await self.request(STATUS, StatusParams(**arguments))

    async def resolve(self, **arguments: "Unpack[ResolveArguments]") -> "ResolveResult":
        """
        Return the backend that would be used now, for a call that the caller makes itself.

        ```python
        choice = await client.resolve(backend="claude-api", lease=True)
        ```

        Raises:
            RpcError: With kind `refused`: no candidate is available.
        """
        from fallbackd_client.wire.methods.callers import RESOLVE, ResolveParams

        given: dict[str, Json] = {**arguments}
        return await self.request(RESOLVE, ResolveParams(**given))

    async def report(
        self, backend: str, outcome: "ReportOutcome", **arguments: "Unpack[ReportArguments]"
    ) -> "ReportResult":
        """
        Report the outcome of such a call. After a failure `next` is the candidate to try.

        ```python
        found = await client.report("claude-api", "failure", evidence=Evidence(http_status=529))
        ```
        """
        from fallbackd_client.wire.methods.callers import REPORT, ReportParams

        given: dict[str, Json] = {**arguments}
        return await self.request(REPORT, ReportParams(backend=backend, outcome=outcome, **given))

    async def follow(
        self, delegation: str, *, kinds: "Iterable[str]" = PROGRESS
    ) -> "AsyncGenerator[dict[str, Json], None]":
        """
        The events of one delegation, until it ends or asks a question.

        ```python
        work = await client.delegate("…", wait="accepted")
        async for event in client.follow(work.delegation):
            print(event["kind"], event.get("backend", ""))
        work = await client.wait(work.delegation)
        ```

        Events begin now; with the kind `attempt.text` its text begins at its first word, and
        continues without a gap after a lost connection or a restart. The last event is
        `delegation.ended` or `question.opened`, also where that lies in the past.
        """
        await self.call("delegation.get", {"delegation": delegation})  # refuses an unknown one
        events = self.events(kinds=sorted({*kinds, *LAST}), delegation=delegation)
        try:
            async for event in events:
                yield event
                if event["kind"] in LAST:
                    return
        finally:
            await events.aclose()
