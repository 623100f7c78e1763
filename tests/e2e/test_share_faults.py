"""The server is away, slow, frozen, empty, old, full, or not what it was: work goes on."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio
import pytest
from tests.support.partition import partition
from tests.support.redis_server import RedisServer, free_port, redis_server
from tests.support.saying import say
from tests.support.sharing_group import HANG_S, HOST, PLAN, Machine, Provider, group

from fallbackd.core.events import Reported
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.protocol import Evidence
from fallbackd.core.share import TURN_S
from fallbackd.engine import callers, feedback

SCOPE = ScopeId(f"provider:{HOST}")

BACK_S = 35.0
"""The machines compare every 30 s."""


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


def is_out(one: Machine) -> bool:
    return one.view().state == "rate_limited"


def is_unproven(one: Machine) -> bool:
    return one.view().unproven


def is_connected(one: Machine) -> bool:
    return one.shown.state == "connected"


def is_lost(one: Machine) -> bool:
    return one.shown.state not in ("connected", "connecting")


async def hit_the_wall(one: Machine, provider: Provider) -> None:
    found = await one.resolve()
    assert found.backend == "first"
    await one.report(found, provider)
    assert is_out(one)


async def test_a_server_that_is_not_there_keeps_nobody_from_work(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    async with group(tmp_path, 1, url=url, connected=False) as (one,):
        await one.until(is_lost)
        await hit_the_wall(one, Provider())
        assert one.shown.state == "unreachable"
        assert one.shown.problem


async def test_what_was_found_while_the_server_was_away_is_told_when_it_is_back(
    tmp_path: Path, server: RedisServer
) -> None:
    async with group(tmp_path, 2, url=server.url) as (one, other):
        server.kill()
        one.sharing.look_now()
        await one.until(is_lost)
        await hit_the_wall(one, Provider())
        assert not is_out(other)
        server.start()
        await other.until(is_out)
        await one.until(lambda each: each.shown.outbox == 0)


async def test_records_are_back_on_a_server_that_has_lost_its_data(
    tmp_path: Path, server: RedisServer
) -> None:
    async with group(tmp_path, 2, url=server.url) as (one, other):
        await hit_the_wall(one, Provider())
        await other.until(is_out)
        assert server.command("FLUSHALL") == b"+OK\r\n"
        began = time.monotonic()
        with anyio.fail_after(HANG_S):
            while b"usage_limit" not in server.command("HGETALL", "fbd:{test}:h:quota:plan"):
                await anyio.sleep(0.05)
        took_s = time.monotonic() - began
        assert is_out(one)
        assert is_out(other)
    say(f"\nrecords back after {took_s:.1f} s")
    assert took_s < BACK_S


async def test_an_old_copy_of_the_server_revives_nothing_that_is_over(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    key = "fbd:{test}:h:quota:plan"
    async with group(tmp_path, 2, url=server.url, window_s=1.0) as (one, other):
        await hit_the_wall(one, provider)
        await other.until(is_out)
        old = server.command("DUMP", key)
        await one.until(is_unproven)
        provider.works = True
        await one.report(await one.resolve(), provider)
        await other.until(lambda each: not each.view().unproven)
        restored = old.split(b"\r\n", 1)[1][:-2]
        assert server.restore(key, restored) == b"+OK\r\n"
        for each in (one, other):
            each.sharing.look_now()
        with anyio.fail_after(HANG_S):
            while b"proven" not in server.command("HGETALL", key):
                await anyio.sleep(0.05)
        for each in (one, other):
            assert each.view().state == "healthy"
            assert not each.view().unproven


async def test_a_frozen_server_delays_a_trial_by_no_more_than_its_limit(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    async with group(tmp_path, 1, url=server.url, window_s=1.0, limit_s=0.25) as (one,):
        await hit_the_wall(one, provider)
        await one.until(is_unproven)
        server.freeze()
        try:
            began = time.monotonic()
            found = await one.resolve()
            took_s = time.monotonic() - began
            assert found.backend == "first"
            assert found.lease_id is not None
        finally:
            server.thaw()
        await one.until(is_connected)
    say(f"\na trial beside a frozen server began after {took_s * 1000:.0f} ms")
    assert took_s < HANG_S


async def begin_together(machines: Sequence[Machine]) -> None:
    """All know each other, and a turn has just begun."""
    for one in machines:
        one.sharing.look_now()
    for one in machines:
        await one.until(lambda each: len(each.shown.machines) == len(machines))


def is_early_in_turn(one: Machine) -> bool:
    server_now = one.clock.now() + (one.shown.offset_s or 0.0)
    return server_now % TURN_S < TURN_S / 2


async def test_two_halves_make_two_trials_at_most_at_a_time(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    async with (
        partition(server.socket) as left,
        partition(server.socket) as right,
        group(
            tmp_path,
            6,
            url=lambda number: left.url if number < 2 else right.url,
            window_s=4.0,
            limit_s=HANG_S,
        ) as machines,
    ):
        await begin_together(machines)
        await hit_the_wall(machines[0], provider)
        for one in machines:
            await one.until(is_out)
        right.set("reset")
        there, away = machines[:2], machines[2:]
        for one in away:
            one.sharing.look_now()
        for one in away:
            await one.until(is_lost)
            assert one.shown.is_arbiter_away
        for one in machines:
            await one.until(is_unproven)
        if not is_early_in_turn(away[0]):
            for one in machines:
                one.clock.advance(TURN_S / 2)
        tried: list[Machine] = []
        for turn in range(100):  # what nobody has tried yet, is tried by all who may
            told = [(one, await one.resolve()) for one in away]
            now_tried = [one for one, found in told if found.lease_id is not None]
            assert len(now_tried) <= 1
            tried += now_tried
            if turn == 0:
                connected = [await one.resolve() for one in there]
                assert len([one for one in connected if one.lease_id is not None]) == 1
            if {one.name for one in tried} == {one.name for one in away}:
                break
            for one in away:
                one.clock.advance(TURN_S)
        assert {one.name for one in tried} == {one.name for one in away}  # each has its turn
        assert all(one.shown.alone_scopes == (PLAN,) for one in away)
        right.set("pass")
        for one in away:
            one.sharing.look_now()
            await one.until(is_connected)
            assert not one.shown.is_arbiter_away


async def test_work_that_has_no_other_way_waits_for_no_turn(
    tmp_path: Path, server: RedisServer
) -> None:
    provider = Provider()
    async with group(tmp_path, 3, url=server.url, window_s=1.0) as machines:
        await begin_together(machines)
        await hit_the_wall(machines[0], provider)
        for one in machines:
            await one.until(is_out)
        server.kill()
        for one in machines:
            one.sharing.look_now()
            await one.until(is_lost)
            await one.until(is_unproven)
            await feedback.pause(one.engine, "second", note=None)
        told = [await one.resolve() for one in machines]
        assert [found.backend for found in told] == ["first", "first", "first"]


async def test_a_server_that_is_full_is_said_and_keeps_nobody_from_work(
    tmp_path: Path, server: RedisServer
) -> None:
    async with group(tmp_path, 1, url=server.url) as (one,):
        server.command("CONFIG", "SET", "maxmemory", "1")
        await hit_the_wall(one, Provider())
        await one.until(lambda each: each.shown.state == "full")
        server.command("CONFIG", "SET", "maxmemory", "0")
        one.sharing.look_now()
        await one.until(is_connected)
        await one.until(lambda each: each.shown.outbox == 0)
        assert b"usage_limit" in server.command("HGETALL", "fbd:{test}:h:quota:plan")


async def test_a_wrong_password_is_said_and_keeps_nobody_from_work(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", "--requirepass", "right") as server:
        url = f"redis://:wrong@127.0.0.1:{server.port}/0"
        async with group(tmp_path, 1, url=url, connected=False) as (one,):
            await one.until(lambda each: each.shown.state == "refused")
            await hit_the_wall(one, Provider())
            assert "wrong" not in (one.shown.problem or "").replace("WRONGPASS", "")


@pytest.mark.parametrize(
    "fields",
    [
        ("v", "2", "state", "rate_limited"),
        ("state", "rate_limited", "since", "soon", "reason", "billing"),
        ("state", "rate_limited", "since", "1", "until", "9" * 18, "reason", "billing"),
        ("state", "on fire", "since", "1", "until", "2", "reason", "billing"),
        ("gen", "many"),
    ],
)
async def test_a_record_of_something_else_is_ignored_and_named(
    tmp_path: Path, server: RedisServer, fields: tuple[str, ...]
) -> None:
    server.command("HSET", "fbd:{test}:h:quota:plan", *fields)
    async with group(tmp_path, 1, url=server.url) as (one,):
        assert [each.partition(":")[0] for each in one.shown.ignored] == ["quota"]
        assert (await one.resolve()).backend == "first"


async def test_a_key_of_another_type_is_ignored_and_named(
    tmp_path: Path, server: RedisServer
) -> None:
    server.command("SET", "fbd:{test}:h:quota:plan", "x")
    async with group(tmp_path, 1, url=server.url) as (one,):
        assert "WRONGTYPE" in one.shown.ignored[0]
        await hit_the_wall(one, Provider())
        assert is_connected(one)


ACL = (
    "~fbd:{test}:*", "-@all", "+hgetall", "+hset", "+hdel", "+pexpireat", "+xadd", "+xread",
    "+evalsha", "+eval", "+time", "+client|setname",
)  # fmt: skip


async def test_a_user_with_the_least_rights_is_enough(tmp_path: Path, server: RedisServer) -> None:
    assert server.command("ACL", "SETUSER", "fbd", "on", ">pw", *ACL) == b"+OK\r\n"
    url = f"redis://fbd:pw@127.0.0.1:{server.port}/0"
    async with group(tmp_path, 2, url=url, window_s=1.0) as (one, other):
        provider = Provider()
        await hit_the_wall(one, provider)
        await other.until(is_out)
        await one.until(is_unproven)
        provider.works = True
        await one.report(await one.resolve(), provider)
        await other.until(lambda each: not each.view().unproven)
        await one.sharing.say("first", "pause")
        await feedback.resume(other.engine, "first")
        steps = await one.sharing.test()
        assert [each.ok for each in steps] == [True, True]


async def test_a_connection_over_tls_trusts_the_given_authority_alone(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    key, cert = certs / "key.pem", certs / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-key-file", str(key),
           "--tls-ca-cert-file", str(cert), "--tls-auth-clients", "no")  # fmt: skip
    with redis_server(tmp_path / "redis", *tls):
        url = f"rediss://localhost:{port}/0"
        async with group(tmp_path / "a", 1, url=url, ca_file=str(cert)) as (one,):
            await hit_the_wall(one, Provider())
            await one.until(lambda each: each.shown.outbox == 0)
        async with group(tmp_path / "b", 1, url=url, connected=False) as (one,):
            await one.until(is_lost)
            assert "certificate" in (one.shown.problem or "").lower()


async def test_a_persons_word_holds_on_all_machines_and_on_later_ones(
    tmp_path: Path, server: RedisServer
) -> None:
    async with group(tmp_path, 2, url=server.url) as (one, other):
        await one.sharing.say("first", "pause", note="saving the plan")
        await other.until(lambda each: each.view("backend:first").state == "paused")  # type: ignore[arg-type]
        assert (await other.resolve()).backend == "second"
        async with group(tmp_path / "later", 1, url=server.url) as (late,):
            await late.until(lambda each: each.view("backend:first").state == "paused")  # type: ignore[arg-type]
        await other.sharing.say("first", "resume")
        await one.until(lambda each: each.view("backend:first").state == "healthy")  # type: ignore[arg-type]


async def test_after_a_long_outage_news_is_told_and_heard_as_before(
    tmp_path: Path, server: RedisServer
) -> None:
    """Several looks in a row find no server: what waits for it is woken all the same."""
    async with (
        partition(server.socket) as way,
        group(tmp_path, 1, url=server.url) as (other,),
        group(tmp_path / "cut", 1, url=way.url) as (one,),
    ):
        way.set("reset")
        one.sharing.look_now()
        await one.until(is_lost)
        await hit_the_wall(one, Provider())
        for _ in range(4):
            before = way.tried
            one.sharing.look_now()
            await one.until(lambda _, before=before: way.tried > before)  # type: ignore[misc]
        way.set("pass")
        await one.until(is_connected)
        with anyio.fail_after(HANG_S):
            await one.until(lambda each: each.shown.outbox == 0)
        await other.until(is_out)


async def look_until(one: Machine, wanted: Callable[[Machine], bool]) -> None:
    """As it looks every 30 s, only sooner."""
    with anyio.fail_after(HANG_S):
        while not wanted(one):
            one.sharing.look_now()
            await anyio.sleep(0.05)


async def test_a_provider_that_two_machines_cannot_reach_is_advice_and_no_mark(
    tmp_path: Path, server: RedisServer
) -> None:
    unreachable = Evidence(text="connect ECONNREFUSED 203.0.113.1:443", exit_code=1)

    async def misses(one: Machine) -> None:
        seen = Reported(outcome="failure", backend=BackendId("first"))
        await callers.report(one.engine, seen, evidence=unreachable)
        assert one.view(SCOPE).state != "healthy"
        one.sharing.look_now()

    async with group(tmp_path, 3, url=server.url) as (one, other, third):
        await misses(one)
        await look_until(other, lambda each: any(card.missed for card in each.shown.machines))
        assert other.view(SCOPE).state == "healthy"
        assert other.shown.advice == ()  # it may be the line of the first one
        await misses(other)
        await look_until(one, lambda each: bool(each.shown.advice))
        (said,) = one.shown.advice
        assert said.startswith("api.example.com cannot be reached from m0, m1: ")
        assert third.view(SCOPE).state == "healthy"
        assert third.shown.advice == ()
