"""Change the settings of another program: shown first, written when a person agrees."""

from __future__ import annotations

import argparse
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, emit_json, note, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.settings.editing import Edit, Part


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
