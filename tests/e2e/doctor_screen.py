"""Print what the doctor shows of findings that are given: a program for a screen."""

import sys

from fallbackd_client.cli.commands.doctor import view
from fallbackd_client.cli.doctor.findings import ERROR, NOTE, WARNING, Finding
from fallbackd_client.cli.output import style_of

CHECKED = ("configuration", "state", "socket", "programs", "opencode", "mcp", "service", "daemon")
FINDINGS = (
    Finding(
        "programs",
        ERROR,
        "the service's PATH does not include codex (/home/me/.npm/bin/codex)",
        "fallbackd-client service install --yes && fallbackd-client service restart",
    ),
    Finding("programs", WARNING, "claude: not logged in", "claude auth login"),
    Finding(
        "service",
        NOTE,
        "the service and running agents stop when you log out; enable lingering",
        "loginctl enable-linger me",
    ),
    Finding("daemon", NOTE, "ローカル reported a server error: 接続できません"),
)


def main() -> None:
    findings = [one.document() for one in FINDINGS]
    document = {"checked": list(CHECKED), "not_checked": [], "findings": findings}
    print(view(document, style_of(sys.stdout)))


if __name__ == "__main__":
    main()
