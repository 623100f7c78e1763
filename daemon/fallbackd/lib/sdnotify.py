"""
Tells the service manager how the daemon is.

Never raises and never blocks: a manager that does not listen is no reason to stop working.
Source: sd_notify(3).
"""

import socket
import time


class Notifier:
    """Sends states to the socket that the manager named; without a name, sends nothing."""

    def __init__(self, address: str | None) -> None:
        """
        Args:
            address: Content of `NOTIFY_SOCKET`: a path, or `@name` for an abstract socket.
        """
        self._address: str | None = None
        if address and len(address) > 1 and address[0] in "/@":
            self._address = "\0" + address[1:] if address[0] == "@" else address

    def send(self, *states: str) -> bool:
        """Send `NAME=value` lines in one datagram. True when the kernel has taken it."""
        if self._address is None:
            return False
        # Line ends inside a state would begin another one.
        message = "\n".join(state.replace("\n", " ") for state in states)
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, flags) as out:
                out.connect(self._address)
                out.sendall(message.encode(errors="replace"))
        except OSError:
            return False
        return True

    def ready(self, status: str = "") -> bool:
        return self.send("READY=1", *_status(status))

    def reloading(self) -> bool:
        """Say that a reload begins; `ready` says that it is over."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        return self.send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str = "") -> bool:
        return self.send("STOPPING=1", *_status(status))

    def status(self, text: str) -> bool:
        return self.send(f"STATUS={text}")

    def watchdog(self) -> bool:
        return self.send("WATCHDOG=1")

    def extend(self, by_s: float) -> bool:
        """Ask for more time to start or to stop, counted from now."""
        return self.send(f"EXTEND_TIMEOUT_USEC={max(0, int(by_s * 1_000_000))}")


def _status(text: str) -> tuple[str, ...]:
    return (f"STATUS={text}",) if text else ()


def watchdog_interval_s(usec: str | None, pid: str | None, *, own_pid: int) -> float | None:
    """
    Interval of `watchdog` messages, half of what the manager allows; None: it does not watch us.

    Args:
        usec: Content of `WATCHDOG_USEC`.
        pid: Content of `WATCHDOG_PID`, if it is set.

    Source: sd_watchdog_enabled(3).
    """
    try:
        allowed_us = int(usec or "0")
        is_other = pid is not None and int(pid) != own_pid
    except ValueError:
        return None
    return None if is_other or allowed_us <= 0 else allowed_us / 2_000_000
