"""
Roles from `JKZ_*` variables.

    JKZ_<ROLE>_BACKEND=codex, JKZ_<ROLE>_ENDPOINT, JKZ_API_ENDPOINT    who does the work
    JKZ_<ROLE>_MODEL, JKZ_API_MODEL, JKZ_CODEX_MODEL, JKZ_GEMINI_MODEL with which model
    …_MODEL_FALLBACK                                                   and which if that is missing
    JKZ_<ROLE>_PROVIDER_FALLBACK_ENDPOINT, _MODEL, _API_KEY            tier `api` behind a throttle
    JKZ_PROVIDER_FALLBACK_ENDPOINT, _MODEL, _API_KEY                   the same for every role

`_` in the name of a variable is also `-` in the name of a role. Of keys only the names of their
variables are taken.
"""

import re
from collections.abc import Mapping

from fallbackd.config.importing import Imported, Report, Tables, has_password, is_address

PREFIX = "JKZ_"
ALL = "JKZ_*"
"""How `import = [...]` names them."""

KINDS = {
    "architect": "creative",
    "builder": "creative",
    "doctor": "creative",
    "analyst": "creative",
    "auditor": "adversarial",
    "judge": "adversarial",
    "sentinel": "adversarial",
    "research-auditor": "adversarial",
    "curator": "validator",
    "inspector": "validator",
    "lens": "validator",
    "research-reviewer": "validator",
    "librarian": "utility",
    "classifier": "utility",
}
ALWAYS = ("adversarial", "validator")
"""Kinds whose roles are run through an endpoint, also where they have no variables of their own."""
WITH_API_TIER = (
    "lens",
    "curator",
    "inspector",
    "qa",
    "research-reviewer",
    "consultant-gemini",
)
IN_SESSION_MODELS = {"curator": "opus", "inspector": "opus", "judge": "opus", "sentinel": "opus"}
IN_SESSION_MODEL = "sonnet"
IN_SESSION_EFFORT = "medium"
_OF_CLIS = {"JKZ_CODEX_MODEL": "codex", "JKZ_GEMINI_MODEL": "gemini"}
_GENERAL = ("API", "CODEX", "GEMINI", "PROVIDER")
_SUFFIXES = (
    "PROVIDER_FALLBACK_ENDPOINT",
    "PROVIDER_FALLBACK_MODEL",
    "PROVIDER_FALLBACK_API_KEY",
    "MODEL_FALLBACK",
    "MODEL",
    "ENDPOINT",
    "BACKEND",
    "API_KEY",
)
_ENDPOINT, _KEY, _SWAP = "JKZ_API_ENDPOINT", "JKZ_API_KEY", "JKZ_API_MODEL_FALLBACK"
"""The general variables, where a role has none of its own."""
_ROLE = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


def read_jkz(environ: Mapping[str, str]) -> Imported:
    """
    Args:
        environ: Variables; values of those that hold keys may be empty, and are never looked at.
    """
    return _Reader(environ).read()


