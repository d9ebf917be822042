"""The page of a server in a real browser: narrow and wide, light and dark, by keyboard, without other origins."""

import csv
import os
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from fixtures.serving import Server, open_page
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from headstart.cli.main import run

SHOTS = os.environ.get("HEADSTART_SCREENSHOTS")
"""A folder for screenshots."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from fixtures.recipes import finetune_run, pretrain_run

    folder = write_reviews(tmp_path_factory.mktemp("page"), train=200, valid=80, test=30)
    pretrain_run([str(folder / "texts.txt")], folder / "film-texts", pretrain_config(loop__steps=24))
    config = finetune_config(loop__epochs=4)
    finetune_run(
        str(folder / "train.csv"),
        folder / "film-reviews",
        config,
        backbone=str(folder / "film-texts"),
        valid=str(folder / "valid.csv"),
        test=str(folder / "test.csv"),
    )
    (folder / "film-reviews" / "report.html").write_text("<!doctype html><title>report</title><h1>The report</h1>")
    return folder


@pytest.fixture(scope="module")
def servers(folder, browser):
    with (
        Server(folder / "film-reviews") as classifier,
        Server(folder / "film-texts") as language,
        Server(folder / "film-reviews", HEADSTART_API_KEY="open-sesame") as locked,
    ):
        yield classifier, language, locked


def save_screenshot(page, name):
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def check_page(page, url):
    """Check that there is no error, no request to another origin, and nothing wider than the window."""
    assert page.errors == []
    assert page.requested
    assert [address for address in page.requested if not address.startswith((url, "data:", "blob:"))] == []
    page_width, window_width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert page_width <= window_width


@pytest.mark.parametrize(("grade", "shown"), [("poor", True), ("unclear", True), ("better", False)])
def test_a_model_that_is_not_better_than_its_baselines_says_so(servers, browser_page, grade, shown):
    page = browser_page(360, 800, "light")

    def set_grade(route):
        quality = {"grade": grade, "sentence": "test accuracy 0.5000: `headstart auto` would use another"}
        route.fulfill(json=route.fetch().json() | {"quality": quality})

    page.route("**/about", set_grade)
    open_page(page, servers[0].url)
    page.wait_for_function("document.title === 'film-reviews'")
    assert page.locator("#quality").is_visible() is shown
    assert page.locator("#quality").text_content() == "test accuracy 0.5000: headstart auto would use another"


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (360, "light"),
        (1280, "dark"),
        pytest.param(360, "dark", marks=pytest.mark.slow),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_typing_shows_a_label_and_the_weights_of_words(servers, browser_page, width, theme):
    page = browser_page(width, 800, theme)
    open_page(page, servers[0].url)
    page.locator("#text").press_sequentially("a superb and lovely film, but dull")
    page.wait_for_selector("#why:not([hidden])")
    status = page.locator("#answer").inner_text()
    assert status.split(",")[0] in ("negative", "positive")
    assert "%" in status
    assert page.locator("#answer").get_attribute("role") == "status"
    assert page.locator("#probabilities li").count() == 2
    signs = page.locator("#words sup").all_inner_texts()
    assert set(signs) <= {"+", "−"}
    assert signs
    strongest = page.locator("#strongest tbody tr").all_inner_texts()
    assert len(strongest) == 5
    assert {row.split("\t")[1] for row in strongest} <= {"for", "against"}
    assert page.locator("#curves svg").count() == 2
    assert page.locator("#report a").is_visible()
    check_page(page, servers[0].url)
    assert (page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(22, 24, 27)") == (
        theme == "dark"
    )
    save_screenshot(page, f"classifier-{width}-{theme}")


def test_the_page_can_be_used_with_the_keyboard(servers, browser_page):
    page = browser_page()
    open_page(page, servers[0].url)
    page.locator("#text:focus").wait_for()
    page.keyboard.type("a superb and lovely story")
    reached = []
    for _ in range(3):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('href')"))
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none"
    assert reached == ["precision", "csv", "report"]
    unnamed = """[...document.querySelectorAll('input, select, textarea, button, progress')].filter(node => node.offsetParent
        && !(node.labels?.length || node.ariaLabel || node.textContent.trim())).map(node => node.id)"""
    assert page.evaluate(unnamed) == []


def test_the_page_says_that_a_long_text_was_truncated(servers, browser_page):
    page = browser_page()
    open_page(page, servers[0].url)
    page.locator("#text").fill("the film was superb " * 20)
    page.wait_for_selector("#remark:not([hidden])")
    assert page.locator("#remark").inner_text() == "The text was truncated: the model uses the first 24 tokens."
    page.locator("#text").fill("")
    page.wait_for_selector("#remark", state="hidden")
    assert page.locator("#answer").inner_text() == "No text yet."


@pytest.mark.parametrize(
    ("precision", "separator", "encoding", "declaration"),
    [
        ("", ",", "utf-8", ""),
        pytest.param("0.95", ";", "utf-8-sig", "", marks=pytest.mark.slow),
        pytest.param("", "\t", "utf-8", "", marks=pytest.mark.slow),
        ("0.95", ";", "utf-8-sig", "sep=;\n"),
    ],
)
def test_a_labelled_csv_equals_the_output_of_predict(
    servers, browser_page, folder, tmp_path, precision, separator, encoding, declaration
):
    rows = [["id, or number", "review", "label"]]
    for number in range(150):
        rows.append([str(number), f'a "superb" film,\nbut {"dull" * (number % 3)} é', "x"])
    rows[7][1] = "  "
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with source.open("w", newline="", encoding=encoding) as file:
        file.write(declaration)
        csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(rows)
    page = browser_page(360, 800)
    open_page(page, servers[0].url)
    page.wait_for_selector("#file:not([hidden])")
    if precision:
        page.locator("#precision").select_option(precision)
    page.locator("#csv").set_input_files(source)
    page.wait_for_selector("#columns:not([hidden])")
    assert page.locator("#column").evaluate("box => box.selectedOptions[0].textContent") == "review"
    page.locator("#label-rows").click()
    page.wait_for_selector("#download:not([hidden])")
    status = page.locator("#file-status").inner_text()
    assert status.startswith("Done: 149 rows labelled. 1 row without text unchanged.")
    with page.expect_download() as download:
        page.locator("#download").click()
    assert download.value.suggested_filename == "in-labelled.csv"
    arguments = ["predict", folder / "film-reviews", "--input", source, "--out", out, "--quiet", "--runtime.threads", 1]
    arguments += ["--abstain", precision] if precision else []
    assert run([str(argument) for argument in arguments]) == 0
    contents = [path.read_text(encoding=encoding) for path in (download.value.path(), out)]
    assert all(text.startswith(declaration) for text in contents)
    labelled, expected_rows = (
        list(csv.reader(text.removeprefix(declaration).splitlines(keepends=True), delimiter=separator))
        for text in contents
    )
    assert labelled[0][:3] == rows[0]
    assert [path.read_bytes()[:1] == b"\xef" for path in (download.value.path(), out)] == [encoding == "utf-8-sig"] * 2
    assert len(labelled) == len(expected_rows) == 151
    for row, expected_row in zip(labelled, expected_rows, strict=True):
        for cell, expected in zip(row, expected_row, strict=True):
            # probabilities may differ in the last digit: they were scored in other batches
            assert cell == expected or float(cell) == pytest.approx(float(expected), abs=2e-6)
    check_page(page, servers[0].url)
    save_screenshot(page, f"file-{precision or 'all'}")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"text\n\xff\xfe\n", "in.csv is not UTF-8 text; save it as CSV in UTF-8."),
        (b"text\n", "The file has no rows below its header."),
        (b"a,b\n1,2\n3\n", "Row 2 has 1 cell, the header has 2."),
        (b'a,b\n1,"2\n', "Row 1 has an opening quotation mark without a closing one."),
    ],
)
def test_the_page_says_why_a_file_cannot_be_read(servers, browser_page, tmp_path, content, line):
    (tmp_path / "in.csv").write_bytes(content)
    page = browser_page()
    open_page(page, servers[0].url)
    page.wait_for_selector("#file:not([hidden])")
    page.locator("#csv").set_input_files(tmp_path / "in.csv")
    page.wait_for_selector("#file-status.bad")
    assert page.locator("#file-status").inner_text() == line
    assert page.errors == []


@pytest.mark.parametrize(("width", "theme"), [(360, "light"), (1280, "dark")])
def test_a_language_model_shows_candidates_and_generates(servers, browser_page, width, theme):
    page = browser_page(width, 800, theme)
    open_page(page, servers[1].url)
    page.locator("#prompt").fill("the film")
    page.locator("#next li").nth(5).wait_for()
    page.locator("#next button:enabled").first.click()
    assert len(page.locator("#prompt").input_value()) > len("the film")
    before = page.locator("#prompt").input_value()
    page.locator("#temperature").select_option("0")
    page.locator("#go-on").click()
    page.wait_for_selector("#stop-generating", state="hidden")
    page.locator("#next li").nth(5).wait_for()
    after = page.locator("#prompt").input_value()
    assert after.startswith(before)
    assert len(after) > len(before)
    check_page(page, servers[1].url)
    save_screenshot(page, f"language-{width}-{theme}")


def test_the_page_asks_for_the_key(servers, browser_page):
    page = browser_page(360, 700)
    open_page(page, servers[2].url)
    page.wait_for_selector("#key-form:not([hidden])")
    assert page.locator("#facts").inner_text() == "this server requires an API key: Authorization: Bearer KEY"
    page.locator("#key").fill("open-sesame")
    page.keyboard.press("Enter")
    page.wait_for_selector("#classify:not([hidden])")
    assert page.locator("#key-form").is_hidden()
    assert page.locator("#name").inner_text() == "film-reviews"


def test_the_page_links_to_the_report(servers, browser_page):
    page = browser_page()
    open_page(page, servers[0].url)
    page.locator("#report a").click()
    page.wait_for_selector("h1")
    assert page.locator("h1").inner_text() == "The report"
