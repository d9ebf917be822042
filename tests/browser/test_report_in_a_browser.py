"""The report as people see it: on a telephone and on a desk, by day and by night, without a network."""

import json
from pathlib import Path

import pytest

SIZES = {"telephone": (360, 740), "desk": (1280, 900)}
LOOKS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
CONTRAST = (Path(__file__).parent / "contrast.js").read_text("utf-8")


class Opened:
    """A page, and what happened while it opened."""

    def __init__(self, browser, path, size, scheme):
        width, height = SIZES[size]
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.asked, self.complaints = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.route("**/*", self._refuse)
        self.address = path.as_uri()
        self.page.goto(self.address)

    def _refuse(self, route):
        self.asked.append(route.request.url)
        if route.request.url == self.address:
            route.continue_()
        else:
            route.abort()


@pytest.fixture(scope="module", params=LOOKS, ids="-".join)
def opened(request, browser, comparison):
    opened = Opened(browser, comparison / "report.html", *request.param)
    yield opened
    opened.context.close()


def test_it_asks_for_nothing_and_complains_of_nothing(opened):
    assert opened.asked == [opened.address]
    assert opened.complaints == []


def test_a_page_that_asks_for_more_would_be_noticed(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<img src='https://example.invalid/a.png'><script>console.error('a complaint')</script>")
    opened = Opened(browser, page, "desk", "light")
    opened.page.wait_for_load_state()
    assert "https://example.invalid/a.png" in opened.asked
    assert "a complaint" in opened.complaints
    opened.context.close()


def test_the_verdict_stands_first_and_without_scrolling(opened, comparison):
    first = json.loads((comparison / "results.json").read_text())["verdict"][0]
    heading = opened.page.locator("h1")
    assert heading.inner_text().replace("\N{NO-BREAK SPACE}", " ") == first
    box, window = heading.bounding_box(), opened.page.viewport_size
    assert box["y"] + box["height"] < window["height"]
    order = "[...document.querySelectorAll('h1, h2, h3, table, svg, .verdict, .glance')].map((each) => each.tagName)"
    assert opened.page.evaluate(order)[:2] == ["H1", "P"]


def test_nothing_has_to_be_pushed_sideways(opened):
    """With everything unfolded: neither the page nor, on a telephone, any table in it."""
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    whole, window = page.evaluate(widths)
    assert whole <= window
    wider = """[...document.querySelectorAll('main *')].filter((each) => each.scrollWidth > each.clientWidth + 1
        && getComputedStyle(each).display !== 'inline' && !each.closest('svg, thead')).map((each) => each.className)"""
    if window < 640:
        assert page.evaluate(wider) == []
    page.evaluate("document.querySelector('h1').style.width = '3000px'")
    assert page.evaluate(widths)[0] > window  # control
    page.reload()


def test_every_figure_has_a_name_and_one_size_of_it_is_shown(opened):
    page = opened.page
    shown = [each for each in page.locator("svg").all() if each.is_visible()]
    names = [each.get_attribute("aria-label") for each in shown]
    assert {each.get_attribute("role") for each in shown} == {"img"}
    assert all(name.endswith(".") and len(name) > 30 for name in names)
    assert len(shown) == 3 + 3 + 3  # curves, matrices, diagrams
    assert page.get_by_role("img", name="Accuracy on validation after every epoch").count() == 1


def test_a_table_is_read_aloud_as_one_also_where_it_looks_like_cards(opened):
    page = opened.page
    table = page.get_by_role("table").first
    assert table.get_by_role("row").count() >= 2
    assert table.get_by_role("rowheader", name="All labels").count() == 1
    assert table.get_by_role("row", name="All labels").get_by_role("cell").count() >= 4


def test_all_text_can_be_read(opened):
    """Contrast of at least 4.5 with whatever lies under it, in tables and in figures."""
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
    found = page.evaluate(CONTRAST)
    assert len(found) > 200
    assert any(each["kind"] == "svg" for each in found)
    assert [each for each in found if each["ratio"] < 4.5] == []
    page.add_style_tag(content=".soft { color: #777 !important; }")
    assert [each for each in page.evaluate(CONTRAST) if each["ratio"] < 4.5]  # control: grey is on neither ground
    page.reload()


def test_day_and_night_look_different(browser, comparison):
    grounds = []
    for scheme in ("light", "dark"):
        opened = Opened(browser, comparison / "report.html", "desk", scheme)
        grounds.append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        opened.context.close()
    assert len(set(grounds)) == 2


def test_everything_that_unfolds_is_reached_and_opened_by_keys(opened):
    page = opened.page
    page.reload()
    folded = page.locator("summary").count()
    assert folded >= 6
    reached = []
    for _ in range(folded):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
    assert reached == ["SUMMARY"] * folded
    assert page.locator("details[open]").count() == folded
