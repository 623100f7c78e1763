"""The policy as it holds in one directory: the files of opencode projects laid over it."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from fallbackd.core.computed import once
from fallbackd.core.events import Event
from fallbackd.core.failures import Reason
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import REASONS, Entry, Policy, Project, ReasonPolicy, Role
from fallbackd.core.records import Snapshot

ANY = "*"
NAMES = ("model-fallback.json", "rate-limit-fallback.json")
"""The older form comes second."""
FILES = tuple(f".opencode/{name}" for name in (*NAMES, "agent", "agents"))
"""Where a project says to which models its sessions fail over."""


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
    """What holds for agents without a role of their own."""
    return policy.roles.get(ANY)


def longest_windows(
    projects: Iterable[Project],
) -> dict[BackendId, dict[Reason, ReasonPolicy]]:
    """Of files that name the same candidate the longest window counts, reason by reason."""
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
