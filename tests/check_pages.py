"""Look at every page of the built book in headless Chromium, wide and narrow; the tests that need a browser.

    python tests/check_pages.py _build/html --screenshots _build/screenshots

On each page: no request leaves the host, every formula is typeset without an error node, the console is silent, nothing
scrolls sideways, no path of the building machine shows, links within the book lead somewhere. Besides: search finds
"alpha", and each figure marked ``data-explorable`` changes when its control is moved.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = (1280, 390)
TALLEST = 12_000
PATIENCE = 120_000  # milliseconds; a busy machine takes its time over the longest pages
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
NEEDED = """check-pages needs a Chromium or Chrome: on Debian or Ubuntu `apt-get install chromium`, on macOS
`brew install --cask chromium`, anywhere `python -m playwright install chromium`; then run it again."""

# What is wrong on the open page, as sentences.
FAULTS = """() => {
  const said = [];
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth + 1) {
    const wide = [...document.querySelectorAll("article *")].filter(e => {
      if (e.getBoundingClientRect().right <= root.clientWidth + 1) return false;
      for (let p = e.parentElement; p; p = p.parentElement)
        if (/auto|scroll|hidden/.test(getComputedStyle(p).overflowX) && p !== document.body) return false;
      return true;
    });
    const first = wide.length ? wide[wide.length - 1] : root;
    const name = `${first.tagName.toLowerCase()}.${first.getAttribute("class") || ""}`;
    said.push(`scrolls sideways: ${root.scrollWidth} px in ${root.clientWidth}, ${name}: ` +
      first.textContent.trim().slice(0, 60));
  }
  const formulas = [...document.querySelectorAll("span.math, div.math")];
  const raw = formulas.filter(e => !e.querySelector("mjx-container"));
  if (raw.length)
    said.push(`${raw.length} of ${formulas.length} formulas not typeset: ${raw[0].textContent.slice(0, 60)}`);
  const wrong = document.querySelectorAll("mjx-merror, [data-mjx-error]");
  if (wrong.length) {
    const why = wrong[0].getAttribute("data-mjx-error") || wrong[0].textContent;
    said.push(`${wrong.length} formulas with an error: ${why}`);
  }
  const prose = document.querySelector("article, main").cloneNode(true);
  for (const code of prose.querySelectorAll("pre, code, script, mjx-container, .highlight")) code.remove();
  const text = prose.textContent;
  const left = text.match(/(\\\\(alpha|frac|beta|gamma|sum|le|ge)\\b|\\$\\$|\\{(verdict|glue|cite|eq|ref)[:a-z]*\\}`)/);
  if (left) said.push(`source text shows: ${left[0]}`);
  for (const image of document.images)
    if (!image.complete || image.naturalWidth === 0) said.push(`broken picture: ${image.src.slice(0, 80)}`);
  return said;
}"""
# Formulas that have to be scrolled in their own box: no fault, but better split.
LONG = """() => [...document.querySelectorAll("article div.math")]
  .filter(e => e.scrollWidth > e.clientWidth + 2)
  .map(e => (e.closest("[id]") || {}).id || "")"""
LINKS = "() => [...document.querySelectorAll('a[href]')].map(a => new URL(a.getAttribute('href'), location).href)"
IDS = "() => [...document.querySelectorAll('[id]')].map(e => e.id)"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free local port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def browser_path() -> str | None:
    """Where a browser is, or None for the one that playwright itself may have."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    return found or (MAC if Path(MAC).is_file() else None)


def look(page: Any, address: str, noise: list[str], picture: Path | None) -> list[str]:
    """Open an address, take its picture, and return what is wrong with it."""
    noise.clear()
    page.goto(address, wait_until="load")
    page.evaluate("() => window.MathJax?.startup?.promise")
    page.evaluate("() => document.fonts.ready.then(() => null)")
    page.wait_for_timeout(150)
    if picture is not None:
        size = page.evaluate("() => [document.scrollingElement.clientWidth, document.scrollingElement.scrollHeight]")
        # The records run to a hundred thousand pixels, more than a picture can hold.
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], TALLEST)}
        page.screenshot(path=str(picture), full_page=True, clip=clip)
    # What is folded away has to be right, too.
    page.evaluate("() => document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.wait_for_timeout(50)
    faults = [*page.evaluate(FAULTS), *noise]
    if str(ROOT) in page.content():
        faults.append("shows a path of this machine")
    return faults


def explorables(page: Any) -> list[str]:
    """Move every control of every figure marked ``data-explorable`` and see whether its picture changes."""
    faults = []
    for number, figure in enumerate(page.query_selector_all("[data-explorable]"), 1):
        name = figure.get_attribute("data-explorable") or figure.get_attribute("id") or f"number {number}"
        controls = figure.query_selector_all("input, select")
        if not controls:
            faults.append(f"explorable {name} has no control")
        for control in controls:
            before = figure.inner_html()
            control.evaluate(
                """e => {
                  if (e.tagName === "SELECT") e.selectedIndex = (e.selectedIndex + 1) % e.options.length;
                  else if (e.type === "checkbox") e.checked = !e.checked;
                  else if (e.type === "radio") e.checked = true;
                  else { const old = e.value; e.value = e.max; if (e.value === old) e.value = e.min; }
                  e.dispatchEvent(new Event("input", {bubbles: true}));
                  e.dispatchEvent(new Event("change", {bubbles: true}));
                }"""
            )
            page.wait_for_timeout(80)
            if figure.inner_html() == before and control.get_attribute("type") != "radio":
                label = (
                    control.get_attribute("aria-label") or control.get_attribute("name") or control.get_attribute("id")
                )
                faults.append(f"explorable {name} does not change when {label} is moved")
    return faults


def search(page: Any, base: str, word: str) -> list[str]:
    """Ask the book's own search for a word."""
    page.goto(f"{base}/search.html?q={word}", wait_until="load")
    try:
        page.wait_for_selector("#search-results li a", timeout=PATIENCE // 4)
    except Exception:
        return [f"search for {word!r} finds nothing"]
    return []


def index_filter(page: Any, base: str) -> list[str]:
    """The index of claims hides what is not asked for."""
    page.goto(f"{base}/book/claims-index.html", wait_until="load")
    menu = page.query_selector('.claim-filter select[data-filter="verdict"]')
    if menu is None:
        return ["the index of claims has no filter"]
    every = len(page.query_selector_all(".claim-row"))
    menu.evaluate("e => { e.selectedIndex = 1; e.dispatchEvent(new Event('input', {bubbles: true})); }")
    shown = len(page.query_selector_all(".claim-row:not([hidden])"))
    kinds = len(menu.query_selector_all("option")) - 1
    if shown == 0 or (kinds > 1 and shown == every):
        return [f"the index of claims shows {shown} of {every} rows for one of {kinds} verdicts"]
    return []


def run(html: Path, shots: Path | None) -> tuple[int, list[str]]:
    """Look at every page; returns how many looks were taken and what was wrong."""
    from playwright.sync_api import sync_playwright

    pages = sorted(p.relative_to(html).as_posix() for p in html.rglob("*.html") if "_static" not in p.parts)
    pages = [name for name in pages if name not in ("index.html", "search.html", "genindex.html", "py-modindex.html")]
    looks, faults = 0, []
    links: set[tuple[str, str]] = set()
    if shots is not None:
        shutil.rmtree(shots, ignore_errors=True)
        shots.mkdir(parents=True)
    ids: dict[str, set[str]] = {}
    with served(html) as base, sync_playwright() as play, tempfile.TemporaryDirectory() as profile:
        context = play.chromium.launch_persistent_context(profile, executable_path=browser_path(), args=list(FLAGS))
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        noise: list[str] = []
        page.on(
            "console", lambda m: noise.append(f"console: {m.text[:200]}") if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda e: noise.append(f"script error: {str(e)[:200]}"))
        page.on("response", lambda r: noise.append(f"{r.status} for {r.url}") if r.status >= 400 else None)

        def outside(request: Any) -> None:
            if not request.url.startswith((base, "data:", "blob:", "about:")):
                noise.append(f"request leaves the host: {request.url[:150]}")

        context.on("request", outside)
        for name in pages:
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                picture = shots / f"{name.removesuffix('.html').replace('/', '-')}-{width}.png" if shots else None
                found = look(page, f"{base}/{name}", noise, picture)
                long = page.evaluate(LONG)
                if long:
                    where = ", ".join(sorted(set(long)))
                    print(f"  note: {name} at {width} px: {len(long)} formulas wider than the text, in {where}")
                found += explorables(page)
                looks += 1
                faults += [f"{name} at {width} px: {fault}" for fault in found]
            ids[name] = set(page.evaluate(IDS))
            links.update((name, link) for link in page.evaluate(LINKS) if link.startswith(base))
        for check in (lambda: search(page, base, "alpha"), lambda: index_filter(page, base)):
            looks += 1
            faults += check()
        context.close()
        for name, link in sorted(links):
            target, fragment = urldefrag(urljoin(f"{base}/{name}", link))
            path = unquote(urlsplit(target).path).lstrip("/")
            if not (html / path).exists():
                faults.append(f"{name}: a link leads nowhere: {path}")
            elif fragment and path in ids and unquote(fragment) not in ids[path]:
                faults.append(f"{name}: a link leads to no place on {path}: #{fragment}")
    return looks, faults


def main() -> int:
    """Check, report, and close with a line that says how it went."""
    parser = argparse.ArgumentParser(description="Look at every page of the book in a browser.")
    parser.add_argument("html", type=Path)
    parser.add_argument("--screenshots", type=Path)
    args = parser.parse_args()
    if not (args.html / "index.html").is_file():
        print(f"no book at {args.html}: make book", file=sys.stderr)
        return 2
    from playwright.sync_api import Error

    try:
        looks, faults = run(args.html.resolve(), args.screenshots)
    except Error as fault:
        if browser_path() is None:
            print(NEEDED, file=sys.stderr)
            return 2
        raise SystemExit(f"the browser failed: {str(fault).splitlines()[0]}") from fault
    for fault in faults:
        print(f"  {fault}")
    where = f"; screenshots in {args.screenshots}" if args.screenshots else ""
    bad = len({fault.split(":")[0] for fault in faults})
    print(f"pages: {looks} looks, {len(faults)} faults{where}")
    print(f"{max(looks - bad, 0)} passed, {bad} failed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
