"""What the kernel says of a process."""

from pathlib import Path


def cpu_s(pid: int) -> float:
    """Processor time of all its threads so far. Clock ticks would be too coarse."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident, and its fair share of it: what is shared is divided by those who share it."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) / 1024
    return found["Rss"], found["Pss"]


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(one) for one in (task / "children").read_text().split()]
    return found
