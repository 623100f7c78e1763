"""
Acts of a tool call that no directory shows: it commits, sends, publishes.

A command line is cut into the simple commands that its shell would run, and each is compared with
the table of what acts. What is not in the table is taken to do nothing outside: a
script of the user's own may do anything. Words in quotes, in comments and in the text that a
command is given to read are no commands.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from msgspec import Struct, structs

from fallbackd.backends.lines import tool_key
from fallbackd.core.protocol import Reply, ToolStarted


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(rows: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{word} {verb}" for word, verbs in rows.items() for verb in verbs.split(", "))


_PHRASES = (
    *_phrases(
        {
            "git": "commit, push, am, cherry-pick, merge, revert, rebase, send-email",
            "svn": "commit, ci",
            "hg": "commit, ci, push",
            "jj": "git push",
            "npm": "publish, unpublish, deprecate",
            "pnpm": "publish",
            "yarn": "publish, npm publish",
            "bun": "publish",
            "cargo": "publish, yank",
            "gem": "push",
            "twine": "upload",
            "python -m twine": "upload",
            "poetry": "publish",
            "uv": "publish",
            "pdm": "publish",
            "flit": "publish",
            "hatch": "publish",
            "mvn": "deploy",
            "gradle": "publish",
            "docker": "push, image push",
            "podman": "push",
            "helm": "push, install, upgrade, uninstall",
            "kubectl": "apply, create, delete, patch, replace, rollout, scale, set",
            "terraform": "apply, destroy",
            "tofu": "apply, destroy",
            "pulumi": "up, destroy",
            "vercel": "deploy",
            "netlify": "deploy",
            "firebase": "deploy",
            "fly": "deploy",
            "flyctl": "deploy",
            "wrangler": "deploy, publish",
            "serverless": "deploy",
            "sls": "deploy",
            "gcloud": "run deploy, app deploy, functions deploy",
            "aws": "s3 cp, s3 mv, s3 rm, s3 sync, ses send-email, sns publish",
        }
    ),
    *("ansible-playbook", "mail", "mailx", "s-nail", "mutt", "sendmail", "msmtp", "swaks"),
)
_AT_FORGES = (
    *_phrases(
        {
            "pr": "create, merge, close, comment, edit, review",
            "issue": "create, close, comment, edit",
            "mr": "create, merge",
            "release": "create, upload",
            "workflow": "run",
            "repo": "create, delete",
            "gist": "create",
        }
    ),
    "api",
)
_STAYS = _phrases({"git": "commit, am, cherry-pick, merge, revert, rebase", "hg": "commit, ci"})
LEAVES = (
    *(phrase for phrase in _PHRASES if phrase not in _STAYS),
    *(f"{one} {verb}" for one in ("gh", "glab") for verb in _AT_FORGES),
    *("scp", "sftp"),
)
"""Beginnings of commands that leave the machine: what `ACTS` names without what stays in the
repository, and what writes at a forge."""


def _by_program(phrases: Iterable[str]) -> Mapping[str, tuple[tuple[str, ...], ...]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases:
        program, *rest = (word for word in phrase.split() if not word.startswith("-"))
        found.setdefault(program, []).append(tuple(rest))
    return {program: tuple(rests) for program, rests in found.items()}


ACTS = _by_program(_PHRASES)
"""Words that follow a program where it acts, options left out."""

FORGES = frozenset({"gh", "glab", "hub"})
READS_ONLY = _words("""
list ls view diff checks status show get search watch download clone checkout co browse
verify help version config alias completion extension auth trace
""")
"""These verbs of a client of a forge change nothing there, and every other one does."""
FORGE_WRITES = re.compile(
    r"(?:^|\s)(?:-X\s*|--method[ =])(?!GET)\w|(?:^|\s)(?:-[fF]|--(?:raw-)?field|--input)[\s=]"
)

AT_ONCE = _words("""
git svn hg jj npm pnpm yarn bun cargo gem twine poetry uv pdm flit hatch docker podman
""")
"""Programs that have done nothing outside where they fail."""

COPIES = frozenset({"scp", "rsync", "sftp"})

TASKS: Mapping[str, int] = {
    "make": 10,
    "just": 10,
    "task": 10,
    "npm": 0,
    "pnpm": 0,
    "yarn": 1,
    "bun": 0,
}
"""Programs that run tasks which the user has named, and how many of their words may be such names
where no `run` stands before them."""

WRAPPERS = _words("""
sudo doas env time nohup nice ionice exec command builtin timeout stdbuf setsid xargs
then do else elif if while until ! npx bunx
""")
"""Words that may stand before the program."""

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})

WITH_VALUE: Mapping[str, frozenset[str]] = {
    "git": frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"}),
    "gh": frozenset({"-R", "--repo", "-X", "--method", "-H"}),
    "glab": frozenset({"-R", "--repo", "-X", "--method", "-H"}),
    "npm": frozenset({"--prefix", "-w", "--workspace"}),
    "pnpm": frozenset({"-C", "--dir", "--filter"}),
    "cargo": frozenset({"--manifest-path"}),
    "docker": frozenset({"--context", "-H", "--config"}),
    "kubectl": frozenset({"-n", "--namespace", "--context", "--kubeconfig"}),
    "helm": frozenset({"-n", "--namespace", "--kube-context"}),
    "make": frozenset({"-C", "-f", "-j"}),
    "aws": frozenset({"--profile", "--region"}),
}
"""Options before the verb whose value is a word of its own."""

HTTP_CLIENTS = frozenset({"curl", "wget", "http", "https", "xh"})
HTTP_WRITES = re.compile(
    r"(?:^|\s)(?:-X\s*|--request[ =]|--method[ =])(?:POST|PUT|PATCH|DELETE)\b"
    r"|(?:^|\s)(?:-d|--data(?:-\w+)?|-F|--form|--json|-T|--upload-file|--post-data|--post-file)[\s=]"
    r"|^(?:-\S+\s+)*(?:POST|PUT|PATCH|DELETE)\s"
)


class Act(Struct, frozen=True, kw_only=True):
    what: str
    """Name in a word or two: `git push`."""
    all_or_nothing: bool = False
    """True: where the call fails, it was not done."""


MAX_COMMAND_CHARS = 16_384
MAX_DEPTH = 3
_COMMAND_FIELDS = ("command", "cmd", "script")


def act_of(tool: str, arguments: object) -> Act | None:
    """Act of a call of a tool with these arguments; None: none that is known."""
    command = _command_of(arguments)
    if command is not None:
        return _act_of_script(command)
    return _act_by_name(tool)


def stays_here(arguments: object) -> bool:
    """Test whether a call runs a command that is known, and does nothing outside this machine."""
    command = _command_of(arguments)
    act = None if command is None else _act_of_script(command)
    acts = () if act is None else act.what.split(", ")
    return command is not None and all(one in _STAYS for one in acts)


def _command_of(arguments: object) -> str | None:
    if isinstance(arguments, Mapping):
        found = (arguments.get(name) for name in _COMMAND_FIELDS)
        arguments = next((one for one in found if one), None)
    if isinstance(arguments, list) and all(isinstance(one, str) for one in arguments):
        return " ".join(_quoted(one) for one in arguments)
    return arguments if isinstance(arguments, str) else None


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./:=@%+,-]+", word) else "'" + word.replace("'", "'\\''") + "'"


# By the name of the tool.

_VERBS = "send|post|publish|push|deploy|merge|reply|tweet|upload|invite|approve|transfer|pay"
_NOUNS = "issue|pull_?request|pr|release|comment|review|message|email|mail|event|page|ticket|gist"
_ACTING_NAME = re.compile(
    rf"(?:^|_)(?:{_VERBS})(?:_|$)"
    rf"|(?:^|_)(?:create|add|update|edit|close|delete|submit)_(?:\w+_)?(?:{_NOUNS})s?(?:_|$)"
)


def _act_by_name(tool: str) -> Act | None:
    """A tool of another server (MCP) whose name says that it writes there."""
    if tool[:1].isupper():
        return None  # an agent's own
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool).lower()
    own = re.split(r"__|\.", name)[-1]  # without the name of its server
    if not _ACTING_NAME.search(re.sub(r"[^a-z0-9]+", "_", own)):
        return None
    shown = "".join(char for char in tool if char.isprintable())[:60]
    return Act(what=shown, all_or_nothing=True)


# Command lines.

_HEREDOC = re.compile(
    r"<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?P<rest>[^\n]*)\n"
    r".*?(?:^[ \t]*(?P=end)[ \t]*$|\Z)",
    re.S | re.M,
)
_PIECE = re.compile(
    r"(?P<end>&&|\|\||[\n;|&(){}`])"
    r"|(?P<comment>(?<![^\s;|&(){}])\#[^\n]*)"
    r"|(?P<word>(?:\d*[<>]&[\d-]?|\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^\s;|&(){}`'\"\\])+)"
    r"|[\s\S]",
    re.S,
)
_IN_QUOTES = re.compile(r"\\(.)|'([^']*)'|\"((?:\\.|[^\"\\])*)\"", re.S)
_REDIRECTION = re.compile(r"\d*(?:>>?|<)(?:&\d?)?(?P<rest>.*)", re.S)


def _act_of_script(script: str, depth: int = 0) -> Act | None:
    """The first thing that it does outside; with which certainty, all of them together say."""
    acts = [_act_of_command(one, depth) for one in _commands(script[:MAX_COMMAND_CHARS])]
    found = [act for act in acts if act is not None]
    if not found:
        return None
    # Its exit status is that of the last command: where that is what acts, failure tells.
    is_told = len(found) == 1 and acts[-1] is found[0]
    whats = ", ".join(dict.fromkeys(one.what for one in found))
    return Act(what=whats[:200], all_or_nothing=is_told and found[0].all_or_nothing)


def _commands(script: str) -> Iterator[tuple[str, ...]]:
    """Each command with its words, as a shell would run it."""
    raw: list[str] = []
    for piece in _PIECE.finditer(_HEREDOC.sub(lambda one: one["rest"] + "\n", script) + "\n"):
        if (word := piece["word"]) is not None:
            raw.append(word)
        elif piece["end"] is not None:
            if words := _said(raw):
                yield words
            raw = []


def _said(raw: Sequence[str]) -> tuple[str, ...]:
    """The words without quotes, redirections and what stands before the program."""
    words: list[str] = []
    skips = False
    for one in raw:
        if skips:
            skips = False
        elif redirection := _REDIRECTION.fullmatch(one):
            skips = not redirection["rest"] and "&" not in one
        else:
            words.append(_IN_QUOTES.sub(_unquoted, one))
    while words and (words[0] in WRAPPERS or re.match(r"[A-Za-z_]\w*=", words[0])):
        wrapper = words.pop(0)
        while wrapper in WRAPPERS and words and (words[0][0:1] == "-" or _is_number(words[0])):
            words.pop(0)
    return tuple(words)


def _unquoted(found: re.Match[str]) -> str:
    escaped, single, double = found.groups()
    if double is not None:
        return re.sub(r"\\([\"\\$`])", r"\1", double)
    return str(escaped if escaped is not None else single)


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[\d.]+[smhd]?", word) is not None


def _act_of_command(words: tuple[str, ...], depth: int) -> Act | None:
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program in SHELLS:
        return _act_inside(rest, depth)
    if program in HTTP_CLIENTS:
        return _act_over_http(program, rest)
    if not _WITHOUT_EFFECT.isdisjoint(rest):
        return None
    plain = _without_options(program, rest)
    return _act_by_table(program, plain) or _act_of_client(program, plain, rest)


_WITHOUT_EFFECT = frozenset({"--dry-run", "--abort", "--help", "-h", "--version"})


def _act_by_table(program: str, plain: tuple[str, ...]) -> Act | None:
    for phrase in ACTS.get(program, ()):
        if plain[: len(phrase)] == phrase:
            what = " ".join((program, *phrase))
            return Act(what=what, all_or_nothing=program in AT_ONCE)
    return None


def _act_of_client(program: str, plain: tuple[str, ...], rest: tuple[str, ...]) -> Act | None:
    """Act of a program that talks to others, or that runs the user's own tasks."""
    if program in FORGES and plain:
        return None if _only_reads(plain, rest) else Act(what=_short(program, plain))
    if program in COPIES and re.match(r"[\w.@-]+:", plain[-1] if plain else ""):
        return Act(what=f"{program} to another machine")
    if program in TASKS and any(_ACTING_TASK.match(one) for one in _tasks(program, plain)):
        return Act(what=_short(program, plain))
    return None


