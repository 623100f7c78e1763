"""
The page of `stats --html`: one file that loads nothing, runs nothing, and is read with any browser.

Its drawings are SVG without a script. Every text from outside goes through `esc`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import time

from fallbackd_client.cli.output import duration, percent, safe, usd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fallbackd_client.calls import Json

MOST_DRAWN = 12
"""Backends that are drawn, those with most calls; all are in the table."""
MOST_OUTAGES = 100
HEIGHTS = {
    "healthy": 20,
    "cooldown": 15,
    "rate_limited": 10,
    "broken": 5,
    "paused": 7,
    "stopped": 1,
}
"""Height of a state in a strip: they differ without their colours too."""
WORDS = {"cooldown": "recovering", "stopped": "no daemon ran"}
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--soft:#f3f5f7;
--healthy:#0072b2;--cooldown:#56b4e9;--rate_limited:#e69f00;--broken:#d55e00;--paused:#aa4499;
--stopped:#8c959f}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6edf3;--dim:#9aa7b4;--line:#30363d;
--soft:#171c23;--healthy:#4aa3df;--cooldown:#9fd4f5;--rate_limited:#f0b429;--broken:#ff7b39;
--paused:#d48bc8;--stopped:#6e7681}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:72rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
p{margin:.3rem 0}.dim,figcaption{color:var(--dim);font-size:.87rem}
figure{margin:0 0 1rem}figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;
gap:0 1rem}
figcaption b{color:var(--fg);font-size:1rem}
svg{display:block;width:100%;height:2.2rem;background:var(--soft);border-radius:3px}
svg.tall{height:5.5rem}
.healthy{fill:var(--healthy)}.cooldown{fill:var(--cooldown)}.rate_limited{fill:var(--rate_limited)}
.broken{fill:var(--broken)}.paused{fill:var(--paused)}.stopped{fill:var(--stopped)}
.line{fill:none;stroke:var(--healthy);stroke-width:2;vector-effect:non-scaling-stroke}
.time{stroke:var(--fg);stroke-width:1.5}
.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;padding:0;margin:.4rem 0 1rem;
font-size:.87rem}.key svg{display:inline-block;width:1.1rem;height:1.1rem;margin-right:.35rem;
vertical-align:-.2rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem;min-width:100%}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:normal}th{color:var(--dim);font-weight:600;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));
gap:.8rem;margin:1.2rem 0}
.cards div{background:var(--soft);border-radius:6px;padding:.7rem .9rem}
.cards b{display:block;font-size:1.5rem;line-height:1.2}
""".replace("\n", "")


def esc(value: object) -> str:
    return html.escape(safe(str(value)), quote=True)


def made(found: dict[str, Json]) -> str:
    """
    Args:
        found: The answer of `stats`.
    """
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>fallbackd: {esc(_window(found))}</title>",
            f"<style>{STYLE}</style></head><body>",
            *body(found),
            "</body></html>\n",
        ]
    )


def body(found: dict[str, Json]) -> Iterable[str]:
    backends: list[dict[str, Json]] = found.get("backends") or []
    drawn = sorted(backends, key=lambda one: -one["calls"])[:MOST_DRAWN]
    yield "<h1>What happened over time</h1>"
    yield f'<p class="dim">{esc(_window(found))}. {esc(_known(found))}</p>'
    if not backends:
        yield "<p>Nothing is known of this time yet: figures are kept from the first call on.</p>"
        return
    yield from _cards(found)
    yield "<h2>States of each backend</h2>"
    yield _key()
    for one in drawn:
        yield _strip(one, found)
    yield from _section("Use of plans", (_plan(one, found) for one in drawn))
    yield from _section("Calls and how long they took", (_calls(one, found) for one in drawn))
    yield from _section("All backends", [_backends(backends)])
    yield from _section("Failovers", [_matrix(found.get("failovers") or [])])
    yield from _section("Chains", [_chains(found.get("chains") or [])])
    yield from _section(_outages_title(found), [_outages(found)])
    for title in ("roles", "projects"):
        yield from _section(f"By {title[:-1]}", [_shares(title, found.get(title) or [])])


def _section(title: str, parts: Iterable[str]) -> list[str]:
    shown = [part for part in parts if part]
    return [f"<h2>{esc(title)}</h2>", *shown] if shown else []


def at(instant: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(instant))


def _window(found: dict[str, Json]) -> str:
    return f"{at(found['since_at'])} to {at(found['until_at'])}"


