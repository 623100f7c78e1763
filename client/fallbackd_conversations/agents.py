"""
The agents whose stored conversations can be read and written: `AGENTS`, by the name of their kind.

Nothing here raises for what a file holds. A conversation that is written is a value first
(`Rendered`); `make` makes its file, where it has a place of its own. Then the agent
is started with:

    codex       resume ID            the file is at `path`
    claude      --resume ID          the file is at `path`; only in the directory `cwd`
    gemini      --session-file FILE  any private file with `data`; its id is new each time
    opencode    --session ID         after `opencode import FILE`, any private file with `data`
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from fallbackd_conversations import claude, codex, files, gemini, opencode
from fallbackd_conversations.turns import (
    OwnerWord,
    Stored,
    Utterance,
    alternating,
    is_plain_id,
)
from fallbackd_conversations.words import in_order, tool_lines

MAX_CONFIG_BYTES = 1024 * 1024
LOOK_BYTES = 64 * 1024
"""Of the end of a file, for a list."""
LOOKED_AT = 200
"""Files of one agent, for a list."""


class FoundSession(Struct, frozen=True, kw_only=True):
    """A stored session, as a list shows it."""

    agent: str
    id: str
    path: Path
    changed_at: float
    cwd: str = ""
    """Empty: the agent does not say."""
    first_words: str = ""


class Rendered(Struct, frozen=True, kw_only=True):
    """A conversation in the format of an agent."""

    agent: str
    id: str
    data: bytes
    path: Path | None
    """Where its file has to be; None: anywhere, the program is given it."""
    line: int = 1
    """Version of the program that takes it."""


class StoredBy(Struct, frozen=True, kw_only=True):
    """The way in which one agent keeps its conversations."""

    name: str
    place: Callable[[Mapping[str, str], str], Path]
    """The directory of its user's data, or its database: of an environment, and the home directory
    where that has none."""
    file: Callable[[Path, str], Path | None]
    """Where a place has one conversation, by its id. None: it has no file of this name."""
    read: Callable[[Path, str], Stored | None]
    """One conversation of a place by its id. None: there is none that can be read."""
    newest: Callable[[Path, int], list[FoundSession]]
    """The sessions of people in a place that changed last, newest first; at most so many."""
    why_unread: Callable[[Path], str] = lambda _: ""
    """Why a place is neither read nor written, in a sentence; empty: it is."""
    parse: Callable[[bytes], Stored]
    """One that is at hand, however damaged it is."""
    takes: frozenset[str]
    """Media types of files that its messages can hold (`words.given_to`)."""
    render: Callable[..., Rendered | None]
    """
    `render(said, place=…, cwd=…, now=…, seed=…, owner=…, model=…)`. None: it cannot be written for
    this directory. `seed` is a new random UUID as text; `owner` says whose session it is;
    `model` (`provider/model`) is what opencode alone has to know, where its user has not used any
    before.
    """


def find(agent: str, id: str, environ: Mapping[str, str], *, home: str) -> Stored | None:
    """A conversation by the agent's own name for it."""
    if agent not in AGENTS or not is_plain_id(id):
        return None
    one = AGENTS[agent]
    return one.read(one.place(environ, home), id)


def is_same(said: Sequence[Utterance], stored: Stored | None) -> bool:
    """Return whether the text read back is the text written, in the same roles."""
    return stored is not None and _flat(said) == _flat(stored.said)


