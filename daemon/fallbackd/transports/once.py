"""A program that is run once for one cause, even where this process is killed on the way."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fallbackd.lib.failpoints import hit

TOLD_BYTES = 300
_ONCE = 'set -C; { : > "$0"; } 2>/dev/null || exit 0; exec "$@"'
"""Makes the file `$0`, which must not be there, then becomes its arguments. None of them is read by
the shell."""


def run_once(
    argv: Sequence[str], *, claim: Path, environ: Mapping[str, str], limit_s: float
) -> tuple[int, str]:
    """
    Run a program and wait for its end, unless the file `claim` says that it was begun before. The
    file stays: the caller removes it once the end is on record. Blocks.

    Returns:
        The exit status, 0 where it was begun before, and the beginning of what it wrote to stderr.

    Raises:
        TimeoutError: It took longer, and was ended with everything in its session.
        OSError: It cannot be started.
    """
    import tempfile  # slow to load, and rarely needed

    with tempfile.TemporaryFile(dir=claim.parent) as said:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _ONCE, str(claim), *argv],
            env=dict(environ),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        hit("notify.started")
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError from None
        said.seek(0)
        words = said.read(TOLD_BYTES).decode("utf-8", "replace")
    return code, " ".join(words.split())
