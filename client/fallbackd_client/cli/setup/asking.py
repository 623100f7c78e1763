"""Questions with yes or no, and changes that are shown, agreed to and made."""

from __future__ import annotations

import sys

from fallbackd_client.cli.output import UsageError, note, style_of
from fallbackd_client.cli.setup.changes import NotMade

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.cli.setup.changes import Change


class Asking:
    """
    Args:
        yes: Answer every question with yes, without asking.
        dry_run: Show changes and make none.
    """

    def __init__(self, *, yes: bool, dry_run: bool = False) -> None:
        self.yes = yes
        self.dry_run = dry_run

    def require_terminal(self) -> None:
        """Before anything is done: a question that cannot be answered must not come halfway."""
        if not (self.yes or self.dry_run or sys.stdin.isatty()):
            raise UsageError(
                "standard input is not a terminal, so no question can be asked: use --yes to"
                " agree to everything, or --dry-run to see what would be done"
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
        print(f"{style.paint('done', 'green')}  {one.what}", flush=True)
    return True
