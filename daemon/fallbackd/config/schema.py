"""
The shape of the file: one Struct per table, from which the loader and the JSON schema are made.

All fields are optional. `None` is "not written", since TOML knows no null.
"""

import tomllib
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from fallbackd.core.policy import Defaults, Handoff, Price, ReplayWord, Window
from fallbackd.core.reasons import Reason

EXAMPLES = {
    "File": """
import = ["~/.hermes/voice-platform-health.json", "~/.hermes/config.yaml"]
export_voice_health = "~/.hermes/voice-platform-health.json"
""",
    "Defaults": """
wait_threshold_s = 30
patience_s = 10
first_output_s = 60
first_answer_s = 120
stall_s = 600
timeout_s = 3600
default_cwd = "~/projects/scratch"
allowed_roots = ["~/projects", "/srv/work"]
""",
    "ReasonTable": """
window_s = 300
max_window_s = 3600
cooldown_s = 600
growth = 2
retries = 1
max_wait_s = 21600
""",
    "CredentialTable": """
label = "work"
env = "OPENAI_API_KEY"
file = "~/.keys/openai"
command = ["pass", "show", "openai"]
systemd = "openai-key"
field = "tokens.access"
into = "OPENAI_API_KEY"
""",
    "BackendTable": """
enabled = false
kind = "generic-cli"
name = "Codex, work account"
command = ["my-agent", "--dir", "{cwd}"]
base_url = "http://127.0.0.1:8000/v1"
model = "gpt-5.3"
quota = "chatgpt-plan"
hourly_cap = 50
context_tokens = 128000
provider = "api.example.com"
family = "gpt"
env = { CODEX_HOME = "/home/me/.codex-work" }
headers = { "X-Team" = "search" }
allow_env = ["DEBUG"]
stdin = "prompt"
output = "jsonl"
prompt_in_argv = true
confine = true
shell = "confined"
writable = ["~/.my-agent/", "/srv/data"]
success_exit_codes = [0, 3]
timeout_s = 1800
stall_s = 600
busy_stall_s = 1200
first_answer_s = 60
retries = 2
backoff_base_s = 2
backoff_max_s = 30
credentials = [{ label = "work", env = "OPENAI_API_KEY" }]
credential_strategy = "round_robin"
cost = "metered"
serve = false
resident = false
fallback_model = "gpt-5.3-mini"
api_mode = "responses"
max_output_tokens = 16000
embeddings = ["text-embedding-3-small"]
omit = ["temperature", "generationConfig.topK"]
rename = { max_tokens = "max_completion_tokens" }
default = { reasoning_effort = "low" }
connect_timeout_s = 10
read_timeout_s = 60
insecure_http = true
tls_ca_file = "~/.config/fallbackd/ca.pem"
tls_client_cert = "~/.config/fallbackd/client.pem"
tls_client_key = "~/.config/fallbackd/client.key"
tls_verify = true
""",
    "EntryTable": """
backend = "gemini"
model = "gemini-3-pro"
tier = "api"
effort = "high"
at_percent = 85
translate = true
""",
    "ReturnTable": """
policy = "successes"
n = 5
step = "one"
""",
    "RoleTable": """
kind = "adversarial"
chain = ["codex", { backend = "gemini", tier = "api" }]
at_percent = 85
on_outage = "ask"
must_differ_from = ["author"]
fallback_on = ["rate_limit", "usage_limit"]
enabled = false
max_fallback_depth = 2
idle_s = 1800
return_to_better = { policy = "successes", n = 5 }
allow_metered = true
shell = "confined"
fallback_model = "gpt-5.3-mini"
replay = "external-ok"
question_timeout_s = 3600
""",
    "SignatureTable": """
id = "acme-limit"
kind = "generic-cli"
stream = "stderr"
pattern = "ACME limit reached"
reason = "usage_limit"
detail = "daily"
""",
    "ServerTable": """
url = "http://127.0.0.1:4097"
password_env = "OPENCODE_SERVER_PASSWORD"
""",
    "Notify": """
command = ["notify-send", "{title}", "{text}"]
url = "https://ntfy.example.com/my-topic"
events = ["all_unavailable", "question"]
finished_after_s = 600
include_text = true
repeat_after_s = 600
max_per_hour = 30
""",
    "AuthorityTable": """
may = ["delegate:workspace", "answer"]
""",
    "OpencodeTable": """
enabled = false
servers = ["http://127.0.0.1:4096", { url = "http://127.0.0.1:4097", password_env = "OC_PASSWORD" }]
quotas = { openai = "chatgpt-plan" }
projects = false
log_path = "~/.local/state/fallbackd/opencode.log"
""",
    "ShareTable": """
group = "home"
url_env = "FALLBACKD_SHARE_URL"
ca_file = "~/.config/fallbackd/share-ca.pem"
cert_file = "~/.config/fallbackd/share-cert.pem"
key_file = "~/.config/fallbackd/share-key.pem"
group_secret_env = "FALLBACKD_SHARE_SECRET"
machine = "laptop"
insecure = true
""",
    "Handoff": """
mode = "brief"
max_turns = 20
start_s = 60
""",
    "Price": """
input = 1.25
output = 10
""",
    "Gateway": """
enabled = true
port = 41411
hold = "commit"
hold_whole = ["*", "codex"]
hold_s = 30
commit_on_reasoning = false
keepalive_s = 15
allow_metered = true
max_body_mb = 64
max_memory_mb = 1024
""",
    "Interactive": """
watch = ["codex"]
""",
    "Quota": """
ask = ["claude", "codex"]
""",
}


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
_FIELD = r"[A-Za-z_][A-Za-z0-9_-]{0,63}"
Parameter = Annotated[str, Meta(pattern=rf"^{_FIELD}(?:\.{_FIELD}){{0,3}}(?![\s\S])")]
Field = Annotated[str, Meta(pattern=rf"^{_FIELD}(?![\s\S])")]
Label = Annotated[str, Meta(pattern=r"^[\w.@+-]{1,64}(?![\s\S])")]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Tier = Literal["primary", "model", "api", "in_session"]


