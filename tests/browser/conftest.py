"""A real browser, for pages that people look at; tests skip, saying so, where there is none."""

import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    """The machine's own chromium: nothing is downloaded."""
    reason = 'playwright is not installed: pip install -c constraints.txt ".[dev]"'
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=found)
        except playwright.Error as error:
            pytest.skip(f"{found} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def browser_page(browser):
    """`browser_page(width, height, theme)`: an empty page; `.complaints` and `.asked` say what it complains of and asks for."""
    contexts = []

    def open_page(width=1280, height=900, theme="light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.complaints, page.asked = [], []
        page.on("console", lambda message: message.type == "error" and page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        return page

    yield open_page
    for context in contexts:
        context.close()
