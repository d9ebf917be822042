"""The report in a real browser: on phone and desktop, in light and dark mode, offline."""

import json
from pathlib import Path

import pytest

SIZES = {"phone": (360, 740), "desktop": (1280, 900)}
VARIANTS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
CONTRAST = (Path(__file__).parent / "contrast.js").read_text("utf-8")


class OpenedPage:
    """A page, and the requests and errors while it opened."""

    def __init__(self, browser, path, size, scheme):
        width, height = SIZES[size]
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.requested, self.errors = [], []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.route("**/*", self._refuse)
        self.address = path.as_uri()
        self.page.goto(self.address)

    def _refuse(self, route):
        self.requested.append(route.request.url)
        if route.request.url == self.address:
            route.continue_()
        else:
            route.abort()


@pytest.fixture(scope="module", params=VARIANTS, ids="-".join)
def opened(request, browser, comparison):
    opened = OpenedPage(browser, comparison / "report.html", *request.param)
    yield opened
    opened.context.close()


def test_the_report_loads_nothing_else_and_logs_no_error(opened):
    assert opened.requested == [opened.address]
    assert opened.errors == []


def test_a_page_that_loads_something_else_would_be_noticed(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<img src='https://example.invalid/a.png'><script>console.error('an error')</script>")
    opened = OpenedPage(browser, page, "desktop", "light")
    opened.page.wait_for_load_state()
    assert "https://example.invalid/a.png" in opened.requested
    assert "an error" in opened.errors
    opened.context.close()


def test_the_verdict_is_first_and_visible_without_scrolling(opened, comparison):
    first = json.loads((comparison / "results.json").read_text())["verdict"][0]
    heading = opened.page.locator("h1")
    assert heading.inner_text().replace("\N{NO-BREAK SPACE}", " ") == first
    box, window = heading.bounding_box(), opened.page.viewport_size
    assert box["y"] + box["height"] < window["height"]
    order = "[...document.querySelectorAll('h1, h2, h3, table, svg, .verdict, .tiles')].map((node) => node.tagName)"
    assert opened.page.evaluate(order)[:2] == ["H1", "P"]


def test_the_report_needs_no_horizontal_scrolling(opened):
    """With all details open, neither the page nor, on a phone, any table is wider than the window."""
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    page_width, window = page.evaluate(widths)
    assert page_width <= window
    wider = """[...document.querySelectorAll('main *')].filter((node) => node.scrollWidth > node.clientWidth + 1
        && getComputedStyle(node).display !== 'inline' && !node.closest('svg, thead')).map((node) => node.className)"""
    if window < 640:
        assert page.evaluate(wider) == []
    page.evaluate("document.querySelector('h1').style.width = '3000px'")
    assert page.evaluate(widths)[0] > window  # control
    page.reload()


def test_every_figure_is_labelled_and_shown_in_one_size(opened):
    page = opened.page
    shown = [figure for figure in page.locator("svg").all() if figure.is_visible()]
    names = [figure.get_attribute("aria-label") for figure in shown]
    assert {figure.get_attribute("role") for figure in shown} == {"img"}
    assert all(name.endswith(".") and len(name) > 30 for name in names)
    assert len(shown) == 3 + 3 + 3  # curves, matrices, diagrams
    assert page.get_by_role("img", name="Accuracy on validation after every epoch").count() == 1


def test_a_table_keeps_its_roles_where_it_is_shown_as_cards(opened):
    page = opened.page
    table = page.get_by_role("table").first
    assert table.get_by_role("row").count() >= 2
    assert table.get_by_role("rowheader", name="All labels").count() == 1
    assert table.get_by_role("row", name="All labels").get_by_role("cell").count() >= 4


def test_all_text_of_the_report_has_enough_contrast(opened):
    """The contrast with the background is at least 4.5, in tables and in figures."""
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
    texts = page.evaluate(CONTRAST)
    assert len(texts) > 200
    assert any(text["kind"] == "svg" for text in texts)
    assert [text for text in texts if text["ratio"] < 4.5] == []
    page.add_style_tag(content=".soft { color: #777 !important; }")
    assert [text for text in page.evaluate(CONTRAST) if text["ratio"] < 4.5]  # control: grey fails in both modes
    page.reload()


def test_light_and_dark_mode_have_different_backgrounds(browser, comparison):
    backgrounds = []
    for scheme in ("light", "dark"):
        opened = OpenedPage(browser, comparison / "report.html", "desktop", scheme)
        backgrounds.append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        opened.context.close()
    assert len(set(backgrounds)) == 2


def test_all_details_can_be_opened_with_the_keyboard(opened):
    page = opened.page
    page.reload()
    num_details = page.locator("summary").count()
    assert num_details >= 6
    reached = []
    for _ in range(num_details):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
    assert reached == ["SUMMARY"] * num_details
    assert page.locator("details[open]").count() == num_details
