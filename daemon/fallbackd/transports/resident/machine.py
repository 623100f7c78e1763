"""Room of this machine for one more program that stays."""

import re

LEAST_FREE = 0.2
"""Of its memory; below that none is kept."""
MOST_PRESSURE = 10.0
"""Percent of the last ten seconds in which a process waited for memory."""
_FIELD = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB", re.M)
_PRESSURE = re.compile(r"^some avg10=([\d.]+)", re.M)


def has_memory() -> bool:
    """True also where the kernel does not tell."""
    found = {name: int(kib) for name, kib in _FIELD.findall(_read("/proc/meminfo"))}
    pressure = _PRESSURE.search(_read("/proc/pressure/memory"))
    if pressure is not None and float(pressure[1]) >= MOST_PRESSURE:
        return False
    total, free = found.get("MemTotal", 0), found.get("MemAvailable")
    return free is None or not total or free >= LEAST_FREE * total


def resident_bytes(pid: int) -> int | None:
    """Memory that a process holds; None: it has ended."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", _read(f"/proc/{pid}/status"), re.M)
    return None if found is None else int(found[1]) * 1024


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
