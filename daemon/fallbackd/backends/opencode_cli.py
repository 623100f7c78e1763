"""
opencode: a prompt to a shared `opencode serve`, or one `opencode run --format json`.

Both speak of the same things. The lines of `run` (`step_start`, `text`, `tool_use`,
`step_finish`, `error`) are turned into the events of the server, and one reader reads both.

Source: recorded runs of opencode 1.18.33. The events of `run` say nothing while it retries, for a
minute and more, and nothing of a stream that ends without an end; its log on stderr tells of each
failed try at once. The server's events tell more, so the server is the default.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fallbackd.backends.commands import (
    command_line,
    encode_json,
    is_plain,
    merged,
    model_of,
    program,
    resumes,
)
from fallbackd.backends.lines import CliParser, fields, words
from fallbackd.backends.opencode_server import OpencodeEventReader, first_error
from fallbackd.backends.outside import LEAVES
from fallbackd.backends.spec import BackendKind, Footprint, Options, ProjectFiles, Setup
from fallbackd.backends.variables import PROVIDERS
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import NO_CONVERSATION
from fallbackd.core.protocol import (
    WRONG_VERSION,
    Call,
    CommandLine,
    Evidence,
    Exit,
    GivenUp,
    Observation,
    Outcome,
    Output,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
    ServedPrompt,
    StreamName,
    Usage,
    Work,
)
from fallbackd.core.reasons import Reason
from fallbackd_conversations.opencode_versions import importing, line_of, unsupported
from fallbackd_conversations.turns import TITLE_OF_PROGRAM

_INLINE_CONFIG = "OPENCODE_CONFIG_CONTENT"
_QUIET = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}


def _importing(path: str, cwd: str, options: Options, line: int) -> CommandLine:
    """Into the database that the server of the same environment uses too."""
    return _managing(importing(path, cwd, line=line), cwd, options)


def _dropping(session: str, options: Options) -> CommandLine:
    return _managing(("session", "delete", session), "/", options)


def _managing(words: tuple[str, ...], cwd: str, options: Options) -> CommandLine:
    env = {**_QUIET, **options.env}
    return CommandLine(argv=("opencode", *words), cwd=cwd, env=env, own_tmp=True)


CONFINED_SHELL: dict[str, object] = {
    "bash": {"*": "allow", **{f"{one}{end}": "deny" for one in LEAVES for end in ("", " *")}},
    "external_directory": "allow",
}
"""The last rule that fits counts. Commands that name a place elsewhere ask for it too."""
_PERMISSION: dict[str, dict[str, str] | None] = {
    "read": {"edit": "deny", "bash": "deny", "external_directory": "deny"},
    # What the user's configuration says: tools run, and what it would ask for is refused.
    "workspace": None,
    "full": {"*": "allow"},
}


def start(work: Work, options: Options) -> Call:
    env = {**_QUIET, **_inline_config(work)}
    model = model_of(work, options)
    argv = ["opencode", "run", "--format", "json", *_words_of(work, model)]
    if line_of(work.version) == 2:
        env["PWD"] = work.cwd  # it believes this rather than the kernel
    # Each run leaves a library of some megabytes in TMPDIR.
    run = command_line(work, options, tuple(argv), env=env, own_tmp=True)
    # The environment of one prompt cannot be given to a server that is shared.
    if options.serve and not options.command and not work.env:
        # Values of the environment may be secret, and a key is shown.
        own = _digest(options.env)
        return ServedPrompt(
            key=f"opencode/{work.permissions}{'+shell' if work.runs_commands else ''}/{own}",
            server=CommandLine(
                argv=("opencode", "serve"),
                cwd=work.cwd,
                env={**env, **options.env},
            ),
            cwd=work.cwd,
            title=TITLE_OF_PROGRAM,
            prompt=work.prompt,
            model=model,
            session=work.resume,
            permissions=work.permissions,
            otherwise=run,
        )
    return run


def _words_of(work: Work, model: str | None) -> list[str]:
    """The rest of the command, by the line of the program."""
    variant = work.effort if work.effort and work.effort.isalnum() else ""
    words = ["--title", TITLE_OF_PROGRAM] if work.resume is None else ["--session", work.resume]
    words += ["--print-logs", "--log-level", "ERROR"]
    if line_of(work.version) == 2:
        # Else the prompt runs in a service that is shared, which is outside of all confinement.
        words.append("--standalone")
        model = f"{model}#{variant}" if model and variant else model
    else:
        # Without the directory of its session a run that continues one never ends.
        words += ["--dir", work.cwd]
        words += ["--variant", variant] if variant else []
    words += ["-m", model] if model else []
    return [*words, *(("--auto",) if work.permissions == "full" else ())]


def _digest(env: Mapping[str, str]) -> str:
    """Digest that is equal in every run of the daemon, since servers outlive it."""
    encoded = msgspec.json.encode(sorted(env.items()))
    return hashlib.sha256(encoded).hexdigest()[:8]


def _inline_config(work: Work) -> dict[str, str]:
    """Settings of this run, laid over those that the user passes in the same way."""
    permission: Mapping[str, object] | None = _PERMISSION[work.permissions]
    if work.permissions == "workspace" and work.runs_commands:
        permission = CONFINED_SHELL
    if permission is None:
        return {}
    try:
        base: object = msgspec.json.decode(work.inherited.get(_INLINE_CONFIG, "") or "{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        base = {}
    asked = base.get("permission") if isinstance(base, dict) else None
    if isinstance(asked, str):
        base = {**base, "permission": {}} if isinstance(base, dict) else {}
    return {_INLINE_CONFIG: encode_json(merged(base, {"permission": permission}))}


_FAILED_TRY = re.compile(
    r'message="stream error".*? small=false .*?error\.error=(?P<why>"(?:[^"\\]|\\.)*"|\S+)'
)
"""A line of the log. `small` is the model that writes titles; its failures do not count."""
_FAILED_CALL = re.compile(r'message=failed ref=\S+ error=(?P<why>"(?:[^"\\]|\\.)*"|\S+)')
"""The cause, where the event says only that the server's log has it."""
_SEE_LOG = "Unexpected server error. Check server logs"
_ERROR_NAME = re.compile(r"(?:AI_)?[A-Za-z]*Error: ")


