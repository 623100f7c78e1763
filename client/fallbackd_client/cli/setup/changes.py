"""A change to the user's machine: what it does, in words, and how it is made."""

from __future__ import annotations

import os
import tempfile

from fallbackd_client.cli.doctor.findings import command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.cli.doctor.findings import Machine


class NotMade(Exception):
    """A change that could not be made; the message says why, and what to do."""


class Change:
    """
    Args:
        what: What it does, a verb first: `write ~/.config/fallbackd/env: PATH`.
        make: Makes it; raises `NotMade`.
        optional: The rest works without it.
    """

    __slots__ = ("make", "optional", "what")

    def __init__(self, what: str, make: Callable[[], None], *, optional: bool = False) -> None:
        self.what = what
        self.make = make
        self.optional = optional

    def __repr__(self) -> str:
        return f"Change({self.what!r})"


def short(machine: Machine, path: str) -> str:
    """With `~` for the home directory."""
    home = machine.home.rstrip("/")
    return "~" + path[len(home) :] if home and path.startswith(home + "/") else path


def file_change(
    machine: Machine, path: str, text: str, *, note: str = "", mode: int = 0o644
) -> list[Change]:
    """None where the file is as it should be."""
    before = machine.read(path)
    if before == text:
        return []
    verb = "write" if before is None else "update"
    what = f"{verb} {short(machine, path)}" + (f": {note}" if note else "")
    return [Change(what, lambda: write(path, text, mode=mode))]


def write(path: str, text: str, *, mode: int) -> None:
    """In one step, through links; an existing file keeps its mode."""
    place = os.path.realpath(path)
    draft = None
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        if os.path.exists(place):
            mode = os.stat(place).st_mode & 0o777
        handle, draft = tempfile.mkstemp(dir=os.path.dirname(place), prefix=".fallbackd-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
        os.replace(draft, place)
        draft = None
    except OSError as error:
        raise NotMade(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if draft is not None:
            os.unlink(draft)


def removal(machine: Machine, path: str) -> list[Change]:
    """None where there is no such file."""
    if not os.path.lexists(path):
        return []

    def make() -> None:
        try:
            os.unlink(path)
        except OSError as error:
            raise NotMade(f"cannot remove {path}: {error.strerror or error}") from error

    return [Change(f"remove {short(machine, path)}", make)]


def run_change(machine: Machine, *words: str, note: str = "", optional: bool = False) -> Change:
    """A command that has to succeed."""
    shown = command(*words)

    def make() -> None:
        ran = machine.run(*words, limit_s=120.0)
        if ran.status != 0:
            said = (ran.err.strip() or ran.out.strip() or f"exit status {ran.status}").splitlines()
            raise NotMade(f"`{shown}` failed: {said[-1]}")

    return Change(f"run {shown}" + (f": {note}" if note else ""), make, optional=optional)
