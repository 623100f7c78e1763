"""Each thing that is wrong with a file is said once, with its path; the rest of the file lives."""

import pytest

from fallbackd.config.load import load
from fallbackd.core.ids import BackendId

SECRET = (
    "a secret is never written into the configuration; put it into an environment variable and "
    'name that: credentials = [{ label = "main", env = "NAME" }]'
)
LIST = 'write it as a list, without a shell: command = ["program", "--flag"]'

CASES: list[tuple[str, list[str]]] = [
    ("[defaults]\nsettle_s = 60\nmax_fallback_depth = 10", []),
    (
        "[defaults]\nsettle_s = 61",
        ["defaults.settle_s: 61: must be a number from 0 to 60; the default 5 is used."],
    ),
    (
        "[defaults]\nmax_fallback_depth = 2.5",
        [
            "defaults.max_fallback_depth: 2.5: must be a whole number from 1 to 10; "
            "the default 3 is used."
        ],
    ),
    (
        "[defaults]\nmax_fallback_depht = 2",
        [
            "defaults.max_fallback_depht: is not a known key; it has no effect. "
            'Did you mean "max_fallback_depth"?'
        ],
    ),
    (
        "[defaults]\nsettle_s = true\nstall_s = nan\nallow_broad_cwd = 1",
        [
            "defaults.settle_s: true: must be a number from 0 to 60; the default 5 is used.",
            "defaults.stall_s: nan: must be a number from 0.1 to 86400; it is left out.",
            "defaults.allow_broad_cwd: 1: must be true or false; the default false is used.",
        ],
    ),
    (
        '[defaults]\non_partial = "stop"\ndefault_cwd = "work"',
        [
            'defaults.on_partial: "stop": must be one of "ask", "continue", "fail"; '
            'the default "continue" is used.',
            'defaults.default_cwd: "work": must be an absolute path or begin with ~/.',
        ],
    ),
    (
        "[prices]\na = 3\nb = { input = -1, output = 2 }\nc = { cached = 1 }",
        [
            "prices.a: 3 is not a table; it is left out.",
            "prices.b.input: -1: must be a number from 0 to 1000000; the default 0 is used.",
            "prices.c.cached: is not a known key; it has no effect.",
        ],
    ),
    ("defaults = 3", ["defaults: 3 is not a table; it is left out."]),
    (
        "[defualts]",
        ['defualts: is not a known table or key; it has no effect. Did you mean "defaults"?'],
    ),
    ("[policy.rate_limit]\nwindow_s = 10\nmax_window_s = 604800\ncooldown_s = 86400", []),
    (
        "[policy.rate_limit]\nwindow_s = 9.9",
        [
            "policy.rate_limit.window_s: 9.9: must be a number from 10 to 604800; "
            "the default 300 is used."
        ],
    ),
    (
        "[policy.crash]\nwindow_s = 100\nmax_window_s = 50",
        ["policy.crash.max_window_s: 50: is less than window_s; 100 is used."],
    ),
    (
        "[policy.rate_limits]\nwindow_s = 20",
        [
            "policy.rate_limits: is not a failure reason; it has no effect. "
            'Did you mean "rate_limit"?'
        ],
    ),
    (
        "[policy.cancelled]\nwindow_s = 20",
        ["policy.cancelled: never takes a backend out of rotation; it has no effect."],
    ),
    (
        '[backends.codex]\ncommand = "codex exec"',
        [f'backends.codex.command: "codex exec": {LIST}; it is left out.'],
    ),
    (
        "[backends.codex]\nhourly_cap = 0\nquota = 3",
        [
            "backends.codex.hourly_cap: 0: must be a whole number from 1 to 1000000000; "
            "it is left out.",
            "backends.codex.quota: 3: must be text of at most 200 characters; it is left out.",
        ],
    ),
    (
        '[backends.acme]\nkind = "generic-cli"',
        [f"backends.acme.command: is missing: {LIST}; the backend is disabled."],
    ),
    (
        '[backends.acme]\ncommand = ["acme"]',
        ['backends.acme.kind: is missing; "generic-cli" is used.'],
    ),
    (
        "[backends.codxe]\nenabled = true\n[chains]\nx = ['codxe']",
        [
            'backends.codxe.kind: is missing: write kind = "generic-cli" and a command. '
            'Did you mean "codex"? As it is, the backend is left out.'
        ],
    ),
    (
        '[backends.acme]\nkind = "generic-cly"\ncommand = ["acme"]',
        [
            'backends.acme.kind: "generic-cly" is not one of "acp", "anthropic-http", "claude", '
            '"codex", "gemini", "generic-cli", "google-http", "hermes-api", "in-session", '
            '"numasec", "openai-http", '
            '"opencode", "openrouter-http". Did you mean "generic-cli"? '
            "As it is, the backend is left out."
        ],
    ),
    (
        '[backends.bed]\nkind = "bedrock-http"',
        ['backends.bed.kind: "bedrock-http" has no effect yet, the backend is left out.'],
    ),
    (
        '[backends."a b"]\nkind = "codex"',
        ['backends."a b": "a b" is not a valid backend name; the table is left out.'],
    ),
    (
        "[backends.api]\nkind = 'openai-http'",
        [
            "backends.api.model: is missing, and api.openai.com needs one: "
            "only entries of chains that name a model can be answered."
        ],
    ),
    (
        '[backends.api]\nkind = "openai-http"\nmodel = "m"\nbase_url = "http://api.openai.com/v1"',
        [
            "backends.api.base_url: its key would travel to api.openai.com unencrypted: "
            "use https:// in base_url, or set insecure_http = true. "
            "Until then nothing is sent."
        ],
    ),
    (
        '[backends.api]\nkind = "openai-http"\nbase_url = "http://10.0.0.1:8000/v1"\n'
        'insecure_http = true\ncredentials = [{ label = "a", env = "K" }]',
        [],
    ),
    ('[backends.api]\nkind = "openai-http"\nbase_url = "http://10.0.0.1:8000/v1"', []),
    (
        '[backends.api]\nkind = "openai-http"\nmodel = "m"\napi_mode = "mesages"',
        [
            'backends.api.api_mode: "mesages" is not one of "chat_completions", "responses", '
            '"messages", "generate_content", "codex_responses", "anthropic_messages". '
            'Did you mean "messages"? '
            "It is chosen by the URL."
        ],
    ),
    (
        '[backends.api]\nkind = "openai-http"\nmodel = "m"\ntls_client_key = "~/k.pem"\n'
        'tls_ca_file = "ca.pem"\ntls_verify = false\nmax_output_tokens = 0',
        [
            'backends.api.tls_ca_file: "ca.pem": must be the path of a file, absolute or from ~/; '
            "it is left out.",
            "backends.api.max_output_tokens: 0: must be a whole number from 1 to 10000000; "
            "it is left out.",
            "backends.api.tls_client_key: has no effect without tls_client_cert.",
            "backends.api.tls_verify: is off, so the key can be read in transit; better "
            "name the certificate of the server in tls_ca_file.",
        ],
    ),
    (
        '[backends.api]\nkind = "openai-http"\nmodel = "m"\nomit = ["top_p", "messages"]\n'
        'rename = { user = "stream", a = "b" }\n'
        "default = { n = 2, store = true, seed = nan, verbosity = {a = [1]}, day = 2026-01-01 }",
        [
            "backends.api.omit.messages: what a caller asks for is not changed; it is left out.",
            "backends.api.rename.user: what a caller asks for is not changed; it is left out.",
            "backends.api.default.n: what a caller asks for is not changed; it is left out.",
            "backends.api.default.store: what a caller asks for is not changed; it is left out.",
            "backends.api.default.seed: nan is not JSON; it is left out.",
            "backends.api.default.day: 2026-01-01 is not JSON; it is left out.",
        ],
    ),
    (
        '[backends.api]\nkind = "anthropic-http"\nmodel = "m"\nembeddings = ["e"]',
        ["backends.api.embeddings: has no effect: the API of this backend (messages) has none."],
    ),
    ('[backends.api]\nkind = "openai-http"\nembeddings = ["e"]', []),
    (
        '[backends.api]\nkind = "openai-http"\nmodel = "m"\nomit = ["a b"]\n'
        'rename = { max_tokens = "a.b" }\ndefault = "low"',
        [
            "backends.api.omit[0]: must be the name of a parameter; the whole list is left out.",
            "backends.api.rename: a table: must be a table of names of parameters, with a dot "
            "before a field inside of another one, each with its other name, which has no dot; "
            "it is left out.",
            'backends.api.default: "low": must be a table of names of parameters, with a dot before'
            " a field inside of another one, each with its value; it is left out.",
        ],
    ),
    (
        '[backends.hermes-api]\nbase_url = "ftp://x"',
        [
            'backends.hermes-api.base_url: "ftp://x": must begin with http:// or https:// '
            "and a host; it is left out.",
            'backends.hermes-api: its "base_url" cannot be used: set backends.hermes-api.base_url '
            "to the address of its API, with http:// or https://. Until then nothing is sent, and "
            "127.0.0.1:8088 is not asked in its place.",
        ],
    ),
    (
        '[backends.codex]\napi_mode = "chat"',
        [
            "backends.codex.api_mode: has no effect: codex is not an HTTP API.",
        ],
    ),
    (
        '[backends.codex]\nmodel = "m"\nfallback_model = "m"',
        ["backends.codex.fallback_model: is the model of the backend itself and has no effect."],
    ),
    (
        '[backends.x]\nkind = "generic-cli"\ncommand = ["x"]\nstdin = "none"',
        ['backends.x.stdin: "none", and no {prompt_file} in the command: no prompt.'],
    ),
    (
        '[backends.x]\nkind = "generic-cli"\ncommand = ["x", "{prompt}"]',
        [
            "backends.x.command: uses {prompt}: set prompt_in_argv = true, or use {prompt_file} "
            "or stdin; no prompt can be given."
        ],
    ),
    (
        '[chains]\ncodex = ["opencode", "codex"]\nopencode = "codex"',
        [
            'chains.codex[1]: "codex" is equal to the chain\'s own primary; it is left out.',
            'chains.opencode: "codex": must be a list of backends: ["codex", "gemini"].',
        ],
    ),
    (
        '[chains]\n"*" = ["geminy", 3, {model = "m"}, {backend = "codex", tier = "gold"}]',
        [
            'chains."*"[0]: "geminy" is not a backend; it is left out. Did you mean "gemini"?',
            'chains."*"[1]: 3: must be the id of a backend or a table; it is left out.',
            'chains."*"[2]: names no backend; it is left out.',
            'chains."*"[3].tier: "gold": must be one of "api", "in_session", "model", '
            '"primary"; it is left out.',
        ],
    ),
    (
        '[chains]\nx = ["codex", "codex", { backend = "codex", model = "m" }]',
        ['chains.x[1]: "codex" is equal to an earlier entry; it is left out.'],
    ),
    (
        '[roles.build]\nfallback_on = ["rate_limit", "rate", "cancelled"]\nchain = "nope"',
        [
            'roles.build.chain: "nope" is not a name in [chains]; it is left out.',
            'roles.build.fallback_on[1]: "rate" is not a reason; it is left out.',
            'roles.build.fallback_on[2]: "cancelled" never leads to another backend; '
            "it is left out.",
        ],
    ),
    (
        '[roles.judge]\non_outage = "ask"\nreturn_to_better = { policy = "successes", n = 0 }\n'
        '[roles.build]\nmust_differ_from = ["auther", "gpt"]\nreturn_to_better = { n = 7 }',
        [
            "roles.judge.return_to_better.n: 0: must be a whole number from 1 to 1000; "
            "the default 5 is used.",
            'roles.build.must_differ_from[0]: "auther" is neither "author" nor a family that any '
            'backend has. Did you mean "author"?',
            'roles.build.return_to_better.n: has an effect only with policy = "successes".',
        ],
    ),
    (
        "[[signatures]]\nid = 'a'\npattern = '(x'\nreason = 'auth'",
        [
            'signatures[0].pattern: "(x": is not a regular expression that can be searched in '
            "linear time (missing ): (x); the signature is left out."
        ],
    ),
    (
        "[[signatures]]\npattern = 'a(?=b)'\nreason = 'auth'",
        [
            'signatures[0].pattern: "a(?=b)": is not a regular expression that can be searched in '
            "linear time (invalid perl operator: (?=); the signature is left out."
        ],
    ),
    (
        "[[signatures]]\npattern = 'a*'\nreason = 'auth'\n[[signatures]]\nreason = 'auth'",
        [
            'signatures[0].pattern: "a*": fits every line; the signature is left out.',
            "signatures[1]: has no pattern; the signature is left out.",
        ],
    ),
    (
        "import = ['a/voice-platform-health.json', 'auth.json', 3]",
        [
            'import[1]: "auth.json": has no effect; voice-platform-health.json, '
            "model-fallback.json, rate-limit-fallback.json, config.yaml of Hermes and JKZ_* "
            "are imported.",
            "import[2]: 3: must be the path of a file; it is left out.",
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_what_is_wrong_is_said_with_its_path_value_and_what_is_used(
    text: str, expected: list[str]
) -> None:
    found = load(text, path="/etc/fallbackd/config.toml")
    assert found.errors == ()
    assert [str(problem) for problem in found.warnings] == expected


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ('[backends.codex]\napi_key = "hunter2hunter2"', ["backends.codex.api_key"]),
        (
            '[backends.hermes-api]\ncredentials = [{ label = "a", key = "hunter2hunter2" }]',
            ["backends.hermes-api.credentials[0]"],
        ),
        (
            '[backends.hermes-api]\ncredentials = ["hunter2hunter2 x"]',
            ["backends.hermes-api.credentials[0]"],
        ),
        (
            '[backends.hermes-api]\ncredentials = [{ label = "a", env = "hunter2-hunter2" }]',
            ["backends.hermes-api.credentials[0]"],
        ),
        (
            '[backends.hermes-api]\nheaders = { Authorization = "Bearer hunter2hunter2" }',
            ["backends.hermes-api.headers.Authorization"],
        ),
        (
            '[backends.hermes-api]\nbase_url = "http://me:hunter2hunter2@host/v1"',
            ["backends.hermes-api.base_url", "backends.hermes-api"],
        ),
        (
            '[backends.hermes-api]\nbase_url = "http://host/v1?api_key=hunter2hunter2hunter2"',
            ["backends.hermes-api.base_url", "backends.hermes-api"],
        ),
    ],
)
def test_a_secret_by_value_is_refused_and_never_repeated(text: str, paths: list[str]) -> None:
    found = load(text, path="config.toml")
    assert [problem.path for problem in found.warnings] == paths
    assert found.warnings[0].message == f"{SECRET}; it is left out."
    backend = found.options[BackendId("hermes-api")]
    assert (backend.headers, backend.base_url, backend.credentials) == ({}, None, ())


def test_the_neighbours_of_a_bad_field_are_in_force() -> None:
    found = load(
        '[backends.codex]\nhourly_cap = "many"\nquota = "plan"\nstall_s = 60\n'
        "[defaults]\nsettle_s = -1\ndedup_window_s = 9",
        path="config.toml",
    )
    codex = found.policy.backends[BackendId("codex")]
    assert (codex.hourly_cap, codex.quota, codex.stall_s) == (None, "plan", 60)
    assert (found.policy.defaults.settle_s, found.policy.defaults.dedup_window_s) == (5, 9)
    assert len(found.warnings) == 2


def test_a_bad_word_does_not_lift_the_rule_of_its_neighbours() -> None:
    text = '[roles.judge]\nmust_differ_from = ["author", 7, "", "gpt", "author"]'
    found = load(text, path="config.toml")
    assert found.policy.roles["judge"].must_differ_from == ("author", "gpt")
    assert [str(one) for one in found.warnings] == [
        "roles.judge.must_differ_from[1]: 7: must be text of 1 to 200 characters; it is left out.",
        'roles.judge.must_differ_from[2]: "": must be text of 1 to 200 characters; it is left out.',
    ]


def test_a_backend_without_its_command_is_shown_but_not_used() -> None:
    found = load('[backends.acme]\nkind = "generic-cli"', path="config.toml")
    assert found.policy.backends[BackendId("acme")].enabled is False
