"""Questions with yes or no, and changes that are shown, agreed to and made."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, emit_json, note, style_of
from fallbackd_client.cli.setup.changes import NotMade

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from fallbackd_client.cli.setup.changes import Change


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
        Before anything is done: a question that cannot be answered must not come halfway.

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
