"""
Completions for shells, made from the parser: the tree of the commands, the words that only the
daemon knows, and one script for each shell.
"""

from __future__ import annotations

import argparse
import json
import re

from fallbackd_client.cli.commands import COMMANDS
from fallbackd_client.cli.output import one_line
from fallbackd_client.cli.parsing import PROG, command_parser, program_parser
from fallbackd_client.client import Client
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fallbackd_client.calls import Json

BACKENDS = "backends"
DELEGATIONS = "delegations"
KEYS = "keys"
METHODS = "methods"
QUESTIONS = "questions"
SESSIONS = "sessions"
DYNAMIC = (BACKENDS, DELEGATIONS, KEYS, METHODS, QUESTIONS, SESSIONS)
"""Kinds of words that only the daemon, or its program, knows."""
FILES = "files"
DIRECTORIES = "directories"

_KIND_BY_METAVAR = {
    "BACKEND": BACKENDS,
    "DELEGATION": DELEGATIONS,
    "FILE": FILES,
    "KEY": KEYS,
    "METHOD": METHODS,
    "QUESTION": QUESTIONS,
    "SESSION": SESSIONS,
    "TARGET": BACKENDS,
}
_KIND_BY_FLAG = {
    "--backend": BACKENDS,
    "--chain": BACKENDS,
    "--cwd": DIRECTORIES,
    "--differs-from": BACKENDS,
    "--root": DIRECTORIES,
    "--session": SESSIONS,
    "--socket": FILES,
}


class Value:
    """
    Args:
        name: As the help calls it.
        words: All that it may be; empty: anything.
        kind: One of the kinds above; empty: none.
    """

    __slots__ = ("kind", "name", "words")

    def __init__(self, name: str, words: tuple[str, ...], kind: str) -> None:
        self.name = name
        self.words = words
        self.kind = kind


class Option:
    """
    Args:
        value: None: it takes none.
        is_hidden: Understood, and not offered.
    """

    __slots__ = ("flags", "help", "is_hidden", "is_repeatable", "value")

    def __init__(
        self,
        flags: tuple[str, ...],
        help_line: str,
        value: Value | None,
        *,
        is_repeatable: bool,
        is_hidden: bool,
    ) -> None:
        self.flags = flags
        self.help = help_line
        self.value = value
        self.is_repeatable = is_repeatable
        self.is_hidden = is_hidden


class Positional:
    __slots__ = ("is_optional", "value")

    def __init__(self, value: Value, *, is_optional: bool) -> None:
        self.value = value
        self.is_optional = is_optional


class Node:
    """
    Attributes:
        path: The words that lead here, without the program: `("health", "mark")`.
    """

    __slots__ = ("children", "help", "options", "path", "positionals")

    def __init__(self, path: tuple[str, ...], help_line: str) -> None:
        self.path = path
        self.help = help_line
        self.options: list[Option] = []
        self.positionals: list[Positional] = []
        self.children: dict[str, Node] = {}

    @property
    def shown(self) -> list[Option]:
        return [option for option in self.options if not option.is_hidden]

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children.values():
            yield from child.walk()


def whole_tree() -> Node:
    root = read_parser(program_parser(), (), PROG)
    for command in COMMANDS:
        root.children[command.name] = read_parser(
            command_parser(command), (command.name,), command.help_line
        )
    return root


def read_parser(parser: argparse.ArgumentParser, path: tuple[str, ...], help_line: str) -> Node:
    node = Node(path, help_line)
    for action in parser._actions:  # argparse has no public way to ask for them
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            for name, child in action.choices.items():
                node.children[name] = read_parser(child, (*path, name), helps.get(name, ""))
        elif action.option_strings:
            node.options.append(_option(action))
        else:
            value = _value(action)
            node.positionals.append(Positional(value, is_optional=action.nargs == "?"))
    return node


def _option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    return Option(
        tuple(action.option_strings),
        "" if action.help in (None, argparse.SUPPRESS) else str(action.help),
        _value(action) if takes_value else None,
        is_repeatable=isinstance(action, argparse._AppendAction),
        is_hidden=action.help == argparse.SUPPRESS,
    )


def _value(action: argparse.Action) -> Value:
    words = tuple(str(choice) for choice in action.choices or ())
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    kind = _KIND_BY_METAVAR.get(name, "")
    for flag in action.option_strings:
        kind = _KIND_BY_FLAG.get(flag, kind)
    return Value(name, words, "" if words else kind)


_ANSWER_S = 3.0
"""A busy machine takes more than a second for the list of methods."""
_SHOWN = 50
_PLAIN = re.compile(r"[A-Za-z0-9][\w.:/@+-]*", re.ASCII)
"""Words that no shell has to quote. Other names are left to be typed."""


