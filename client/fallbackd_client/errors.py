"""Errors between a caller and the daemon, each with what to do about it."""

from fallbackd_client.wire.codes import kind_of

_START = (
    "start it with `fallbackd-client service start`, or set it up with `fallbackd-client setup`"
)

_NO_DAEMON = {
    "missing": "no fallbackd at {path}: " + _START,
    "refused": "nothing answers at {path} (the socket was left by a daemon that died): " + _START,
    "not_permitted": "not allowed to use {path}: the daemon serves only the user it runs as",
    "busy": "the daemon at {path} does not accept connections in time: try again later",
    "timeout": "the daemon at {path} did not answer in {timeout_s:g} s: try again, or look at"
    " `fallbackd-client ping` and the daemon's log",
    "closed": "the daemon at {path} closed the connection before its answer: it was stopped,"
    " or it serves another user; look at its log",
    "bad_reply": "what listens at {path} does not speak this protocol: {detail}",
    "unusable": "cannot connect to {path}: {detail}",
}


_AGAIN = "; the request may have been taken: send it again with request_id {0!r}, or cancel that"


class ClientError(Exception):
    """Base of everything that this library raises on purpose."""


class NoDaemon(ClientError):
    """
    There is no daemon to talk to.

    Attributes:
        cause: missing, refused, not_permitted, busy, timeout, closed, bad_reply, unusable.
        path: The socket that was tried.
        request_id: Of a request that would have begun work, and may have: sent again with it, the
            work is not run twice; `cancel(request_id=…)` stops it, or keeps it from being begun.
    """

    def __init__(
        self,
        cause: str,
        path: str,
        *,
        timeout_s: float = 0.0,
        detail: str = "",
        request_id: str | None = None,
    ) -> None:
        super().__init__(_NO_DAEMON[cause].format(path=path, timeout_s=timeout_s, detail=detail))
        self.cause = cause
        self.path = path
        self.request_id = request_id

    def __str__(self) -> str:
        again = "" if self.request_id is None else _AGAIN.format(self.request_id)
        return super().__str__() + again


class ProtocolError(ClientError):
    """The daemon answered with something that does not fit the contract."""


class RequestTooLarge(ClientError):
    """The request does not fit into one line; nothing was sent."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"the request has {size_bytes} bytes and the limit is {max_bytes}: put large input"
            " into a file in the working directory and name the file in the prompt"
        )
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class NotSendable(ClientError):
    """The params are no JSON, or hold text that is no Unicode; nothing was sent."""


class RpcError(ClientError):
    """
    The daemon answered with an error.

    Attributes:
        code: See `wire.codes`.
        message: A sentence that says what to do.
        data: Any JSON value that came with it.
        kind: The stable word: `data.kind` where there is one, else that of the code.
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        kind = data.get("kind") if isinstance(data, dict) else None
        self.kind: str = kind if isinstance(kind, str) else kind_of(code)

    def __repr__(self) -> str:
        return f"RpcError({self.code}, {self.message!r}, kind={self.kind!r})"
