"""A recorded terminal as a picture: what a run of the demo prints, as SVG."""

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
COLUMNS = 80
_LINE, _MARGIN, _CELL = 19, 18, 8.43
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


def draw(lines: list[str]) -> str:
    width = round(2 * _MARGIN + COLUMNS * _CELL)
    height = 2 * _MARGIN + _LINE * len(lines)
    rows = "\n".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + _LINE * (at + 1) - 5}"{_look(line)}>'
        f"{escape(line, quote=False)}</text>"
        for at, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" '
        f'fill="#d8dee9" xml:space="preserve">\n'
        f"<title>A recorded run of make demo</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e222a"/>\n{rows}\n</svg>\n'
    )


def _look(line: str) -> str:
    if line.startswith("$"):
        return ' fill="#8fd3a5" font-weight="bold"'
    return ' fill="#8c96a8"' if line.startswith("#") else ""


if __name__ == "__main__":
    PICTURE.write_text(draw(record()))