def words_of(kind: str, socket: str | None) -> list[tuple[str, str]]:
    """Pairs of a word and what it is; empty where no daemon answers at once."""
    with Client(socket, timeout_s=_ANSWER_S, connect_s=0.0, reconnect_s=0.0) as client:
        try:
            found = list(_keys(client)) if kind == KEYS else _ask(client, kind)
        except (ClientError, AttributeError, KeyError, TypeError):
            return []  # no daemon, or one of another version: a completion cannot report errors
    return [(word, one_line(about)) for word, about in found if _PLAIN.fullmatch(word)]


def _ask(client: Client, kind: str) -> list[tuple[str, str]]:
    if kind == BACKENDS:
        health = client.call("health", {})["health"]
        return [(name, _state(entry)) for name, entry in health.items()]
    if kind not in _LISTS:
        return []
    method, params, field, word, say = _LISTS[kind]
    return [(one[word], say(one)) for one in client.call(method, params)[field]]


def _keys(client: Client) -> Iterator[tuple[str, str]]:
    """Keys of the configuration: of its schema, and of the backends, chains and roles there are."""
    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.setup.units import NoProgram, daemon_program

    try:
        ran = Machine().run(daemon_program(Machine()), "--config-schema")
        schema = json.loads(ran.out)
    except (NoProgram, ValueError):
        return
    try:
        named = client.call("config.get", {})["config"]
    except ClientError:
        named = {}  # tables that have names of their own are left out
    yield from _below(schema, schema["$defs"], "", named)


def _below(
    shape: dict[str, Json], tables: dict[str, dict[str, Json]], path: str, named: Json
) -> Iterator[tuple[str, str]]:
    is_map = False
    for one in shape.get("anyOf") or [shape]:
        below: dict[str, dict[str, Json]] | None = None
        if "$ref" in one:
            below = tables[one["$ref"].removeprefix("#/$defs/")].get("properties")
        elif isinstance(rest := one.get("additionalProperties"), dict):
            below = dict.fromkeys(named if isinstance(named, dict) else {}, rest)
        if below is not None:
            is_map = True
            for key, inner in below.items():
                known = named.get(key) if isinstance(named, dict) else None
                yield from _below(inner, tables, f"{path}.{key}" if path else key, known)
    if not is_map:
        yield path, str(shape.get("description") or "")


def _state(entry: dict[str, Json]) -> str:
    words = [entry.get("state"), entry.get("reason")]
    return ", ".join(str(word) for word in words if word)


def _work(one: dict[str, Json]) -> str:
    words = [one.get("state"), one.get("active") or one.get("requested"), one.get("session")]
    return ", ".join(str(word) for word in words if word)


def _said(name: str) -> Callable[[dict[str, Json]], str]:
    return lambda one: str(one.get(name) or "")


_BRIEF = {"limit": _SHOWN, "brief": True}
_LISTS: dict[str, tuple[str, dict[str, Json], str, str, Callable[[dict[str, Json]], str]]] = {
    DELEGATIONS: ("delegation.list", _BRIEF, "lines", "delegation", _work),
    SESSIONS: ("session.list", {"limit": _SHOWN}, "sessions", "session", _said("current")),
    QUESTIONS: ("question.list", {}, "questions", "question", _said("text")),
    METHODS: ("rpc.discover", {}, "methods", "name", _said("summary")),
}
"""Method and parameters, the field of its answer with the list, what is listed, what is said."""


_BASH_HEAD = """\
# bash completion for fallbackd-client, generated from its parser: do not edit.

# What may stand behind the words that lead to a command: options, those of them that take a value,
# and further words.
_fallbackd_client_table() {
    flags= valued= children=
    case $1 in
"""

_VALUES = """\
    esac
}

# What the value of an option, or the word at a place, may be.
_fallbackd_client_value() {
    case $1 in
"""

_BASH_TAIL = """\
    esac
}

_fallbackd_client_words() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}

_fallbackd_client_ask() {
    local -a found
    mapfile -t found < <(fallbackd-client completions --list "$1" 2>/dev/null)
    _fallbackd_client_words "${found[*]%%$'\\t'*}"
}

_fallbackd_client_paths() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}

_fallbackd_client() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \\t\\n'
    local cur path= word flags valued children prefix i
    local -i at=1 place=1
    local -a words
    COMPREPLY=()
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local -i last=$(( ${#words[@]} - 1 ))
    cur=${words[last]}
    _fallbackd_client_table ""
    while (( at < last )); do
        word=${words[at]}
        if [[ $word == -* ]]; then
            [[ $word != *=* && " $valued " == *" $word "* ]] && at+=1
        elif [[ " $children " == *" $word "* ]]; then
            path=${path:+$path }$word place=1
            _fallbackd_client_table "$path"
        else
            place+=1
        fi
        at+=1
    done
    if (( at > last )); then
        _fallbackd_client_value "$path:${words[last - 1]}"
    elif [[ $cur == --*=* ]]; then
        word=${cur%%=*}
        cur=${cur#*=}
        _fallbackd_client_value "$path:$word"
        # The shell completes behind a `=` only where that ends a word.
        if [[ $COMP_WORDBREAKS != *=* ]]; then
            for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=$word=${COMPREPLY[i]}; done
        fi
    elif [[ $cur == -* ]]; then
        _fallbackd_client_words "$flags"
    elif [[ -n $children ]]; then
        _fallbackd_client_words "$children"
    else
        _fallbackd_client_value "$path:$place"
    fi
    if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then
        prefix=${cur%"${cur##*:}"}
        for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$prefix"}; done
    fi
}

complete -F _fallbackd_client fallbackd-client fb
"""


