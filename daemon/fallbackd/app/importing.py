"""Takes over the configuration of another program, on demand."""

import os
import stat
import time
from collections.abc import Mapping

from fallbackd.api.host import ImportedText
from fallbackd.config.fallback_file import NEWER, OLDER
from fallbackd.config.files import import_from, read_content
from fallbackd.config.import_hermes import FILE_NAME
from fallbackd.config.import_jkz import ALL, PREFIX, read_jkz
from fallbackd.config.import_opencode import read_opencode_file
from fallbackd.config.importing import Imported, Report
from fallbackd.config.load import VOICE_FILE, load
from fallbackd.config.voice import read_voice
from fallbackd.engine.requests import Invalid
from fallbackd.lib import atomicfile
from fallbackd_client.settings.files import Form


def import_text(
    config_path: str, *, path: str | None, env: Mapping[str, str] | None, write: bool
) -> ImportedText:
    """
    Args:
        config_path: The file that is in use here.
        path: Of the other program's file; None: `JKZ_*` variables.
        env: Those variables; None: the daemon's own.
        write: Put what was taken behind the file that is in use.

    Raises:
        Invalid: There is nothing that can be read, or the file in use cannot take it.
    """
    found = _read(path, env)
    text = found.toml()
    written = _write(config_path, text, path or ALL) if write and text else None
    return ImportedText(
        source=found.source,
        toml=text,
        taken=tuple((one.what, one.to) for one in found.taken),
        left=tuple((one.what, one.why) for one in found.left),
        written=written,
    )


def _read(path: str | None, env: Mapping[str, str] | None) -> Imported:
    if path is None:
        variables = os.environ if env is None else env
        return read_jkz({k: v for k, v in variables.items() if k.startswith(PREFIX)})
    if os.path.basename(path) in (NEWER, OLDER):
        content = read_content(path)
        if content.text is None:
            raise Invalid(f"{path}: {content.problem or 'is not there'}")
        home = os.path.realpath(os.path.expanduser("~"))
        return read_opencode_file(content.text, path=path, home=home)
    if os.path.basename(path) == VOICE_FILE:
        return read_voice_file(path)
    found = import_from(path, {})
    if found.problem is not None:
        raise Invalid(f"{path}: {found.problem.message}")
    if found.imported is None:
        raise Invalid(
            f"{path}: name a {FILE_NAME} of Hermes, a {NEWER} of opencode, a {VOICE_FILE}, or no"
            f" file for the {ALL} variables"
        )
    return found.imported


def read_voice_file(path: str) -> Imported:
    """The file stays where it is, and is watched; what it says now is the report."""
    content = read_content(path)
    if content.text is None:
        raise Invalid(f"{path}: {content.problem or 'does not exist'}")
    found = read_voice(content.text, path=path, now=time.time())
    report = Report()
    report.take(path, "import")
    for mark in found.marks:
        report.take(mark.backend, f"health.{mark.backend}")
    for problem in found.warnings:
        report.leave(problem.path, problem.message)
    return report.made("voice", {"import": [os.path.abspath(path)]})


def _write(config_path: str, text: str, source: str) -> str:
    place = os.path.realpath(config_path)
    content = read_content(place)
    if content.problem is not None:
        raise Invalid(f"{config_path} {content.problem}; correct it first")
    form = Form(content.text or "")
    before = "" if content.text is None else form.text.rstrip("\n") + "\n"
    added = f"# Imported from {source}.\n{text}"
    # Keys without a table have to stand before the first one.
    after = f"{before}\n{added}" if text.startswith("[") else f"{added}\n{before}"
    errors = load(after, path=config_path).errors
    if errors:
        raise Invalid(
            f"{config_path} has tables of the same names already ({errors[0].message}); "
            "show the lines with --dry-run and put them in by hand"
        )
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode)
    except OSError:
        mode = 0o600
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        atomicfile.write(place, form.whole(after), mode=mode)
    except OSError as error:
        raise Invalid(f"{config_path} cannot be written: {error.strerror or error}") from error
    return place
