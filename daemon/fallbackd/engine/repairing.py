"""
Repairs of requests that have helped: what was refused once is not sent again.

In memory, a bounded number of them, until the configuration changes. The gateway and delegations
share them.
"""

from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct, structs

from fallbackd.backends import http_calls
from fallbackd.backends.repairs import (
    Repair,
    Sendable,
    applied,
    configured,
    proposed,
    without_known,
)
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.protocol import Call, Evidence, HttpRequest
from fallbackd.engine.environment import Settings

MOST = 6
"""Repairs of one request to one account: each is a further request."""
KEPT = 1000
"""Models and conversations; and delegations whose repairs are being tried."""
MAX_FOREIGN = 20_000
"""Pieces of reasoning that one account has refused."""


class Asked(Struct, frozen=True, kw_only=True):
    """Account and model of a backend that answer, and the conversation."""

    backend: BackendId
    model: str | None
    credential: str | None = None
    session: str | None = None
    """Conversation of the request; None: it stands alone."""


class KnownRepairs:
    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._kept: OrderedDict[Asked, dict[tuple[str, ...], Repair]] = OrderedDict()
        self._foreign: dict[tuple[BackendId, str | None], OrderedDict[bytes, None]] = {}
        self._tried: OrderedDict[tuple[DelegationId, Asked], tuple[Repair, ...]] = OrderedDict()

    def prepared(
        self, settings: Settings, asked: Asked, request: Sendable
    ) -> tuple[Sendable, tuple[Repair, ...]]:
        """
        The request as the user wants it for this backend, without what that is known to refuse, and
        what was changed.
        """
        self._follow(settings)
        said: tuple[Repair, ...] = ()
        known = self._foreign.get((asked.backend, asked.credential))
        if known:
            cleaned = without_known(request, known)
            if cleaned.foreign:
                request, said = cleaned, (Repair(act="unsign", about="conversation"),)
        repairs: dict[tuple[str, ...], Repair] = {}
        for key in (_of_model(asked), asked):
            repairs.update(self._kept.get(key, {}))
        own = configured(settings.options_of(asked.backend))
        request, done = applied((*own, *repairs.values()), request)
        return request, (*said, *done)

    def keep(
        self,
        settings: Settings,
        asked: Asked,
        repairs: Iterable[Repair],
        foreign: frozenset[bytes] = frozenset(),
    ) -> None:
        """
        Args:
            foreign: Digests of reasoning that the account has not signed.
        """
        self._follow(settings)
        for repair in repairs:
            if repair.act == "unsign" or repair.about == "configuration":
                continue  # the first is kept as what it was about, for every conversation
            if repair.about == "conversation" and asked.session is None:
                continue
            key = _of_model(asked) if repair.about == "model" else asked
            own = self._kept.setdefault(key, {})
            own.pop(repair.subject, None)
            own[repair.subject] = repair
            self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if foreign:
            known = self._foreign.setdefault((asked.backend, asked.credential), OrderedDict())
            for digest in foreign:
                known[digest] = None
                known.move_to_end(digest)
            while len(known) > MAX_FOREIGN:
                known.popitem(last=False)

    def tried_by(self, delegation: DelegationId, asked: Asked) -> tuple[Repair, ...]:
        """The repairs that its attempts have made so far, in their order."""
        return self._tried.get((delegation, asked), ())

    def note_tried(
        self, delegation: DelegationId, asked: Asked, repairs: tuple[Repair, ...]
    ) -> None:
        self._tried.pop((delegation, asked), None)
        if repairs:
            self._tried[delegation, asked] = repairs
        while len(self._tried) > KEPT:
            self._tried.popitem(last=False)

    def _follow(self, settings: Settings) -> None:
        if settings is not self._settings:
            self._settings = settings
            self._kept.clear()
            self._foreign.clear()


def _of_model(asked: Asked) -> Asked:
    return Asked(backend=asked.backend, model=asked.model)


class AttemptRepairs(Struct, frozen=True, kw_only=True):
    """
    The repairs of the request of one attempt of a delegation, made of what is known and of what
    the attempts before it have tried.
    """

    known: KnownRepairs
    settings: Settings
    delegation: DelegationId
    asked: Asked
    request: Sendable
    made: tuple[Repair, ...]

    def learn(self, evidence: Evidence) -> tuple[Repair, ...]:
        """Note the repairs for the next attempt; empty: nothing that is untried would help."""
        tried = self.known.tried_by(self.delegation, self.asked)
        if len(tried) >= MOST:
            return ()
        _, repairs = proposed(evidence, self.request, without=frozenset(tried))
        if repairs:
            self.known.note_tried(self.delegation, self.asked, (*tried, *repairs))
        return repairs

    def keep(self) -> None:
        """The attempt was answered: the same is done for later requests at once."""
        self.known.note_tried(self.delegation, self.asked, ())
        self.known.keep(self.settings, self.asked, self.made, self.request.foreign)


def repaired(
    call: Call,
    kind: BackendKind,
    options: Options,
    *,
    known: KnownRepairs,
    settings: Settings,
    asked: Asked,
    delegation: DelegationId,
) -> tuple[Call, AttemptRepairs | None]:
    """The request of an attempt without what its backend is known to refuse, or has refused."""
    if not isinstance(call, HttpRequest) or kind.endpoint is None:
        return call, None
    mode = http_calls.mode_of(kind.endpoint, structs.replace(options, model=asked.model))
    request = Sendable(mode=mode, body=call.body, headers=call.headers)
    request, made = known.prepared(settings, asked, request)
    request, again = applied(known.tried_by(delegation, asked), request)
    repairs = AttemptRepairs(
        known=known,
        settings=settings,
        delegation=delegation,
        asked=asked,
        request=request,
        made=(*made, *again),
    )
    return structs.replace(call, body=request.body, headers=request.headers), repairs
