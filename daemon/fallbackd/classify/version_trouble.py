"""
A program too old or too new for the way it is started: it refuses a flag, or cannot be loaded.

Read only from a program that failed before a provider answered, so that words of an agent's tools
are not taken for it.
"""

import re

from fallbackd.classify.rules import Rule
from fallbackd.core.failures import Reason
from fallbackd.core.protocol import Evidence
from fallbackd_conversations.redact import strip_escapes

RULE = Rule(id="version", reason=Reason.NOT_CONFIGURED, detail="version")

_MAX_CHARS = 16_384
_REFUSES = re.compile(
    # opencode prints its help alone; version 2 an error
    r"\A\s*opencode (?:run|serve) \["
    r"|^\s*(?:Unrecognized flag: -|Unknown subcommand \")"
    r"|^(?:[\w./-]{1,60}: )?(?:fatal |usage )?(?:error: )?(?:"
    # clap, commander, yargs, argparse, getopt, cobra, Go's own flags
    r"unexpected argument '.{1,200}' found"
    r"|unrecognized (?:subcommand|arguments?:?|option)\b"
    r"|unknown (?:option|flag|argument|command|shorthand flag)s?:? ['\"`-]?\S"
    r"|invalid value '.{0,200}' for '--?\S.{0,120}'"
    r"|option '--?\S.{0,120}' argument '.{0,200}' is invalid"
    r"|invalid values:$"
    r"|argument --?\S{1,60}: invalid choice: "
    r"|flag provided but not defined: -"
    r"|no such option: -"
    r"|(?:[\w.-]{1,40} ){0,4}requires (?:an? )?(?:node(?:\.js)?|python|bun)\b.{0,60}\d"
    r"|(?:node(?:\.js)?|python|bun) (?:version )?v?\d[\d.]{0,20}(?: or \w{1,10})? is required"
    r"|unsupported (?:node(?:\.js)?|python|bun) version"
    r"|.{0,200}: version `\w{1,20}_[\d.]{1,20}' not found"
    r")",
    re.I | re.M,
)
_UNREADABLE = re.compile(r"^(?:\w{1,40} )?SyntaxError: (?!.{0,300}\bJSON\b)", re.M)
_LOADER = re.compile(
    r"\((?:node:)?internal/modules/|at (?:async )?Module(?:Job|Loader)\b"
    r'|^\s*File "[^"\n]{1,400}", line \d+$',
    re.M,
)


def version_trouble(evidence: Evidence) -> str | None:
    """The line by which a program says that it cannot be started like this; None: it says none."""
    if evidence.exit_code in (None, 0) or evidence.signal is not None or evidence.answered:
        return None
    if evidence.stream not in ("stderr", "stdout", "unknown") or not evidence.text:
        return None
    text = strip_escapes(evidence.text[:_MAX_CHARS]).replace("\r\n", "\n")
    found = _REFUSES.search(text)
    if found is None and _LOADER.search(text):
        found = _UNREADABLE.search(text)
    if found is None:
        return None
    return text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
