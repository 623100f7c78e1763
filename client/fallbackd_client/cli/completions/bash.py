"""For bash 4 and newer; needs nothing of the package `bash-completion`."""

from __future__ import annotations

from fallbackd_client.cli.completions.tree import DIRECTORIES, DYNAMIC, FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.cli.completions.tree import Node, Value

_HEAD = """\
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

_TAIL = """\
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
    return [f"        {key}) {action} ;;\n" for key, value in keys if (action := _action(value))]


def script(root: Node) -> str:
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
    return _HEAD + "".join(tables) + _VALUES + "".join(values) + _TAIL


def _action(value: Value) -> str:
    if value.words:
        return f'_fallbackd_client_words "{" ".join(value.words)}"'
    if value.kind in DYNAMIC:
        return f"_fallbackd_client_ask {value.kind}"
    if value.kind == FILES:
        return "_fallbackd_client_paths -f"
    if value.kind == DIRECTORIES:
        return "_fallbackd_client_paths -d"
    return ""