class ReasonTable(Struct, frozen=True, kw_only=True):
    """`[policy.<reason>]`: how long a backend is out for this reason."""

    window_s: Window | None = None
    """How long a backend is unavailable after the first failure; a stated reset time wins."""
    max_window_s: Window | None = None
    """Longest window; consecutive failures grow it up to here."""
    cooldown_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """How long a backend is only second choice afterwards."""
    growth: Annotated[float, Meta(ge=1, le=10)] | None = None
    """Factor by which the window grows with each consecutive failure."""
    retries: Annotated[int, Meta(ge=0, le=10)] | None = None
    """How often the same backend is tried again before the next one."""
    max_wait_s: Annotated[float, Meta(ge=10, le=2_678_400)] | None = None
    """Longest reset time of a provider that is believed."""


class CredentialTable(Struct, frozen=True, kw_only=True):
    """One of `credentials`: a name for it, and one place where it is found."""

    label: Label | None = None
    """Name of the credential in `status`, `health` and logs."""
    env: Variable | None = None
    """Environment variable of the daemon that holds it."""
    file: Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^(/|~/)")] | None = None
    """File that holds it; must not be readable by others."""
    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=100)] | None = None
    """Program that prints it, as a list of arguments."""
    systemd: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][\w.@-]{0,254}(?![\s\S])")] | None = None
    """Name of a systemd credential (`LoadCredential=`)."""
    field: Annotated[str, Meta(pattern=r"^[\w-]{1,100}(\.[\w-]{1,100}){0,5}(?![\s\S])")] | None = (
        None
    )
    """Where it is in a JSON document, such as `tokens.access`."""
    into: Variable | None = None
    """Variable in which the program expects it; default: `env`."""


