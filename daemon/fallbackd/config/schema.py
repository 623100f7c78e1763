"""
The shape of the file: one Struct per table, from which the loader and the JSON schema are made.

All fields are optional. `None` is "not written", since TOML knows no null.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fallbackd.core.failures import Reason
from fallbackd.core.policy import Defaults, Window

Seconds = Annotated[float, Meta(ge=0.1, le=604_800)]
# `$` alone would let a line end through.
ShortText = Annotated[
    str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+(?![\s\S])")
]
Paths = Annotated[str, Meta(min_length=1, max_length=4096)]
FilePath = Annotated[
    str, Meta(min_length=2, max_length=4096, pattern=r"^(?:/|~/)[^\x00]+(?![\s\S])")
]
Place = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^(?:/|~/)[^\x00]*(?![\s\S])")]
Argument = Annotated[str, Meta(max_length=131_072, pattern=r"^[^\x00]*$")]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}(?![\s\S])")]
Label = Annotated[str, Meta(pattern=r"^[\w.@+-]{1,64}(?![\s\S])")]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Tier = Literal["primary", "model", "api", "in_session"]


class ReasonTable(Struct, frozen=True, kw_only=True):
    """`[policy.<reason>]`: how long a backend is out for this reason."""

    window_s: Window | None = None
    max_window_s: Window | None = None
    cooldown_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    growth: Annotated[float, Meta(ge=1, le=10)] | None = None
    retries: Annotated[int, Meta(ge=0, le=10)] | None = None
    max_wait_s: Annotated[float, Meta(ge=10, le=2_678_400)] | None = None


class CredentialTable(Struct, frozen=True, kw_only=True):
    """One of `credentials`: a name for it, and one place where it is found."""

    label: Label | None = None
    env: Variable | None = None
    file: Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^(/|~/)")] | None = None
    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=100)] | None = None
    systemd: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][\w.@-]{0,254}(?![\s\S])")] | None = None
    field: Annotated[str, Meta(pattern=r"^[\w-]{1,100}(\.[\w-]{1,100}){0,5}(?![\s\S])")] | None = (
        None
    )
    """Where it is in a JSON document."""
    into: Variable | None = None
    """For programs: the variable that they find it in; where it is absent, `env`."""


class BackendTable(Struct, frozen=True, kw_only=True):
    """`[backends.<id>]`: overlays the built-in profile of that id, or makes a new backend."""

    enabled: bool | None = None
    kind: ShortText | None = None
    name: ShortText | None = None
    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=1000)] | None = None
    base_url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    model: ShortText | None = None
    quota: ShortText | None = None
    hourly_cap: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    context_tokens: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    provider: ShortText | None = None
    family: ShortText | None = None
    env: dict[Variable, Argument] | None = None
    headers: dict[ShortText, Argument] | None = None
    allow_env: tuple[Variable, ...] | None = None
    stdin: Literal["prompt", "none"] | None = None
    output: Literal["text", "jsonl"] | None = None
    prompt_in_argv: bool | None = None
    confine: bool | None = None
    writable: tuple[Place, ...] | None = None
    success_exit_codes: Annotated[tuple[ExitCode, ...], Meta(min_length=1)] | None = None
    timeout_s: Seconds | None = None
    stall_s: Seconds | None = None
    busy_stall_s: Seconds | None = None
    first_answer_s: Seconds | None = None
    retries: Annotated[int, Meta(ge=0, le=10)] | None = None
    backoff_base_s: Annotated[float, Meta(ge=0, le=60)] | None = None
    backoff_max_s: Annotated[float, Meta(ge=0, le=600)] | None = None
    credentials: tuple[CredentialTable, ...] | None = None
    credential_strategy: Literal["fill_first", "round_robin", "least_used", "random"] | None = None
    cost: Literal["subscription", "metered", "local"] | None = None
    serve: bool | None = None
    fallback_model: ShortText | None = None
    api_mode: ShortText | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    connect_timeout_s: Annotated[float, Meta(ge=0.1, le=600)] | None = None
    read_timeout_s: Seconds | None = None
    insecure_http: bool | None = None
    tls_ca_file: FilePath | None = None
    tls_client_cert: FilePath | None = None
    tls_client_key: FilePath | None = None
    tls_verify: bool | None = None


class EntryTable(Struct, frozen=True, kw_only=True):
    """An entry of a chain that says more than the id of a backend."""

    backend: ShortText | None = None
    model: ShortText | None = None
    tier: Tier | None = None
    effort: ShortText | None = None


class ReturnTable(Struct, frozen=True, kw_only=True):
    """`return_to_better`: when a session goes back up its chain."""

    policy: Literal["idle", "new_session", "successes"] | None = None
    n: Annotated[int, Meta(ge=1, le=1000)] | None = None
    step: Literal["best", "one"] | None = None


class RoleTable(Struct, frozen=True, kw_only=True):
    """`[roles.<name>]`"""

    kind: Literal["creative", "adversarial", "validator", "utility"] | None = None
    chain: str | tuple[str | EntryTable, ...] | None = None
    on_outage: Literal["stop", "skip", "ask", "fallback"] | None = None
    must_differ_from: tuple[ShortText, ...] | None = None
    fallback_on: tuple[Reason, ...] | None = None
    enabled: bool | None = None
    max_fallback_depth: Annotated[int, Meta(ge=1, le=10)] | None = None
    idle_s: Annotated[float, Meta(ge=0, le=604_800)] | None = None
    return_to_better: ReturnTable | None = None
    allow_metered: bool | None = None
    fallback_model: ShortText | None = None
    question_timeout_s: Seconds | None = None


class SignatureTable(Struct, frozen=True, kw_only=True):
    """One of `[[signatures]]`: a line of output that means a failure."""

    id: ShortText | None = None
    kind: ShortText | None = None
    stream: Literal["stdout", "stderr", "jsonl", "http", "exception", "unknown"] | None = None
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    reason: Reason | None = None
    detail: ShortText | None = None


class ServerTable(Struct, frozen=True, kw_only=True):
    """An opencode server that wants a password."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    password_env: Variable | None = None


class OpencodeTable(Struct, frozen=True, kw_only=True):
    """`[opencode]`: the sessions of running opencode servers."""

    enabled: bool | None = None
    servers: tuple[str | ServerTable, ...] | None = None
    quotas: dict[ShortText, ShortText] | None = None
    projects: bool | None = None
    log_path: Paths | None = None


class File(Struct, frozen=True, kw_only=True, rename={"imports": "import"}):
    """The whole file."""

    imports: tuple[Paths, ...] | None = None
    """Files of other programs, read where they lie."""
    export_voice_health: Paths | None = None
    """Where to keep `voice-platform-health.json` up to date."""
    defaults: Defaults | None = None
    policy: dict[Reason, ReasonTable] | None = None
    backends: dict[str, BackendTable] | None = None
    chains: dict[str, tuple[str | EntryTable, ...]] | None = None
    roles: dict[str, RoleTable] | None = None
    signatures: tuple[SignatureTable, ...] | None = None
    opencode: OpencodeTable | None = None


def json_schema() -> dict[str, Any]:  # a JSON document
    """The JSON schema of the file, for editors and documentation."""
    return msgspec.json.schema(File)
