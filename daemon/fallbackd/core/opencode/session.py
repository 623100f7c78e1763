"""
State of an opencode session: its turns, periods and moves, and the policy of its directory.

A turn is what the user asked for, a message its prompt on one model. A model that the user chose by
hand becomes the session's original; one that a rescue or a redirect chose does not.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import structs

from fallbackd.core.callers.lease import LEASE_S
from fallbackd.core.case import Case
from fallbackd.core.decision_log import model_words
from fallbackd.core.events import Event
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.policy import OPENCODE, REASONS, Backend, Entry, Policy, Project, Role, once
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason, ReasonPolicy
from fallbackd.core.records import Hop, Message, Period, Session, Snapshot
from fallbackd.core.routing.candidates import Choice, candidates_for, find_role
from fallbackd.core.routing.suggest import duration
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.sessions import charged, moved

# The policy as it holds in one directory: the files of opencode projects laid over it.


ANY = "*"
NAMES = ("model-fallback.json", "rate-limit-fallback.json")
"""The older form comes second."""
FILES = tuple(f".opencode/{name}" for name in (*NAMES, "agent", "agents"))
"""Files in which a project says to which models its sessions fail over."""


def project_of(snapshot: Snapshot, event: Event) -> str:
    """The directory that an event is about; empty: none in particular."""
    said: str = getattr(event, "project", "")
    if said:
        return said
    return "" if snapshot.session is None else snapshot.session.project


def in_project(policy: Policy, directory: str) -> Policy:
    return _laid_over(policy, directory) if policy.projects else policy


@once
def _laid_over(policy: Policy, directory: str) -> Policy:
    """
    A project's own file goes before the configuration, that one before the user's file: the
    nearest to the work wins.
    """
    own = policy.projects.get(directory) if directory else None
    if own is not None:
        return structs.replace(
            policy,
            rescues=own.enabled,
            roles={**policy.roles, **own.roles},
            chains=_with_any(policy, own, wins=True),
            reasons={**policy.reasons, **own.reasons},
        )
    users = policy.projects.get("")
    if users is None:
        return policy
    return structs.replace(
        policy,
        rescues=policy.rescues and users.enabled,
        roles={**users.roles, **policy.roles},
        chains=_with_any(policy, users, wins=False),
        reasons=_unless_configured(policy, users) if directory else policy.reasons,
    )


def _unless_configured(policy: Policy, users: Project) -> Mapping[Reason, ReasonPolicy]:
    asked = {
        reason: one
        for reason, one in users.reasons.items()
        if policy.reasons.get(reason) == REASONS.get(reason)
    }
    return {**policy.reasons, **asked}


def _with_any(policy: Policy, project: Project, *, wins: bool) -> Mapping[str, tuple[Entry, ...]]:
    role = project.roles.get(ANY)
    if role is None or not role.chain or (not wins and policy.chains.get(ANY)):
        return policy.chains
    return {**policy.chains, ANY: role.chain}


def find_any(policy: Policy) -> Role | None:
    """Return the role that holds for agents without a role of their own."""
    return policy.roles.get(ANY)


def longest_windows(
    projects: Iterable[Project],
) -> dict[BackendId, dict[Reason, ReasonPolicy]]:
    """Return the longest window of each reason, of all files that name the same candidate."""
    found: dict[BackendId, dict[Reason, ReasonPolicy]] = {}
    for project in projects:
        named = {entry.backend for role in project.roles.values() for entry in role.chain}
        for backend in named if project.enabled else ():
            known = found.setdefault(backend, {})
            for reason, asked in project.reasons.items():
                before = known.get(reason)
                if before is None or _length_s(asked) > _length_s(before):
                    known[reason] = asked
    return found


def _length_s(policy: ReasonPolicy) -> tuple[float, float]:
    return (policy.window_s, policy.window_s + policy.cooldown_s)


Unprotected = Literal["switched_off", "no_chain"]
MAX_SUPERSEDED = 20
MAX_PERIODS = 50
MAX_TOLD = 20


def backend_of(policy: Policy, model: str) -> BackendId:
    """The backend that a `provider/model` of an opencode server is: a configured one, or itself."""
    if model not in policy.backends:
        for backend in policy.backends.values():
            if backend.kind == OPENCODE and not backend.implicit and backend.model == model:
                return backend.id
    return BackendId(model)


def model_at_server(entry: Entry, backend: Backend) -> str | None:
    """Return an opencode server's name of a candidate; None: it can be asked for no such model."""
    model = entry.model or backend.model
    if backend.kind != OPENCODE or model is None or "/" not in model:
        return None
    return model


