"""A real browser and a real report to open in it; tests are skipped where there is no browser."""

import shutil
from pathlib import Path

import pytest

from fixtures.recipes import pretrain_run
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from fixtures.waiting import PATIENCE
from headstart.recipes.compare.run import CompareRequest, run_compare

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARMS = ("majority", "linear", "scratch", "pretrained")


@pytest.fixture(scope="module")  # an open browser keeps an event loop running, so no other could be started
def browser():
    """The machine's own chromium: nothing is downloaded."""
    reason = 'playwright is not installed: pip install -c constraints.txt ".[dev]"'
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("there is no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=executable)
        except playwright.Error as error:
            pytest.skip(f"{executable} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture(scope="module")  # an open browser keeps an event loop running, so no other could be started
def comparison(tmp_path_factory) -> Path:
    """Two numbers of labels, two seeds, probabilities, mistakes with their texts, a leaked text."""
    folder = write_reviews(tmp_path_factory.mktemp("reviews"), valid=60, test=60)
    leak = (folder / "train.csv").read_text().splitlines()[1]
    with (folder / "test.csv").open("a") as file:
        file.write(leak + "\n")
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=3))
    files = {name: str(folder / f"{name}.csv") for name in ("valid", "test")}
    options = {"seeds": 2, "label_budgets": (12, None), "arms": ARMS, "command": "headstart compare train.csv"}
    config = finetune_config(loop__epochs=2)
    backbones = (str(folder / "base"),)
    run_compare(
        CompareRequest(train=str(folder / "train.csv"), out=folder / "cmp", backbones=backbones, **files, **options),
        config,
    )
    return folder / "cmp"


@pytest.fixture
def browser_page(browser):
    """`browser_page(width, height, theme)` opens an empty page that records console errors and requested URLs."""
    contexts = []

    def open_page(width=1280, height=900, theme="light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.errors, page.requested = [], []
        page.on("console", lambda message: message.type == "error" and page.errors.append(message.text))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("request", lambda request: page.requested.append(request.url))
        return page

    yield open_page
    for context in contexts:
        context.close()