class BackendTable(Struct, frozen=True, kw_only=True):
    """`[backends.<id>]`: overlays the built-in profile of that id, or makes a new backend."""

    enabled: bool | None = None
    """Use this backend."""
    kind: ShortText | None = None
    """Kind of backend; required for a new one."""
    name: ShortText | None = None
    """Name for people; default: the id."""
    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=1000)] | None = None
    """Command line as a list of arguments, never run by a shell. `{prompt_file}`, `{cwd}`,
    `{model}`, `{session}` and, with `prompt_in_argv`, `{prompt}` are replaced."""
    base_url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    """Address of an HTTP API."""
    model: ShortText | None = None
    """Model to ask for; default: the backend's own."""
    quota: ShortText | None = None
    """Name of the account limit; backends with the same name share it."""
    hourly_cap: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    """Most requests (or tokens, where the backend counts tokens) within an hour; then the reason is
    `local_budget`."""
    context_tokens: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    """Context size; larger prompts go to other candidates."""
    provider: ShortText | None = None
    """Host or name of the provider; backends of one provider share network failures."""
    family: ShortText | None = None
    """Model family, for `must_differ_from` and `differs_from`."""
    env: dict[Variable, Argument] | None = None
    """Variables to set for the program."""
    headers: dict[ShortText, Argument] | None = None
    """Additional headers of HTTP requests."""
    allow_env: tuple[Variable, ...] | None = None
    """Variables of the daemon's environment to pass on, which a request may also set with `env`."""
    stdin: Literal["prompt", "none"] | None = None
    """Whether the prompt is sent on standard input."""
    output: Literal["text", "jsonl"] | None = None
    """How the output of a `generic-cli` is read."""
    prompt_in_argv: bool | None = None
    """Allow `{prompt}` in `command`; the prompt is then visible in the process list."""
    confine: bool | None = None
    """Let the kernel hold this backend to its permissions; default: as `[defaults]`."""
    shell: Literal["own", "confined"] | None = None
    """`confined`: run commands without asking at `workspace`, where the kernel confines the agent;
    default: as `[defaults]`."""
    writable: tuple[Place, ...] | None = None
    """Further places that a confined agent may write to; one that ends with `/` is created."""
    success_exit_codes: Annotated[tuple[ExitCode, ...], Meta(min_length=1)] | None = None
    """Exit statuses that mean success."""
    timeout_s: Seconds | None = None
    """Deadline of one attempt."""
    stall_s: Seconds | None = None
    """Longest silence after the first output; default: as `[defaults]`."""
    busy_stall_s: Seconds | None = None
    """Longest silence inside one tool call; default: as `[defaults]`."""
    first_answer_s: Seconds | None = None
    """Longest wait for the provider's first reply; default: as `[defaults]`."""
    retries: Annotated[int, Meta(ge=0, le=10)] | None = None
    """How often this backend is tried again after a failure that passes; default: by the reason."""
    backoff_base_s: Annotated[float, Meta(ge=0, le=60)] | None = None
    """First pause before it is tried again; default: as `[defaults]`."""
    backoff_max_s: Annotated[float, Meta(ge=0, le=600)] | None = None
    """Longest pause before it is tried again; default: as `[defaults]`."""
    credentials: tuple[CredentialTable, ...] | None = None
    """Where its keys are found; keys are never written into the configuration."""
    credential_strategy: Literal["fill_first", "round_robin", "least_used", "random"] | None = None
    """Which of several credentials is used next."""
    cost: Literal["subscription", "metered", "local"] | None = None
    """How calls are paid; `metered` needs consent before it follows another backend."""
    serve: bool | None = None
    """Kind `opencode`: run prompts through a private `opencode serve`; false: through `opencode
    run`."""
    resident: bool | None = None
    """Kinds `claude`, `codex`, `acp`: false: its program never stays after a prompt, see
    `residents` in `[defaults]`."""
    fallback_model: ShortText | None = None
    """Model to use once if `model` does not exist."""
    api_mode: ShortText | None = None
    """Dialect of an HTTP API, if it cannot be seen from `base_url`."""
    max_output_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """Longest answer to ask for."""
    embeddings: Annotated[tuple[ShortText, ...], Meta(min_length=1)] | None = None
    """Embedding models of this HTTP API, for calls of the gateway; the first one is asked where the
    caller names the backend or its chain."""
    omit: tuple[Parameter, ...] | None = None
    """Parameters to leave out of requests to this HTTP API; a dot stands before a field inside of
    another one (`generationConfig.topK`)."""
    rename: dict[Parameter, Field] | None = None
    """Parameters that this API knows by another name."""
    default: dict[Parameter, Any] | None = None
    """Parameters to add to requests that do not set them."""
    connect_timeout_s: Annotated[float, Meta(ge=0.1, le=600)] | None = None
    """Longest wait for a connection."""
    read_timeout_s: Seconds | None = None
    """Longest wait for the next piece of an answer."""
    insecure_http: bool | None = None
    """Allow a key to be sent over plain http to another machine."""
    tls_ca_file: FilePath | None = None
    """File with CA certificates to trust."""
    tls_client_cert: FilePath | None = None
    """Client certificate."""
    tls_client_key: FilePath | None = None
    """Key of the client certificate."""
    tls_verify: bool | None = None
    """Check the server's certificate."""


