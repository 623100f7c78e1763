"""The request that leaves for a backend, translated where that has another API."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
from msgspec import Struct, structs

from fallbackd.backends import passage
from fallbackd.backends.lines import read_object
from fallbackd.backends.passage import MAX_WHOLE_BYTES, Passage, Unreadable
from fallbackd.backends.repairs import Repair, Sendable
from fallbackd.backends.spec import ApiMode, NotConfigured, Options
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Exit, HttpRequest, HttpResponse
from fallbackd.engine.api import Engine
from fallbackd.engine.credentials import carrying, credential_of
from fallbackd.engine.environment import Settings
from fallbackd.fronts.gateway import choosing
from fallbackd.fronts.gateway.answers import NotAnswered, Refusal
from fallbackd.fronts.gateway.incoming import Body
from fallbackd.fronts.gateway.relay import AFTER_END_S, FAREWELL_S
from fallbackd.fronts.gateway.translate import translation
from fallbackd.fronts.gateway.translate.tables import StreamTranslator
from fallbackd.fronts.gateway.translate.translation import Target, Translation
from fallbackd.ports.transport import PassedOn, TakePiece

HOP = "x-fallbackd-hop"
"""Header that counts the daemons that a request has passed: one that comes back goes round."""

MAX_TEMPLATES = 256
"""Callers choose models and queries."""


class OutwardCall(Struct, frozen=True, kw_only=True):
    """One request to a backend, before its address and credential are known."""

    asked: Passage
    model: str | None
    headers: Mapping[str, str]
    body: bytes
    translation: Translation | None = None
    plain: bytes | None = None
    """The body, where it leaves packed; None: it does not, or cannot be unpacked."""
    repaired: tuple[Repair, ...] = ()
    """Changes of it, since the backend has refused it otherwise."""
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
        """Return a copy with what was made of its part that can be repaired."""
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


# --- calls to another API ------------------------------------------------------------------------
# A call that goes to a backend of another API, and its answer on the way back.

_CODING = "content-encoding"
_KEPT = ("user-agent", HOP)
"""Headers that are kept: the others belong to the API of the caller."""


def outward(
    asked: Passage, model: str | None, headers: Mapping[str, str], body: Body
) -> OutwardCall:
    """Make the call to a backend of the caller's own API. A body stays packed with its model."""
    if body.packed is None:
        return OutwardCall(asked=asked, model=model, headers=headers, body=body.plain or b"")
    is_in_body = asked.mode != "generate_content" or (asked.embeds and body.plain is not None)
    if body.plain is None and is_in_body:
        model = None  # whatever it names
    if body.plain is None or not is_in_body or model in (None, asked.model):
        return OutwardCall(
            asked=asked, model=model, headers=headers, body=body.packed, plain=body.plain
        )
    headers = {name: text for name, text in headers.items() if name != _CODING}
    return OutwardCall(asked=asked, model=model, headers=headers, body=body.plain)


def translated(call: OutwardCall, api: ApiMode, options: Options) -> OutwardCall:
    """
    Make the call to a backend of another API.

    Raises:
        fallbackd.backends.passage.Unreadable: The body is no request of the caller's API.
    """
    host = urlsplit(options.base_url or "").hostname or ""
    target = Target(model=call.model, host=host, most_tokens=options.max_output_tokens)
    made = translation.begin(call.asked.mode, api, call.body, target)
    headers = {name: call.headers[name] for name in _KEPT if name in call.headers}
    return structs.replace(
        call,
        asked=structs.replace(call.asked, mode=api, model=call.model, query=""),
        headers={**headers, "content-type": "application/json"},
        body=made.body,
        translation=made,
    )


def call_to(
    engine: Engine,
    entry: Entry,
    wanted: str | None,
    asked: Passage,
    *,
    headers: Mapping[str, str],
    body: Body,
) -> OutwardCall:
    """
    Make the call to a backend, in its own API.

    Args:
        wanted: The model that the caller named.

    Raises:
        fallbackd.backends.passage.Unreadable: It cannot be translated.
        fallbackd.backends.spec.NotConfigured: The backend has been removed meanwhile.
    """
    settings = engine.settings
    backend = settings.policy.backends.get(entry.backend)
    if backend is None:
        raise NotConfigured(f"{entry.backend} is not configured any more")
    api = choosing.api_of(backend, settings, engine.world.kinds)
    model = choosing.model_for(entry, backend, wanted)
    if api is None or api == asked.mode or asked.embeds:
        return outward(asked, model, headers, body)
    if body.plain is None:
        raise Unreadable("a body in this content-encoding cannot be translated")
    call = OutwardCall(asked=asked, model=model, headers=headers, body=body.plain)
    return translated(call, api, settings.options_of(backend.id))


