"""
The settings that one directory, and its user, have for opencode sessions there.

    <project>/.opencode/model-fallback.json        the first that exists holds, alone
    ~/.config/opencode/model-fallback.json
    <project>/.opencode/rate-limit-fallback.json
    ~/.config/opencode/rate-limit-fallback.json

    ~/.config/opencode/agents, ~/.config/opencode/agent,     agents: the later one wins, and
    <project>/.opencode/agents, <project>/.opencode/agent    the files above go before them

`<project>` is the directory, then each one above it up to the root of its work tree. A file of
the project that cannot be read is reported, and what holds for the user everywhere stays in force.
Nothing is written, and no file is followed out of the directory that it lies in.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from fallbackd.classify.rules import Rule
from fallbackd.config.fallback_file import NEWER, OLDER, Fallbacks, read_fallbacks, read_models
from fallbackd.config.fields import Problem, Say, problem
from fallbackd.config.files import read_content
from fallbackd.config.voice import VoiceMark
from fallbackd.core.policy import Project
from fallbackd.lib.directories import levels

FENCE = "---"
MAX_CHARS = 64 * 1024


class NotPlain(Exception):
    """A line that cannot be read, with its number."""


def split(text: str) -> str | None:
    """The front matter of a Markdown text; None where it has none."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != FENCE:
        return None
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() in (FENCE, "..."):
            return "\n".join(lines[1:number])
    return None


def parse(text: str) -> Any:
    """
    The value of a YAML text.

    Raises:
        NotPlain: It is none, it is too long, or has tags or aliases: a description of an agent
            needs none, and a few aliases may stand for gigabytes.
    """
    import yaml  # 20 ms, for those who have such files

    if len(text) > MAX_CHARS:
        raise NotPlain(f"is longer than {MAX_CHARS} characters")
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
                mark = event.start_mark
                line = "" if mark is None else f"line {mark.line + 1}: "
                raise NotPlain(f"{line}has a tag or an alias")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise NotPlain(f"{where}is not YAML") from None
    except (RecursionError, ValueError) as error:
        raise NotPlain("is not readable YAML") from error


class AgentFile(Struct, frozen=True, kw_only=True):
    name: str
    models: tuple[str, ...]


def read_agent(text: str, *, path: str, name: str, say: Say) -> AgentFile | None:
    """
    Args:
        path: Of the file.
        name: The agent's, where the file gives none.

    Returns:
        None where the file says nothing of fallbacks, or nothing that can be used.
    """
    try:
        raw = json.loads(text) if path.endswith(".json") else parse(split(text) or "")
    except (ValueError, RecursionError):
        say(path, "is not valid JSON; it is left out.")
        return None
    except NotPlain as problem:
        if "fallback" in text:  # what opencode reads and we do not is none of our business
            say(path, f"{problem}; it is left out.")
        return None
    fallback = raw.get("fallback") if isinstance(raw, Mapping) else None
    if not isinstance(fallback, Mapping) or "models" not in fallback:
        return None
    given = raw.get("name")
    if isinstance(given, str) and 1 <= len(given) <= 128 and given.isprintable():
        name = given
    models = read_models(fallback["models"], f"{path}: fallback.models", say)
    return AgentFile(name=name, models=models) if models and name else None


Decides = Literal["which models", "when", "what is a failure", "a log in its place", "itself"]
MAY_DECIDE: Mapping[type[Struct], Mapping[str, Decides]] = {
    Fallbacks: {
        "enabled": "when",
        "chains": "which models",
        "fallback_on": "when",
        "window_s": "when",
        "healthy_after_s": "when",
        "max_fallback_depth": "when",
        "rules": "what is a failure",
        "logging": "a log in its place",
        "log_level": "a log in its place",
        "log_path": "a log in its place",
        "agent_dirs": "which models",
        "is_older": "itself",
        "is_valid": "itself",
        "warnings": "itself",
    },
    AgentFile: {"name": "which models", "models": "which models"},
    VoiceMark: {"backend": "when", "words": "itself", "since_at": "when", "ttl_s": "when"},
}
"""
What files that agents may write can decide, by the fields that are read of them: never a place to
write to, a command to run, an address to send to. What an attempt has changed of a project's
decides nothing (`engine.planted`).
"""
USERS = ".config/opencode"
OWN = ".opencode"
MAX_AGENT_FILES = 500
MAX_AGENT_BYTES = 256 * 1024
MAX_LOOKED_AT = 5000
"""A project's file may name a directory as large as all of the machine."""

FileStamp = tuple[tuple[str, int, int], ...]
"""(path, mtime in nanoseconds, size) of everything that was looked at."""


class FoundFiles(Struct, frozen=True, kw_only=True):
    """The files that hold in one directory."""

    project: Project | None = None
    """None: nothing of its own."""
    fallbacks: Fallbacks = Fallbacks()
    path: str | None = None
    """Of the file that holds."""
    rules: tuple[Rule, ...] = ()
    warnings: tuple[Problem, ...] = ()
    is_valid: bool = True
    stamp: FileStamp = field(default=())


