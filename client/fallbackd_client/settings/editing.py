"""Changes of settings files: what would be written, and writing it whole or not at all."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys

from fallbackd_client.paths import state_dir
from fallbackd_client.settings.files import Form, regular
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fallbackd_client.calls import Json

MAX_BYTES = 16 * 1024 * 1024


class Command:
    """The command of a program of ours: absolute, since a program with windows has another PATH."""

    def __init__(self, program: str, arguments: list[str]) -> None:
        self.program = program
        self.arguments = arguments


class Part:
    """
    One change of one file.

    Args:
        snippet: What a person would paste.
        put: The text of the file with it.
        take: The text of the file without it.
        hides: Name of a variable in it whose value is not shown.
        lost: Names of what a person has added to it, which cannot stay when it is taken out.
    """

    def __init__(
        self,
        path: str,
        snippet: str,
        *,
        put: Callable[[str], str],
        take: Callable[[str], str],
        hides: str = "",
        lost: Callable[[str], list[str]] = lambda _: [],
    ) -> None:
        self.path = path
        self.snippet = snippet
        self.put = put
        self.take = take
        self.hides = hides
        self.lost = lost


class Edit:
    """
    One file as it is and as it is to be.

    Args:
        before: None where it is missing.
        after: None: the file goes, since nothing is left in it.
        lost: What goes too, though a person has written it.
    """

    __slots__ = ("after", "before", "hides", "lost", "path")

    def __init__(
        self,
        path: str,
        before: str | None,
        after: str | None,
        *,
        hides: str = "",
        lost: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.lost = lost
        self.hides = hides
        self.before = before
        self.after = after

    def diff(self) -> str:
        lines = difflib.unified_diff(
            (self.before or "").splitlines(),
            (self.after or "").splitlines(),
            self.path if self.before is not None else os.devnull,
            self.path if self.after is not None else os.devnull,
            lineterm="",
        )
        shown = "\n".join(lines)
        if self.lost:
            added = ", ".join(self.lost)
            shown = f"# This goes too, since it means nothing without ours: {added}\n{shown}"
        return re.sub(rf"({self.hides}=).*", r"\1…", shown) if self.hides else shown

    def document(self) -> dict[str, Json]:
        return {"path": self.path, "diff": self.diff()}


def own_command(socket: str | None, *words: str) -> Command:
    """A command of this program: its path is absolute."""
    arguments = [*([] if socket is None else ["--socket", os.path.abspath(socket)]), *words]
    program = os.path.abspath(sys.argv[0])
    if os.path.basename(program) == "fb":  # settings name the program by what it is known by
        program = os.path.join(os.path.dirname(program), "fallbackd-client")
    if program.endswith(".py"):
        return Command(sys.executable, ["-m", "fallbackd_client.cli.main", *arguments])
    return Command(program, arguments)


def edits(parts: list[Part], *, undo: bool) -> list[Edit]:
    """
    Return the texts to write; files that need no change are left out.

    Raises:
        Unreadable: A file cannot be understood, and is left alone.
    """
    found = []
    for part in parts:
        # A link stays one: dotfiles are often kept elsewhere.
        path = os.path.realpath(part.path)
        before = read(path)
        form = Form(before or "")
        try:
            after: str | None = form.whole((part.take if undo else part.put)(form.text))
            lost = part.lost(form.text) if undo else []
        except Unreadable as error:
            raise Unreadable(f"{path}: {error}") from error
        if after != (before or ""):
            if undo and _is_bare(after or ""):
                bare = _bare_files().get(path)
                after = after if bare is None and os.path.islink(part.path) else bare
            found.append(Edit(path, before, after, hides=part.hides, lost=lost))
    return found


def _is_bare(text: str) -> bool:
    return "".join(text.split()) in ("", "{}")


def _record() -> str:
    """The file with the texts of files that were there and said nothing before our first entry."""
    return os.path.join(state_dir(os.environ), "bare-settings.json")


def _bare_files() -> dict[str, str]:
    try:
        found = json.loads(read(_record()) or "{}")
    except (Unreadable, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(changes: list[Edit]) -> None:
    """Keep what an undo cannot know: whether a file without anything in it was there."""
    known = _bare_files()
    now = dict(known)
    for one in changes:
        if one.before is None:
            now.pop(one.path, None)
        elif _is_bare(one.before):
            now[one.path] = one.before
    if now != known:
        try:
            write(Edit(_record(), read(_record()), json.dumps(now)))
        except (Unreadable, OSError):
            pass  # an undo removes the file then


def write_all(changes: list[Edit]) -> None:
    """
    Every file or none: where one cannot be written, those before it are put back.

    Raises:
        Unreadable: A file was changed meanwhile.
        OSError: One cannot be written.
    """
    written: list[Edit] = []
    _remember(changes)
    try:
        for one in changes:
            write(one)
            written.append(one)
    except (Unreadable, OSError):
        for one in reversed(written):
            if one.before is None:
                os.unlink(one.path)
            else:
                write(Edit(one.path, one.after, one.before))
        raise


def write(edit: Edit) -> None:
    """
    Whole or not at all.

    Raises:
        Unreadable: The file was changed meanwhile.
        OSError: It cannot be written.
    """
    if read(edit.path) != edit.before:
        raise Unreadable(f"{edit.path} was changed meanwhile; try again")
    if edit.after is None:
        os.unlink(edit.path)
        return
    directory = os.path.dirname(edit.path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    mode = 0o600 if edit.before is None else os.stat(edit.path).st_mode & 0o7777
    draft = f"{edit.path}.{os.urandom(4).hex()}.tmp"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            os.fchmod(descriptor, mode)
            file.write(edit.after)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, edit.path)
    except BaseException:
        os.unlink(draft)
        raise


def read(path: str) -> str | None:
    """
    Read a file; None where there is no such file.

    Raises:
        Unreadable: It is no file, no text, too large, or not permitted.
    """
    try:
        with open(path, encoding="utf-8", newline="", opener=regular) as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is not UTF-8 at byte {error.start}") from error
    if len(text) > MAX_BYTES:
        raise Unreadable(f"{path} is larger than {MAX_BYTES // 2**20} MiB")
    return text
