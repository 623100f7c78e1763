"""Man pages from the parsers: `fallbackd(1)` and `fallbackd-client(1)`."""

import argparse

from fallbackd.app.main import _parser
from fallbackd_client import __version__
from fallbackd_client.cli.commands import COMMANDS
from fallbackd_client.cli.parsing import command_parser, program_parser


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {"fallbackd.1": _daemon(), "fallbackd-client.1": _client()}


def _daemon() -> str:
    parser = _parser()
    return _page(
        "fallbackd",
        "run prompts on agent CLIs and HTTP APIs, with failover",
        [
            _synopsis(parser),
            ".SH DESCRIPTION\n" + _text(parser.description or ""),
            ".SH OPTIONS\n" + _options(parser),
            _epilog(parser),
            ".SH SEE ALSO\n.BR fallbackd-client (1)",
        ],
    )


def _client() -> str:
    parser = program_parser()
    commands = []
    for one in COMMANDS:
        own = command_parser(one)
        commands.append(
            f".SS {_safe(one.name)}\n{_text(own.description or '')}\n.PP\n{_usage(own)}\n"
            f"{_options(own)}\n{_epilog(own, level='.PP')}"
        )
    epilog = (parser.epilog or "").partition("environment:")
    return _page(
        "fallbackd-client",
        "delegate prompts through fallbackd, and see what it does",
        [
            _synopsis(parser),
            ".SH DESCRIPTION\n" + _text(parser.description or ""),
            ".SH OPTIONS\n" + _options(parser),
            ".SH COMMANDS\n" + "\n".join(commands),
            ".SH ENVIRONMENT AND EXIT STATUS\n" + _verbatim(epilog[1] + epilog[2]),
            ".SH SEE ALSO\n.BR fallbackd (1)",
        ],
    )


def _page(name: str, summary: str, sections: list[str]) -> str:
    head = f'.TH "{name.upper()}" "1" "" "fallbackd {__version__}" "User Commands"\n.ad l'
    return "\n".join([head, f".SH NAME\n{_safe(name)} \\- {_safe(summary)}", *sections]) + "\n"


def _synopsis(parser: argparse.ArgumentParser) -> str:
    return ".SH SYNOPSIS\n" + _usage(parser)


def _usage(parser: argparse.ArgumentParser) -> str:
    return _text(" ".join(parser.format_usage().removeprefix("usage: ").split()))


def _options(parser: argparse.ArgumentParser) -> str:
    lines = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
        if action.choices is not None and action.metavar is None:
            value = "{" + ",".join(map(str, action.choices)) + "}"
        names = ", ".join(f"\\fB{_safe(one)}\\fR" for one in action.option_strings)
        head = " ".join(one for one in (names, f"\\fI{_safe(value)}\\fR" if value else "") if one)
        lines.append(f".TP\n{head}\n{_text(action.help or '')}")
    return "\n".join(lines)


def _epilog(parser: argparse.ArgumentParser, level: str = ".SH NOTES") -> str:
    return f"{level}\n{_verbatim(parser.epilog)}" if parser.epilog else ""


def _verbatim(text: str) -> str:
    lines = [_safe(line) or "\\&" for line in text.strip().splitlines()]
    return ".nf\n" + "\n".join(lines) + "\n.fi"


def _text(text: str) -> str:
    return "\n".join(_safe(line) for line in text.strip().splitlines())


def _safe(text: str) -> str:
    """A line that holds no request and no escape of roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{text}" if text.startswith(".") else text