class EntryTable(Struct, frozen=True, kw_only=True):
    """An entry of a chain that says more than the id of a backend."""

    backend: ShortText | None = None
    """Id of the backend."""
    model: ShortText | None = None
    """Model to use there."""
    tier: Tier | None = None
    """Rank of the entry, shown as `tier_served`."""
    effort: ShortText | None = None
    """Reasoning effort for the caller, with the backend `in-session`."""
    at_percent: Annotated[float, Meta(ge=1, le=100)] | None = None
    """From this use of a window of its plan on it is second choice for new work, as long as a
    figure of the last 15 minutes says so."""
    translate: bool | None = None
    """Translate calls of the gateway in chat completions for it where it speaks messages, and the
    other way."""


class ReturnTable(Struct, frozen=True, kw_only=True):
    """`return_to_better`: when a session goes back up its chain."""

    policy: Literal["idle", "new_session", "successes"] | None = None
    """When to look for a better backend again: after `idle_s`, in a new session only, or after `n`
    answers."""
    n: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Answers before that, with `successes`."""
    step: Literal["best", "one"] | None = None
    """Return to the `best` backend, or move up by `one`."""


class RoleTable(Struct, frozen=True, kw_only=True):
    """`[roles.<name>]`"""

    kind: Literal["creative", "adversarial", "validator", "utility"] | None = None
    """What the role does; decides `on_outage` if that is not set."""
    chain: str | tuple[str | EntryTable, ...] | None = None
    """Candidates in order, or the name of a chain."""
    at_percent: Annotated[float, Meta(ge=1, le=100)] | None = None
    """`at_percent` of each of its candidates that names none."""
    on_outage: Literal["stop", "skip", "ask", "fallback"] | None = None
    """What to do if the preferred service is unavailable; default: `stop` for creative, `ask` for
    adversarial and validator, else `fallback`."""
    must_differ_from: tuple[ShortText, ...] | None = None
    """`author` or model families that must not serve this role."""
    fallback_on: tuple[Reason, ...] | None = None
    """Reasons that move to the next candidate; default: all that can."""
    enabled: bool | None = None
    """Fail over at all. If not, the requested backend is used, else the first of the chain, and no
    other."""
    max_fallback_depth: Annotated[int, Meta(ge=1, le=10)] | None = None
    """Most moves within one delegation; default: as `[defaults]`."""
    idle_s: Annotated[float, Meta(ge=0, le=604_800)] | None = None
    """A session returns to its first choice after this long; default: as `[defaults]`."""
    return_to_better: ReturnTable | None = None
    """When a session returns to a better backend."""
    allow_metered: bool | None = None
    """Allow backends that are billed by use."""
    shell: Literal["own", "confined"] | None = None
    """`confined`: run commands without asking at `workspace`; default: as the backend."""
    fallback_model: ShortText | None = None
    """Model to use if another one does not exist."""
    replay: ReplayWord | None = None
    """What to do if an attempt has committed, published or sent something and then failed: `ask` a
    person before another agent is given the work, or give it (`external-ok`); default: `ask`."""
    question_timeout_s: Seconds | None = None
    """How long a question waits for a person; default: without an end."""


class AuthorityTable(Struct, frozen=True, kw_only=True):
    """`[authority.<role>]`: what agents of a role may do through the daemon beyond their own
    permissions."""

    may: tuple[Literal["delegate:workspace", "delegate:full", "answer"], ...] | None = None
    """`delegate:workspace` or `delegate:full`: delegate work with these permissions; `answer`:
    answer the questions of work that they have delegated."""


class SignatureTable(Struct, frozen=True, kw_only=True):
    """One of `[[signatures]]`: a line of output that means a failure."""

    id: ShortText | None = None
    """Name of the signature in `explain` and `classify`."""
    kind: ShortText | None = None
    """Kind of backend; default: every kind."""
    stream: Literal["stdout", "stderr", "jsonl", "http", "exception", "unknown"] | None = None
    """Stream in which it is looked for; default: every stream."""
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """Regular expression (RE2 syntax)."""
    reason: Reason | None = None
    """The reason that a match means."""
    detail: ShortText | None = None
    """A narrower word."""
    yields: bool = False
    """Decide only where no built-in signature does; default: before all of them."""


class ServerTable(Struct, frozen=True, kw_only=True):
    """An opencode server that wants a password."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    """Address of the server."""
    password_env: Variable | None = None
    """Environment variable of the daemon that holds its password."""


class OpencodeTable(Struct, frozen=True, kw_only=True):
    """`[opencode]`: the sessions of running opencode servers."""

    enabled: bool | None = None
    """Move turns whose model fails to another model."""
    servers: tuple[str | ServerTable, ...] | None = None
    """Servers to watch; those with the plugin announce themselves."""
    quotas: dict[ShortText, ShortText] | None = None
    """Name of the account limit for each provider of opencode."""
    projects: bool | None = None
    """Read `model-fallback.json` of the projects of sessions."""
    log_path: Paths | None = None
    """File to log decisions about opencode sessions to."""


class ShareTable(Struct, frozen=True, kw_only=True):
    """`[share]`: health shared with other machines, on a Valkey or Redis server."""

    group: Label | None = None
    """Name of the group; machines of one group know the same limits."""
    url_env: Variable | None = None
    """Variable with the server's address, such as `rediss://user:password@host:6380/0`."""
    ca_file: FilePath | None = None
    """File with the certificate authority of the server."""
    cert_file: FilePath | None = None
    """File with this machine's own certificate, if the server wants one."""
    key_file: FilePath | None = None
    """File with the key of `cert_file`."""
    group_secret_env: Variable | None = None
    """Variable with a secret of the group; without it, health of credentials is not shared."""
    machine: Label | None = None
    """Name of this machine; without it, its host name."""
    insecure: bool | None = None
    """Allow an unencrypted connection to another host without a warning."""