def _known(found: dict[str, Json]) -> str:
    known = found.get("known_since_at")
    hours = f"{found.get('hours', 0)} hours of backends"
    if known is None or known <= found["since_at"] + 3600:
        return f"From {hours}."
    return f"From {hours}; nothing is known before {at(known)}."


def _cards(found: dict[str, Json]) -> Iterable[str]:
    requests, answered = found.get("requests", 0), found.get("answered", 0)
    cost = [one["cost_usd"] for one in found["backends"] if one.get("cost_usd") is not None]
    yield '<div class="cards">'
    for number, words in (
        (f"{answered} of {requests}", "requests answered"),
        (str(found.get("rescued", 0)), "of them by another backend than asked"),
        (str(found.get("outages_total", 0)), "outages"),
        (usd(sum(cost)) if cost else "not stated", "cost"),
    ):
        yield f"<div><b>{esc(number)}</b>{esc(words)}</div>"
    yield "</div>"


def _key() -> str:
    items = (
        f'<li><svg viewBox="0 0 20 20" aria-hidden="true"><rect class="{state}" y="{20 - height}"'
        f' width="20" height="{height}"/></svg>{esc(WORDS.get(state, state))}</li>'
        for state, height in HEIGHTS.items()
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def _svg(parts: int, height: int, inside: str, label: str, *, tall: bool = False) -> str:
    kind = ' class="tall"' if tall else ""
    return (
        f'<svg{kind} viewBox="0 0 {parts} {height}" preserveAspectRatio="none" role="img"'
        f' aria-label="{esc(label)}">{inside}</svg>'
    )


def _figure(name: str, words: str, drawing: str, found: dict[str, Json]) -> str:
    ends = f"<span>{at(found['since_at'])}</span><span>{at(found['until_at'])}</span>"
    return (
        f"<figure><figcaption><b>{esc(name)}</b><span>{esc(words)}</span></figcaption>{drawing}"
        f"<figcaption>{ends}</figcaption></figure>"
    )


def _runs(strip: Sequence[str]) -> Iterable[tuple[int, int, str]]:
    """Parts of one state behind each other: (first, number, state)."""
    begin = 0
    for place in range(1, len(strip) + 1):
        if place == len(strip) or strip[place] != strip[begin]:
            yield begin, place - begin, strip[begin]
            begin = place


def _strip(one: dict[str, Json], found: dict[str, Json]) -> str:
    since, length = found["since_at"], found["bucket_s"]
    shapes = []
    for begin, number, state in _runs(one["strip"]):
        height = HEIGHTS.get(state, 0)
        if not height:
            continue
        title = f"{WORDS.get(state, state)} from {at(since + begin * length)}"
        shapes.append(
            f'<rect class="{esc(state)}" x="{begin}" y="{20 - height}" width="{number}"'
            f' height="{height}"><title>{esc(title)}</title></rect>'
        )
    known = sum(value for state, value in one["seconds"].items() if state != "stopped")
    words = f"available {percent(one.get('availability'))} of {duration(known)}"
    drawing = _svg(len(one["strip"]), 20, "".join(shapes), f"{one['backend']}: {words}")
    return _figure(one["backend"], words, drawing, found)


def _line(row: Sequence[float | None], most: float, *, kind: str = "line") -> str:
    """The known values as lines, each over its part of the time; 100 is the height."""
    lines, points = [], []
    for place, value in enumerate([*row, None]):
        if value is not None:
            y = 100 - 100 * min(1.0, value / most)
            points += [f"{place},{y:.1f}", f"{place + 1},{y:.1f}"]
        elif points:
            lines.append(f'<polyline class="{kind}" points="{" ".join(points)}"/>')
            points = []
    return "".join(lines)


def _plan(one: dict[str, Json], found: dict[str, Json]) -> str:
    drawn = []
    for window, row in sorted((one.get("plan_by") or {}).items()):
        seen = [value for value in row if value is not None]
        if not seen:
            continue
        grid = "".join(
            f'<line class="grid" x1="0" x2="{len(row)}" y1="{y}" y2="{y}"/>' for y in (20, 50)
        )
        words = f"last {seen[-1]:.0f} %, highest {max(seen):.0f} % (lines at 50 % and 80 %)"
        name = f"{one['backend']}, {window}"
        drawing = _svg(len(row), 100, grid + _line(row, 100.0), f"{name}: {words}", tall=True)
        drawn.append(_figure(name, words, drawing, found))
    return "".join(drawn)


def _bars(counts: Sequence[int], most: int, kind: str) -> str:
    bars = (
        f"M{place}.1 100V{100 - 100 * count / most:.0f}h.8V100z"
        for place, count in enumerate(counts)
        if count
    )
    return f'<path class="{kind}" d="{"".join(bars)}"/>'


def _calls(one: dict[str, Json], found: dict[str, Json]) -> str:
    most = max(one["calls_by"], default=0)
    if not most:
        return ""
    shapes = [_bars(one["calls_by"], most, "cooldown"), _bars(one["failed_by"], most, "broken")]
    slowest = max((value for value in one["mean_s_by"] if value is not None), default=0.0)
    if slowest:
        shapes.append(_line(one["mean_s_by"], slowest * 1.05, kind="line time"))
    words = f"{one['calls']} calls, {one['failed']} failed; bars up to {most}"
    if slowest:
        words += f"; line: mean time of an answer, up to {duration(slowest)}"
    drawing = _svg(
        len(one["calls_by"]), 100, "".join(shapes), f"{one['backend']}: {words}", tall=True
    )
    return _figure(one["backend"], words, drawing, found)


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1) -> str:
    """
    Args:
        words: Columns at the beginning that hold words; the others hold numbers.
    """
    shown = list(rows)
    if not shown:
        return ""
    kinds = ["" if place < words else ' class="n"' for place in range(len(headers))]
    head = "".join(f"<th{kind}>{esc(one)}</th>" for one, kind in zip(headers, kinds, strict=True))
    lines = (
        "<tr>"
        + "".join(f"<td{kind}>{esc(one)}</td>" for one, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in shown
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _backends(backends: Sequence[dict[str, Json]]) -> str:
    headers = ["Backend", "Failures", "Available", "Calls", "Failed", "Mean", "Longest"]
    return _table(
        [*headers, "Tokens in", "Tokens out", "Cost"],
        (
            [
                one["backend"],
                ", ".join(f"{reason} {count}" for reason, count in one["reasons"].items()),
                percent(one.get("availability")),
                one["calls"],
                one["failed"],
                "" if one.get("mean_s") is None else duration(one["mean_s"]),
                duration(one["longest_s"]) if one["longest_s"] else "",
                one["input_tokens"],
                one["output_tokens"],
                usd(one.get("cost_usd")),
            ]
            for one in backends
        ),
        words=2,
    )


def _matrix(failovers: Sequence[dict[str, Json]]) -> str:
    lefts = list(dict.fromkeys(one["left"] for one in failovers))
    tos = list(dict.fromkeys(one["to"] for one in failovers))
    rows = []
    for left in lefts:
        cells = []
        for to in tos:
            here = [one for one in failovers if (one["left"], one["to"]) == (left, to)]
            reasons = ", ".join(f"{one['reason']} {one['count']}" for one in here)
            whole = sum(one["count"] for one in here)
            cells.append(f"{whole} ({reasons})" if whole else "")
        rows.append([left, *cells])
    return _table(["From", *(f"to {to}" for to in tos)], rows)


def _chains(chains: Sequence[dict[str, Json]]) -> str:
    return _table(
        ["Chain", "Backends", "Available", "Of"],
        (
            [
                one["chain"],
                ", ".join(one["backends"]),
                percent(one.get("availability")),
                duration(one["seconds"]),
            ]
            for one in chains
            if one.get("availability") is not None
        ),
        words=2,
    )


def _outages_title(found: dict[str, Json]) -> str:
    whole, shown = found.get("outages_total", 0), min(MOST_OUTAGES, len(found.get("outages") or []))
    return "Outages" if shown == whole else f"Outages: the last {shown} of {whole}"


def _outages(found: dict[str, Json]) -> str:
    until = found["until_at"]
    return _table(
        ["Began", "Backend", "State", "Reason", "Lasted"],
        (
            [
                at(one["began_at"]),
                one["backend"],
                WORDS.get(one["state"], one["state"]),
                one.get("reason") or "",
                duration((one.get("ended_at") or until) - one["began_at"])
                + ("" if one.get("ended_at") is not None else ", still out"),
            ]
            for one in (found.get("outages") or [])[:MOST_OUTAGES]
        ),
        words=5,
    )


def _shares(title: str, rows: Sequence[dict[str, Json]]) -> str:
    if not any(one["name"] for one in rows):
        return ""
    return _table(
        [title[:-1].capitalize(), "Requests", "Answered", "By another", "Tokens", "Cost"],
        (
            [
                one["name"] or "(none)",
                one["requests"],
                one["answered"],
                one["rescued"],
                one["input_tokens"] + one["output_tokens"],
                usd(one.get("cost_usd")),
            ]
            for one in rows
        ),
    )
