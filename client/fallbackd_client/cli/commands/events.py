"""`events`: what happens, one line each."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import threading

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, clean, clock, note, one_line, style_of
from fallbackd_client.cli.views import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=int, metavar="N", help="begin after event number N")
    parser.add_argument("--kinds", metavar="K", help="kinds, separated by commas")
    parser.add_argument("--session", metavar="S", help="only of this session")
    parser.add_argument("--count", type=int, metavar="N", help="end after that many")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="until interrupted (the default)"
    )


def run(args: argparse.Namespace, client: Client) -> int:
    kinds = None
    if args.kinds:
        kinds = [kind.strip() for kind in args.kinds.split(",") if kind.strip()]
    left = args.count
    if left is not None and left < 1:
        return exits.OK
    style = style_of(sys.stdout)
    threading.Thread(target=_end_with_reader, daemon=True).start()
    events = client.events(
        since=args.since,
        kinds=kinds,
        session=args.session,
        on_warning=lambda text: note(f"warning: {text}"),
    )
    for event in events:
        if args.json:
            print(json.dumps(event, ensure_ascii=True).replace("\x7f", "\\u007f"), flush=True)
        else:
            print(event_line(clean(event), style), flush=True)
        if left is not None:
            left -= 1
            if left == 0:
                break
    return exits.OK


def _end_with_reader() -> None:
    """Exit once a pipe has no reader: the next event, which would fail, may be far away."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except OSError:  # no descriptor of the system
        return
    poll.poll()
    os._exit(exits.FAILED)


def event_line(event: dict[str, Json], style: Style) -> str:
    """`12 14:05:09 health.moved backend=codex …`."""
    shown = dict(event)
    seq, at, kind = shown.pop("seq", None), shown.pop("at", None), shown.pop("kind", "?")
    shown.pop("subscription", None)
    words = [
        "-" if seq is None else str(seq),
        "" if at is None else clock(at, now()),
        style.paint(one_line(kind), "cyan"),
    ]
    words += [
        f"{name}={_value(name, value)}" for name, value in shown.items() if value not in (None, "")
    ]
    return " ".join(word for word in words if word)


def _value(name: str, value: Json) -> str:
    if name.endswith("_at") and isinstance(value, int | float):
        return clock(value, now()).replace(" ", "T")
    text = one_line(value if isinstance(value, str | int | float) else json.dumps(value))
    return f'"{text}"' if " " in text else text
