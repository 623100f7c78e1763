"""The site in a browser without a window, as wide as a desktop and as a telephone."""

import functools
import http.server
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.scene import ROOT, pages

WIDTHS = (1280, 390)
LIMIT_S = 600
LOOK = """<!doctype html><body><script>
const found = {}, sleep = ms => new Promise(done => setTimeout(done, ms));
const open_ = (page, width) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.onload = () => done(frame);
  frame.src = page;
  document.body.append(frame);
});
async function look(page, width) {
  const frame = await open_(page, width), inside = frame.contentDocument;
  found[`${page} ${width}`] = {
    wide: inside.documentElement.scrollWidth,
    broken: [...inside.images].filter(one => !one.naturalWidth).map(one => one.src),
    title: inside.title,
  };
  frame.remove();
}
async function dark() {
  const frame = await open_("index.html", 1280), body = frame.contentDocument.body;
  const schemes = new Set();
  for (const one of frame.contentDocument.querySelectorAll("input[name=__palette]")) {
    one.click();
    await sleep(50);
    const ground = frame.contentWindow.getComputedStyle(body).backgroundColor;
    schemes.add(`${body.dataset.mdColorScheme} ${ground}`);
  }
  found.schemes = [...schemes];
}
async function search() {
  const frame = await open_("index.html?q=usage_limit", 1280);
  for (let tries = 0; tries < 400 && !found.hits; tries++) {
    await sleep(100);
    const hits = frame.contentDocument.querySelectorAll(".md-search-result__item a");
    if (hits.length) found.hits = [...hits].map(one => one.href);
  }
}
(async () => {
  for (const page of PAGES) for (const width of WIDTHS) await look(page, width);
  await dark();
  await search();
  await fetch("found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


class Site(http.server.SimpleHTTPRequestHandler):
    """The files of the site, and a place for what the browser has found."""

    found: "queue.Queue[dict[str, Any]]" = queue.Queue()

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("docs")
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    mkdocs = [ROOT / ".venv-docs/bin/mkdocs", "build", "--strict", "--quiet"]
    for command in (
        [sys.executable, "-m", "contrib.docs", built],
        [*mkdocs, "--config-file", built / "mkdocs.yml"],
    ):
        subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=LIMIT_S)
    return built / "site"


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    handler = functools.partial(Site, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def found(site: Path, served: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    names = sorted(str(one.relative_to(site)) for one in site.rglob("*.html"))
    names = [one for one in names if one != "404.html"]
    assert len(names) > len(list(pages()))
    script = LOOK.replace("PAGES", json.dumps(names)).replace("WIDTHS", json.dumps(WIDTHS))
    (site / "look.html").write_text(script)
    home = tmp_path_factory.mktemp("chromium")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}")
    browser = subprocess.Popen(
        ["chromium", *flags, "--remote-debugging-port=0", f"{served}/look.html"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return Site.found.get(timeout=LIMIT_S)
    finally:
        browser.terminate()
        browser.wait(LIMIT_S)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_window_and_no_picture_is_missing(
    found: dict[str, Any], width: int
) -> None:
    seen = {page: one for page, one in found.items() if page.endswith(f" {width}")}
    assert [page for page, one in seen.items() if one["wide"] > width] == []
    assert [one["broken"] for one in seen.values() if one["broken"]] == []


def test_the_site_can_be_dark(found: dict[str, Any]) -> None:
    schemes = dict(one.split(" ", 1) for one in found["schemes"])
    assert set(schemes) == {"default", "slate"}
    assert schemes["default"] != schemes["slate"]


def test_the_site_can_be_searched(found: dict[str, Any]) -> None:
    assert any("words.html" in one for one in found["hits"])
