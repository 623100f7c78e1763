"""
The command line of the daemon.

What is heavy to import is imported when it is known that it is needed: `--help`, `--version` and
a wrong flag answer at once.
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from fallbackd_client import __version__

EXIT_USAGE = 2
EXIT_CONFIG = 78


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status, as the epilog of the help says."""
    arguments = _parser().parse_args(argv)
    from fallbackd.app.places import find_places
    from fallbackd_client.paths import settle_home

    settle_home()
    try:
        places = find_places(
            os.environ,
            config=arguments.config,
            state_dir=arguments.state_dir,
            socket=arguments.socket,
        )
    except FileNotFoundError:  # to which a relative path is
        print(
            "fallbackd: the current directory is gone: change to one that exists", file=sys.stderr
        )
        return EXIT_USAGE
    if arguments.programs:
        return _list_programs()
    if arguments.config_schema:
        return _print_schema()
    if arguments.check_config:
        return _check_config(places.config, is_named=arguments.config is not None)
    gc.disable()  # what is loaded stays; see `heap.collect_from_now_on`
    # structlog loads rich where it is installed, for tracebacks that our logs do not use: a fifth
    # of the time until the daemon is ready, and 6 MiB.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    from fallbackd.app.logs import set_up
    from fallbackd.app.opencode_log import OpencodeLog
    from fallbackd.app.process import run
    from fallbackd.lib.secretvalues import SecretValues

    sessions_log = OpencodeLog()
    secret_values = SecretValues(os.environ)
    set_up(
        format=arguments.log_format,
        level=arguments.log_level,
        conceal=secret_values.conceal,
        copy_to=sessions_log,
    )
    is_given = arguments.socket is not None
    return run(
        places,
        os.environ,
        secret_values=secret_values,
        socket_is_given=is_given,
        sessions_log=sessions_log,
    )


def _list_programs() -> int:
    """Print what is known of the programs of agents, for `doctor` where no daemon runs."""
    import json

    from fallbackd.config.profiles import known_programs

    print(json.dumps(known_programs()))
    return 0


def _print_schema() -> int:
    """Print the JSON schema of the configuration file."""
    import json

    from fallbackd.config.schema import json_schema

    try:
        print(json.dumps(json_schema(), indent=2), flush=True)
    except BrokenPipeError:  # the reader has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _check_config(path: str, *, is_named: bool) -> int:
    """
    Print every problem of the file. 78 where it, or a backend in it, cannot be used, else 0.

    Args:
        is_named: The user has named it: that it is missing is a mistake.
    """
    from fallbackd.config.files import load_file

    if not os.path.exists(path):
        if is_named:
            print(f"error: {path}: there is no such file", file=sys.stderr)
            return EXIT_CONFIG
        print(f"{path}: there is no file; the built-in configuration is in effect")
        return 0
    found = load_file(path)
    errors = (*found.errors, *found.refused)
    for one in errors:
        print(f"error: {one}", file=sys.stderr)
    for one in found.warnings:
        print(f"warning: {one}", file=sys.stderr)
    if errors:
        return EXIT_CONFIG
    print(f"{path}: {'usable, with warnings' if found.warnings else 'good'}")
    return 0


EPILOG = """\
files:
  ~/.config/fallbackd/config.toml      configuration ($XDG_CONFIG_HOME); optional
  ~/.local/state/fallbackd             records, prompts, logs ($XDG_STATE_HOME)
  $XDG_RUNTIME_DIR/fallbackd/control.sock
                                       the socket; else in the state directory

environment:
  FALLBACKD_CONFIG, FALLBACKD_SOCKET   as --config, --socket
  PATH                                 where agent CLIs are found
  NOTIFY_SOCKET, LISTEN_FDS, WATCHDOG_USEC
                                       of systemd; a socket from it always wins

a configuration that makes a backend of its own and a chain:
  [backends.mine]
  kind = "generic-cli"
  command = ["my-agent", "--batch"]    # the prompt comes on standard input
  [chains]
  codex = ["opencode", "mine"]

exit status:
  0   after it was stopped: running work ends first; a second signal stops it
  1   when it failed
  2   for wrong usage
  78  for a socket or state directory that cannot be used or that another daemon
      uses, and from --check-config for a file that is not to be used as it is

`fallbackd-client --help` says how to talk to it, and `fallbackd-client doctor`
what is wrong around it.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fallbackd",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Delegates prompts to agent CLIs and HTTP APIs, and falls back along a chain.\n"
        "Runs in the foreground until SIGTERM or SIGINT; SIGHUP reads the file again.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--socket", metavar="PATH", help="where to listen")
    parser.add_argument("--state-dir", metavar="DIR", help="where records and logs are kept")
    parser.add_argument(
        "--log-format", choices=("console", "json"), default="console", help="default: console"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: info",
    )
    parser.add_argument(
        "--check-config", action="store_true", help="say what is wrong with the file, and exit"
    )
    parser.add_argument(
        "--programs", action="store_true", help="list known agent programs as JSON and exit"
    )
    parser.add_argument(
        "--config-schema",
        action="store_true",
        help="print the JSON schema of the configuration file and exit",
    )
    parser.add_argument("--version", action="version", version=f"fallbackd {__version__}")
    return parser
