"""The convenience methods of both clients, with a real daemon."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, get_type_hints

import anyio
import anyio.to_thread
import pytest
from msgspec import Struct
from tests.support.agents import HANGING, THROTTLED, backend_script, chain, ok
from tests.support.daemon import HANG_S, running

from fallbackd_client import arguments
from fallbackd_client.aio import AsyncClient
from fallbackd_client.client import Client
from fallbackd_client.errors import NoDaemon, RpcError
from fallbackd_client.progress import LAST, PROGRESS
from fallbackd_client.wire.methods.callers import ReportParams, ResolveParams
from fallbackd_client.wire.methods.daemon import StatusParams
from fallbackd_client.wire.methods.delegations import DelegateParams
from fallbackd_client.wire.methods.events import Event
from fallbackd_client.wire.shapes import Evidence

TALKING = "cat >/dev/null; while :; do echo step; sleep 0.05; done"
OLDER = {"platform", "session_id", "parent"}


@pytest.mark.parametrize(
    ("typed", "params", "by_position"),
    [
        (arguments.DelegateArguments, DelegateParams, {"prompt"}),
        (arguments.ResolveArguments, ResolveParams, set()),
        (arguments.ReportArguments, ReportParams, {"backend", "outcome"}),
        (arguments.StatusArguments, StatusParams, set()),
    ],
)
def test_every_parameter_is_an_argument(
    typed: Any, params: type[Struct], by_position: set[str]
) -> None:
    assert set(get_type_hints(typed)) == set(params.__struct_fields__) - OLDER - by_position


def test_what_is_followed_are_kinds_of_events() -> None:
    kinds = get_type_hints(Event)["kind"].__args__
    assert {*PROGRESS, *LAST} <= set(kinds)


def two(tmp_path: Path) -> str:
    bin_dir = tmp_path / "bin"
    return (
        backend_script(bin_dir, "first", THROTTLED)
        + backend_script(bin_dir, "second", ok("done"))
        + backend_script(bin_dir, "slow", HANGING)
        + backend_script(bin_dir, "talking", TALKING)
        + chain("first", "second")
    )


async def test_delegate_waits_for_the_answer_and_returns_it_typed(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon:
        work = await daemon.client.delegate("hi", backend="first", chain=["first", "second"])
        assert (work.state, work.text, work.served_by) == ("succeeded", "done", "second")
        found = await daemon.client.status()
        assert found.health["first"].state == "rate_limited"
        assert (await daemon.client.resolve(backend="first")).backend == "second"
        prepared = await daemon.client.prepare(backend="first", cwd=str(tmp_path))
        assert (prepared.backend, prepared.ready) == ("second", False)


async def test_an_error_leaves_the_context_of_the_client_as_it_was_raised(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon:
        with pytest.raises(RpcError, match="known are"):
            async with AsyncClient(daemon.socket) as client:
                await client.delegate("hi", backend="nine")
        with pytest.raises(NoDaemon):
            async with AsyncClient(f"{daemon.socket}.not") as client:
                await client.status()


async def test_a_relative_directory_is_that_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = backend_script(tmp_path / "bin", "where", "cat >/dev/null; pwd")
    async with running(tmp_path, where) as daemon:
        monkeypatch.chdir(daemon.work_dir)
        work = await daemon.client.delegate("hi", backend="where", cwd=".")
        assert work.text == str(daemon.work_dir)


async def test_a_wait_that_is_over_is_a_delegation_that_runs(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon:
        work = await daemon.client.delegate("hi", backend="slow", wait_s=0.1)
        assert (work.state, work.wait_over) == ("running", True)
        again = await daemon.client.wait(work.delegation, timeout_s=0.1)
        assert (again.state, again.wait_over) == ("running", True)
        assert (await daemon.client.cancel(work.delegation)).state == "cancelled"
        assert not (await daemon.client.wait(work.delegation)).wait_over


async def test_a_report_of_a_failure_names_the_next_candidate(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon:
        found = await daemon.client.report(
            "first", "failure", evidence=Evidence(http_status=429, headers={"retry-after": "60"})
        )
        assert found.failure is not None
        assert found.failure.reason == "rate_limit"
        assert found.next is not None
        assert found.next.backend == "second"


async def test_a_delegation_is_followed_to_its_end(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon:
        work = await daemon.client.delegate("hi", backend="talking", wait="accepted")
        seen = []
        async for event in daemon.client.follow(work.delegation, kinds=["attempt.output"]):
            seen.append(event["kind"])
            if len(seen) == 1:
                await daemon.client.cancel(work.delegation)
        assert seen[0] == "attempt.output"
        assert seen[-1] == "delegation.ended"
        late = [event async for event in daemon.client.follow(work.delegation)]
        assert [(one["kind"], one["state"]) for one in late] == [("delegation.ended", "cancelled")]


async def test_the_blocking_client_has_the_same_calls(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon:

        def use() -> None:
            with Client(daemon.socket) as client:
                assert client.delegate("hi", backend="first").served_by == "second"
                assert client.status(verbose=True).readiness is not None
                assert client.resolve(backend="first").backend == "second"
                assert client.report("second", "success").failure is None
                work = client.delegate("hi", backend="slow", wait_s=0)
                events = client.follow(work.delegation)
                assert client.cancel(work.delegation).state == "cancelled"
                assert client.wait(work.delegation).state == "cancelled"
                assert [one["kind"] for one in events] == ["delegation.ended"]
                with pytest.raises(RpcError, match="no delegation"):
                    list(client.follow("d0"))
                with pytest.raises(TypeError, match="bakend"):
                    client.delegate("hi", bakend="first")  # type: ignore[call-arg]

        await anyio.to_thread.run_sync(use)


async def test_a_delegate_whose_task_is_cancelled_withdraws_its_work(tmp_path: Path) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon, anyio.create_task_group() as tasks:
        with anyio.fail_after(HANG_S):
            with anyio.CancelScope() as scope:
                events = daemon.client.events(kinds=["attempt.started"], since=0)
                tasks.start_soon(_cancel_at_first, events, scope)
                await daemon.client.delegate("hi", backend="slow")
            [found] = (await daemon.client.call("delegation.list"))["delegations"]
            assert (await daemon.client.wait(found["delegation"])).state == "cancelled"


async def test_a_delegate_with_a_request_id_goes_on_when_its_task_is_cancelled(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, two(tmp_path)) as daemon, anyio.create_task_group() as tasks:
        with anyio.fail_after(HANG_S):
            with anyio.CancelScope() as scope:
                events = daemon.client.events(kinds=["attempt.started"], since=0)
                tasks.start_soon(_cancel_at_first, events, scope)
                await daemon.client.delegate("hi", backend="slow", request_id="r1")
            [found] = (await daemon.client.call("delegation.list"))["delegations"]
            assert found["state"] == "running"
            assert (await daemon.client.cancel(request_id="r1")).state == "cancelled"


async def _cancel_at_first(events: AsyncGenerator[Any, None], scope: anyio.CancelScope) -> None:
    async with aclosing(events):
        await anext(events)
    scope.cancel()
