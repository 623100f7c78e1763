from fallbackd_client.cli.commands import COMMANDS
from fallbackd_client.cli.completions import (
    BACKENDS,
    DELEGATIONS,
    DIRECTORIES,
    FILES,
    KEYS,
    METHODS,
    SESSIONS,
    Node,
    Option,
    whole_tree,
)


def option(node: Node, flag: str) -> Option:
    return next(one for one in node.options if flag in one.flags)


def test_every_command_is_a_branch() -> None:
    root = whole_tree()
    assert list(root.children) == [command.name for command in COMMANDS]
    assert {node.path for node in root.walk()} >= {(), ("status",), ("health", "mark")}
    assert all(node.help for node in root.walk())


def test_values_are_of_the_kind_that_their_names_say() -> None:
    root = whole_tree()
    delegate = root.children["delegate"]
    kinds = {
        flag: value.kind
        for flag in ("--backend", "--session", "--cwd", "--chain", "--model", "--socket")
        if (value := option(delegate, flag).value)
    }
    assert kinds == {
        "--backend": BACKENDS,
        "--session": SESSIONS,
        "--cwd": DIRECTORIES,
        "--chain": BACKENDS,
        "--model": "",
        "--socket": FILES,
    }
    places = {
        name: [one.value.kind for one in root.children[name].positionals]
        for name in ("wait", "call", "sessions")
    }
    assert places == {
        "wait": [DELEGATIONS],
        "call": [METHODS, ""],
        "sessions": [SESSIONS],
    }
    config = {
        name: [one.value.kind for one in node.positionals]
        for name, node in root.children["config"].children.items()
    }
    assert config == {
        "check": [FILES],
        "edit": [],
        "import": [FILES],
        "path": [],
        "reload": [],
        "set": [KEYS, "", ""],
        "show": [],
    }


def test_flags_take_no_value_and_repeated_ones_are_known() -> None:
    root = whole_tree()
    delegate = root.children["delegate"]
    assert option(delegate, "--no-failover").value is None
    assert option(root, "--version").value is None
    assert option(delegate, "--differs-from").is_repeatable
    assert not option(delegate, "--backend").is_repeatable
    assert option(root.children["log"], "-f").flags == ("-f", "--follow")


def test_hidden_options_are_understood_and_not_offered() -> None:
    clear = whole_tree().children["health"].children["clear"]
    assert option(clear, "--socket").is_hidden
    assert "--socket" not in {flag for one in clear.shown for flag in one.flags}