def role_of(policy: Policy, agent: str | None) -> Role | None:
    found = None if agent is None else find_role(policy, agent)
    return found or find_any(policy)


def candidates_of(
    case: Case, backend: BackendId, agent: str | None, session: Session
) -> tuple[Entry, ...]:
    """The model itself, then the chain of its agent, as far as opencode servers have them."""
    known = None if agent is None else find_role(case.policy, agent)
    name = ANY if known is None and find_any(case.policy) is not None else agent
    found = candidates_for(case.policy, backend=backend, role=name, chain=None, session=session)
    return (found[0], *(one for one in found[1:] if _is_served(case.policy, one)))


def _is_served(policy: Policy, entry: Entry) -> bool:
    backend = find_backend(policy, entry.backend)
    return backend is not None and model_at_server(entry, backend) is not None


def why_unprotected(policy: Policy) -> Unprotected | None:
    """Return why no failed turn would be moved, whatever its model and its agent are."""
    if not policy.rescues:
        return "switched_off"
    chains = [role.chain for role in policy.roles.values() if role.enabled]
    chains += [chain for name, chain in policy.chains.items() if _is_for_sessions(policy, name)]
    is_served = any(_is_served(policy, entry) for chain in chains for entry in chain)
    return None if is_served else "no_chain"


def _is_for_sessions(policy: Policy, chain: str) -> bool:
    if chain == ANY:
        return not policy.any_is_built_in
    backend = find_backend(policy, BackendId(chain))
    return backend is not None and backend.kind == OPENCODE


def new_session(
    case: Case, name: SessionId, backend: BackendId, *, server: str, project: str
) -> Session:
    return Session(
        session=name,
        original=backend,
        current=backend,
        server=server,
        project=project,
        running=case.holder_of(name),
        created_at=case.now,
        last_used_at=case.now,
        periods=(Period(backend=backend, from_at=case.now),),
    )


def placed(session: Session, *, server: str, project: str, role: str | None) -> Session:
    """Return the session with the place where it was last seen."""
    return structs.replace(
        session,
        server=server or session.server,
        project=project or session.project,
        role=role or session.role,
    )


def chosen_by_user(case: Case, session: Session, backend: BackendId) -> Session:
    """The user has sent a message to this model."""
    if backend == session.current:
        return session
    if backend == session.original:
        return returned(case, session)
    session = on_model(case, session, backend)
    return structs.replace(
        session,
        original=backend,
        depth=0,
        hops=(),
        notices_sent=(),
        recovered_announced=False,
    )


def returned(case: Case, session: Session) -> Session:
    """Return to the original model; the notices about leaving it no longer hold."""
    session = on_model(case, session, session.original)
    return structs.replace(session, depth=0, notices_sent=(), recovered_announced=False)


def on_model(case: Case, session: Session, backend: BackendId) -> Session:
    if session.current == backend and session.periods:
        return session
    period = Period(backend=backend, from_at=case.now)
    return structs.replace(
        session,
        current=backend,
        current_model=None,
        answered_by=None,
        periods=(*session.periods, period)[-MAX_PERIODS:],
    )


def begun(case: Case, session: Session, message: str, backend: BackendId) -> Session:
    """A message of the user that was not known begins a turn."""
    known = session.message
    if known is not None and known.id == message:
        return session
    if message is not None:
        session = closed(case, session)
    turn = session.turn  # of the redirect before it
    is_of_it = turn is not None and turn.backend == backend
    return structs.replace(
        session,
        message=Message(
            id=message,
            backend=backend,
            began_at=case.now,
            lease=session.pending_lease,
            turn=turn if is_of_it else None,
        ),
        pending_lease=None,
        turn=None,
        last_used_at=case.now,
    )