NotifyEvent = Literal[
    "failed_over", "all_unavailable", "recovered", "question", "limit_near", "standby"
]
NOTIFY_EVENTS: tuple[NotifyEvent, ...] = get_args(NotifyEvent)


class Notify(Struct, frozen=True, kw_only=True):
    """`[notify]`: a program to run, an address to post to, or both, for the events you choose."""

    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=100)] = ()
    """Program to run for each notification, as a list of arguments, never read by a shell.
    `{title}`, `{text}` and `{event}` are replaced."""
    url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    """Address to post each notification to as JSON; https, or http on this machine."""
    events: tuple[NotifyEvent, ...] = NOTIFY_EVENTS
    """Events to be notified of."""
    finished_after_s: Seconds | None = None
    """Also notify when a delegation ends that took at least this long."""
    include_text: bool = False
    """Include how the prompt and the answer begin when a delegation ends."""
    repeat_after_s: Annotated[float, Meta(ge=0, le=604_800)] = 600.0
    """The same notification is not repeated within this time."""
    max_per_hour: Annotated[int, Meta(ge=1, le=3600)] = 30
    """Most notifications within an hour."""


HOLD_S = 45.0
MAX_MEMORY_MB = 256
"""A daemon takes some 50 MiB by itself, on machines of 2 GiB beside the agents that it starts. This
is room for 40 requests of 3 MiB, pictures included, or four of 32 MiB."""