def _values(node: Node, path: str) -> list[str]:
    keys = [
        ("|".join(f'"{path}:{flag}"' for flag in option.flags), option.value)
        for option in node.options
        if option.value is not None
    ]
    for place, positional in enumerate(node.positionals, start=1):
        keys.append((f'"{path}:{place}"', positional.value))
    return [
        f"        {key}) {action} ;;\n" for key, value in keys if (action := _bash_action(value))
    ]


def bash_script(root: Node) -> str:
    tables: list[str] = []
    values: list[str] = []
    for node in root.walk():
        path = " ".join(node.path)
        flags = [flag for option in node.shown for flag in option.flags]
        valued = [flag for option in node.options if option.value for flag in option.flags]
        tables.append(
            f'        "{path}")\n'
            f'            flags="{" ".join(flags)}"\n'
            f'            valued="{" ".join(valued)}"\n'
            f'            children="{" ".join(node.children)}" ;;\n'
        )
        values += _values(node, path)
    return _BASH_HEAD + "".join(tables) + _VALUES + "".join(values) + _BASH_TAIL


def _bash_action(value: Value) -> str:
    if value.words:
        return f'_fallbackd_client_words "{" ".join(value.words)}"'
    if value.kind in DYNAMIC:
        return f"_fallbackd_client_ask {value.kind}"
    if value.kind == FILES:
        return "_fallbackd_client_paths -f"
    if value.kind == DIRECTORIES:
        return "_fallbackd_client_paths -d"
    return ""


_FISH_HEAD = """\
# fish completion for fallbackd-client, generated from its parser: do not edit.

function __fallbackd_client_ask
    fallbackd-client completions --list $argv[1] 2>/dev/null
end

# Options that take a value, and further words, behind the words that lead to a command.
function __fallbackd_client_table
    switch $argv[1]
"""

_AT = """\
    end
end

# Whether the words before the cursor lead to this command, and this many follow it.
function __fallbackd_client_at
    set -l words (commandline -opc)
    set -l path
    set -l place 0
    set -l table (__fallbackd_client_table "")
    set -l skip no
    for word in $words[2..]
        if test $skip = yes
            set skip no
        else if string match -q -- '-*' $word
            if not string match -q -- '*=*' $word
                contains -- $word (string split ' ' -- $table[1]); and set skip yes
            end
        else if contains -- $word (string split ' ' -- $table[2])
            set -a path $word
            set place 0
            set table (__fallbackd_client_table "$path")
        else
            set place (math $place + 1)
        end
    end
    test "$path" = "$argv[1]"; or return 1
    test (count $argv) -eq 1; or test $place -eq $argv[2]
end

complete -c fb -w fallbackd-client
complete -c fallbackd-client -f
"""


def fish_script(root: Node) -> str:
    tables, completes = [], []
    for node in root.walk():
        path = " ".join(node.path)
        valued = [flag for option in node.options if option.value for flag in option.flags]
        tables.append(
            f"        case {_fish_quoted(path)}\n"
            f"            echo {_fish_quoted(' '.join(valued))}\n"
            f"            echo {_fish_quoted(' '.join(node.children))}\n"
        )
        completes += _completes(node, path)
    lines = [f"complete -c fallbackd-client {one}\n" for one in completes]
    return _FISH_HEAD + "".join(tables) + _AT + "".join(lines)


def _completes(node: Node, path: str) -> list[str]:
    at_all = _condition(f"__fallbackd_client_at {_fish_quoted(path)}")
    lines = []
    for name, child in node.children.items():
        first = _condition(f"__fallbackd_client_at {_fish_quoted(path)} 0")
        lines.append(f"{first} -a {_fish_quoted(name)} -d {_fish_quoted(child.help)}")
    for option in node.shown:
        words = [at_all, *(_flag(flag) for flag in option.flags)]
        if option.value is not None:
            words.append(_fish_value(option.value) or "-x")
        if option.help:
            words.append(f"-d {_fish_quoted(option.help)}")
        lines.append(" ".join(words))
    for place, positional in enumerate(node.positionals):
        value = _fish_value(positional.value)
        if value:
            there = _condition(f"__fallbackd_client_at {_fish_quoted(path)} {place}")
            lines.append(f"{there} {value.removeprefix('-x ').removeprefix('-r ')}")
    return lines