class OpencodeParser(CliParser):
    def __init__(self, options: Options) -> None:
        super().__init__(plain=is_plain(options))
        self._reader = OpencodeEventReader()
        self._cause = ""

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        session = words(event.get("sessionID"))
        seen: list[Observation] = []
        for server_event in _as_server_events(event, session):
            seen.extend(self._reader.feed_event(server_event, at))
        seen = [
            GivenUp(evidence=self._explained(one.evidence)) if isinstance(one, GivenUp) else one
            for one in seen
        ]
        for one in seen:
            match one:
                case ProviderAnswered():
                    self.answers()
                case Retrying():
                    self.retrying = one.evidence
                case Usage():
                    self.usage = one
                case GivenUp():
                    self.error = one.evidence
        return seen or [Output()]

    def read_text(self, stream: StreamName, line: str, at: float) -> list[Observation]:
        if stream != "stderr":
            return []
        if (call := _FAILED_CALL.search(line)) is not None:
            self._cause = _unquoted(call["why"])
        failed = _FAILED_TRY.search(line)
        if failed is None:
            return []
        why = _unquoted(failed["why"])
        name = _ERROR_NAME.match(why)
        text = why if name is None else why[name.end() :]
        return [self.retries(Evidence(text=text, stream="jsonl"))]

    def finish(self, exit: Exit) -> Outcome:
        shared = super().finish(exit)
        if self.plain or isinstance(shared, Reply) or not isinstance(exit, ProcessExit):
            return shared
        read = self._reader.outcome(exit)
        if isinstance(read, Evidence):
            read = self._explained(read)
        if isinstance(read, Reply) or self.error is not None:
            return read
        has_said = read.code is not None or read.body is not None or read.http_status is not None
        if has_said or (exit.code == 0 and read.text and not exit.stopped):
            return read
        return shared

    def _explained(self, evidence: Evidence) -> Evidence:
        """The failure with its cause, as far as the log has named it by now."""
        if not (self._cause and evidence.text.startswith(_SEE_LOG)):
            return evidence
        return msgspec.structs.replace(evidence, text=self._cause)

    def reply(self, exit: ProcessExit) -> Reply | None:
        return None  # the reader says so, see `finish`


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.strip('"')


def _as_server_events(event: dict[str, Any], session: str) -> list[Mapping[str, object]]:
    """A line of `opencode run --format json`; events of a server pass as they are."""
    if "properties" in event or "payload" in event:
        return [event]
    part = fields(event.get("part"))
    message = words(part.get("messageID"))
    info: dict[str, object] = {"id": message, "sessionID": session, "role": "assistant"}
    updated: dict[str, object] = {
        "type": "message.part.updated",
        "properties": {"sessionID": session, "part": part},
    }
    match event.get("type"):
        case "error":
            error = event.get("error")
            if isinstance(error, str):
                error = {"name": "", "data": {"message": error}}
            elif isinstance(error, dict) and "name" not in error and "type" in error:
                error = first_error(error)
            return [{"type": "session.error", "properties": {"sessionID": session, "error": error}}]
        case "step_start":
            return [_message(info, session), updated]
        case "step_finish":
            info |= {
                "finish": part.get("reason"),
                "tokens": part.get("tokens"),
                "cost": part.get("cost"),
                "time": {"completed": 0},
            }
            return [updated, _message(info, session)]
        case "text" | "tool_use" | "reasoning":
            return [updated]
        case _:
            return []


