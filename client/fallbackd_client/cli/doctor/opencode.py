"""The plugin of opencode: opencode starts without a word where it cannot load it."""

from __future__ import annotations

import json
import os
import re
from urllib.parse import unquote, urlsplit

from fallbackd_client.cli.doctor.findings import ERROR, NOTE, WARNING, Finding, Machine, command
from fallbackd_client.cli.share import OPENCODE_PLUGIN, shared
from fallbackd_client.settings.jsonc import Unreadable, strings
from fallbackd_conversations.opencode_versions import unsupported

FILES = ("opencode.json", "opencode.jsonc", "config.json")
_RIVAL = re.compile(r"(model|rate-limit)-fallback", re.IGNORECASE)
_OURS = re.compile(r"fallbackd|opencode-plugin/src/index\.ts")


def unsupported_version(machine: Machine, program: str) -> str:
    """A sentence on a version that cannot be used; empty: it can, or is no opencode."""
    path = machine.which(program) if program == "opencode" else None
    return unsupported(machine.run(path, "--version").out) if path is not None else ""


def look_at_opencode(machine: Machine) -> list[Finding]:
    found: list[Finding] = []
    entries = [(path, *one) for path in _configs(machine) for one in _entries(machine, path)]
    if why := unsupported_version(machine, "opencode"):
        what = (
            f"{why}; {machine.which('opencode')} gets no work, and its sessions are not protected"
        )
        for path in _configs(machine):
            if _entries(machine, path) or _entries(machine, path, key="plugins"):
                what += f"; it does not load the plugin that {path} names"
        return [Finding("opencode", WARNING, what)]
    for path, entry, fix in entries:
        if entry.startswith(("file://", "/", "./", "../", "~/")):
            if not os.path.isfile(_file_of(entry, path)):
                what = (
                    f"opencode does not load the plugin: {path} names {entry}, which is not there"
                )
                found.append(Finding("opencode", ERROR, what, fix))
        else:
            what = (
                f"opencode does not load the plugin: {path} names the npm package {entry}, which"
                " fallbackd does not publish, so that others could; name the file instead"
            )
            found.append(Finding("opencode", ERROR, what, fix))
    if entries:
        found += _rivals(machine)
    if not entries and machine.which("opencode") is not None:
        own = shared(OPENCODE_PLUGIN)
        what = (
            "opencode has no plugin of fallbackd, so that its sessions are not protected; put"
            f' "plugin": ["{_url(own or "/PATH/TO/fallbackd/contrib/" + OPENCODE_PLUGIN)}"] into'
            f" {_configs(machine, existing=False)[0]}"
        )
        found.append(Finding("opencode", NOTE, what))
    return found


def _rivals(machine: Machine) -> list[Finding]:
    """Other plugins that send a failed message to another model."""
    named = [(path, entry) for path in _configs(machine) for entry, *_ in _named(machine, path)]
    return [
        Finding(
            "opencode",
            WARNING,
            f"opencode loads {entry} beside the plugin of fallbackd: both send a failed message to"
            f" another model, so that it runs twice; remove one of them from {path}",
        )
        for path, entry in named
        if _RIVAL.search(entry)
    ]


def _configs(machine: Machine, *, existing: bool = True) -> list[str]:
    base = machine.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(machine.home, ".config")
    paths = [os.path.join(base, "opencode", name) for name in FILES]
    if own := machine.environ.get("OPENCODE_CONFIG"):
        paths.append(own)
    return [path for path in paths if os.path.isfile(path)] if existing else paths


def _entries(machine: Machine, path: str, *, key: str = "plugin") -> list[tuple[str, str]]:
    """
    Plugins that are meant to be ours, each with the command that names ours in its place.

    Args:
        key: Version 2 reads `plugins` too.
    """
    text = machine.read(path) or ""
    named = _named(machine, path, key=key)
    return [(entry, _fix(path, text, *at)) for entry, *at in named if _OURS.search(entry)]


def _named(machine: Machine, path: str, *, key: str = "plugin") -> list[tuple[str, int, int]]:
    try:
        return list(strings(machine.read(path) or "", [key]))
    except Unreadable:  # opencode says so itself
        return []


def _file_of(entry: str, config: str) -> str:
    if entry.startswith("file://"):
        return unquote(urlsplit(entry).path)
    return os.path.join(os.path.dirname(config), os.path.expanduser(entry))


def _url(path: str) -> str:
    return f"file://{path}"


def _fix(path: str, text: str, begin: int, end: int) -> str:
    """It changes this string alone, though the same one may stand in the line before."""
    own = shared(OPENCODE_PLUGIN)
    if own is None:
        return ""
    line = text.count("\n", 0, begin)
    in_line = text[text.rfind("\n", 0, begin) + 1 : begin].count(text[begin:end])
    old = re.sub(r"[][\\.*^$#]", r"\\\g<0>", text[begin:end])
    new = re.sub(r"[\\&#]", r"\\\g<0>", json.dumps(_url(own), ensure_ascii=False))
    script = f"{line + 1}s#{old}#{new}#{in_line + 1}"
    return f"sed -i {command(script)} {command(os.path.realpath(path))}"
