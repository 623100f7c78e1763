"""
One method: its wire types and the function that serves it.

What an answer promises is one column of the table of methods (`Method.promises`): nothing, a
record, or work. `Handler.answer` answers a record only when it is durable, or with an error that
says it is not; work is durable before it begins, and does not begin for a caller that has hung up.
`tests/acceptance/test_promises.py` holds every method to it on a full disk and behind a kill.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec import Struct, structs

from fallbackd.api.host import Caller
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods.callers import ReportResult, ResolveResult
from fallbackd_client.wire.methods.daemon import DaemonStatus, StatusResult
from fallbackd_client.wire.shapes import CandidateVerdict, Failure, HealthEntry

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

ErrorKind = Literal[
    "invalid_params",
    "unknown",
    "busy",
    "refused",
    "draining",
    "not_permitted",
    "config_invalid",
    "wait_over",
    "too_many",
]


class ApiError(Exception):
    """
    An error answer.

    Args:
        kind: What kind of error it is; a front gives it the code of its protocol.
        message: A sentence that says what to do.
        data: More fields for programs, any JSON; a `kind` among them is a narrower word.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        data: dict[str, Any] | None = None,  # error data of the wire, any JSON
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data or {}


def refuse_unknown(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """
    Refuse a word that is none of a fixed set.

    Raises:
        ApiError: Names the nearest known word, or all of them.
    """
    from difflib import get_close_matches

    for word in given:
        if word in known:
            continue
        near = get_close_matches(word[:100], known, n=1, cutoff=0.6)
        help_ = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
        raise ApiError("invalid_params", f"unknown {what} {word[:100]!r}: {help_}")


P = TypeVar("P", bound=Struct)
R = TypeVar("R")
T = TypeVar("T")

GRANTED_BY: dict[str, tuple[str, ...]] = {
    "question.list": ("answer",),
    "question.answer": ("answer",),
}
"""Methods for a person that a role may be allowed by `may`, with the words that do."""

_OF_PERSONS: dict[type[Struct], tuple[str, ...]] = {
    CandidateVerdict: ("detail", "credential", "scope", "fix"),
    Failure: ("scope",),
    ResolveResult: ("credential", "limits", "turn"),
    ReportResult: ("turn",),
    HealthEntry: ("detail", "note", "seen_by", "scopes", "credentials", "limits"),
    DaemonStatus: (
        *("config_path", "config_errors", "config_warnings", "state_dir", "store", "troubles"),
        *("path", "kept_back"),
    ),
    StatusResult: ("programs", "toolchains", "readiness", "share"),
}
"""Fields that keep their defaults for a process inside an attempt: paths and accounts of others."""


Handle = Callable[["Engine", P, Caller], R | Awaitable[R]]


class Handler(Generic[P, R]):
    """
    Args:
        handle: A plain function is called on the reader task of the connection and answers at
            once. An `async` one may wait.
        waits: It may wait long (for work to end), so it gets a task of its own. Else it is
            awaited by the reader task where it changes nothing.
    """

    __slots__ = ("handle", "is_async", "is_quick", "method", "normalises", "outlives")

    def __init__(self, method: Method[P, R], handle: Handle[P, R], *, waits: bool = False) -> None:
        self.method = method
        self.handle = handle
        self.is_async = inspect.iscoroutinefunction(handle)
        assert self.is_async or method.promises == "nothing", f"{method.name} cannot wait"
        self.is_quick = self.is_async and method.read_only and not waits
        self.outlives = not method.read_only
        """
        The call is run to its end although the connection has closed. A method may look whether
        its caller has hung up, and begin nothing then, as `delegate` does.
        """
        self.normalises = hasattr(method.params, "normalised")

    async def answer(self, engine: "Engine", params: Any, caller: Caller) -> R:
        """
        Serve one call, and answer when what the method promises is on record.

        Raises:
            NotKept: It was done, and cannot be put on record now.
        """
        names_one = self.method.who == "own" and "unknown" in self.method.errors
        if names_one and not caller.authority.is_person:
            await _require_own(engine, params, caller)
        try:
            result: R = await self.handle(engine, params, caller)  # type: ignore[misc]
        except ApiError as error:
            if not caller.authority.is_person:
                error.data = concealed(error.data)
            raise
        if not caller.authority.is_person:
            result = concealed(result)
        if self.method.promises == "record" and not getattr(params, "only_reads", False):
            await engine.require_kept(self.method.name)
        return result

    def params(self, raw: Any, caller: Caller) -> P:  # `Raw` or UNSET, as it came
        """
        Raises:
            ApiError: This caller may not ask for that.
        """
        params = self.method.decode_params(raw)
        if self.normalises:
            params = params.normalised()  # type: ignore[attr-defined]
        if not caller.authority.is_person:
            self._require_allowed(params, caller)
        return params

    def _require_allowed(self, params: P, caller: Caller) -> None:
        reads = getattr(params, "only_reads", False)
        authority = caller.authority
        match self.method.who_reads if reads else self.method.who:
            case "any":
                return
            case "own" if authority.inside:
                return
            case _ if set(GRANTED_BY.get(self.method.name, ())) & authority.may:
                return
        raise ApiError(
            "not_permitted",
            f"only a person may do this; you are asking from {authority.place}",
            data={"method": self.method.name},
        )


async def _require_own(engine: "Engine", params: Any, caller: Caller) -> None:
    """
    Raises:
        Unknown: It names what was begun elsewhere, which for this caller does not exist.
    """
    authority = caller.authority
    if (delegation := getattr(params, "delegation", None)) is not None:
        await engine.delegation(delegation, authority)
    elif (session := getattr(params, "session", None)) is not None:
        await engine.session(session, authority)


def concealed(value: T) -> T:
    """Return a copy without them, at any depth."""
    found: object = value
    match value:
        case Struct():
            hidden = _OF_PERSONS.get(type(value), ())
            plain = {one.name: one for one in structs.fields(type(value))}
            changed = {
                name: plain[name].default_factory()
                if callable(plain[name].default_factory)
                else plain[name].default
                for name in hidden
            }
            for name in plain.keys() - changed.keys():
                changed[name] = concealed(getattr(value, name))
            found = structs.replace(value, **changed)
        case tuple():
            found = tuple(concealed(one) for one in value)
        case dict():
            found = {name: concealed(one) for name, one in value.items()}
    return found  # type: ignore[return-value] # of the same type