def _message(info: Mapping[str, object], session: str) -> dict[str, object]:
    return {"type": "message.updated", "properties": {"sessionID": session, "info": info}}


RULES = (
    Rule(
        "opencode-error",
        Reason.UNKNOWN,
        r"Error:\s*|Error from provider[^:]*:\s*|(?:AI_)?APICallError[^:]*:\s*|AI_RetryError:\s*",
        opens=True,
        streams=("stderr", "unknown"),
    ),
    Rule("opencode-overloaded", Reason.OVERLOADED, "^Provider is overloaded$"),
    Rule(
        "opencode-free-limit",
        Reason.USAGE_LIMIT,
        "Free usage exceeded, subscribe|Subscription quota exceeded",
        codes=("gousagelimiterror",),
    ),
    Rule(
        "opencode-permission",
        Reason.APPROVAL_REQUIRED,
        "permission asked for and rejected",
        codes=("permission_rejected", "permissionrejectederror"),
    ),
    Rule("opencode-aborted", Reason.CRASH, detail="aborted", codes=("messageabortederror",)),
    Rule("opencode-auth", Reason.AUTH, codes=("providerautherror",)),
    Rule(
        "opencode-config",
        Reason.NOT_CONFIGURED,
        "Config file at .{0,300} is not valid JSON|ConfigInvalidError|ProviderInitError",
        codes=("configinvaliderror", "configjsonerror", "providerinitializationerror"),
    ),
    Rule(
        "opencode-version", Reason.NOT_CONFIGURED, detail="version", codes=(WRONG_VERSION.lower(),)
    ),
    # Types of version 2. Its own words for the first one are those of an overload.
    Rule("opencode-no-route", Reason.MODEL_NOT_FOUND, codes=("provider.no-route",)),
    *(
        Rule(f"opencode-{code[9:]}", reason, codes=(code,), yields=True)
        for code, reason in (
            ("provider.quota", Reason.USAGE_LIMIT),
            ("provider.content-filter", Reason.CONTENT_POLICY),
            ("provider.transport", Reason.NETWORK),
            ("provider.invalid-request", Reason.FORMAT_ERROR),
            ("provider.invalid-output", Reason.SERVER_ERROR),
        )
    ),
    Rule("opencode-resume", Reason.SESSION, "^Session not found", detail=NO_CONVERSATION),
    Rule("opencode-server-error", Reason.SERVER_ERROR, r"^Unexpected server error\. Check server"),
)


def footprint(name: str) -> Footprint:
    """Also of its relatives, which go by another name."""
    data = f"${{XDG_DATA_HOME:-~/.local/share}}/{name}"
    return Footprint(
        writes=(
            f"${{XDG_STATE_HOME:-~/.local/state}}/{name}/",
            f"{data}/",
        ),
        keys=(f"{data}/auth.json", f"{data}/mcp-auth.json"),
    )


def project_files(name: str) -> ProjectFiles:
    """
    Also of its relatives. 1.18 has a variable against the configuration of projects, and loads
    their plugins all the same.
    """
    settings = (f"{name}.json", f"{name}.jsonc")
    kinds = ("agent", "command", "mode", "plugin", "tool")
    inside = (*settings, *kinds, *(f"{one}s" for one in kinds))
    return ProjectFiles(places=(*settings, *(f".{name}/{one}" for one in inside)))


KIND = BackendKind(
    name="opencode",
    start=start,
    parser=OpencodeParser,
    rules=RULES,
    program=lambda options: program("opencode", options),
    # It serves models without a login too: that it has none is no finding.
    setup=Setup(install="npm install -g opencode-ai", login="opencode auth login"),
    variables=("OPENCODE_*", *PROVIDERS),
    named=dict.fromkeys(
        (
            f"${{XDG_CONFIG_HOME:-~/.config}}/opencode/{name}"
            for name in ("opencode.json", "opencode.jsonc", "config.json")
        ),
        r"\{env:(\w+)\}",
    ),
    keeps_to_reading=True,
    project=project_files("opencode"),
    reads_env=(_INLINE_CONFIG,),
    resumes=resumes,
    imports=_importing,
    drops=_dropping,
    structured=True,
    # A command of the user's own may be any program, with a version of its own.
    unsupported=lambda said, options: "" if options.command else unsupported(said),
    footprint=lambda _: footprint("opencode"),
)
