"""Takes screenshots of pages at desktop size in light mode and at phone size in dark mode, for visual inspection.

python benchmarks/screenshots.py                          the checked-in report, into build/images
python benchmarks/screenshots.py site                     the documentation, after `make docs`, there too
python benchmarks/screenshots.py report.html --as NAME    any other page, at desktop size, into docs/images

It needs playwright and chromium. Requests to other servers are refused and reported.
"""

import argparse
import io
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES, SEEN = ROOT / "docs" / "images", ROOT / "build" / "images"
DESK, TELEPHONE = (1280, 1180, "light", 1), (360, 740, "dark", 2)
COURSE = ROOT / "docs" / "results" / "course" / "report.html"
SITE = ROOT / "build" / "site"
COLOURS = 128
"""The number of colours, which is sufficient for text and lines and keeps the files small."""
Shot = tuple[Path, tuple[int, int, str, int]]


class Silent(SimpleHTTPRequestHandler):
    """Serves a folder without logging; the search of the site needs a server."""

    def log_message(self, *_words: object) -> None:
        """Log nothing."""


def shots(what: str, name: str) -> dict[str, Shot]:
    """The pages and sizes of the screenshots, by name."""
    if what == "report":
        return {"report-desk": (COURSE, DESK), "report-phone": (COURSE, TELEPHONE)}
    if what == "site":
        return {
            "docs-desk": (SITE / "index.html", DESK),
            "docs-phone": (SITE / "index.html", TELEPHONE),
            "docs-learn-desk": (SITE / "learn" / "mask.html", DESK),
            "docs-learn-phone": (SITE / "learn" / "mask.html", TELEPHONE),
        }
    return {name: (Path(what).resolve(), (1280, 1400, "light", 1))}


def photograph(browser: Browser, page: Path, how: tuple[int, int, str, int]) -> Image.Image:
    width, height, scheme, scale = how
    size = {"width": width, "height": height}
    view = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=scale)
    requests: list[str] = []
    view.on("request", lambda request: requests.append(request.url))
    root = SITE if page.is_relative_to(SITE) else page.parent
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        view.goto(here + page.relative_to(root).as_posix(), wait_until="networkidle")
        picture = view.screenshot()
        view.close()
        server.shutdown()
    elsewhere = [url for url in requests if not url.startswith((here, "data:", "blob:"))]
    assert not elsewhere, f"{page} loads {elsewhere}"
    return Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", default="report", help="report, site, or a page")
    parser.add_argument("--as", dest="name", default="page", help="the picture's name, for a page")
    requests = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        for name, (page, how) in shots(requests.what, requests.name).items():
            path = (SEEN if requests.what in ("report", "site") else IMAGES) / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            photograph(browser, page, how).save(path, optimize=True)
            print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