_ACTING_TASK = re.compile(r"(?:deploy|publish|release|upload|push)(?:[:_-]\w+)?\Z")


def _tasks(program: str, plain: tuple[str, ...]) -> tuple[str, ...]:
    """The tasks of the user's own that are run."""
    if plain[:1] == ("run",):
        return plain[1:2]
    return plain[: TASKS[program]]


def _only_reads(plain: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Check whether a client of a forge only reads there."""
    if plain[0] != "api":
        return any(one in READS_ONLY for one in plain[:2])
    text = " ".join(words)
    if plain[1:2] == ("graphql",):
        return "mutation" not in text
    return FORGE_WRITES.search(text) is None


def _act_inside(words: tuple[str, ...], depth: int) -> Act | None:
    """Act of a shell with the text that it is given: `bash -lc "git push"`."""
    for number, one in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", one) and depth < MAX_DEPTH:
            return _act_of_script(words[number + 1], depth + 1)
    return None


def _act_over_http(program: str, words: tuple[str, ...]) -> Act | None:
    """A request that writes, to another machine than this one."""
    text = " ".join(words)
    if re.search(r"(?:^|[\s/@])(?:localhost|127\.[\d.]+|0\.0\.0\.0|\[::1\])(?:[:/\s]|$)", text):
        return None
    if re.search(r"(?:^|\s)(?:-G|--get)(?:\s|$)", text):
        return None
    return Act(what=f"{program}, a request that writes") if HTTP_WRITES.search(text) else None


def _without_options(program: str, words: Sequence[str]) -> tuple[str, ...]:
    plain: list[str] = []
    takes = WITH_VALUE.get(program, frozenset[str]())
    skips = False
    for one in words:
        if skips:
            skips = False
        elif one.startswith("-"):
            skips = one in takes
        else:
            plain.append(one)
    return tuple(plain)


def _short(program: str, plain: tuple[str, ...]) -> str:
    shown = " ".join((program, *plain[:2]))
    return "".join(char for char in shown if char.isprintable())[:60]


def started(
    name: str, arguments: object, *, call: str, harmless: Set[str], key: str | None = None
) -> ToolStarted:
    """
    Args:
        harmless: Names of the tools that read, list and search.
        key: For tools whose arguments are not shown: what tells two calls apart.
    """
    key = tool_key(name, arguments) if key is None else key
    if name in harmless:
        return ToolStarted(key=key, name=name, effects="none", call=call)
    act = act_of(name, arguments)
    return ToolStarted(
        key=key,
        name=name,
        outside="" if act is None else act.what,
        all_or_nothing=act is not None and act.all_or_nothing,
        call=call,
    )


MAX_REFUSED = 5
"""Calls that a warning names."""
MAX_REFUSED_CHARS = 80
_TELLING = ("command", "cmd", "file_path", "filePath", "path", "url")


def call_words(name: str, arguments: object) -> str:
    """A call in short, for people: `Bash (git push origin main)`."""
    given = arguments if isinstance(arguments, Mapping) else {"command": arguments}
    found = next((given[word] for word in _TELLING if given.get(word)), "")
    if isinstance(found, list):
        found = " ".join(word for word in found if isinstance(word, str))
    shown = " ".join(found.split())[:MAX_REFUSED_CHARS] if isinstance(found, str) else ""
    words = f"{name[:MAX_REFUSED_CHARS]} ({shown})" if shown else name[:MAX_REFUSED_CHARS]
    return "".join(char for char in words if char.isprintable())


def with_refused(reply: Reply, refused: Sequence[str], way_out: str) -> Reply:
    """
    The answer, with a warning about the calls that its agent refused itself.

    Args:
        refused: Of `call_words`.
        way_out: What allows them, as the end of a sentence.
    """
    calls = list(dict.fromkeys(refused))
    if not calls:
        return reply
    more = len(calls) - MAX_REFUSED
    named = ", ".join(calls[:MAX_REFUSED]) + (f" and {more} more" if more > 0 else "")
    warning = f"the agent's own rules refused: {named}; to allow this, {way_out}"
    return structs.replace(reply, warnings=(*reply.warnings, warning))
