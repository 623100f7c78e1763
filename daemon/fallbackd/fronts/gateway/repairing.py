"""Requests that are changed where their backend is known to refuse them, or has just said so."""

from fallbackd.backends.repairs import Repair, proposed
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Evidence
from fallbackd.engine.api import Engine
from fallbackd.engine.repairing import MOST, Asked
from fallbackd.fronts.gateway.outgoing import OutwardCall


class RepairedCall:
    """The repairs of one call to one account. See `backends.repairs`."""

    def __init__(
        self, engine: Engine, backend: BackendId, credential: str | None, session: str | None
    ) -> None:
        self._engine = engine
        self._backend, self._credential, self._session = backend, credential, session
        self._tried: tuple[Repair, ...] = ()
        self.is_left = False
        """What the backend refuses is a part of the conversation, and no repair has helped."""

    def prepared(self, call: OutwardCall) -> OutwardCall:
        """The call without what its backend is known to refuse."""
        request = call.sendable
        if request is None:
            return call
        made, repairs = self._engine.repairs.prepared(
            self._engine.settings, self._asked(call), request
        )
        return call if made is request else call.with_repairs(made, repairs)

    def after(self, call: OutwardCall, evidence: Evidence) -> OutwardCall | None:
        """What is sent after a refusal; None: nothing that is known would help."""
        request = call.sendable
        if request is None or len(self._tried) >= MOST:
            return None
        made, repairs = proposed(evidence, request, without=frozenset(self._tried))
        if not repairs:
            self.is_left = any(one.about == "conversation" for one in self._tried)
            return None
        self._tried += repairs
        return call.with_repairs(made, repairs)

    def keep(self, call: OutwardCall) -> None:
        """It was answered: the same is done for later calls at once."""
        if call.repaired:
            self._engine.repairs.keep(
                self._engine.settings, self._asked(call), call.repaired, call.foreign
            )

    def _asked(self, call: OutwardCall) -> Asked:
        return Asked(
            backend=self._backend,
            model=call.model,
            credential=self._credential,
            session=self._session,
        )
