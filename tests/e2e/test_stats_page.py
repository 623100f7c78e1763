"""The page of `stats --html` in a browser without a window: on a desktop and a telephone."""

import http.server
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.cli.test_page import ATTACKS, report

from fallbackd_client.cli.page import made

LIMIT_S = 300
WIDTHS = (1280, 390)
LOOK = """<!doctype html><body><script>
const open_ = width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.onload = () => done(frame);
  frame.src = "page.html";
  document.body.append(frame);
});
(async () => {
  const found = {wide: {}};
  for (const width of WIDTHS) {
    const inside = (await open_(width)).contentDocument;
    found.wide[width] = inside.documentElement.scrollWidth;
    const bars = [...inside.querySelectorAll("figure svg")];
    found.drawn = bars.length && bars.every(one => one.getBoundingClientRect().width > 200);
    found.ground = getComputedStyle(inside.body).backgroundColor;
    found.hostile = inside.querySelectorAll("script, img, [onload], [onerror]").length;
    found.text = inside.body.textContent;
  }
  await fetch("found", {method: "POST", body: JSON.stringify(found)});
})();
</script>""".replace("WIDTHS", json.dumps(WIDTHS))


class Site(http.server.BaseHTTPRequestHandler):
    page = ""
    asked: list[str]
    found: "queue.Queue[dict[str, Any]]"

    def do_GET(self) -> None:
        self.asked.append(self.path)
        text = {"/look.html": LOOK, "/page.html": self.page}.get(self.path, "")
        self.send_response(200 if text else 404)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[type[Site], str]]:
    kind = type("Site", (Site,), {"asked": [], "found": queue.Queue()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield kind, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def looked(address: str, kind: type[Site], home: Path, *flags: str) -> dict[str, Any]:
    always = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}")
    browser = subprocess.Popen(
        ["chromium", *always, *flags, "--remote-debugging-port=0", f"{address}/look.html"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return kind.found.get(timeout=LIMIT_S)
    finally:
        browser.terminate()
        browser.wait(LIMIT_S)


def test_it_fits_both_widths_asks_for_nothing_and_is_light_or_dark(
    site: tuple[type[Site], str], tmp_path: Path
) -> None:
    kind, address = site
    kind.page = made(report())
    light = looked(address, kind, tmp_path / "light")
    dark = looked(address, kind, tmp_path / "dark", "--force-dark-mode")
    for found in (light, dark):
        assert all(found["wide"][str(width)] <= width for width in WIDTHS)
        assert found["drawn"]
    assert (light["ground"], dark["ground"]) == ("rgb(255, 255, 255)", "rgb(15, 19, 24)")
    assert set(kind.asked) <= {"/look.html", "/page.html", "/favicon.ico"}


@pytest.mark.parametrize("attack", ATTACKS[:4])
def test_a_browser_makes_nothing_of_text_in_a_field(
    site: tuple[type[Site], str], tmp_path: Path, attack: str
) -> None:
    kind, address = site
    kind.page = made(report(attack))
    found = looked(address, kind, tmp_path / "home")
    assert found["hostile"] == 0
    assert attack in found["text"]
    assert set(kind.asked) <= {"/look.html", "/page.html", "/favicon.ico"}
