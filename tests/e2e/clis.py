"""
The four agent CLIs as a user has them, but with every road closed except the one to the provider.

    home = build_home(tmp_path, p)          # p: a running tests.support.provider
    home.env                                # for a daemon, or for a CLI by itself
    home.backends_toml()                    # [backends.codex] env = …, for its configuration
    home.work                               # a git work tree

Each CLI calls the provider on the route of its own name. Names are resolved by nobody: updates,
telemetry, model lists and plug-in installs are off by the CLIs' own settings, and the npm registry
is a closed port.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from tests.e2e import install

NAMES = ("codex", "opencode", "gemini", "claude")
MODELS = {"opencode": "scripted/m", "gemini": "gemini-2.5-pro"}
"""Must be told: opencode would take a hosted model, gemini would ask a router first."""
KEY = "sk-scripted-0000"

_GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Tester",
    "GIT_AUTHOR_EMAIL": "tester@example.invalid",
    "GIT_COMMITTER_NAME": "Tester",
    "GIT_COMMITTER_EMAIL": "tester@example.invalid",
}


class Addressed(Protocol):
    """Where the CLIs send their calls: the scripted provider, or what stands before it."""

    def url(self, route: str) -> str: ...


class Home(Struct, frozen=True, kw_only=True):
    path: Path
    work: Path
    names: tuple[str, ...]
    env: Mapping[str, str]
    """Complete: nothing of the environment of the tests."""

    @property
    def keys(self) -> dict[str, str]:
        """The variables of `env` that hold a secret."""
        return {name: value for name, value in self.env.items() if value == KEY}

    def backends_toml(self, **knobs: str) -> str:
        """
        One table for each CLI. `knobs`: further lines for all, values as TOML.

        Keys are not written into a configuration; a daemon inherits them, see `keys`.
        """
        parts = []
        for name in self.names:
            lines = [f"[backends.{name}]"]
            if name in MODELS:
                lines.append(f"model = {_toml(MODELS[name])}")
            lines += [f"{key} = {value}" for key, value in knobs.items()]
            lines.append(f"[backends.{name}.env]")
            lines += [f"{key} = {_toml(value)}" for key, value in self.env.items() if value != KEY]
            parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"

    def argv(self, name: str, prompt: str) -> list[str]:
        """One unattended run by hand, without the daemon."""
        program = str(install.BIN / name)
        match name:
            case "codex":
                return [program, "exec", "--json", "-s", "workspace-write", prompt]
            case "opencode":
                options = ["--format", "json", "--title", "t", "-m", MODELS[name]]
                return [program, "run", *options, prompt]
            case "gemini":
                options = ["--yolo", "-o", "stream-json", "-m", MODELS[name]]
                return [program, *options, "-p", prompt]
            case "claude":
                options = ["--output-format", "stream-json", "--verbose"]
                return [program, *options, "--allowedTools", "Bash", "-p", prompt]
            case _:
                raise ValueError(f"no such CLI: {name}")


def build_home(
    base: Path, provider: Addressed, *, names: tuple[str, ...] = NAMES, key: str = KEY
) -> Home:
    """
    Writes settings, as after a log-in, into `base`.

    Args:
        key: What the CLIs log in with.

    Raises:
        RuntimeError: The CLIs are not installed; the message says how to install them.
    """
    if not install.is_installed():
        raise RuntimeError("the agent CLIs are not installed: run `make e2e`")
    node = shutil.which("node")
    git = shutil.which("git")
    if node is None or git is None:
        raise RuntimeError("the end-to-end tests need node and git on PATH")
    path, work, scratch = base / "home", base / "work", base / "tmp"
    for each in (path, work, scratch):
        each.mkdir(parents=True)
    programs = [str(install.BIN), str(Path(node).parent), str(Path(git).parent)]
    env = {
        "HOME": str(path),
        "TMPDIR": str(scratch),  # opencode leaves 5.6 MB in it on every run
        "PATH": os.pathsep.join(dict.fromkeys([*programs, "/usr/bin", "/bin"])),
        "LANG": "C.UTF-8",
        "npm_config_registry": "http://127.0.0.1:9/",
        "DO_NOT_TRACK": "1",
        **_GIT,
    }
    for name in names:
        env |= _SETTERS[name](path, provider, key)
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "start"]):
        subprocess.run([git, *command], cwd=work, env=env, check=True)
    return Home(path=path, work=work, names=names, env=env)


def _codex(home: Path, provider: Addressed, key: str) -> dict[str, str]:
    _write(
        home / ".codex" / "config.toml",
        f"""\
model = "gpt-5-codex"
model_provider = "scripted"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false
daemon_auto_start = false

[model_providers.scripted]
name = "Scripted"
base_url = {_toml(provider.url("codex") + "/v1")}
env_key = "SCRIPTED_API_KEY"
wire_api = "responses"
""",
    )
    return {"SCRIPTED_API_KEY": key}


def _opencode(home: Path, provider: Addressed, key: str) -> dict[str, str]:
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "disabled_providers": ["opencode"],
        "model": MODELS["opencode"],
        "small_model": MODELS["opencode"],
        "provider": {
            "scripted": {
                "npm": "@ai-sdk/openai-compatible",  # comes with opencode
                "options": {"baseURL": provider.url("opencode") + "/v1", "apiKey": key},
                "models": {
                    "m": {
                        "limit": {"context": 128000, "output": 4096},
                        "attachment": True,
                        "modalities": {"input": ["text", "image", "pdf"], "output": ["text"]},
                    }
                },
            }
        },
    }
    _write(home / ".config" / "opencode" / "opencode.json", json.dumps(settings, indent=2))
    return {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }


def _gemini(home: Path, provider: Addressed, key: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    _write(home / ".gemini" / "settings.json", json.dumps(settings, indent=2))
    return {
        "GEMINI_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": provider.url("gemini"),
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


def _claude(_: Path, provider: Addressed, key: str) -> dict[str, str]:
    return {
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_BASE_URL": provider.url("claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


_SETTERS = {"codex": _codex, "opencode": _opencode, "gemini": _gemini, "claude": _claude}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML is one of JSON
