"""The plugin of opencode: opencode starts without a word where it cannot load it."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from fallbackd_client.cli.doctor.findings import ERROR, NOTE, Finding, Machine, command
from fallbackd_client.cli.share import OPENCODE_PLUGIN, shared

FILES = ("opencode.json", "opencode.jsonc", "config.json")
MAX_BYTES = 1024 * 1024
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# Comments and trailing commas are allowed there, so that no parser of JSON reads them all.
_OURS = re.compile(r"fallbackd|opencode-plugin/src/index\.ts")


def look_at_opencode(machine: Machine) -> list[Finding]:
    found: list[Finding] = []
    entries = [(path, entry) for path in _configs(machine) for entry in _entries(path)]
    for path, entry in entries:
        if entry.startswith(("file://", "/", "./", "../", "~/")):
            if not os.path.isfile(_file_of(entry, path)):
                what = (
                    f"opencode does not load the plugin: {path} names {entry}, which is not there"
                )
                found.append(Finding("opencode", ERROR, what, _replace(path, entry)))
        else:
            what = (
                f"opencode does not load the plugin: {path} names the npm package {entry}, which"
                " fallbackd does not publish, so that others could; name the file instead"
            )
            found.append(Finding("opencode", ERROR, what, _replace(path, entry)))
    if not entries and machine.which("opencode") is not None:
        own = shared(OPENCODE_PLUGIN)
        what = (
            "opencode has no plugin of fallbackd, so that its sessions are not protected; put"
            f' "plugin": ["{_url(own or "/PATH/TO/fallbackd/contrib/" + OPENCODE_PLUGIN)}"] into'
            f" {_configs(machine, existing=False)[0]}"
        )
        found.append(Finding("opencode", NOTE, what))
    return found


def _configs(machine: Machine, *, existing: bool = True) -> list[str]:
    base = machine.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(machine.home, ".config")
    paths = [os.path.join(base, "opencode", name) for name in FILES]
    if own := machine.environ.get("OPENCODE_CONFIG"):
        paths.append(own)
    return [path for path in paths if os.path.isfile(path)] if existing else paths


def _entries(path: str) -> list[str]:
    """Strings of the file that are meant for us, in whatever list they stand."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_BYTES)
    except OSError:
        return []
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    return [found for found in _STRING.findall("\n".join(lines)) if _OURS.search(found)]


def _file_of(entry: str, config: str) -> str:
    if entry.startswith("file://"):
        return unquote(urlsplit(entry).path)
    return os.path.join(os.path.dirname(config), os.path.expanduser(entry))


def _url(path: str) -> str:
    return f"file://{path}"


def _replace(path: str, entry: str) -> str:
    own = shared(OPENCODE_PLUGIN)
    if own is None or "#" in own + entry:
        return ""
    return f"sed -i {command(f's#{re.escape(entry)}#{_url(own)}#')} {command(path)}"
