"""The process before its daemon lives."""

import subprocess
import sys

PROGRAM = """
import threading
import msgspec
from fallbackd.app.process import build_types

met = threading.Event()

def met_half_built():
    # Another thread reads the same record while msgspec learns what is in it.
    if threading.current_thread() is first:
        met.set()
        second.join(5)
    return int | None

class Record(msgspec.Struct):
    pass

class Held(Record):
    number: "met_half_built()" = None

class Holder(Record):
    held: Held
    other: int = 0

def read():
    msgspec.json.decode(b'{"held": {"number": 1}, "other": 2}', type=Holder)
    met.set()

def read_too():
    met.wait()
    msgspec.json.decode(b'{"other": 2, "held": {}}', type=Holder)

first, second = threading.Thread(target=read), threading.Thread(target=read_too)
build_types(Record)
second.start(), first.start()
first.join(), second.join()
print("read")
"""


def test_two_threads_may_read_a_record_for_the_first_time_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")
