"""Common parts of the command lines of all CLIs: stdin, the user's own argv, placeholders."""

import re
from collections.abc import Mapping

import msgspec

from fallbackd.backends.spec import Options
from fallbackd.core.protocol import CommandLine, Work

MAX_ARGV_PROMPT_BYTES = 100 * 1024
"""Linux takes 128 KiB for one argument; the rest is for those who wrap it."""

_PLACEHOLDER = re.compile(r"\{(prompt|prompt_file|cwd|model|session)\}")


def encode_prompt(prompt: str) -> bytes:
    return prompt.encode("utf-8", "replace")


_MENTION = re.compile(r"(?<!\\)@(?=[^\s,;!?()\[\]{}])")
MENTIONS_ESCAPED = "(In the request above, \\@ stands for an at sign.)"


def is_command(prompt: str) -> bool:
    """An interactive program would take it for one of its own commands."""
    return prompt.lstrip().startswith("/")


def names_files(prompt: str) -> bool:
    """An interactive program would attach the files that stand behind `@`."""
    return _MENTION.search(prompt) is not None


def as_plain_text(prompt: str) -> str:
    """
    Make a prompt that no CLI reads anything into: no command, no file to attach.

    For programs that have no other way in: the escapes stay visible to the model.
    """
    if is_command(prompt):
        prompt = f"\n{prompt}"
    if names_files(prompt):
        prompt = f"{_MENTION.sub(lambda _: chr(92) + '@', prompt)}\n\n{MENTIONS_ESCAPED}"
    return prompt


def command_line(
    work: Work,
    options: Options,
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str] | None = None,
    unset: tuple[str, ...] = (),
    own_tmp: bool = False,
    prompt: str | None = None,
    own_stdin: bytes | None = None,
) -> CommandLine:
    """
    The call of a CLI that takes its prompt from stdin.

    The user's `command` replaces `argv` wholly; the environment that we set stays, as it only
    quiets the program.

    Args:
        prompt: What goes to stdin; None: the prompt as it is.
        own_stdin: In place of it where `argv` is not the user's.
    """
    stdin: bytes | None = own_stdin
    if stdin is None or options.command:
        stdin = encode_prompt(work.prompt if prompt is None else prompt)
    if options.command:
        argv = substitute(options.command, work, options)
        if options.stdin == "none" or _names_prompt(options.command):
            stdin = None
    return CommandLine(
        argv=argv,
        cwd=work.cwd,
        stdin=stdin,
        env={**(env or {}), **options.env, **work.env},
        unset=unset,
        own_tmp=own_tmp,
    )


def program(name: str, options: Options) -> str:
    return options.command[0] if options.command else name


def resumes(options: Options) -> bool:
    """Only our own arguments name a conversation."""
    return not options.command


def is_plain(options: Options) -> bool:
    """The user's own command asks for no JSON, so what it prints is text."""
    return bool(options.command) and not any("json" in part for part in options.command)


def substitute(command: tuple[str, ...], work: Work, options: Options) -> tuple[str, ...]:
    """
    Fill the placeholders of a configured command. Nothing passes through a shell.

    A prompt that is a word of its own stands behind `--`, or is the value of the option before it
    (`-p {prompt}`), where it begins with a space if it would begin with a dash.

    Raises:
        ValueError: The prompt is wanted as an argument but may or can not be one, or a value
            would begin an option.
    """
    if not command:
        raise ValueError("`command` is empty: name the program to start")
    filled: list[str] = []
    options_end = False
    for part in command:
        names = _PLACEHOLDER.findall(part)
        if "prompt" in names:
            _require_argv_prompt(work, options)
        value = _PLACEHOLDER.sub(lambda m: _value(m[1], work, options), part)
        if part == "{prompt}" and not options_end:
            if filled and filled[-1].startswith("-"):
                value = f" {value}" if value.startswith("-") else value
            else:
                # Behind `--` even a prompt like `--help` is no option.
                filled.append("--")
                options_end = True
        options_end = options_end or part == "--"
        if names:
            _require_harmless(value, names[0], opens=part.startswith("{") and not options_end)
        filled.append(value)
    return tuple(filled)


def _require_harmless(value: str, name: str, *, opens: bool) -> None:
    """
    Args:
        opens: The value begins the word, and an option may stand there.
    """
    if opens and value.startswith("-"):
        raise ValueError(f"the value of {{{name}}} begins with '-' and would be read as an option")
    if "\0" in value:
        raise ValueError(f"the value of {{{name}}} holds a NUL character")


def _names_prompt(command: tuple[str, ...]) -> bool:
    return any("{prompt}" in part or "{prompt_file}" in part for part in command)


def _require_argv_prompt(work: Work, options: Options) -> None:
    if not options.prompt_in_argv:
        raise ValueError(
            "`command` uses {prompt}: set prompt_in_argv = true, or use {prompt_file} or stdin"
        )
    if "\0" in work.prompt:
        raise ValueError("the prompt holds a NUL character and cannot be an argument")
    if len(encode_prompt(work.prompt)) > MAX_ARGV_PROMPT_BYTES:
        raise ValueError(
            f"the prompt is longer than {MAX_ARGV_PROMPT_BYTES // 1024} KiB and cannot be an "
            "argument: use {prompt_file} or stdin"
        )


def _value(name: str, work: Work, options: Options) -> str:
    match name:
        case "prompt":
            return encode_prompt(work.prompt).decode("utf-8", "replace")
        case "prompt_file":
            return _as_path(work.prompt_path)
        case "cwd":
            return _as_path(work.cwd)
        case "model":
            return work.model or options.model or ""
        case _:
            return work.session


def _as_path(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


def model_of(work: Work, options: Options) -> str | None:
    """
    The model to ask for; None leaves the CLI's own default.

    Raises:
        ValueError: It would be read as an option.
    """
    model = work.model or options.model
    if model is not None and (model.startswith("-") or "\0" in model):
        raise ValueError(f"the model name {model!r} would be read as an option")
    return model or None


def merged(base: object, over: Mapping[str, object]) -> dict[str, object]:
    """JSON objects laid over each other, key by key."""
    result: dict[str, object] = dict(base) if isinstance(base, dict) else {}
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, dict) else value
    return result


def encode_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