def _flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _fish_value(value: Value) -> str:
    if value.words:
        return f"-x -a {_fish_quoted(' '.join(value.words))}"
    if value.kind in DYNAMIC:
        return f"-x -a {_fish_quoted(f'(__fallbackd_client_ask {value.kind})')}"
    if value.kind == FILES:
        return "-r -F"
    if value.kind == DIRECTORIES:
        return f"-x -a {_fish_quoted('(__fish_complete_directories)')}"
    return ""


def _condition(command: str) -> str:
    return f"-n {_fish_quoted(command)}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_ZSH_HEAD = """\
#compdef fallbackd-client fb
# zsh completion for fallbackd-client, generated from its parser: do not edit.

_fallbackd_client_ask() {
    local line
    local -a described
    for line in ${(f)"$(fallbackd-client completions --list $1 2>/dev/null)"}; do
        described+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    _describe -t $1 ${1%s} described
}

"""

_ZSH_TAIL = """\
if [[ $funcstack[1] == _fallbackd-client ]]; then
    _fallbackd-client "$@"
else
    compdef _fallbackd-client fallbackd-client fb
fi
"""


def zsh_script(root: Node) -> str:
    functions = [_function(node) for node in reversed(list(root.walk()))]
    return _ZSH_HEAD + "".join(functions) + _ZSH_TAIL


def _function(node: Node) -> str:
    specs = [spec for option in node.shown for spec in _zsh_option(option)]
    if not node.children:
        places = enumerate(node.positionals, start=1)
        specs += [_positional(place, positional) for place, positional in places]
        arguments = " \\\n        ".join(specs)
        return f"{_name(node)}() {{\n    _arguments -S : \\\n        {arguments}\n}}\n\n"
    specs += ["'1: :->word'", "'*:: :->rest'"]
    arguments = " \\\n        ".join(specs)
    described = "\n".join(
        f"                {_zsh_quoted(f'{name}:{child.help}')}"
        for name, child in node.children.items()
    )
    calls = "\n".join(
        " " * 16 + f"{name}) {_name(child)} ;;" for name, child in node.children.items()
    )
    return (
        f"{_name(node)}() {{\n"
        "    local curcontext=$curcontext state line\n"
        "    local -a described\n"
        "    typeset -A opt_args\n"
        f"    _arguments -C -S : \\\n        {arguments} && return\n"
        "    case $state in\n"
        "        word)\n"
        f"            described=(\n{described}\n            )\n"
        "            _describe -t commands command described ;;\n"
        "        rest)\n"
        f"            case $line[1] in\n{calls}\n            esac ;;\n"
        "    esac\n"
        "}\n\n"
    )


def _name(node: Node) -> str:
    return "_".join(("_fallbackd-client", *node.path))


def _zsh_option(option: Option) -> list[str]:
    value = ""
    if option.value is not None:
        value = f":{_escaped(option.value.name)}:{_zsh_action(option.value)}"
    about = f"[{_escaped(option.help)}]" if option.help else ""
    excluded = "*" if option.is_repeatable else ""
    if len(option.flags) > 1 and not excluded:
        excluded = f"({' '.join(option.flags)})"
    specs = []
    for flag in option.flags:
        # `=`: the value stands behind it, or is the next word.
        equals = "=" if value and flag.startswith("--") else ""
        specs.append(_zsh_quoted(f"{excluded}{flag}{equals}{about}{value}"))
    return specs


def _positional(place: int, positional: Positional) -> str:
    colons = "::" if positional.is_optional else ":"
    value = positional.value
    return _zsh_quoted(f"{place}{colons}{_escaped(value.name)}:{_zsh_action(value)}")


def _zsh_action(value: Value) -> str:
    if value.words:
        return f"({' '.join(value.words)})"
    if value.kind in DYNAMIC:
        # Behind a space it is called as it stands, without options for compadd put in between.
        return f" _fallbackd_client_ask {value.kind}"
    if value.kind == FILES:
        return "_files"
    if value.kind == DIRECTORIES:
        return "_files -/"
    return "()"  # a space, which only shows the name, keeps options from being offered


def _escaped(text: str) -> str:
    for special in "\\[]:":
        text = text.replace(special, f"\\{special}")
    return text


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SCRIPTS = {"bash": bash_script, "fish": fish_script, "zsh": zsh_script}
