"""The page of `stats --html`: it loads nothing, runs nothing, and shows every text as text."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli

from fallbackd_client.cli.page import STYLE, made

UNTIL = 1767268800.0
PARTS = 168
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "b", "ul", "li"),
    *("figure", "figcaption", "span", "svg", "rect", "line", "path", "polyline", "table", "thead"),
    *("tbody", "tr", "th", "td"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "viewbox", "role"),
    *("preserveaspectratio", "aria-label", "aria-hidden", "x", "y", "width", "height"),
    *("x1", "x2", "y1", "y2", "points", "d"),
}
ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "</title></style><svg onload=alert(1)>",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "\u202egnp.exe\x1b]0;x\x07",
)


def a_backend(name: str = "codex", **more: Any) -> dict[str, Any]:
    return {
        "backend": name,
        "seconds": {"healthy": 500_000.0, "rate_limited": 7200.0},
        "availability": 0.986,
        "calls": 25,
        "answered": 23,
        "failed": 2,
        "reasons": {"usage_limit": 2},
        "mean_s": 20.0,
        "longest_s": 61.0,
        "input_tokens": 1000,
        "output_tokens": 100,
        "cost_usd": 0.125,
        "strip": ["", "stopped", *["healthy"] * 100, *["rate_limited", "cooldown"] * 33],
        "calls_by": [number % 7 for number in range(PARTS)],
        "failed_by": [number % 14 // 12 for number in range(PARTS)],
        "mean_s_by": [None if number % 5 else 3.0 + number for number in range(PARTS)],
        "plan_by": {"5h": [None, *[number % 100 for number in range(PARTS - 1)]]},
        **more,
    }


def a_share(name: str) -> dict[str, Any]:
    used = {"input_tokens": 5, "output_tokens": 5, "cost_usd": 0.001}
    return {"name": name, "requests": 15, "answered": 14, "rescued": 3, **used}


def report(text: str = "codex", **more: Any) -> dict[str, Any]:
    """A report in which every field that is a text holds this one."""
    return {
        "since_at": UNTIL - 7 * 86_400.0,
        "until_at": UNTIL,
        "bucket_s": 3600.0,
        "hours": 168,
        "known_since_at": UNTIL - 86_400.0,
        "requests": 30,
        "answered": 29,
        "rescued": 6,
        "backends": [
            a_backend(
                text,
                reasons={text: 2},
                strip=[text] * PARTS,
                plan_by={text: [50.0] * PARTS},
                seconds={text: 5.0},
            ),
            a_backend(f"{text} 2"),
        ],
        "chains": [{"chain": text, "backends": [text], "seconds": 9.0, "availability": 1.0}],
        "outages": [
            {
                "backend": text,
                "state": text,
                "reason": text,
                "began_at": UNTIL - 7200.0,
                "ended_at": None,
            }
        ],
        "outages_total": 1,
        "failovers": [{"left": text, "to": text, "reason": text, "count": 6}],
        "roles": [a_share(text)],
        "projects": [a_share(text)],
        **more,
    }


class Seen(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_in_any_field_stays_text(attack: str) -> None:
    seen = Seen(made(report(attack)))
    assert seen.tags <= ALLOWED
    assert seen.attributes <= ATTRIBUTES
    shown = attack.replace("\u202e", "").partition("\x1b")[0]
    assert seen.words.count(shown) >= 5
    assert "\x1b" not in made(report(attack))
    assert "\u202e" not in made(report(attack))


def test_it_names_no_address_and_allows_nothing_but_its_own_style() -> None:
    page = made(report())
    assert not re.search(r"(?i)https?:|//|url\(|@import|<script|<link|<img| on\w+=| style=", page)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    [style] = re.findall(r"<style>(.*)</style>", page, re.S)
    assert style == STYLE


def test_figures_stand_with_their_time_and_their_number() -> None:
    words = " ".join(Seen(made(report())).words)
    for wanted in (
        "29 of 30",
        "available 98.6% of 5s",
        "25 calls, 2 failed; bars up to 6; line: mean time of an answer, up to 2m 48s",
        "last 50 %, highest 50 %",
        "6 (codex 6)",
        "2h, still out",
        "nothing is known before",
    ):
        assert wanted in words


def test_a_page_is_small_also_where_there_is_much_to_show() -> None:
    backends = [a_backend(f"openrouter/vendor-{number}/some-model") for number in range(40)]
    outage = report()["outages"][0]
    page = made(
        report(
            backends=backends,
            outages=[outage] * 200,
            outages_total=900,
            projects=[a_share(f"/home/person/projects/number-{n}") for n in range(50)],
        )
    )
    assert len(page.encode()) < 250_000
    assert len(made(report()).encode()) < 40_000
    assert "Outages: the last 100 of 900" in page


def test_a_time_without_figures_is_a_page_too() -> None:
    page = made({"since_at": 1.0, "until_at": 2.0, "bucket_s": 1.0, "backends": []})
    assert "Nothing is known of this time yet" in page


def test_the_command_writes_the_page_for_its_owner_alone(run_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    ran = run_cli(["stats", "--html", str(path)], {"stats": report()})
    assert (ran.code, ran.out) == (0, "")
    assert path.read_text().startswith("<!doctype html>")
    assert path.stat().st_mode & 0o777 == 0o600
    [asked] = [one["params"] for one in ran.server.requests if one["method"] == "stats"]
    assert asked["buckets"] == PARTS


def test_a_file_that_cannot_be_written_is_said(run_cli: RunCli, tmp_path: Path) -> None:
    ran = run_cli(["stats", "--html", str(tmp_path / "no" / "page.html")], {"stats": report()})
    assert ran.code == 2
    assert "cannot write" in ran.err
