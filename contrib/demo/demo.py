"""
The main job of fallbackd as a story: a real daemon, real processes, and a person who looks.

Two agents, played by programs that print what the real ones printed: claude is at the limit of its
plan, codex works. Everything happens in a temporary directory and is gone afterwards.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
DAEMON = (sys.executable, "-m", "fallbackd")
CLIENT = (sys.executable, "-m", "fallbackd_client.cli.main")
NEEDED = ("sh", "cat", "date", "ls", "wc")
"""By the agents; no other agent that this machine may have is seen."""
START_LIMIT_S = 30.0

CONFIG = """\
[chains]
claude = ["codex"]
"""


def main() -> int:
    root = Path(tempfile.mkdtemp(prefix="fallbackd-demo-"))
    environment = prepare(root)
    log = (root / "daemon.log").open("wb")
    daemon = subprocess.Popen(
        [*DAEMON, "--log-format", "console"],
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        wait_until_up(daemon, environment, root)
        return tell(root, environment)
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        log.close()
        shutil.rmtree(root, ignore_errors=True)
        say("The daemon has been stopped and the temporary directory is gone.")


def prepare(root: Path) -> dict[str, str]:
    """A home of its own, so that nothing of the user's is read or written."""
    config = root / "config" / "fallbackd" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    work = root / "work"
    work.mkdir()
    for name in ("parser.py", "README"):
        (work / name).write_text("")
    (root / "run").mkdir(mode=0o700)
    programs = root / "bin"
    programs.mkdir()
    for path in (*(HERE / "bin").iterdir(), *(shutil.which(name) for name in NEEDED)):
        if path is not None:
            (programs / Path(path).name).symlink_to(path)
    keep = {
        name: os.environ[name] for name in ("LANG", "TERM", "NO_COLOR", "TZ") if name in os.environ
    }
    return {
        **keep,
        "PATH": str(programs),
        "PYTHONPATH": f"{SOURCES / 'daemon'}:{SOURCES / 'client'}",
        "HOME": str(root),
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_STATE_HOME": str(root / "state"),
        "XDG_RUNTIME_DIR": str(root / "run"),
    }


def wait_until_up(
    daemon: "subprocess.Popen[bytes]", environment: dict[str, str], root: Path
) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up_at and daemon.poll() is None:
        done = subprocess.run([*CLIENT, "ping"], env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.05)
    sys.exit("the daemon did not start; its log:\n" + (root / "daemon.log").read_text())


def tell(root: Path, environment: dict[str, str]) -> int:
    say("claude is at the limit of its plan; its chain continues with codex.")
    first = client(root, environment, "delegate", "Count the files here")
    say("claude is unavailable until its limit resets, also for other programs:")
    client(root, environment, "status")
    say("Every decision is written down:")
    client(root, environment, "explain", "@last")
    say("A second prompt makes no attempt on claude:")
    second = client(root, environment, "delegate", "Count them again")
    return first.returncode or second.returncode


def client(
    root: Path, environment: dict[str, str], *words: str
) -> "subprocess.CompletedProcess[str]":
    """Run `fallbackd-client` as a person would, and show what it shows."""
    shown = " ".join(f"'{word}'" if " " in word else word for word in words)
    print(f"\n$ fb {shown}", flush=True)
    return subprocess.run(
        [*CLIENT, *words],
        env=environment,
        cwd=root / "work",
        text=True,
        check=False,
    )


def say(line: str) -> None:
    print(f"\033[1m# {line}\033[0m" if sys.stdout.isatty() else f"# {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
