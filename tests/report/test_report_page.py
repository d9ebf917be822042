"""The page, the figures and the tables of a report."""

import csv
import html.parser
import json
import re
from itertools import pairwise

import numpy as np
import pytest

from fixtures.comparison_folder import make_comparison, write_answers
from headstart.errors import StoreError
from headstart.report.figures import (
    COLOURS,
    FURTHER,
    PercentFormatter,
    confusion_figures,
    confusion_width,
    report_figures,
    svg,
)
from headstart.report.load import load_comparison
from headstart.report.page import render, write_report

ARMS = {"majority": 0.5, "linear": 0.84, "scratch": 0.75, "pretrained": 0.8}
EVIL = "<script>alert('$x$ & y')</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    make_comparison(folder, arms=ARMS, seeds=2, budgets=(100, "all"), texts=600, look_at_test=True, extras=True)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text("utf-8")


class Reader(html.parser.HTMLParser):
    """Collects the tags, links, ids and words of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.links, self.words, self.ids = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        self.links += [values[name] for name in ("src", "href", "xlink:href", "action", "data") if name in values]
        self.ids += [values["id"]] if "id" in values else []

    def handle_data(self, data):
        self.words.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    return reader


def test_a_report_has_a_page_two_tables_and_figures(folder):
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix != ".json")
    assert [name for name in names if not name.startswith(("cells", "figures/"))] == [
        *("figures", "report.html", "results.csv")
    ]
    assert [name for name in names if name.startswith("figures/")] == [
        f"figures/{name}.{suffix}"
        for name in (
            *("budgets", "confusion-linear", "confusion-pretrained", "confusion-scratch"),
            *("curves-test", "curves", "test"),
        )
        for suffix in ("png", "svg")
    ]


def test_a_report_has_the_same_bytes_in_another_folder(folder, tmp_path):
    assert write_report(folder, tmp_path / "out") == tmp_path / "out" / "report.html"
    names = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(names) == 17
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_page_fetches_nothing(page):
    reader = read(page)
    assert reader.links  # control: the figures point into themselves
    assert all(link.startswith("#") for link in reader.links)
    assert not re.search(r"url\((?!#)|@import|<!doctype svg", page, re.IGNORECASE)
    assert not {"script", "link", "iframe", "img", "object", "form"} & set(reader.tags)


def test_ids_are_unique_on_a_page(page):
    ids = read(page).ids
    assert len(ids) == len(set(ids)) > 50


def test_the_verdict_is_at_the_top(page, folder):
    first = json.loads((folder / "results.json").read_text())["verdict"][0]
    heading = page[page.index("<h1>") + 4 : page.index("</h1>")]
    assert re.sub(r"<[^>]+>", "", heading).replace("\N{NO-BREAK SPACE}", " ") == first
    assert first.startswith("The linear model is best: ")
    assert page.index("<h1>") < page.index('<p class="verdict">') < page.index("<figure") < page.index("<table")


@pytest.mark.parametrize(
    "words",
    [
        "negative 800, positive 800",
        "aaaaaaaaaaaa",
        "8 rows of test appear verbatim in train.",
        "* without the 12 test texts with an exact duplicate in train.",
        "headstart compare train.jsonl --valid valid.jsonl --test test.jsonl --from runs/lm --seeds 5",
        "10,968,602",
        "L (4 d (d+1) + ff (d+1) + d (ff+1) + 4 d)",
        "runs/lm/bundle",
        "600 × 200",
        "Bonjour les",
        "gens qui ont lu ce livre",
        '{"lr": 0.0001, "optimizer": "adam"}',
        "2.11.0",
        "Validation chose the epoch of each network",
        "Test was also measured after every epoch",
    ],
)
def test_the_page_contains_data_settings_and_extras(page, words):
    assert words in " ".join("".join(read(page).words).split())


def test_a_page_without_extras_has_no_empty_sections(tmp_path):
    text = render(load_comparison(write_answers(tmp_path, {"majority": {0: "1010"}, "linear": {0: "1110"}})))
    for words in (
        "Parameters of the classifier",
        "Transferred weights",
        "Text generated",
        "exact duplicate in train",
        ">Settings<",
    ):
        assert words not in text
    assert "Test was read once per run" in text


def test_names_cannot_become_markup(tmp_path):
    labels = (EVIL, "b")
    answers = {"majority": {0: "1010"}, "linear": {0: "1110"}, "scratch": {0: "1100"}, "pretrained": {0: "1110"}}
    write_answers(tmp_path, answers, labels=labels)
    for name in ("run", "environment", "config"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"command": EVIL, EVIL: EVIL}))
    (tmp_path / "samples.json").write_text(json.dumps([{"prompt": EVIL, "text": EVIL}]))
    (tmp_path / "receipt.json").write_text(json.dumps({"source": EVIL, "moved": [{"name": EVIL, "shape": [1]}]}))
    (tmp_path / "ledger.json").write_text(json.dumps({"classifier": [{"part": EVIL, "formula": EVIL, "count": 1}]}))
    text = write_report(tmp_path).read_text("utf-8")
    assert "script" not in read(text).tags
    assert "<script" not in text.lower()
    assert "".join(read(text).words).count(EVIL) >= 8  # control: they are all there, as words


def test_results_csv_has_a_row_per_run(folder):
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(list((folder / "cells").iterdir())) == 14
    run = json.loads((folder / "cells" / "pretrained-all-seed1.json").read_text())
    assert rows[-1] == {
        "arm": "pretrained",
        "labels": "all",
        "rows": "1600",
        "seed": "1",
        "valid_accuracy": str(run["valid"]["accuracy"]),
        "valid_macro_f1": str(run["valid"]["macro_f1"]),
        "test_accuracy": str(run["test"]["accuracy"]),
        "test_macro_f1": str(run["test"]["macro_f1"]),
        "best_epoch": str(run["best_epoch"]),
        "epochs": "15",
        "seconds": "141.0",
        "setting": '{"lr": 0.0001}',
    }


def test_results_json_has_the_verdict_the_summaries_and_the_differences(tmp_path):
    folder = write_answers(
        tmp_path,
        {"majority": {0: "1010"}, "linear": {0: "1110"}, "scratch": {0: "1100"}, "pretrained": {0: "1111"}},
    )
    write_report(folder)
    results = json.loads((folder / "results.json").read_text())
    assert sorted(results) == ["arms", "differences", "errors", "format", "gain", "missing", "verdict"]
    assert [(arm["arm"], arm["test_accuracy"]["mean"]) for arm in results["arms"]] == [
        ("majority", 0.5),
        ("linear", 0.75),
        ("scratch", 0.5),
        ("pretrained", 1.0),
    ]
    assert [(row["arm"], row["other"], row["estimate"]["mean"]) for row in results["differences"]] == [
        ("pretrained", "scratch", 0.5),
        ("pretrained", "linear", 0.25),
        ("scratch", "linear", -0.25),
    ]
    assert results["missing"] == []


def test_lines_are_labelled_with_arm_and_accuracy(folder):
    (figure,) = [figure for figure in report_figures(load_comparison(folder)) if figure.name == "curves"]
    text = svg(figure.draw(7.4))
    for name in ("linear 8", "majority 5", "pretrained 7", "from scratch 7", "epoch", "accuracy on validation (1,600"):
        assert f">{name}" in text, name


@pytest.mark.parametrize("name", ["curves", "budgets"])
def test_the_ticks_of_an_axis_are_evenly_spaced_as_they_are_written(folder, name):
    """Ticks at every 2.5 would be written 48, 50, 52, 55."""
    (figure,) = [figure for figure in report_figures(load_comparison(folder)) if figure.name == name]
    drawn = figure.draw(7.4)
    svg(drawn)
    ticks = [float(tick.get_text().removesuffix(" %")) for tick in drawn.axes[0].get_yticklabels()]
    steps = {round(later - earlier, 3) for earlier, later in pairwise(ticks)}
    assert len(ticks) >= 3
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("values", "shown"),
    [([0.5, 0.55, 0.6], ["50 %", "55 %", "60 %"]), ([0.5, 0.505, 0.51], ["50.0 %", "50.5 %", "51.0 %"])],
)
def test_ticks_closer_than_a_percent_have_a_decimal(values, shown):
    assert PercentFormatter().format_ticks(values) == shown


def test_every_colour_of_an_arm_has_a_light_and_a_dark_shade_on_the_page(page):
    for name in (*COLOURS, *FURTHER, "other"):
        assert page.count(f"--{name}: #") == 2, name


def test_the_curve_over_labels_has_a_band_for_every_arm_but_the_majority(folder):
    (figure,) = [figure for figure in report_figures(load_comparison(folder)) if figure.name == "budgets"]
    assert figure.caption == (
        "Test accuracy by number of labels: mean over seeds, and the band its 95 % interval over seeds and test texts."
    )
    axes = figure.draw(3.9).axes[0]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["100", "1,600"]
    corners = [band.get_paths()[0].vertices for band in axes.collections]
    heights = [np.ptp(polygon[polygon[:, 0] == 100, 1]) for polygon in corners]
    assert [height > 0.01 for height in heights] == [False, True, True, True]  # in the order of arms: majority first


def test_labels_of_lines_that_end_together_do_not_overlap(tmp_path):
    answers = {arm: {0: "1110"} for arm in ("naive_bayes", "linear", "scratch", "pretrained")}
    curves = {"scratch": (0.5, 0.75), "pretrained": (0.6, 0.75)}
    text = svg(report_figures(load_comparison(write_answers(tmp_path, answers, curves=curves)))[0].draw(7.4))
    heights = [
        float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>(?:naive Bayes|linear|from scratch|pretrained) 75', text)
    ]
    assert len(heights) == 4
    assert min(abs(a - b) for a in heights for b in heights if a is not b) > 10


@pytest.mark.parametrize("labels", [4, 24])
def test_many_labels_and_few_arms_still_make_a_page(tmp_path, labels):
    names = tuple(f"label number {index}" for index in range(labels))
    make_comparison(tmp_path, arms={"linear": 0.7, "scratch": 0.6}, seeds=1, texts=60, labels=names)
    assert "label number 2" in render(load_comparison(tmp_path))


def test_a_path_that_cannot_be_written_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as error:
        write_report(folder, tmp_path / "file")
    assert str(error.value) == f"cannot write {tmp_path / 'file'}: {tmp_path / 'file'} is a file, not a folder"


@pytest.mark.parametrize(
    ("select", "sentence"),
    [
        ("last", "The last epoch of a network is reported."),
        ("best", "Validation chose the epoch of each network, and nothing else was chosen."),
    ],
)
def test_the_page_says_which_epoch_was_selected(tmp_path, select, sentence):
    write_answers(tmp_path, {"scratch": {0: "1100"}, "pretrained": {0: "1111"}})
    (tmp_path / "config.json").write_text(json.dumps({"loop": {"select": select}}))
    page = render(load_comparison(tmp_path))
    assert sentence in page
    sentences = ("The last epoch of a network is reported.", "Validation chose the epoch of each network")
    assert [text in page for text in sentences] == [select == "last", select == "best"]
    other = {"last": "best", "best": "last"}[select]
    assert f">{select} epoch</th>" in page
    assert f'data-label="{select} epoch"' in page
    assert f"{other} epoch<" not in page
    assert f'data-label="{other} epoch"' not in page


def test_a_confusion_matrix_of_many_labels_has_all_names_and_its_caption_the_commonest_mistakes(tmp_path):
    labels = [f"label number {number}" for number in range(77)]
    make_comparison(tmp_path, arms={"tfidf": 0.7, "pretrained": 0.8}, seeds=2, texts=1500, labels=labels)
    comparison = load_comparison(tmp_path)
    figure = confusion_figures(comparison)[-1]
    axes = figure.draw(confusion_width(len(labels))).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == labels
    assert [tick.get_text() for tick in axes.get_xticklabels()] == labels
    counts = np.sum([run.test.confusion for run in comparison.runs_of("pretrained", "all")], axis=0)
    worst = np.where(np.eye(77, dtype=bool), 0, counts)
    row, column = np.unravel_index(worst.argmax(), worst.shape)
    percent = 100 * worst.max() / counts[row].sum()
    assert figure.caption.startswith(
        "Fraction of the test texts of each true label by predicted label, 2 seeds together. Most often confused: "
        f"label number {row} predicted as label number {column} ({percent:.0f} % of its texts); "
    )


def test_a_caption_of_few_labels_names_no_mistakes(tmp_path):
    make_comparison(tmp_path, arms={"tfidf": 0.7}, seeds=1, texts=60, labels=("a", "b", "c"))
    (figure,) = confusion_figures(load_comparison(tmp_path))
    assert figure.caption == "Fraction of the test texts of each true label by predicted label."


def test_the_page_says_what_validation_chose_and_what_the_linear_arms_see(tmp_path):
    linear = "The linear model uses n-grams of one or two words and of two to five characters of the training rows"
    tfidf = "TF-IDF + logistic regression uses words and pairs of words of the training rows."
    chosen = " and the regularization of the linear arm, and nothing else was chosen."
    write_answers(tmp_path / "new", {"majority": {0: "1010"}, "linear": {0: "1110"}})
    page = render(load_comparison(tmp_path / "new"))
    assert (linear in page, tfidf in page, chosen in page) == (True, False, False)
    write_answers(tmp_path / "old", {"majority": {0: "1010"}, "tfidf": {0: "1110"}})  # by an earlier version
    page = render(load_comparison(tmp_path / "old"))
    assert (linear in page, tfidf in page, chosen in page) == (False, True, True)
