"""Photographs the checked-in report on a desk by day and on a telephone by night, into docs/images.

python benchmarks/screenshots.py            (needs playwright and chromium)
"""

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "course" / "report.html"
SHOTS = {"report-desk": (1280, 1180, "light", 1), "report-phone": (360, 740, "dark", 2)}
COLOURS = 128
"""So many are enough for text and lines, and keep a picture small."""


def main() -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        for name, (width, height, scheme, scale) in SHOTS.items():
            size = {"width": width, "height": height}
            page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=scale)
            page.goto(PAGE.as_uri())
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS)
            path = ROOT / "docs" / "images" / f"{name}.png"
            picture.save(path, optimize=True)
            print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
