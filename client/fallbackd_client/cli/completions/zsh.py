"""For zsh 5: a file `_fallbackd-client` on `$fpath`, or evaluated after `compinit`."""

from __future__ import annotations

from fallbackd_client.cli.completions.tree import DIRECTORIES, DYNAMIC, FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.cli.completions.tree import Node, Option, Positional, Value

_HEAD = """\
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

_TAIL = """\
if [[ $funcstack[1] == _fallbackd-client ]]; then
    _fallbackd-client "$@"
else
    compdef _fallbackd-client fallbackd-client fb
fi
"""


def script(root: Node) -> str:
    functions = [_function(node) for node in reversed(list(root.walk()))]
    return _HEAD + "".join(functions) + _TAIL


def _function(node: Node) -> str:
    specs = [spec for option in node.shown for spec in _option(option)]
    if not node.children:
        places = enumerate(node.positionals, start=1)
        specs += [_positional(place, positional) for place, positional in places]
        arguments = " \\\n        ".join(specs)
        return f"{_name(node)}() {{\n    _arguments -S : \\\n        {arguments}\n}}\n\n"
    specs += ["'1: :->word'", "'*:: :->rest'"]
    arguments = " \\\n        ".join(specs)
    described = "\n".join(
        f"                {_quoted(f'{name}:{child.help}')}"
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


def _option(option: Option) -> list[str]:
    value = ""
    if option.value is not None:
        value = f":{_escaped(option.value.name)}:{_action(option.value)}"
    about = f"[{_escaped(option.help)}]" if option.help else ""
    excluded = "*" if option.is_repeatable else ""
    if len(option.flags) > 1 and not excluded:
        excluded = f"({' '.join(option.flags)})"
    specs = []
    for flag in option.flags:
        # `=`: the value stands behind it, or is the next word.
        equals = "=" if value and flag.startswith("--") else ""
        specs.append(_quoted(f"{excluded}{flag}{equals}{about}{value}"))
    return specs


def _positional(place: int, positional: Positional) -> str:
    colons = "::" if positional.is_optional else ":"
    value = positional.value
    return _quoted(f"{place}{colons}{_escaped(value.name)}:{_action(value)}")


def _action(value: Value) -> str:
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


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