def translation_words(call: OutwardCall, api: ApiMode, entry: Entry) -> str:
    """Describe a translation for the record: from which API into which, and what is left behind."""
    lost = "" if call.translation is None else ", ".join(call.translation.lost)
    text = f"translated from {api} to {call.asked.mode} for {entry.backend}"
    return text + (f"; not carried over: {lost}" if lost else "")


class TranslatedAnswer:
    """
    The answer of such a backend in the words of the caller's API. See `ports.passing.PassedOn`.

    An error stays as it came: it is evidence about the backend, see `in_callers_words`.
    """

    def __init__(self, passed: PassedOn, translation: Translation, *, at: float) -> None:
        self._passed = passed
        self._translation = translation
        self._at = at
        self._head: HttpResponse | None = None
        self._exit: HttpResponse | None = None
        self._stream: StreamTranslator | None = None
        self._whole: bytearray | None = None
        """An answer in one piece, as far as it has come."""
        self._is_done = False

    async def head(self) -> HttpResponse | None:
        head = await self._passed.head()
        if head is not None and head.status < 300:  # what is made of it is in no coding
            headers = {one: text for one, text in head.headers.items() if one != _CODING}
            head = structs.replace(head, headers=headers)
        self._head = head
        return head

    async def read(self) -> bytes | None:
        if self._head is not None and self._head.status >= 300:
            return await self._passed.read()
        while not self._is_done:
            data, is_late = await self._next()
            if data is None:
                self._is_done = True
                self._exit = self._head if is_late else None
                made = self._rest()
            else:
                made = self._translated(data)
            if made:
                return made
        return None

    async def flow(self, take: TakePiece) -> bool:
        while (data := await self.read()) is not None:
            if not take(data):
                return False
        return True

    async def _next(self) -> tuple[bytes | None, bool]:
        """The next piece; what has said its end need not close its connection too."""
        stream = self._stream
        if stream is None or not stream.has_ended:
            return await self._passed.read(), False
        with anyio.move_on_after(FAREWELL_S if stream.is_over else AFTER_END_S):
            return await self._passed.read(), False
        return None, True

    def _translated(self, data: bytes) -> bytes:
        if self._stream is None and self._whole is None:
            begin = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            if not begin:
                return b""  # some gateways send blanks until they know more
            if begin in (b"{", b"[", b"<", b'"'):
                self._whole = bytearray()
            else:
                self._stream = self._translation.stream(at=self._at)
        if self._stream is not None:
            return self._stream.feed(data)
        assert self._whole is not None
        self._whole += data[: max(0, MAX_WHOLE_BYTES - len(self._whole))]
        return b""

    def _rest(self) -> bytes:
        if self._whole is not None:
            return self._translation.whole(bytes(self._whole), at=self._at)
        is_said = isinstance(self.exit, HttpResponse)  # else the connection failed
        return self._stream.end() if self._stream is not None and is_said else b""

    @property
    def exit(self) -> Exit:
        return self._passed.exit if self._exit is None else self._exit

    @property
    def stated(self) -> dict[str, Any] | None:
        if self._stream is not None:
            return self._stream.error
        return None if self._whole is None else read_object(bytes(self._whole))

    def masked(self, data: bytes) -> bytes:
        return self._passed.masked(data)

    async def aclose(self) -> None:
        await self._passed.aclose()


def in_callers_words(failed: NotAnswered, translation: Translation) -> NotAnswered:
    """An error that may go back to the caller as it was given."""
    reply = failed.reply
    if reply is None or reply.status < 300:
        return failed
    about = ("content-type", _CODING)
    headers = [(name, value) for name, value in reply.headers if name not in about]
    headers.append(("content-type", "application/json"))
    return structs.replace(
        failed,
        reply=structs.replace(reply, headers=headers),
        body=translation.error(failed.body, status=reply.status),
    )
