"""A recorded terminal as pictures: what a run of the demo prints, whole and by command, as SVG."""

import os
import re
import subprocess
import sys
import time
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "contrib" / "demo" / "demo.py"
PICTURE = ROOT / "docs" / "demo.svg"
PARTS = {
    "failover": "$ fb delegate 'Count the files here'",
    "status": "$ fb status",
    "explain": "$ fb explain @last",
}
"""Pictures of one command each, by their names: how it begins in the run."""
COLUMNS = 80
_LINE, _MARGIN, _CELL = 19, 18, 8.43
NO_BREAK = "\u00a0"
"""Stands for each space: browsers differ in what keeps several of them apart."""
_CHANGES = (
    (r"pid \d+", "pid 4211"),
    (r"up \d+s", "up 1s"),
    (r"/tmp/\S+?/run/", "/run/user/1000/"),
    (r"\b(d[0-9a-f]{11})([0-9a-f]{8})?\b", "d1a21a7f6a05"),
    (r"\b\d\d:00:00 \(in [\dhms ]+\) *", "14:00:00 (in 1h 5m)  "),
    (r"UNTIL  +", "UNTIL                "),
    (r"\b\d\d:00\)", "14:00)"),
    (r"\b\d+:00[ap]m", "2:00pm"),
    (r"\d+s ago", "1s ago"),
    (r"\(\d+s\)", "(0s)"),
)
"""Pieces that no two runs have in common, and the one that the picture has."""


def record() -> list[str]:
    """
    Run the demo.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    noon = {**os.environ, "TZ": f"NOON{time.gmtime().tm_hour - 12:+d}"}  # no day ends in between
    done = subprocess.run(
        [sys.executable, DEMO],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        env=noon,
    )
    return steady(done.stdout)


def steady(text: str) -> list[str]:
    for pattern, word in _CHANGES:
        text = re.sub(pattern, word, text)
    return text.rstrip().splitlines()


def pictures(lines: list[str]) -> dict[Path, str]:
    """Return the drawings of a recorded run, by their files."""
    drawn = {PICTURE: draw(lines, "A recorded run of make demo")}
    for name, command in PARTS.items():
        begin = lines.index(command)
        end = next(at for at in range(begin + 1, len(lines)) if lines[at][:2] in ("$ ", "# "))
        shown = "\n".join(lines[begin:end]).rstrip().splitlines()
        drawn[PICTURE.with_name(f"{name}.svg")] = draw(shown, f"A recorded run of {command[2:]}")
    return drawn


def draw(lines: list[str], title: str) -> str:
    width = round(2 * _MARGIN + COLUMNS * _CELL)
    height = 2 * _MARGIN + _LINE * len(lines)
    rows = "\n".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + _LINE * (at + 1) - 5}"{_look(line)}>'
        f"{escape(line, quote=False).replace(' ', NO_BREAK)}</text>"
        for at, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" '
        f'fill="#d8dee9">\n'
        f"<title>{escape(title, quote=False)}</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e222a"/>\n{rows}\n</svg>\n'
    )


def _look(line: str) -> str:
    if line.startswith("$"):
        return ' fill="#8fd3a5" font-weight="bold"'
    return ' fill="#8c96a8"' if line.startswith("#") else ""


if __name__ == "__main__":
    for path, drawing in pictures(record()).items():
        path.write_text(drawing)
