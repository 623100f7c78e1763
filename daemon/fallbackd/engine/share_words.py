"""What people read about sharing: whether it works, what a name stands for."""

from collections.abc import Iterable

from msgspec import structs

from fallbackd.core.failures import Reason
from fallbackd.core.health.record import Outage
from fallbackd.core.health.scopes import find_backend, is_scope_of, touched
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import REASONS
from fallbackd.core.share.folding import mark_of
from fallbackd.core.share.records import MAX_DETAIL, PersonWord, WordAction
from fallbackd.core.upkeep.marks import reason_of
from fallbackd.engine.loop import Performer
from fallbackd.engine.peers import Grouping, Tested
from fallbackd.engine.requests import Unknown
from fallbackd.ports.clock import Clock
from fallbackd.ports.share import Card, Failing, Share, ShareAway, ShareRefused
from fallbackd_conversations.redact import redact

TEST_S = 5.0
"""How long a step of a test may take."""


def scopes_meant(engine: Performer, target: str, *, only_own: bool) -> tuple[ScopeId, ...]:
    """
    The scopes of a backend, or a scope itself.

    Args:
        only_own: Of a backend its own scope alone.

    Raises:
        Unknown: It is neither.
    """
    policy, health = engine.settings.policy, engine.store.peek().health
    backend = find_backend(policy, BackendId(target))
    if backend is not None:
        own = touched(backend, health)
        return own[:1] if only_own else own
    scope = ScopeId(target)
    if scope in health or any(is_scope_of(one, scope) for one in policy.backends.values()):
        return (scope,)
    raise Unknown(f"no backend or scope {target!r}; known are {', '.join(policy.backends)}")


def failing(outage: Outage, machine: str, *, now: float) -> Failing:
    """An outage as the others hear of it: by its age, and without secrets."""
    mark = mark_of(outage, source=machine)
    detail = None if mark.detail is None else redact(mark.detail)[:MAX_DETAIL]
    age_s = max(0.0, now - outage.since_at)
    began_at = outage.since_at if outage.began_at is None else outage.began_at
    return Failing(
        mark=structs.replace(mark, detail=detail),
        age_s=age_s,
        began_ago_s=max(age_s, now - began_at),
        window_s=None if outage.until_at is None else outage.until_at - outage.since_at,
    )


def word_of(
    action: WordAction, reason: str | None, ttl_s: float | None, note: str | None, machine: str
) -> tuple[PersonWord, float | None]:
    """A manual override of any scope, and how long it holds."""
    known, detail = reason_of(reason)
    policy = REASONS.get(known) or REASONS[Reason.MANUAL]
    window_s = None
    if action == "mark":
        window_s = policy.window_s if ttl_s is None else ttl_s
    word = PersonWord(
        id="",
        action=action,
        at=0.0,
        state=policy.state,
        reason=known,
        note=(detail or note or "")[:MAX_DETAIL],
        source=machine,
    )
    return word, window_s


async def tested(share: Share, owner: str, instance: str, clock: Clock) -> tuple[Tested, ...]:
    """Read and lease, up to the first step that fails."""
    name = ScopeId(f"test:{instance}")

    async def read() -> str:
        began_at = clock.now()
        seen = await share.read([name], limit_s=TEST_S)
        ahead_s = seen.at - (began_at + clock.now()) / 2
        return f"its clock is {ahead_s:+.1f} s from this machine's"

    async def lease() -> str:
        found = await share.lease(name, owner=owner, ttl_s=1.0, early=False, limit_s=TEST_S)
        await share.release(name, owner=owner, gen=found.gen, limit_s=TEST_S)
        return "granted and given back" if found.granted else "denied"

    done: list[Tested] = []
    for step, run in (("read", read), ("lease", lease)):
        began_at = clock.now()
        try:
            detail, ok = await run(), True
        except (ShareAway, ShareRefused) as error:
            detail, ok = str(error), False
        took_s = max(0.0, clock.now() - began_at)
        done.append(Tested(step=step, ok=ok, detail=detail, took_s=took_s))
        if not ok:
            break
    return tuple(done)


def warning(
    grouping: Grouping, cards: Iterable[Card], *, deaf: str | None, look_s: float
) -> str | None:
    """
    What does not keep the machines from sharing, but has to be set right.

    Args:
        deaf: Why changes are not heard at once.
        look_s: How often they are looked for then.
    """
    if deaf is not None:
        return f"what others find is heard late, every {look_s:g} s: {deaf}"
    twins = {one.instance for one in cards if one.name == grouping.machine}
    if twins - {grouping.instance}:
        return f"another machine of the group is called {grouping.machine}, too"
    return grouping.warning
