"""
The log of an attempt that has no runner: what came over a connection, with its times.

`output.log` has the bytes as they came, `output.idx` one line per chunk: `time stream length end`,
the stream by its letter. The same layout as a runner's, in one part.
"""

import os
from typing import BinaryIO

from fallbackd.core.protocol import Chunk, StreamName
from fallbackd.lib import privatefile

MAX_LOG_BYTES = 64 * 1024 * 1024
STREAM_LETTERS: dict[StreamName, str] = {"stdout": "o", "stderr": "e", "http": "h", "event": "v"}
LOG_CUT_MARKER = b"\n[fallbackd: the rest was not kept]\n"


class OutputLog:
    """
    `output.log` and `output.idx` of one attempt, private to the user.

    The log has the bytes as they came; the index one line per chunk: `time stream length end`,
    the stream by its letter. A disk that takes no more ends the log and nothing else.

    Args:
        directory: Exists. The files are made with the first chunk.
        max_bytes: What is kept; a marker says that more came.
        size_bytes: What is in it already, from an earlier daemon.
    """

    def __init__(
        self, directory: str, *, max_bytes: int = MAX_LOG_BYTES, size_bytes: int = 0
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        self.is_cut = size_bytes >= max_bytes
        self.size_bytes = size_bytes

    def write(self, chunk: Chunk) -> None:
        if self.is_cut:
            return
        data = chunk.data
        if self.size_bytes + len(data) > self._max_bytes:
            self.is_cut = True
            data = data[: self._max_bytes - self.size_bytes] + LOG_CUT_MARKER
        end = self.size_bytes + len(data)
        try:
            if self._files is None:
                self._files = self._create()
            log, index = self._files
            log.write(data)
            letter = STREAM_LETTERS[chunk.stream]
            index.write(f"{chunk.at:.6f} {letter} {len(data)} {end}\n".encode())
        except OSError:
            self.is_cut = True
            return
        self.size_bytes = end

    def close(self) -> None:
        if self._files is not None:
            for file in self._files:
                file.close()

    def _create(self) -> tuple[BinaryIO, BinaryIO]:
        directory = privatefile.open_directory(self._directory)
        try:
            log = _appended("output.log", directory)
            try:
                return log, _appended("output.idx", directory)
            except OSError:
                log.close()
                raise
        finally:
            os.close(directory)


def _appended(name: str, directory: int) -> BinaryIO:
    handle = privatefile.open_to_append(name, directory=directory)
    return os.fdopen(handle, "wb", buffering=0)
