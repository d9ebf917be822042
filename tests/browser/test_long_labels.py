"""The served page with long labels and with files of other columns, and the report with many labels."""

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from fixtures.comparison_folder import make_comparison
from fixtures.serving import Server, open_page
from fixtures.small_models import TEXTS, jittered, shape, tokenizer
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.report.page import write_report
from headstart.store.bundle import Bundle, save_bundle
from headstart.tasks import SingleLabel

LABELS = (
    "Checking or savings account",
    "Credit reporting, credit repair services, or other personal consumer reports",
    "mortgage",
    "prepaid_card_activation_problem",
    *(f"another label, number {number}" for number in range(10)),
)
BROKEN_WORDS = r"""(selector) => {
  const broken = [];
  for (const root of document.querySelectorAll(selector)) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      for (const match of walker.currentNode.data.matchAll(/\S+/g)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, match.index);
        range.setEnd(walker.currentNode, match.index + match[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(match[0]);
      }
    }
  }
  return broken;
}"""
"""The words that are on more than one line."""


@pytest.fixture(scope="module")
def server(tmp_path_factory, browser):
    config, words = shape("classic"), tokenizer()
    head = build_classifier_head(config, len(LABELS), 0, "causal")
    model = jittered(Model(build_backbone(config, words.vocab_size, 0), head))
    about = {"labelled": {"text_column": "narrative", "second_column": None, "label_column": "product"}}
    folder = tmp_path_factory.mktemp("long") / "complaints"
    save_bundle(folder, Bundle(model, words, SingleLabel(LABELS), about=about))
    with Server(folder) as server:
        yield server


@pytest.mark.parametrize("width", [360, 1200])
def test_long_labels_do_not_break_words(server, browser_page, width):
    page = browser_page(width, 800)
    open_page(page, server.url)
    page.locator("#text").fill("my mortgage representative promised " + TEXTS[0])
    page.wait_for_selector("#why:not([hidden])")
    assert page.locator("#strongest tbody tr").count() == 5
    assert page.evaluate(BROKEN_WORDS, "#strongest, #probabilities") == []
    page_width, window_width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert page_width <= window_width
    page.evaluate("document.querySelector('#strongest').style.width = '5rem'")  # control
    page.evaluate("for (const cell of document.querySelectorAll('#strongest th')) cell.style.wordBreak = 'break-all'")
    page.evaluate("for (const cell of document.querySelectorAll('#strongest th')) cell.style.maxWidth = '1rem'")
    assert page.evaluate(BROKEN_WORDS, "#strongest") != []


def test_only_some_of_many_labels_are_listed_at_the_top(server, browser_page):
    page = browser_page()
    open_page(page, server.url)
    facts = page.locator("#facts").inner_text()
    assert "another label, number 7 and 2 more. Texts longer than 64 tokens are truncated." in facts
    assert "number 8" not in facts


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("id,text,narrative,product", "narrative"),  # the one of training
        ("id,comment,text,product", "text"),  # else the usual names in the order of the command line
        ("id,subject,story,product", "story"),  # else the longest cells
    ],
)
def test_the_text_column_of_a_file_is_chosen_as_in_training(server, browser_page, tmp_path, header, column):
    names = header.split(",")
    cells = ["7", "a subject", "a long story about a bank", "mortgage"]
    path = tmp_path / "in.csv"
    path.write_text(f"{header}\n{','.join(cells)}\n")
    page = browser_page()
    open_page(page, server.url)
    page.set_input_files("#csv", path)
    page.wait_for_selector("#columns:not([hidden])")
    assert page.eval_on_selector("#column", "select => select.options[select.selectedIndex].text") == column
    assert page.eval_on_selector_all("#column option", "options => options.map((one) => one.text)") == names


@pytest.fixture(scope="module")
def report_of_many_labels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    labels = [f"a label with a long name, number {number}" for number in range(40)]
    make_comparison(folder, arms={"tfidf": 0.7, "pretrained": 0.8}, seeds=1, texts=400, labels=labels)
    return write_report(folder)


@pytest.mark.parametrize("width", [360, 1200])
def test_a_confusion_matrix_of_many_labels_scrolls_within_its_figure(browser_page, report_of_many_labels, width):
    page = browser_page(width, 800)
    page.goto(report_of_many_labels.as_uri())
    page_width, window_width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert page_width <= window_width
    matrix = page.locator(".sideways svg").last
    assert matrix.locator("text", has_text="a label with a long nam").count() == 80  # on both axes
    heights = matrix.locator("text").evaluate_all("texts => texts.map((one) => one.getBoundingClientRect().width)")
    assert min(heights) > 5  # not shrunk to the width of a phone
