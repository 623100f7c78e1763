"""
Authority of a caller over the daemon: a person everything, an agent at most what it may do itself.

The daemon finds who asks by the processes above the caller; no caller claims it. Work that is asked
for from inside an attempt is narrowed to that attempt, and its record then says what those that it
starts may ask: no descendant exceeds its ancestor.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Literal

from msgspec import Struct, field, structs

from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.policy import ReplayWord
from fallbackd.core.protocol import Permissions
from fallbackd.core.records import Delegation, Session

LEVELS: tuple[Permissions, ...] = ("read", "workspace", "full")
DEFAULT_LEVEL: Permissions = "workspace"
"""Permissions of work for which none are asked."""


class Authority(Struct, frozen=True, kw_only=True):
    """The authority of a caller, by default a person's."""

    who: Literal["person", "attempt", "none"] = "person"
    """`none`: it cannot be determined."""
    why: str = ""
    """Of `none`: a clause."""
    attempt: AttemptId | None = None
    inside: tuple[DelegationId, ...] = ()
    """The delegations that it is part of: several where their attempts share a process."""
    permissions: Permissions = "full"
    """The most that it may delegate."""
    directories: tuple[str, ...] | None = None
    """Real paths below which it may let others write; None: wherever the daemon's user may."""
    withheld: tuple[str, ...] = ()
    """Real paths that no work from inside an attempt is given as its directory."""
    allow_metered: bool = True
    replay: ReplayWord = "external-ok"
    env: Mapping[str, str] | None = None
    """Variables that it was given, which it may pass on; None: any."""
    may: frozenset[str] = frozenset()
    """Requests that the configuration allows its role besides."""

    @property
    def is_person(self) -> bool:
        return self.who == "person"

    @property
    def place(self) -> str:
        """The place of the caller, for a sentence: `you are asking from …`."""
        if self.inside:
            return f"inside delegation {', '.join(self.inside)}"
        return f"a place that cannot be determined: {self.why}"

    def has_begun(self, one: Delegation | Session) -> bool:
        """Return whether the caller began this work, and so may see and stop it."""
        if self.is_person:
            return True
        return bool(self.inside) and is_below_all(one, self.inside)

    def own(self, request_id: str) -> str:
        """A request id as it is kept: the ids of another caller are others (see `as_given`)."""
        return "\n".join((*self.inside[:1], request_id))


PERSON = Authority()


class Request(Struct, frozen=True, kw_only=True):
    """The parts of a `delegate` that are judged."""

    permissions: Permissions | None = None
    """None: the default."""
    cwd: str = ""
    """A real path; empty: a private directory."""
    env: Mapping[str, str] = field(default_factory=dict)
    allow_metered: bool = False


def is_below_all(one: Delegation | Session, inside: Iterable[DelegationId]) -> bool:
    return set(inside) <= set(one.above)


def as_given(request_id: str | None) -> str | None:
    """The name that its caller gave to a request, which holds no line end."""
    return None if request_id is None else request_id.rpartition("\n")[2]


def nothing(why: str) -> Authority:
    """The authority of a caller about which nothing can be determined."""
    return Authority(
        who="none",
        why=why,
        permissions="read",
        directories=(),
        allow_metered=False,
        replay="ask",
        env={},
    )


def authority_in(
    one: Delegation,
    attempt: AttemptId,
    *,
    directory: str,
    env: Mapping[str, str],
) -> Authority:
    """
    Return the authority of an attempt, by the record of its delegation.

    Args:
        directory: The real path of the one that it works in.
        env: Variables that its caller set.
    """
    granted = [level for level in LEVELS if f"delegate:{level}" in one.may]
    permissions = max([one.permissions, *granted], key=LEVELS.index)
    return Authority(
        who="attempt",
        attempt=attempt,
        inside=(one.delegation,),
        permissions=permissions,
        directories=None if permissions == "full" else (directory,),
        allow_metered=one.turn.allow_metered,
        replay=one.replay,
        env=env,
        may=frozenset(one.may),
    )


def meet(several: Iterable[Authority]) -> Authority:
    """
    Return what each of several may ask: the authority of a process that works for all of them.
    """
    return reduce(_meet, several)


def _meet(one: Authority, other: Authority) -> Authority:
    if "none" in (one.who, other.who):
        return one if one.who == "none" else other
    if one.is_person or other.is_person:
        return other if one.is_person else one
    return structs.replace(
        one,
        inside=tuple(dict.fromkeys((*one.inside, *other.inside))),
        permissions=lower(one.permissions, other.permissions),
        directories=_shared(one.directories, other.directories),
        withheld=tuple(dict.fromkeys((*one.withheld, *other.withheld))),
        allow_metered=one.allow_metered and other.allow_metered,
        replay=lower_replay(one.replay, other.replay),
        env=dict((one.env or {}).items() & (other.env or {}).items()),
        may=one.may & other.may,
    )


def lower(one: Permissions, other: Permissions) -> Permissions:
    return min(one, other, key=LEVELS.index)


def lower_replay(one: ReplayWord, other: ReplayWord) -> ReplayWord:
    return "external-ok" if (one, other) == ("external-ok", "external-ok") else "ask"


def _shared(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    inner = [each for each in one if _is_below_any(each, other)]
    return tuple(dict.fromkeys((*inner, *(each for each in other if _is_below_any(each, one)))))


def by_default(authority: Authority) -> Permissions:
    """Permissions of work for which none are asked."""
    return lower(DEFAULT_LEVEL, authority.permissions)


def narrowed(authority: Authority, asked: Request) -> Request | str:
    """The request as this caller may make it; a sentence where it may not."""
    wanted = asked.permissions or by_default(authority)
    if authority.is_person:
        return structs.replace(asked, permissions=wanted)
    if not authority.inside:
        return f"nothing is delegated here: you are asking from {authority.place}"
    most = authority.permissions
    if LEVELS.index(wanted) > LEVELS.index(most):
        return f"permissions: asked for `{wanted}`, this agent has `{most}`"
    if why := _why_not_there(authority, asked.cwd, wanted):
        return f"cwd: {why}"
    given = authority.env
    foreign = (
        []
        if given is None
        else [name for name, value in sorted(asked.env.items()) if given.get(name) != value]
    )
    if foreign:
        return f"env: this agent was not given {', '.join(foreign)} with these values itself"
    if asked.allow_metered and not authority.allow_metered:
        return "allow_metered: asked for calls that are billed by use, this agent may make none"
    return structs.replace(asked, permissions=wanted)


def _why_not_there(authority: Authority, cwd: str, permissions: Permissions) -> str:
    own = authority.directories
    if cwd == "":
        return ""
    for place in authority.withheld:
        # Private directories lie below a withheld place; their agents may share them.
        is_shared = any(_is_below(one, place) and _is_below(cwd, one) for one in own or ())
        if not is_shared and (_is_below(cwd, place) or _is_below(place, cwd)):
            return f"no work from inside a delegation is given {cwd}: {place} is withheld from it"
    if own is None or permissions == "read" or _is_below_any(cwd, own):
        return ""
    where = ", ".join(own) or "no directory"
    return f"asked for `{permissions}` in {cwd}, this agent may let others write in {where} only"


def _is_below_any(path: str, roots: Iterable[str]) -> bool:
    return any(_is_below(path, root) for root in roots)


def _is_below(inner: str, outer: str) -> bool:
    """Return whether `inner` is `outer` or below it, by name."""
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")