class _Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._all = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
        self._report = Report()
        self._backends: Tables = {}
        self._roles: Tables = {}
        self._used: set[str] = set()

    def read(self) -> Imported:
        if self._all:
            for variable, backend in _OF_CLIS.items():
                self._of_cli(variable, backend)
            for role in self._names():
                self._role(role)
            for name in sorted(set(self._all) - self._used):
                self._report.leave(name, "has no meaning here, or nothing that it would go with")
        tables: Tables = {}
        if self._backends:
            tables["backends"] = self._backends
        if self._roles:
            tables["roles"] = self._roles
        return self._report.made("jkz", tables)

    # --- variables -------------------------------------------------------------------------

    def _value(self, name: str) -> str | None:
        value = self._all.get(name, "").strip()
        if not value or not value.isprintable() or len(value) > 2000:
            return None
        return value

    def _key_of(self, here: str) -> str:
        """The variable of the role's own key where there is one, whatever it holds."""
        return f"{here}_API_KEY" if f"{here}_API_KEY" in self._all else _KEY

    def _swap_of(self, here: str) -> str:
        """The variable of the role's own fallback model where it is set, else the general one."""
        own = f"{here}_MODEL_FALLBACK"
        return _SWAP if self._value(own) is None else own

    def _take(self, name: str, to: str) -> None:
        self._used.add(name)
        self._report.take(name, to)

    def _leave(self, name: str, why: str) -> None:
        self._used.add(name)
        self._report.leave(name, why)

    def _address(self, name: str) -> str | None:
        url = self._value(name)
        if url is None:
            return None
        if has_password(url):
            self._leave(name, "holds a user or a password; put it into a variable")
            return None
        if not is_address(url):
            self._leave(name, "is not an http or https address")
            return None
        return url.rstrip("/")

    def _names(self) -> list[str]:
        """Roles that are run anyhow, then those that have variables of their own."""
        found = [role for role, kind in KINDS.items() if kind in ALWAYS]
        for name in sorted(self._all):
            rest = name.removeprefix(PREFIX)
            suffix = next((one for one in _SUFFIXES if rest.endswith(f"_{one}")), None)
            if suffix is None:
                continue
            word = rest.removesuffix(f"_{suffix}")
            if word in _GENERAL or word.startswith("PROVIDER_FALLBACK"):
                continue
            role = word.lower().replace("_", "-")
            if _ROLE.fullmatch(role) and role not in found:
                found.append(role)
        return found

    def _of_cli(self, variable: str, backend: str) -> None:
        for name, key in ((variable, "model"), (f"{variable}_FALLBACK", "fallback_model")):
            if (value := self._value(name)) is not None:
                self._backends.setdefault(backend, {})[key] = value
                self._take(name, f"backends.{backend}.{key}")

    # --- roles -----------------------------------------------------------------------------

    def _role(self, role: str) -> None:
        here = PREFIX + role.upper().replace("-", "_")
        kind = KINDS.get(role)
        chain: list[Tables] = []
        primary = self._primary(role, here, kind)
        if primary is not None:
            chain.append(primary)
        api = self._api(role, here)
        if api is not None:
            chain.append(api)
        if not chain:
            if any(name.startswith(f"{here}_") for name in self._all):
                self._report.leave(
                    f"role {role}", f"has no backend: set {here}_ENDPOINT or JKZ_API_ENDPOINT"
                )
            return
        if kind in ALWAYS:
            chain.append(
                {
                    "backend": "in-session",
                    "tier": "in_session",
                    "model": IN_SESSION_MODELS.get(role, IN_SESSION_MODEL),
                    "effort": IN_SESSION_EFFORT,
                }
            )
        made: Tables = {} if kind is None else {"kind": kind}
        if kind is None:
            self._report.leave(f"kind of role {role}", "it is none of the roles that are known")
        made["chain"] = chain
        if kind == "adversarial":
            made["must_differ_from"] = ["author"]
        self._roles[role] = made

    def _primary(self, role: str, here: str, kind: str | None) -> Tables | None:
        model = self._value(f"{here}_MODEL")
        chosen = self._value(f"{here}_BACKEND")
        if chosen is not None and chosen.lower() == "codex":
            self._take(f"{here}_BACKEND", f"roles.{role}.chain[0].backend")
            return self._with_model(role, here, {"backend": "codex", "tier": "primary"}, model)
        if chosen is not None:
            self._leave(f"{here}_BACKEND", "only codex has a meaning")
        for variable in (f"{here}_ENDPOINT", _ENDPOINT):
            if (url := self._address(variable)) is not None:
                return self._at(role, here, url, endpoint=variable, model=model)
        if kind == "validator":
            return self._with_model(role, here, {"backend": "gemini", "tier": "primary"}, model)
        return None

    def _with_model(self, role: str, here: str, entry: Tables, model: str | None) -> Tables:
        if model is not None:
            entry["model"] = model
            self._take(f"{here}_MODEL", f"roles.{role}.chain[0].model")
        return entry

    def _at(self, role: str, here: str, url: str, *, endpoint: str, model: str | None) -> Tables:
        """An entry for the endpoint: the general backend, or one of the role where it differs."""
        key, swap = self._key_of(here), self._swap_of(here)
        is_general = (endpoint, key, swap) == (_ENDPOINT, _KEY, _SWAP)
        name = "jkz-api" if is_general else f"jkz-{role}"
        general, swapped = self._value("JKZ_API_MODEL"), self._value(swap)
        wanted = general if is_general else model or general
        backend: Tables = {"kind": "openai-http", "base_url": url}
        if wanted is not None:
            backend["model"] = wanted
        elif model is None:
            self._report.leave(f"model of role {role}", "none is named; the endpoint chooses")
        if swapped is not None:
            backend["fallback_model"] = swapped
        if key in self._all:
            backend["credentials"] = [{"label": "jkz", "env": key}]
            self._take(key, f"backends.{name}.credentials")
        self._backends[name] = backend
        self._take(endpoint, f"backends.{name}.base_url")
        if general is not None and (is_general or model is None):
            self._take("JKZ_API_MODEL", f"backends.{name}.model")
        if swapped is not None:
            self._take(swap, f"backends.{name}.fallback_model")
        entry: Tables = {"backend": name, "tier": "primary"}
        return self._with_model(role, here, entry, model)

    def _api(self, role: str, here: str) -> Tables | None:
        """Tier `api`: the triple of the role, else the general one for the roles that have it."""
        for start, name in ((here, f"jkz-{role}-fallback"), (PREFIX[:-1], "jkz-fallback")):
            if start == PREFIX[:-1] and role not in WITH_API_TIER:
                return None
            variables = [
                f"{start}_PROVIDER_FALLBACK_{one}" for one in ("ENDPOINT", "MODEL", "API_KEY")
            ]
            url, model = self._address(variables[0]), self._value(variables[1])
            if url is None and model is None:
                continue
            if url is None or model is None:
                missing = "endpoint" if url is None else "model"
                self._leave(variables[0 if model is None else 1], f"the {missing} is missing")
                continue
            made: Tables = {"kind": "openai-http", "base_url": url, "model": model}
            if variables[2] in self._all:
                made["credentials"] = [{"label": "jkz", "env": variables[2]}]
                self._take(variables[2], f"backends.{name}.credentials")
            self._backends[name] = made
            self._take(variables[0], f"backends.{name}.base_url")
            self._take(variables[1], f"backends.{name}.model")
            return {"backend": name, "tier": "api"}
        return None
