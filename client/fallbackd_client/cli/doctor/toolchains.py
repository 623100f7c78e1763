"""The tools that the repository at hand needs, and what confined agents may write of theirs."""

from __future__ import annotations

import os

from fallbackd_client.cli.doctor.findings import NOTE, WARNING, Finding, Machine
from fallbackd_client.cli.doctor.programs import RESTART, RESTART_SERVICE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json


def look_at_toolchains(
    machine: Machine,
    status: dict[str, Json],
    daemon_environ: Mapping[str, str],
    *,
    is_service: bool,
) -> list[Finding]:
    """
    Args:
        status: Of the daemon, with its toolchains.
        daemon_environ: What the daemon has; empty: that is not known.
    """
    known = status.get("toolchains")
    confinement = str((status.get("daemon") or {}).get("confinement") or "")
    if not isinstance(known, list) or not confinement.startswith(("on", "partly")):
        return []
    if not (cwd := machine.cwd):
        return []
    top = machine.run("git", "-C", cwd, "rev-parse", "--show-toplevel").out.strip()
    signer = _signer(machine, cwd) if top else ""
    used = []
    for each in known:
        sign = _sign(each, dict.fromkeys((cwd, top or cwd)))
        if each.get("name") == signer:
            sign = "commit.gpgsign"
        if sign:
            used.append((each, sign))
    found = [Finding("toolchains", NOTE, _sentence(machine, used))] if used else []
    if signer == "ssh-agent" and daemon_environ and not daemon_environ.get("SSH_AUTH_SOCK"):
        what = "commits here are signed with an ssh key, and the daemon has no SSH_AUTH_SOCK"
        what += ": a key that only ssh-agent holds cannot sign what agents commit"
        if is_service:
            fix = f"systemctl --user import-environment SSH_AUTH_SOCK && {RESTART_SERVICE}"
        else:
            fix = RESTART
        found.append(Finding("toolchains", WARNING, what, fix))
    return found


def _signer(machine: Machine, cwd: str) -> str:
    """The tool that signs commits of this repository; empty: they are not signed."""

    def setting(name: str) -> str:
        return machine.run("git", "-C", cwd, "config", "--get", name).out.strip().lower()

    if setting("commit.gpgsign") not in ("true", "yes", "on", "1"):
        return ""
    return {"ssh": "ssh-agent", "x509": ""}.get(setting("gpg.format"), "gpg")


def _sign(toolchain: dict[str, Json], directories: Mapping[str, None]) -> str:
    """The first file that shows that it is used; empty: none."""
    for name in toolchain.get("signs") or ():
        if any(os.path.exists(os.path.join(each, str(name))) for each in directories):
            return str(name)
    return ""


def _sentence(machine: Machine, used: list[tuple[dict[str, Json], str]]) -> str:
    def short(path: str) -> str:
        below = path.removeprefix(machine.home.rstrip("/") + "/")
        return path if below == path else f"~/{below}"

    tools = ", ".join(f"{each.get('name')} ({sign})" for each, sign in used)
    open_to = ", ".join(
        short(str(path)) for each, _ in used for path in (each.get("writes") or ())[:3]
    )
    refused = ", ".join(str(each["refused"]) for each, _ in used if each.get("refused"))
    what = f"this repository uses {tools}: at `workspace` agents may write to {open_to}"
    if refused:
        what += f"; refused below `full`: {refused}"
    return what + "; `writable` of a backend adds places"
