"""Processors that do not sleep while something is measured."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_SPIN = """\
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == {parent}:
    pass
"""


@contextmanager
def kept_awake() -> Iterator[None]:
    """
    A process for each processor that runs where nothing else wants to (SCHED_IDLE).

    On a virtual machine a processor that sleeps is woken by its host, which takes longer than the
    whole way through a daemon: what is measured otherwise is how many processes stand on the way.
    """
    program = _SPIN.format(parent=os.getpid())
    with ExitStack() as spinning:
        for _ in os.sched_getaffinity(0):
            one = spinning.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            spinning.callback(one.terminate)
        yield
