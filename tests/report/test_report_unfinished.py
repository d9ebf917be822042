"""A comparison in which one network has no run with the most labels."""

import html
import re
from itertools import pairwise

import pytest

from fixtures.comparison_folder import make_comparison
from headstart.report.figures import draw_budgets, report_figures
from headstart.report.load import load_comparison
from headstart.report.page import render
from headstart.report.summary import headline_tiles, verdict, verdict_sentences
from report.test_error_tables import page_text

ARMS = {"majority": 0.5, "linear": 0.7, "scratch": 0.6, "pretrained": 0.9}
BUDGETS = (50, 100, 1000, "all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """From scratch with 50 and 100 labels only."""
    folder = tmp_path_factory.mktemp("unfinished")
    make_comparison(folder, arms=ARMS, seeds=3, budgets=BUDGETS, texts=800)
    for path in folder.glob("cells/scratch-*"):
        if "-all-" in path.name or "-1000-" in path.name:
            path.unlink()
    return folder


def test_the_verdict_names_the_budgets_of_which_the_gain_is_known(folder):
    sentences = verdict_sentences(load_comparison(folder))
    assert sentences.largest_budget[0].startswith("The pretrained network is best: ")
    assert sentences.largest_budget[-1] == (
        "The gain from pretraining with all labels is unknown: the from-scratch network has no finished run with this number."
    )
    few, some, many = sentences.smaller_budgets
    assert few.startswith("With 50 labels, pretraining gained +")
    assert some.startswith("With 100 labels, pretraining gained +")
    assert (
        ": the from-scratch network, which was not run with more labels, needs more than 100 for the same accuracy"
        in some
    )
    assert "there are" not in some  # there are more, and the others had them
    assert re.fullmatch(
        r"With 1,000 labels, the pretrained network was \d+\.\d points above the linear model "
        r"\(95 % interval \+\d+\.\d to \+\d+\.\d, 3 paired seeds\), which needs more than 1,600 for the same accuracy; "
        r"the from-scratch network has no finished run with this number\.",
        many,
    )
    assert sentences.missing == [
        "Not finished: scratch with 1,000 labels, seeds 0, 1 and 2; scratch with all labels, seeds 0, 1 and 2."
    ]
    assert verdict(load_comparison(folder)) == [
        *sentences.largest_budget,
        *sentences.smaller_budgets,
        *sentences.missing,
    ]


def test_the_tiles_are_of_the_most_labels_that_both_networks_were_run_with(folder):
    accuracy, labels, epochs = headline_tiles(load_comparison(folder))
    assert accuracy.note.startswith("on test with 100 labels: ")
    assert (labels.value, labels.note) == ("> 50", "with 50 labels better than the from-scratch network with 100")
    assert epochs.note.startswith("with 100 labels ")


def test_a_line_that_ends_early_is_labelled_at_its_end(folder):
    axes = draw_budgets(load_comparison(folder), 7.4).axes[0]
    annotations = {note.get_text().rsplit(" ", 1)[0]: note for note in axes.texts}
    assert annotations["from scratch"].xy[0] == 100
    assert annotations["from scratch"].xycoords == "data"
    assert all(
        annotations[name].xy[0] == 1.0 for name in ("pretrained", "linear", "majority")
    )  # control: right of the axis


def test_figures_and_tables_of_the_most_labels_name_missing_arms(folder, tmp_path):
    captions = {figure.name: figure.caption for figure in report_figures(load_comparison(folder))}
    assert captions["curves"].endswith(" The from-scratch network: no finished run with this number of labels.")
    assert captions["test"].endswith(" The from-scratch network: no finished run with this number of labels.")
    text = page_text(render(load_comparison(folder)))
    assert text.count("From scratch no finished run") == 2  # with 1,000 and with all labels
    complete = make_comparison(tmp_path, arms=ARMS, seeds=3, budgets=(50, "all"), texts=100)
    assert "no finished run" not in page_text(render(load_comparison(complete)))


def test_the_page_has_the_smallest_budget_above_the_figures_and_the_others_below(folder):
    page = html.unescape(render(load_comparison(folder))).replace("\N{NO-BREAK SPACE}", " ")
    few, some, many = verdict_sentences(load_comparison(folder)).smaller_budgets
    top, _, below = page.partition("<figure")
    assert few in top
    assert some not in top
    assert many not in top
    positions = [below.index(sentence) for sentence in (few, some, many)]
    assert all(earlier < later for earlier, later in pairwise(positions))
    assert '<p class="verdict unfinished">Not finished: scratch with 1,000 labels, seeds 0, 1 and 2; ' in top