def without_running(session: Session) -> Session:
    """The session after its turn at the server has ended."""
    message = session.message
    if message is None or not message.running:
        return session
    return structs.replace(session, message=structs.replace(message, running=False))


def closed(case: Case, session: Session) -> Session:
    """The turn is over: what comes about it is late, and its trial is given back."""
    message = session.message
    if message is None:
        return session
    if message.lease is not None:
        case.give_back(message.lease)
    superseded = (*session.superseded, message.id)[-MAX_SUPERSEDED:]
    return structs.replace(session, message=None, superseded=superseded)


def lease(case: Case, choice: Choice, name: AttemptId | None) -> AttemptId | None:
    """Lease the single trial of a candidate that came back by the clock alone."""
    if not choice.trial_scopes or name is None:
        return None
    case.take_lease(choice, name, expires_at=case.now + LEASE_S)
    return name


def moved_on(case: Case, session: Session, hop: Hop) -> Session:
    """The session is on the next model. Said once for each pair of original and current."""
    to = hop.to_backend
    session = on_model(case, session, to)
    session, is_news = moved(
        case,
        session,
        hop,
        wanted=session.original,
        model=session.current_model,
        forgets=True,
    )
    session = structs.replace(session, last_fallback_at=case.now, last_used_at=case.now)
    if not is_news:
        return session
    left = hop.from_backend if hop.trigger == "reactive" else session.original
    text = f"switched from {model_words(left)} to {model_words(to)} ({hop.reason})"
    if hop.trigger != "reactive":
        text = f"using {model_words(to)} in place of {model_words(left)} ({hop.reason})"
    mark = f"fallback:{left}>{to}"
    return told(case, session, mark, "fallback", route=(left, to), reason=hop.reason, text=text)


def told(
    case: Case,
    session: Session,
    mark: str,
    notice: str,
    *,
    route: tuple[str, str],
    reason: str,
    text: str,
) -> Session:
    """Give a notice, once for each `mark`."""
    if mark in session.told:
        return session
    _note(case, session, notice, route=route, reason=reason, text=text)
    return structs.replace(session, told=(*session.told, mark)[-MAX_TOLD:])


def _note(
    case: Case, session: Session, notice: str, *, route: tuple[str, str], reason: str, text: str
) -> None:
    case.note(
        "session.notice",
        session=session.session,
        backend=BackendId(route[1]) if route[1] else None,
        notice=notice,
        route=route,
        from_model=None,
        to_model=None,
        reason=reason,
        text=text,
    )


def told_outage(
    case: Case, session: Session, backend: BackendId, reason: str, retry_at: float | None
) -> Session:
    """Announce once for each message or redirect that no backend can take it, with the time."""
    when = "no return time is known"
    if retry_at is not None:
        when = f"the earliest comes back in {duration(max(0.0, retry_at - case.now))}"
    message = session.message
    mark = f"outage:{backend}:{'' if message is None else message.id}"
    return told(
        case,
        session,
        mark,
        "outage",
        route=(backend, ""),
        reason=reason,
        text=f"{model_words(backend)} is out ({reason}) and so is every other model of its chain;"
        f" {when}",
    )


def with_usage(
    case: Case, session: Session, backend: BackendId, usage: Usage, *, at: float
) -> Session:
    """
    Count what a message has cost in the period that holds its instant: from its first instant
    on, up to the first one of the next period.
    """
    session = charged(case, session, backend, usage)
    periods = list(session.periods) or [Period(backend=backend, from_at=at)]
    place = max((n for n, one in enumerate(periods) if one.from_at <= at), default=0)
    one = periods[place]
    periods[place] = structs.replace(one, usage=one.usage + usage)
    return structs.replace(session, periods=tuple(periods))
