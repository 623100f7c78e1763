"""For fish 3."""

from __future__ import annotations

from fallbackd_client.cli.completions.tree import DIRECTORIES, DYNAMIC, FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.cli.completions.tree import Node, Value

_HEAD = """\
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


def script(root: Node) -> str:
    tables, completes = [], []
    for node in root.walk():
        path = " ".join(node.path)
        valued = [flag for option in node.options if option.value for flag in option.flags]
        tables.append(
            f"        case {_quoted(path)}\n"
            f"            echo {_quoted(' '.join(valued))}\n"
            f"            echo {_quoted(' '.join(node.children))}\n"
        )
        completes += _completes(node, path)
    lines = [f"complete -c fallbackd-client {one}\n" for one in completes]
    return _HEAD + "".join(tables) + _AT + "".join(lines)


def _completes(node: Node, path: str) -> list[str]:
    at_all = _condition(f"__fallbackd_client_at {_quoted(path)}")
    lines = []
    for name, child in node.children.items():
        first = _condition(f"__fallbackd_client_at {_quoted(path)} 0")
        lines.append(f"{first} -a {_quoted(name)} -d {_quoted(child.help)}")
    for option in node.shown:
        words = [at_all, *(_flag(flag) for flag in option.flags)]
        if option.value is not None:
            words.append(_value(option.value) or "-x")
        if option.help:
            words.append(f"-d {_quoted(option.help)}")
        lines.append(" ".join(words))
    for place, positional in enumerate(node.positionals):
        value = _value(positional.value)
        if value:
            there = _condition(f"__fallbackd_client_at {_quoted(path)} {place}")
            lines.append(f"{there} {value.removeprefix('-x ').removeprefix('-r ')}")
    return lines


def _flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _value(value: Value) -> str:
    if value.words:
        return f"-x -a {_quoted(' '.join(value.words))}"
    if value.kind in DYNAMIC:
        return f"-x -a {_quoted(f'(__fallbackd_client_ask {value.kind})')}"
    if value.kind == FILES:
        return "-r -F"
    if value.kind == DIRECTORIES:
        return f"-x -a {_quoted('(__fish_complete_directories)')}"
    return ""


def _condition(command: str) -> str:
    return f"-n {_quoted(command)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