def _flat(said: Sequence[Utterance]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in alternating(said):
        texts = [part if isinstance(part, str) else tool_lines((part,)) for part in in_order(one)]
        if one.role == "user":
            texts = [one.text, *(f"{each.type} {each.data}" for each in one.files)]
        text = " ".join(" ".join(texts).split())
        if found and found[-1][0] == one.role:
            found[-1] = (one.role, f"{found[-1][1]} {text}")
        else:
            found.append((one.role, text))
    return found


def _moved(environ: Mapping[str, str], name: str, below: str, home: str) -> Path:
    """A directory that a variable may move away from its place below the home directory."""
    given = environ.get(name, "")
    if os.path.isabs(given):
        return Path(given)
    own = environ.get("HOME", "")
    return Path(own if os.path.isabs(own) else home) / below


def _read_file(path: Path | None, parse: Callable[[bytes], Stored], *, id: str) -> Stored | None:
    if path is None:
        return None
    found = parse(files.read_ends(path))
    return found if found.said and found.id in ("", id) else None


def _looked(
    name: str,
    paths: Iterator[Path],
    limit: int,
    parse: Callable[[bytes], Stored],
    owner_of: Callable[[bytes], OwnerWord] = lambda _: "person",
) -> list[FoundSession]:
    """Programs leave sessions too: of so many files at most are those of people searched for."""
    found: list[FoundSession] = []
    for at, path in files.newest_of(paths, limit=LOOKED_AT):
        if len(found) == limit:
            break
        data = files.read_ends(path, tail_bytes=LOOK_BYTES)
        if owner_of(data) == "program":
            continue
        stored = parse(data)
        if stored.said and is_plain_id(stored.id):
            found.append(
                FoundSession(
                    agent=name,
                    id=stored.id,
                    path=path,
                    changed_at=at,
                    cwd=stored.cwd,
                    first_words=stored.first_words,
                )
            )
    return found


def _last(paths: Iterator[Path]) -> Path | None:
    found = files.newest_of(paths, limit=1)
    return found[0][1] if found else None


# --- codex ---


def _codex_place(environ: Mapping[str, str], home: str) -> Path:
    return _moved(environ, "CODEX_HOME", ".codex", home)


def _codex_file(place: Path, id: str) -> Path | None:
    return _last(place.glob(f"sessions/*/*/*/rollout-*-{id}.jsonl"))


def _render_codex(
    said: Sequence[Utterance],
    *,
    place: Path,
    cwd: str,
    now: float,
    seed: str,
    owner: OwnerWord,
    model: str = "",
) -> Rendered:
    config = files.read_ends(place / "config.toml", tail_bytes=MAX_CONFIG_BYTES)
    provider = codex.provider_of(config.decode("utf-8", "replace"))
    return Rendered(
        agent="codex",
        id=seed,
        data=codex.render(said, id=seed, cwd=cwd, now=now, provider=provider, owner=owner),
        path=place / "sessions" / codex.file_name(id=seed, now=now),
    )


# --- claude ---


def _claude_place(environ: Mapping[str, str], home: str) -> Path:
    return _moved(environ, "CLAUDE_CONFIG_DIR", ".claude", home)


def _claude_file(place: Path, id: str) -> Path | None:
    return _last(place.glob(f"projects/*/{id}.jsonl"))


def _render_claude(
    said: Sequence[Utterance],
    *,
    place: Path,
    cwd: str,
    now: float,
    seed: str,
    owner: OwnerWord,
    model: str = "",
) -> Rendered | None:
    folder = claude.slug(cwd)
    if folder is None:
        return None
    return Rendered(
        agent="claude",
        id=seed,
        data=claude.render(said, id=seed, cwd=cwd, now=now, owner=owner),
        path=place / "projects" / folder / f"{seed}.jsonl",
    )


# --- gemini ---


def _gemini_place(environ: Mapping[str, str], home: str) -> Path:
    return _moved(environ, "GEMINI_CLI_HOME", "", home) / ".gemini"


def _gemini_file(place: Path, id: str) -> Path | None:
    return _last(place.glob(f"tmp/*/chats/session-*-{id[:8]}.jsonl"))


def _render_gemini(
    said: Sequence[Utterance],
    *,
    place: Path,
    cwd: str,
    now: float,
    seed: str,
    owner: OwnerWord,
    model: str = "",
) -> Rendered:
    data = gemini.render(said, id=seed, cwd=cwd, now=now)
    return Rendered(agent="gemini", id=seed, data=data, path=None)


# --- opencode ---


def _opencode_place(environ: Mapping[str, str], home: str) -> Path:
    return _moved(environ, "XDG_DATA_HOME", ".local/share", home) / "opencode" / "opencode.db"


def _newest_opencode(place: Path, limit: int) -> list[FoundSession]:
    found = []
    for at, id in opencode.newest_in(place, limit=limit):
        stored = opencode.read_database(place, id)
        if stored is not None and stored.said:
            found.append(
                FoundSession(
                    agent="opencode",
                    id=id,
                    path=place,
                    changed_at=at,
                    cwd=stored.cwd,
                    first_words=stored.first_words,
                )
            )
    return found


def _render_opencode(
    said: Sequence[Utterance],
    *,
    place: Path,
    cwd: str,
    now: float,
    seed: str,
    owner: OwnerWord,
    model: str = "",
) -> Rendered | None:
    model = model or opencode.last_model(place)
    if not model:
        return None  # a prompt without a model goes to that of the messages before it
    id = opencode.new_session_id(now, seed)
    line = 2 if opencode.is_second(place) else 1
    render = opencode.render_second if line == 2 else opencode.render
    data = render(said, id=id, cwd=cwd, now=now, model=model, owner=owner)
    return Rendered(agent="opencode", id=id, data=data, path=None, line=line)


AGENTS: Mapping[str, StoredBy] = {
    one.name: one
    for one in (
        StoredBy(
            name="claude",
            place=_claude_place,
            file=_claude_file,
            read=lambda place, id: _read_file(_claude_file(place, id), claude.parse, id=id),
            newest=lambda place, limit: _looked(
                "claude",
                place.glob("projects/*/*.jsonl"),
                limit,
                claude.parse,
                claude.owner_of,
            ),
            parse=claude.parse,
            takes=claude.TAKES,
            render=_render_claude,
        ),
        StoredBy(
            name="codex",
            place=_codex_place,
            file=_codex_file,
            read=lambda place, id: _read_file(_codex_file(place, id), codex.parse, id=id),
            newest=lambda place, limit: _looked(
                "codex",
                place.glob("sessions/*/*/*/rollout-*.jsonl"),
                limit,
                codex.parse,
                codex.owner_of,
            ),
            parse=codex.parse,
            takes=codex.TAKES,
            render=_render_codex,
        ),
        StoredBy(
            name="gemini",
            place=_gemini_place,
            file=_gemini_file,
            read=lambda place, id: _read_file(_gemini_file(place, id), gemini.parse, id=id),
            newest=lambda place, limit: _looked(
                "gemini", place.glob("tmp/*/chats/session-*.jsonl"), limit, gemini.parse
            ),
            parse=gemini.parse,
            takes=gemini.TAKES,
            render=_render_gemini,
        ),
        StoredBy(
            name="opencode",
            place=_opencode_place,
            file=lambda place, _: place,
            read=opencode.read_database,
            newest=_newest_opencode,
            why_unread=opencode.why_unread,
            parse=opencode.parse,
            takes=opencode.TAKES,
            render=_render_opencode,
        ),
    )
}