def look(directory: str, *, home: str, explicit: str | None = None) -> FoundFiles:
    """
    Args:
        directory: Of a project; empty: what holds for its user everywhere.
        explicit: The file to read instead of the ones that are looked for.
    """
    warnings: list[Problem] = []

    def say(where: str, message: str) -> None:
        warnings.append(problem(where, message))

    fallbacks, path = Fallbacks(), explicit or _first(_places(directory, home))
    is_own = path is not None and (not directory or _is_of_project(path, directory))
    if path is not None:
        fallbacks = _read(path, home)
        warnings.extend(fallbacks.warnings)
    in_force = fallbacks
    if directory and is_own and not fallbacks.is_valid:
        is_own, in_force = False, look("", home=home).fallbacks
    users = _agents(_user_dirs(home, in_force.agent_dirs), say)
    own = _agents(_own_dirs(directory), say)
    found = FoundFiles(
        fallbacks=fallbacks,
        path=path,
        rules=in_force.rules,
        warnings=tuple(warnings),
        is_valid=fallbacks.is_valid,
        stamp=stamp_of(directory, home=home, explicit=explicit),
    )
    if not directory and (path is not None or users):
        return _with(found, in_force.project(users))
    if directory and (is_own or own):
        return _with(found, in_force.project({**users, **own}))
    return found


def _with(found: FoundFiles, project: Project) -> FoundFiles:
    return FoundFiles(
        project=project,
        fallbacks=found.fallbacks,
        path=found.path,
        rules=found.rules,
        warnings=found.warnings,
        is_valid=found.is_valid,
        stamp=found.stamp,
    )


def stamp_of(directory: str, *, home: str, explicit: str | None = None) -> FileStamp:
    """Equal as long as nothing has changed. Cheap: files are looked at and not read."""
    places = [explicit] if explicit else list(_places(directory, home))
    for base in (*_user_dirs(home, ()), *_own_dirs(directory)):
        places.append(base)
        places.extend(_agent_paths(base))
    seen = []
    for place in places:
        try:
            one = os.stat(place)
        except OSError:
            continue
        seen.append((place, one.st_mtime_ns, one.st_size))
    return tuple(seen)


def _levels(directory: str) -> tuple[str, ...]:
    return levels(directory) if directory else ()


def _is_of_project(path: str, directory: str) -> bool:
    return any(path.startswith(f"{level}/{OWN}/") for level in _levels(directory))


def _places(directory: str, home: str) -> Iterator[str]:
    for name in (NEWER, OLDER):
        for level in _levels(directory):
            yield f"{level}/{OWN}/{name}"
        yield f"{home}/{USERS}/{name}"


def _first(places: Iterator[str]) -> str | None:
    return next((one for one in places if os.path.lexists(one)), None)


def _read(path: str, home: str) -> Fallbacks:
    content = read_content(path)
    if content.text is None:
        why = content.problem or "is not there any more"
        return Fallbacks(is_valid=False, warnings=(problem(path, f"{why}; none of it is used."),))
    return read_fallbacks(content.text, path=path, home=home)


def _user_dirs(home: str, more: tuple[str, ...]) -> tuple[str, ...]:
    """The later one wins."""
    extra = (f"{home}/{one[2:]}" if one.startswith("~/") else one for one in more)
    return (
        f"{home}/{USERS}/agents",
        f"{home}/{USERS}/agent",
        *(one for one in extra if one.startswith("/")),
    )


def _own_dirs(directory: str) -> tuple[str, ...]:
    """The later one wins."""
    return tuple(
        f"{level}/{OWN}/{name}"
        for level in reversed(_levels(directory))
        for name in ("agents", "agent")
    )


def _agents(bases: tuple[str, ...], say: Say) -> Mapping[str, tuple[str, ...]]:
    """The chains by agent. As in opencode, an agent's name has the folders that it lies in."""
    found: dict[str, tuple[str, ...]] = {}
    for base in bases:
        for path in _agent_paths(base):
            if not _is_inside(path, base):
                say(path, "leads out of its directory; it is left out.")
                continue
            text = _text(path)
            name = path.removeprefix(f"{base}/").rpartition(".")[0]
            agent = None if text is None else read_agent(text, path=path, name=name, say=say)
            if agent is not None:
                found[agent.name] = agent.models
    return found


def _is_inside(path: str, base: str) -> bool:
    try:
        return os.path.realpath(path).startswith(os.path.realpath(base) + "/")
    except OSError:
        return False  # a link that must not be read


def _agent_paths(base: str) -> list[str]:
    found: list[str] = []
    seen = 0
    for folder, folders, files in os.walk(base):
        folders.sort()
        seen += 1 + len(files)
        found.extend(
            f"{folder}/{name}" for name in sorted(files) if name.endswith((".md", ".json"))
        )
        if len(found) >= MAX_AGENT_FILES or seen >= MAX_LOOKED_AT:
            break
    return found[:MAX_AGENT_FILES]


def _text(path: str) -> str | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        data = file.read(MAX_AGENT_BYTES + 1)
    return None if len(data) > MAX_AGENT_BYTES else data.decode(errors="replace")
