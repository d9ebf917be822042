"""The most confident mistakes of the best network, its accuracy on slices of test, and excerpts of texts."""

import html
import json
import re

import pytest

from fixtures.comparison_folder import QUOTE, make_comparison, write_answers
from headstart.errors import StoreError
from headstart.report.error_tables import MAX_SHOWN, error_tables
from headstart.report.load import load_comparison
from headstart.report.page import render, write_report
from headstart.store.records import read_excerpts, shortened, write_excerpts
from report.test_reliability import two_labels, write_probabilities

ARMS = {"majority": 0.5, "linear": 0.84, "scratch": 0.7, "pretrained": 0.8}


def page_text(page):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    return make_comparison(folder, arms=ARMS, seeds=2, texts=200, probabilities=True, extras=True)


def test_mistakes_are_sorted_by_probability(tmp_path):
    errors = error_tables(write_probabilities(tmp_path, [0, 0, 1, 1], [two_labels([0.6, 0.9, 0.99, 0.2])]))
    assert [
        (mistake.row, mistake.label, mistake.answer, mistake.probability, mistake.wrong, mistake.seeds)
        for mistake in errors.mistakes
    ] == [
        (1, "a", "b", 0.9, 1, 1),
        (3, "b", "a", 0.8, 1, 1),
        (0, "a", "b", 0.6, 1, 1),
    ]


def test_probabilities_of_mistakes_are_means_over_seeds(tmp_path):
    """One seed is sure and wrong, the other right: together they are wrong, by less."""
    errors = error_tables(write_probabilities(tmp_path, [0, 0], [two_labels([0.95, 0.6]), two_labels([0.3, 0.7])]))
    assert [(mistake.row, mistake.probability, mistake.wrong, mistake.seeds) for mistake in errors.mistakes] == [
        (1, 0.65, 2, 2),
        (0, 0.625, 1, 2),
    ]


def test_the_network_is_selected_on_validation_and_shown_beside_the_linear_arm(folder):
    errors = error_tables(load_comparison(folder))
    assert (errors.arm, errors.linear, len(errors.mistakes)) == ("pretrained", "linear", MAX_SHOWN)
    by = [(text_slice.by, text_slice.name) for text_slice in errors.slices]
    assert [grouping for grouping, _ in by] == ["length"] * 4 + ["label"] * 2
    assert by[-2:] == [("label", "negative"), ("label", "positive")]
    assert sum(text_slice.texts for text_slice in errors.slices if text_slice.by == "length") == 200
    for text_slice in errors.slices:
        assert text_slice.accuracy.low < text_slice.accuracy.mean < text_slice.accuracy.high
        assert text_slice.linear.texts == text_slice.accuracy.texts == text_slice.texts


def test_without_probabilities_and_lengths_there_are_only_slices_by_label(tmp_path):
    errors = error_tables(load_comparison(write_answers(tmp_path, {"scratch": {0: "1101"}})))
    assert errors.mistakes == ()
    assert [(text_slice.name, text_slice.accuracy.mean) for text_slice in errors.slices] == [
        ("negative", 0.5),
        ("positive", 1.0),
    ]
    assert error_tables(load_comparison(write_answers(tmp_path / "linear", {"linear": {0: "1101"}}))) is None


def test_the_page_lists_mistakes_with_their_texts(folder):
    comparison = load_comparison(folder)
    text = page_text(render(comparison))
    assert "Where the pretrained network makes errors" in text
    first = error_tables(comparison).mistakes[0]
    figures = f"{100 * first.probability:.1f} % {first.wrong} of 2"
    assert f"{first.row + 1} {first.label} {first.answer} {figures} {QUOTE} {first.row}" in text
    assert text.count(QUOTE) == MAX_SHOWN
    assert max(map(len, comparison.excerpts.values())) <= 160


def test_a_report_without_texts_contains_no_user_text(folder, tmp_path):
    for texts in (True, False):
        write_report(folder, tmp_path / str(texts), texts=texts)
    with_texts, without_texts = ((tmp_path / name).rglob("*.*") for name in ("True", "False"))
    assert sum(QUOTE.encode() in path.read_bytes() for path in with_texts) == 1  # control: the page, and no other file
    for path in without_texts:
        content = path.read_bytes()
        assert QUOTE.encode() not in content, path
        assert b"gens qui ont lu ce livre" not in content, path  # nor generated text
    assert "Errors with the highest probability" in page_text((tmp_path / "False" / "report.html").read_text("utf-8"))


def test_a_text_cannot_become_markup(tmp_path):
    comparison = write_probabilities(tmp_path, [0, 0], [two_labels([0.95, 0.6])])
    write_excerpts(tmp_path, {error_tables(comparison).mistakes[0].row: "<img src=x onerror=alert(1)> & <b>"})
    page = render(load_comparison(tmp_path))
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt; &amp; &lt;b&gt;" in page


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        ("a  short\n text", "a short text"),
        ("x" * 200, "x" * 159 + "…"),
        ("word " * 60, ("word " * 31).strip() + " …"),
        ("steer \x1b[2J\u202ethe page", "steer [2J the page"),
    ],
)
def test_an_excerpt_is_one_short_line(text, excerpt):
    assert shortened(text) == excerpt
    assert len(shortened(text)) <= 160


@pytest.mark.parametrize("content", [[], {"texts": []}, {"texts": {"x": "a"}}, {"texts": {"1": 2}}])
def test_damaged_excerpts_are_named_and_refused(tmp_path, content):
    assert read_excerpts(tmp_path) == {}
    path = tmp_path / "quotes.json"
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError) as error:
        read_excerpts(tmp_path)
    assert str(error.value) == f"{path} is damaged: it does not list texts by row"
