"""The answer to one request over HTTP/1.1, read from the bytes of its connection."""

from collections.abc import Mapping

from fallbackd.lib.unpacking import Unpacking, unpacking_of

MAX_HEAD_BYTES = 128 * 1024


class Broken(Exception):
    """
    There is no answer, or no end of it.

    Attributes:
        name: What happened, as the general client names it.
        is_unanswered: A connection that was kept has ended before the server read the request.
    """

    def __init__(self, name: str, text: str, *, is_unanswered: bool = False) -> None:
        super().__init__(text)
        self.name = name
        self.text = text
        self.is_unanswered = is_unanswered


class Reading:
    def __init__(self) -> None:
        self.status = 0
        self.has_head = False
        self.is_over = False
        self.is_touched = False
        """A byte of it has come."""
        self.problem: Broken | None = None
        """What was wrong behind what could be read."""
        import httptools  # here and below: the start needs none of it, and no piece pays for it

        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._headers: Mapping[str, str] | None = None
        self._pieces: list[bytes] = []
        self.held_bytes = 0
        """Of the body, not yet taken."""
        self._head_bytes = 0
        self._ends_with_line = False
        self._is_kept = False
        self._has_surplus = False
        self._unpacking: Unpacking | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; what is said several times, in one."""
        if self._headers is None:
            found: dict[str, str] = {}
            for raw_name, raw in self._fields:
                name, value = raw_name.decode("latin-1").lower(), _text(raw)
                found[name] = f"{found[name]}, {value}" if name in found else value
            self._headers = found
        return self._headers

    @property
    def may_be_kept(self) -> bool:
        """Whether the connection can carry another request."""
        return self.is_over and self._is_kept and not self._has_surplus

    @property
    def is_timeout(self) -> bool:
        """The server has waited for the request, and closes the connection (RFC 9110, 15.5.9)."""
        named = self.headers.get("connection", "").lower().split(",")
        return self.status == 408 and "close" in (one.strip() for one in named)

    def feed(self, data: bytes) -> None:
        """
        Raises:
            Broken: It is no HTTP.
        """
        self.is_touched = True
        if not self.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except Exception as error:
            self._refused(error)
        if not self.has_head and self._head_bytes > MAX_HEAD_BYTES:
            raise Broken("RemoteProtocolError", "the head of the answer is too long")

    def _refused(self, error: Exception) -> None:
        """By the parser."""
        import httptools

        if isinstance(error, httptools.HttpParserUpgrade):
            raise Broken("RemoteProtocolError", "the server changes the protocol") from error
        if not isinstance(error, httptools.HttpParserError):
            raise error
        if self.is_over:
            self._has_surplus = True
            return
        self.problem = Broken("RemoteProtocolError", f"not HTTP: {error}")
        if not self.has_head:
            raise self.problem from error

    def end(self) -> None:
        """
        The connection has ended.

        Raises:
            Broken: In the middle.
        """
        if not self.is_touched:
            text = "Server disconnected without sending a response."
            raise Broken("RemoteProtocolError", text)
        if self.is_over:
            return
        if not self.has_head or not self._ends_with_line:
            text = "the server closed the connection in the middle of its answer"
            raise Broken("RemoteProtocolError", text)
        self._is_kept = False
        self._complete()

    def taken(self) -> bytes:
        """What has come of the body since the last time."""
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.held_bytes = 0
        return data

    # --- called by the parser --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_over:
            self._has_surplus = True
        elif not self.has_head:
            self._fields.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.has_head or status < 200:
            return
        self.status = status
        self.has_head = True
        self._is_kept = self._parser.should_keep_alive()
        named = self.headers
        self._ends_with_line = "content-length" not in named and "chunked" not in named.get(
            "transfer-encoding", ""
        )
        self._unpacking = unpacking_of(named.get("content-encoding", ""))
        if self._unpacking is not None:
            self._headers = {one: text for one, text in named.items() if one != "content-encoding"}

    def on_body(self, data: bytes) -> None:
        if self.is_over:
            return
        if self._unpacking is not None:
            data = self._unpacking.feed(data)
        if data:
            self._pieces.append(data)
            self.held_bytes += len(data)

    def on_message_complete(self) -> None:
        if self.has_head and not self.is_over:
            self._complete()

    def _complete(self) -> None:
        self.is_over = True
        if self._unpacking is not None and (rest := self._unpacking.end()):
            self._pieces.append(rest)
            self.held_bytes += len(rest)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
