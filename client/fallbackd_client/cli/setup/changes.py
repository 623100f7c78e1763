"""A change to the user's machine: what it does, in words, and how it is made."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import redirect_stdout

from fallbackd_client.cli import exits
from fallbackd_client.cli.doctor.findings import command
from fallbackd_client.cli.output import UsageError, emit_json, note, safe, style_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.settings.editing import Edit, Part


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
    """Write `~` for the home directory."""
    home = machine.home.rstrip("/")
    return "~" + path[len(home) :] if home and path.startswith(home + "/") else path


def file_change(
    machine: Machine, path: str, text: str, *, note: str = "", mode: int = 0o644
) -> list[Change]:
    """Return the change; None where the file is as it should be."""
    before = machine.read(path)
    if before == text:
        return []
    verb = "write" if before is None else "update"
    what = f"{verb} {short(machine, path)}" + (f": {note}" if note else "")
    return [Change(what, lambda: write(path, text, mode=mode))]


def write(path: str, text: str, *, mode: int) -> None:
    """Write in one step, through links; an existing file keeps its mode."""
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
    """Return the removal; None where there is no such file."""
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


_FLAGS = "use --yes to agree to everything, or --dry-run to see what would be done"


class Asking:
    """
    Args:
        yes: Answer every question with yes, without asking.
        dry_run: Show changes and make none.

    Attributes:
        made: What changes there were to make, and which of them were made.
    """

    def __init__(self, *, yes: bool, dry_run: bool = False) -> None:
        self.yes = yes
        self.dry_run = dry_run
        self.made: dict[str, bool] = {}

    def require_terminal(self, instead: str = _FLAGS) -> None:
        """
        Refuse early: a question that cannot be answered must not come halfway.

        Args:
            instead: What to do without one.
        """
        if not (self.yes or self.dry_run or sys.stdin.isatty()):
            raise UsageError(
                f"standard input is not a terminal, so no question can be asked: {instead}"
            )

    def agree(self, question: str, *, default: bool = True) -> bool:
        if self.yes:
            return True
        print(f"{question} [{'Y/n' if default else 'y/N'}] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:  # end of input
            print(file=sys.stderr)
            return False
        answer = answer.strip().lower()
        return default if not answer else answer in ("y", "yes")


def make_changes(changes: Sequence[Change], asking: Asking, *, question: str) -> bool:
    """
    Show the changes, ask, and make them one after the other, each printed when it is done.

    Returns:
        False: The user said no, or one of them failed; those after it were not made.
    """
    style = style_of(sys.stdout)
    asking.made |= {one.what: False for one in changes}
    if asking.dry_run:
        for one in changes:
            print(f"would {one.what}", flush=True)
        return True
    if not asking.yes:
        for one in changes:
            print(f"  {one.what}", flush=True)
        if not asking.agree(question):
            print("Nothing was changed.", flush=True)
            return False
    for one in changes:
        try:
            one.make()
        except NotMade as error:
            if one.optional:
                note(f"skipped: {error}")
                continue
            note(f"stopped: {error}")
            return False
        asking.made[one.what] = True
        print(f"{style.paint('done', 'green')}  {one.what}", flush=True)
    return True


def reported(args: argparse.Namespace, asking: Asking, work: Callable[[], int]) -> int:
    """Work that tells people of itself; with `--json` it does so on standard error."""
    if not args.json:
        return work()
    args.json = False  # for what it runs on the way
    with redirect_stdout(sys.stderr):
        code = work()
    changes = [{"what": what, "made": made} for what, made in asking.made.items()]
    emit_json({"ok": code == exits.OK, "changes": changes})
    return code


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print", dest="only_print", action="store_true", help="print what to add, write nothing"
    )
    parser.add_argument("--yes", action="store_true", help="write without asking")


def change(
    args: argparse.Namespace, program: str, parts: list[Part], *, undo: bool, shown_by: str
) -> int:
    """
    Put the parts into the settings of a program, or take them out.

    Args:
        shown_by: Command that prints what to add by hand.
    """
    from fallbackd_client.settings.editing import edits, write_all
    from fallbackd_client.settings.jsonc import Unreadable

    if args.only_print and args.json:
        emit_json({"parts": [{"path": one.path, "snippet": one.snippet} for one in parts]})
        return exits.OK
    if args.only_print:
        for part in parts:
            print(f"{safe(part.path)}:\n{part.snippet}", flush=True)
        return exits.OK
    try:
        found = edits(parts, undo=undo)
        if not args.json:
            _show(found, f"{program} {'has no' if undo else 'has the'} entry")
        is_wanted = bool(found) and _is_confirmed(args, found)
        write_all(found if is_wanted else [])
    except (Unreadable, OSError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise UsageError(f"{why}; see what to add with: {shown_by}") from error
    if args.json:
        emit_json({"edits": [one.document() for one in found], "written": is_wanted})
    if not is_wanted:
        return exits.FAILED if found and not args.json else exits.OK
    note(f"{'removed from' if undo else 'added to'} {program}; restart it to take effect")
    return exits.OK


def _show(found: list[Edit], otherwise: str) -> None:
    if found:
        print("\n".join(safe(one.diff()) for one in found), flush=True)
    else:
        note(f"nothing to change: {otherwise}")


def _is_confirmed(args: argparse.Namespace, found: list[Edit]) -> bool:
    if args.yes:
        return True
    if args.json or not sys.stdin.isatty():
        note("nothing was written; add --yes to write it")
        return False
    files = " and ".join(dict.fromkeys(one.path for one in found))
    print(f"Write {safe(files)}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
