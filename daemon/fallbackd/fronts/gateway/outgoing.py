"""The request that leaves for a backend: address, credential, and how often it has gone round."""

from collections.abc import Mapping

from msgspec import Struct, structs

from fallbackd.backends import passage
from fallbackd.backends.passage import Passage
from fallbackd.backends.repairs import Repair, Sendable
from fallbackd.backends.spec import NotConfigured
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import HttpRequest
from fallbackd.engine.api import Engine
from fallbackd.engine.credentials import carrying, credential_of
from fallbackd.engine.environment import Settings
from fallbackd.fronts.gateway.answers import Refusal
from fallbackd.fronts.gateway.translate.translation import Translation

HOP = "x-fallbackd-hop"
"""How often a request has passed a daemon like this one: one that comes back goes round."""

MAX_TEMPLATES = 256
"""Callers choose models and queries."""


class OutwardCall(Struct, frozen=True, kw_only=True):
    """What a backend is sent."""

    asked: Passage
    model: str | None
    headers: Mapping[str, str]
    body: bytes
    translation: Translation | None = None
    plain: bytes | None = None
    """The body, where it leaves packed; None: it does not, or cannot be unpacked."""
    repaired: tuple[Repair, ...] = ()
    """What was changed of it, since the backend has refused it otherwise."""
    foreign: frozenset[bytes] = frozenset()
    """See `repairs.Sendable`."""

    @property
    def sendable(self) -> Sendable | None:
        """The part of it that can be repaired; None: its body cannot be read."""
        body = self.plain if self.is_packed else self.body
        if body is None:
            return None
        return Sendable(
            mode=self.asked.mode,
            side=self.asked.side,
            body=body,
            headers=self.headers,
            foreign=self.foreign,
        )

    @property
    def is_packed(self) -> bool:
        return "content-encoding" in self.headers

    def with_repairs(self, made: Sendable, repairs: tuple[Repair, ...]) -> "OutwardCall":
        """The same call with what was made of its part that can be repaired."""
        headers, body = made.headers, made.body
        if self.is_packed and body == self.plain:
            body = self.body
        elif self.is_packed:
            headers = {name: text for name, text in headers.items() if name != "content-encoding"}
        return structs.replace(
            self,
            headers=headers,
            body=body,
            repaired=(*self.repaired, *repairs),
            foreign=made.foreign,
        )


def next_hop(named: Mapping[str, str]) -> str:
    """
    The value of `HOP` for what leaves.

    Raises:
        Refusal: It goes round in a circle.
    """
    hops = named.get(HOP, "0")
    if hops not in ("0", "1"):
        raise Refusal(508, "this request has come back to where it began", "loop")
    return str(int(hops) + 1)


class Outgoing:
    """Requests to backends. What they have in common is made once for each configuration."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings: Settings | None = None
        self._templates: dict[tuple[object, ...], HttpRequest] = {}

    def request_to(
        self, backend: BackendId, credential: str | None, call: OutwardCall
    ) -> HttpRequest:
        """
        Args:
            credential: Its label.

        Raises:
            fallbackd.backends.spec.NotConfigured: No address, a credential that is not there any
                more, or a key that would leave in the clear.
            fallbackd.backends.passage.Unreadable: The model cannot be put into the body.
        """
        return passage.call_of(
            self._template(backend, credential, call),
            self._engine.settings.options_of(backend),
            call.asked,
            model=call.model,
            headers=call.headers,
            body=call.body,
        )

    def _template(
        self, backend: BackendId, credential: str | None, call: OutwardCall
    ) -> HttpRequest:
        settings, asked = self._engine.settings, call.asked
        if settings is not self._settings or len(self._templates) >= MAX_TEMPLATES:
            self._settings = settings
            self._templates.clear()
        about = asked.mode, asked.side, asked.query, asked.is_streamed
        key = backend, credential, call.model, *about
        found = self._templates.get(key)
        if found is None:
            found = self._templates[key] = self._made(backend, credential, call)
        return found

    def _made(self, backend: BackendId, credential: str | None, call: OutwardCall) -> HttpRequest:
        settings, world = self._engine.settings, self._engine.world
        kind = world.kinds[settings.policy.backends[backend].kind]
        assert kind.endpoint is not None
        options = settings.options_of(backend)
        reference = credential_of(options, credential)
        if reference is None and credential is not None:
            why = f"credential {credential} of {backend} is not configured any more"
            raise NotConfigured(why)
        request = passage.template_of(
            kind.endpoint,
            options,
            call.asked,
            model=call.model,
            credential=reference,
            inherited={
                name: world.environ[name] for name in kind.reads_env if name in world.environ
            },
        )
        carried = carrying(request, reference, options)
        assert isinstance(carried, HttpRequest)
        return carried
