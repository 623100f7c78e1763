"""What holds for the records of the core at any instant, whatever has happened."""

from collections.abc import Iterable, Mapping

from fallbackd.core.case import reactive_hops
from fallbackd.core.health import Health
from fallbackd.core.ids import DelegationId, ScopeId
from fallbackd.core.records import Attempt, Delegation, Session
from fallbackd.core.work.workspaces import is_nested

Active = Mapping[DelegationId, Delegation]


def one_attempt_at_a_time(active: Active) -> None:
    for one in active.values():
        assert (one.running is not None) == (one.state == "running"), one
        assert sum(each.ended_at is None for each in one.attempts) <= 1, one


def family(one: Delegation, active: Active) -> set[str]:
    """The delegations from inside which one was asked for."""
    found: set[str] = set()
    while one.parent is not None and one.parent in active:
        found.add(one.parent)
        one = active[one.parent]
    return found


def one_family_writes_in_a_directory(active: Active) -> None:
    writers = [
        one
        for one in active.values()
        if one.cwd
        and one.permissions != "read"
        and one.blocked_by is None
        and (one.question is None or any(each.effects != "none" for each in one.attempts))
    ]
    for one in writers:
        for other in writers:
            if one is other or not is_nested(one.cwd, other.cwd):
                continue
            is_one_family = other.delegation in family(one, active)
            assert is_one_family or one.delegation in family(other, active), (one, other)


def what_is_below_ends_with_its_attempt(active: Active) -> None:
    for one in active.values():
        above = None if one.parent is None else active.get(one.parent)
        if above is not None and (above.running is None or above.cancelling):
            assert one.cancelling, one
            assert one.running is None or one.running.state == "stopping", one


def a_session_is_held_exactly_while_its_work_is_unfinished(
    active: Active, sessions: Iterable[Session]
) -> None:
    holders: dict[str, str] = {}
    for one in active.values():
        if one.blocked_by is not None:
            assert one.running is None, one
            continue
        assert one.session not in holders, one
        holders[one.session] = one.delegation
    for session in sessions:
        assert session.running == holders.get(session.session), session


def a_trial_belongs_to_a_running_attempt_or_to_a_caller(
    health: Mapping[ScopeId, Health], active: Active, leases: Iterable[str]
) -> None:
    held = set(leases)
    running = {
        one.running.attempt: one.running for one in active.values() if one.running is not None
    }
    for scope, record in health.items():
        if record.trial is None or record.trial.attempt in held:
            continue
        assert record.trial.attempt in running, (scope, record)
        assert scope in running[record.trial.attempt].trial_scopes, (scope, record)


def a_walk_is_bounded(one: Delegation) -> None:
    assert len(one.attempts) <= one.turn.budget, one
    assert reactive_hops(one) <= one.turn.max_hops, one
    fresh = [
        (each.backend, each.model, each.credential)
        for each in one.attempts
        if each.retry_of is None and each.resumes is None
    ]
    assert len(fresh) == len(set(fresh)), one


def a_resumption_continues_what_the_same_agent_began(before: Attempt, attempt: Attempt) -> None:
    """`before` is the attempt in front of it."""
    assert attempt.resumes == before.attempt, (before, attempt)
    assert attempt.retry_of is None, attempt
    agents = [(one.backend, one.model, one.credential) for one in (before, attempt)]
    assert agents[0] == agents[1], (before, attempt)
    assert before.resumes is None, (before, attempt)
    assert before.conversation is not None, before
    assert before.effects != "none", before
    assert before.gone, before
    assert before.failure is not None, before
    assert before.failure.reason.row.is_passing, before


def outages_make_sense(health: Iterable[Health]) -> None:
    for record in health:
        if record.outage is not None:
            assert record.outage.count >= 1, record
            until_at = record.outage.until_at
            assert until_at is None or until_at >= record.outage.since_at - 1e-3, record