class Gateway(Struct, frozen=True, kw_only=True):
    """`[gateway]`: a local HTTP endpoint that speaks the providers' own APIs."""

    enabled: bool = False
    """Listen at 127.0.0.1, ::1 and a Unix socket."""
    port: Annotated[int, Meta(ge=1, le=65_535)] = 41411
    """TCP port on loopback."""
    hold: Literal["commit", "whole"] = "commit"
    """How long an answer is held back so that a failure can be answered by the next backend:
    until the provider has begun to answer (`commit`), or until all of it is there (`whole`)."""
    hold_whole: tuple[str, ...] = ()
    """Chains and roles whose answers are held until all is there, whatever `hold` says."""
    hold_s: Annotated[float, Meta(ge=1, le=600)] = HOLD_S
    """Longest wait for the head of a streamed answer, before the next backend is asked, and longest
    hold of an answer that was opened and says nothing yet."""
    commit_on_reasoning: bool = True
    """Whether an answer begins with what its model thinks, which the caller then sees at
    once. With false it is held until the answer itself begins, up to `hold_s`, so that a
    failure while the model thinks is answered by the next backend."""
    keepalive_s: Annotated[float, Meta(ge=1, le=600)] | None = None
    """Send a keep-alive so often in a streamed answer that is held, for programs that give up on
    a late head; default: none. With the first one status 200 leaves, and a failure of all backends
    is then reported by an error event."""
    allow_metered: bool = False
    """Allow backends that bill each call to stand in for one that does not."""
    max_body_mb: Annotated[int, Meta(ge=1, le=256)] = 32
    """Longest request, in MiB."""
    max_memory_mb: Annotated[int, Meta(ge=64, le=65_536)] = MAX_MEMORY_MB
    """Memory for all long requests and held answers together, in MiB. Each counts
    twice, since it is copied once. Further requests wait for it up to 30 s, then get a 503."""


class Interactive(Struct, frozen=True, kw_only=True):
    """`[interactive]`: agents that a person has open on this machine."""

    watch: tuple[Literal["codex"], ...] = ()
    """Follow the files of their sessions, so that a limit that is met there is known.
    `fallbackd-client hooks install codex` sets it."""


class Quota(Struct, frozen=True, kw_only=True):
    """`[quota]`: how the use of plans becomes known."""

    ask: tuple[Literal["claude", "codex"], ...] = ()
    """Agents that are started now and then to ask how much of their plan is used, which sends no
    prompt: at most every ten minutes, while work was done within the hour and no newer figure is
    known. Without it, figures come from the work alone."""


class File(Struct, frozen=True, kw_only=True, rename={"imports": "import"}):
    """The whole file."""

    imports: tuple[Paths, ...] | None = None
    """Configurations of other programs, read where they are."""
    export_voice_health: Paths | None = None
    """File in which health is kept up to date for voice agents."""
    defaults: Defaults | None = None
    """Limits and timings that hold everywhere."""
    policy: dict[Reason, ReasonTable] | None = None
    """How long each reason takes a backend out of rotation."""
    backends: dict[str, BackendTable] | None = None
    """Backends: a built-in profile that is changed, or a new one."""
    chains: dict[str, tuple[str | EntryTable, ...]] | None = None
    """Which backends follow another; `*` for those without a chain of their own."""
    prices: dict[ShortText, Price] | None = None
    """What calls of HTTP APIs cost, by the id of the model, where the provider does not say it."""
    roles: dict[str, RoleTable] | None = None
    """Named kinds of work, with a chain and rules."""
    authority: dict[str, AuthorityTable] | None = None
    """What the agents of a role may do through the daemon beyond their own permissions."""
    signatures: tuple[SignatureTable, ...] | None = None
    """Lines of output that mean a failure, tried before the built-in ones."""
    opencode: OpencodeTable | None = None
    """Sessions of running opencode servers."""
    share: ShareTable | None = None
    """Health shared with other machines."""
    notify: Notify | None = None
    """What to notify people of, and how."""
    handoff: Handoff | None = None
    """How the conversation of a session is continued."""
    gateway: Gateway | None = None
    """A local HTTP endpoint for programs that speak a provider's API."""
    interactive: Interactive | None = None
    """Agents that a person has open."""
    quota: Quota | None = None
    """How the use of plans becomes known."""


def json_schema() -> dict[str, Any]:  # a JSON document
    """The JSON schema of the file, for editors and documentation."""
    from fallbackd.lib.schemas import described_components

    (root,), tables = described_components((File,), "#/$defs/{name}")
    for name, lines in EXAMPLES.items():
        for key, value in tomllib.loads(lines).items():
            tables[name]["properties"][key]["examples"] = [value]
    for table in tables.values():
        if "properties" in table:
            table["additionalProperties"] = False  # editors mark a misspelt key
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": tables}
