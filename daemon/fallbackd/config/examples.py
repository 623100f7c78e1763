"""
One line of TOML for each key that has one, by table: for the schema and the reference.

Keys with a default of their own need none. A test loads each line in its table.
"""

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
    "NotifyTable": """
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
    "GatewayTable": """
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
    "InteractiveTable": """
watch = ["codex"]
""",
}
