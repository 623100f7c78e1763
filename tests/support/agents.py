"""Small programs that stand for agent CLIs, and the configuration that makes them backends."""

import json
from pathlib import Path

OK = 'cat >/dev/null; echo "{answer}"'
THROTTLED = "cat >/dev/null; echo 'rate limited' >&2; exit 75"
HANGING = "cat >/dev/null; echo started; exec sleep 1000"
BROKEN = "cat >/dev/null; echo 'something went wrong' >&2; exit 1"
ECHO = "cat"
"""Answers with its prompt."""


def ok(answer: str) -> str:
    return OK.format(answer=answer)


def program(directory: Path, name: str, body: str) -> Path:
    """An executable shell script, or any other with its own first line."""
    path = directory / name
    text = body if body.startswith("#!") else f"#!/bin/sh\n{body}\n"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def backend_script(directory: Path, name: str, body: str, *, more: str = "") -> str:
    """
    Write the program and return the table that makes it the backend `name`.

    It may write to its home, where many programs leave word of what they have seen.

    Args:
        more: Further lines of the table.
    """
    path = program(directory, name, body)
    if "writable" not in more:
        more = f'writable = ["~/"]\n{more}'
    return (
        f"[backends.{json.dumps(name)}]\n"
        'kind = "generic-cli"\n'
        f"command = [{json.dumps(str(path))}]\n"
        f"{more}\n"
    )


def chain(first: str, *rest: str) -> str:
    """The table of one chain. Tables end where the next one begins: put it behind all others."""
    return f"[chains]\n{json.dumps(first)} = {json.dumps(list(rest))}\n"
