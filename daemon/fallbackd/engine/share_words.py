"""What people read about sharing: whether it works, what a name stands for, who was not asked."""

from msgspec import structs

from fallbackd.core.changes import Decision, PutStory
from fallbackd.core.health.scopes import find_backend, is_scope_of, touched
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.engine.loop import Performer
from fallbackd.engine.peers import Tested
from fallbackd.engine.requests import Unknown
from fallbackd.ports.clock import Clock
from fallbackd.ports.share import Share, ShareAway, ShareRefused

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


def without_arbiter(decision: Decision, scopes: tuple[ScopeId, ...], state: str) -> Decision:
    """The decision to make a trial that no server has granted; `explain` says so."""
    note = f"arbiter away ({state}): others may try {', '.join(scopes)} at the same time"
    changes = tuple(
        structs.replace(one, outcome=f"{one.outcome}; {note}" if one.outcome else note)
        if isinstance(one, PutStory)
        else one
        for one in decision.changes
    )
    return structs.replace(decision, changes=changes)
