"""
Which backend made an answer that a later request may name by its id alone, and which one has a
request whose key it may be sent with again.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import structlog
from msgspec import Struct, structs

from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry
from fallbackd.fronts.gateway.answers import Refusal
from fallbackd.fronts.gateway.encodings import Body
from fallbackd.lib import atomicfile, privatefile

log = structlog.get_logger("gateway")

KEPT = 10_000
MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_KEY_CHARS = 256
_KEY = "idempotency-key "
"""Before the key of a request, in the place of the id of an answer."""


def named_by_key(key: str | None, body: Body) -> str:
    """The name of a request that may be sent again with its key; empty: it has none."""
    if not key:
        return ""
    # Some callers give one key to several requests.
    said = body.plain if body.packed is None else body.packed
    return f"{_KEY}{key[:MAX_KEY_CHARS]} {hashlib.sha256(said or b'').hexdigest()[:16]}"


class Maker(Struct, frozen=True):
    backend: BackendId
    credential: str | None
    """The label of the account that has it."""

    def can_be_asked(self, backends: Mapping[BackendId, Backend]) -> bool:
        """Whether the account is still configured."""
        found = backends.get(self.backend)
        if found is None or not found.enabled:
            return False
        return self.credential in (None, *found.credentials)

    def __str__(self) -> str:
        return self.backend if self.credential is None else f"{self.backend} ({self.credential})"


class _Line(Struct, frozen=True, omit_defaults=True):
    """One line of the file: the last one about a name counts."""

    name: str
    backend: str = ""
    """Empty: it is not known any more."""
    credential: str | None = None


class Makers:
    """
    A bounded number of them. Another provider does not know the conversation.

    Args:
        path: Where those are kept that outlive the daemon; None: nowhere.
    """

    def __init__(self, path: str | None = None) -> None:
        self._kept: OrderedDict[str, Maker] = OrderedDict()
        self._path = path
        self._lines = 0
        self._is_failing = False
        if path is not None:
            self._read(path)

    def keep(
        self,
        response: str,
        backend: BackendId | None,
        credential: str | None,
        *,
        is_stored: bool = True,
    ) -> None:
        """
        Args:
            is_stored: The provider has it still when this daemon has ended.
        """
        if not response or backend is None:
            return
        maker = Maker(backend, credential)
        if self._kept.get(response) == maker:
            return
        self._kept[response] = maker
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if is_stored:
            self._write(_Line(response, backend, credential))

    def find(self, response: str) -> Maker | None:
        return self._kept.get(response)

    def forget(self, response: str) -> None:
        if self._kept.pop(response, None) is not None:
            self._write(_Line(response))

    def bind(self, key: str, backend: BackendId, credential: str | None) -> Maker | None:
        """
        Record which account is sent the request with this key.

        Returns:
            What `free` needs; None: the request has no key, or another call has sent it before.
        """
        if not key:
            return None
        known = self._kept.get(key)
        if known is not None:  # a copy, which the call that has bound the key cannot free
            self._kept[key] = structs.replace(known)
            return None
        self.keep(key, backend, credential)
        return self._kept[key]

    def free(self, key: str, bound: Maker | None) -> None:
        """Forget a key whose request was not begun, unless another call has used it since."""
        if bound is not None and self._kept.get(key) is bound:
            self.forget(key)

    def fitting(
        self,
        previous: str | None,
        entries: Sequence[Entry],
        backends: Mapping[BackendId, Backend],
    ) -> tuple[tuple[Entry, ...], str | None]:
        """
        Those that can continue an answer, with the account to do it.

        Raises:
            Refusal: None of them can, or it is not known which one.
        """
        maker = self._kept.get(previous or "")
        if maker is None:
            if previous and not previous.startswith(_KEY) and _accounts(entries, backends) > 1:
                text = (
                    f"{previous} was not made through this endpoint, so that it is not known which"
                )
                text += " backend has it; send the whole conversation instead"
                raise Refusal(400, text, "previous_response_not_found")
            return tuple(entries), None
        found = tuple(one for one in entries if one.backend == maker.backend)
        if not found or not maker.can_be_asked(backends):
            raise self.unavailable(previous)
        return found, maker.credential

    def unavailable(self, previous: str | None) -> Refusal:
        maker = self._kept.get(previous or "")
        name = maker or "another backend"
        if previous is not None and previous.startswith(_KEY):
            text = f"idempotency-key: {name} was sent a request with this key, may have begun it,"
            text += " and is not available now; send it with another key to begin it elsewhere"
            return Refusal(503, text, "request_may_have_begun")
        text = f"previous_response_id: {name} made this response and is not available now;"
        text += " send the whole conversation instead"
        return Refusal(400, text, "previous_response_not_found")

    # --- the file --------------------------------------------------------------------------------

    def _read(self, path: str) -> None:
        """A line that cannot be read, the last one of a daemon that was killed say, is skipped."""
        try:
            data = privatefile.read_file(path, max_bytes=MAX_FILE_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            self._failed(error)
            return
        for raw in data.splitlines():
            try:
                line = msgspec.json.decode(raw, type=_Line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            self._kept.pop(line.name, None)
            if line.backend:
                self._kept[line.name] = Maker(BackendId(line.backend), line.credential)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        self._rewrite(path)

    def _write(self, line: _Line) -> None:
        path = self._path
        if path is None:
            return
        if self._lines >= 2 * KEPT:
            self._rewrite(path)
            return
        where, name = os.path.split(path)
        try:
            directory = privatefile.open_directory(where)
            try:
                privatefile.append_line(name, msgspec.json.encode(line), directory=directory)
            finally:
                os.close(directory)
        except OSError as error:
            self._failed(error)
            return
        self._lines += 1
        self._is_failing = False

    def _rewrite(self, path: str) -> None:
        """Without what is not known any more."""
        lines = [_Line(name, one.backend, one.credential) for name, one in self._kept.items()]
        data = b"".join(msgspec.json.encode(one) + b"\n" for one in lines)
        try:
            atomicfile.write(path, data, durable=False)
        except OSError as error:
            self._failed(error)
        self._lines = len(lines)

    def _failed(self, error: OSError) -> None:
        if not self._is_failing:
            log.warning("gateway.makers_not_kept", path=self._path, error=str(error))
        self._is_failing = True


def _accounts(entries: Sequence[Entry], backends: Mapping[BackendId, Backend]) -> int:
    names = {one.backend for one in entries}
    found = (backends[name] for name in names if name in backends)
    return sum(max(1, len(one.credentials)) for one in found)
