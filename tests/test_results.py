"""The pages of results are what the result folders say: nobody types a number."""

import html
import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


def results():
    spec = importlib.util.spec_from_file_location("results", REPOSITORY / "benchmarks" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_results_is_what_its_folders_say():
    made = results()
    pages = made.pages() | made.shown_reports()
    assert len(pages) == 4
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run python benchmarks/results.py: {path.name} is out of date"


def test_a_result_folder_gives_its_report_again(tmp_path):
    from headstart.report.page import write_report

    folder = REPOSITORY / "docs" / "results" / "course"
    write_report(folder, tmp_path)
    again = json.loads((tmp_path / "results.json").read_text())
    kept = json.loads((folder / "results.json").read_text())
    assert again == kept


def test_nothing_kept_names_a_machine_or_quotes_a_review():
    kept = [path for path in (REPOSITORY / "docs" / "results").rglob("*") if path.suffix in {".json", ".html", ".csv"}]
    assert len(kept) > 10
    for path in kept:
        text = path.read_text(encoding="utf-8")
        assert not any(word in text for word in ("/home/", "/root/", "/Users/", "/tmp/")), path


SHOWN = {"cls-books": [50, 100, 200, 500, "all"], "imdb": [100, 500, 1000, 5000, "all"]}
"""The reports that docs/reports.md shows, and with how many labels they are."""


def shown(name):
    """A report's page and its files, by name."""
    folder = REPOSITORY / "docs" / "results" / name
    kept = {path.name for path in folder.iterdir()}
    assert kept == {
        "about.json",
        "config.json",
        "environment.json",
        "report.html",
        "results.json",
        "run.json",
    }, "cells and data are not part of the project"
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    return (folder / "report.html").read_text(encoding="utf-8"), files


@pytest.mark.parametrize("name", SHOWN)
def test_a_report_that_is_shown_is_whole(name):
    page, files = shown(name)
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert len(page) < 1_500_000
    assert files["run"]["command"] in text
    for sentence in files["results"]["verdict"]:
        assert " ".join(sentence.split()) in text
    for drawing in ("budgets", "curves", "test", "confusion-pretrained", "calibration-pretrained"):
        assert f'id="{drawing}-' in page, drawing


@pytest.mark.parametrize("name", SHOWN)
def test_a_report_that_is_shown_has_five_numbers_of_labels_of_five_seeds(name):
    found = {(arm["arm"], arm["labels"]): arm["test_accuracies"] for arm in shown(name)[1]["results"]["arms"]}
    networks = ["pretrained", "scratch"]
    ran = {arm: [labels for each, labels in found if each == arm] for arm in ("majority", "tfidf", *networks)}
    assert ran["majority"] == ran["tfidf"] == ran["pretrained"] == SHOWN[name]
    assert ran["scratch"] == (SHOWN[name][:3] if name == "imdb" else SHOWN[name])
    assert all(len(found[arm, labels]) == 5 for arm in networks for labels in ran[arm])
    missing = shown(name)[1]["results"]["missing"]
    assert len(missing) == (10 if name == "imdb" else 0)  # what was not run is named
    assert all(run.startswith(("scratch with 5,000 labels", "scratch with all labels")) for run in missing)


@pytest.mark.parametrize("name", SHOWN)
def test_a_report_that_is_shown_quotes_nobody_and_asks_for_nothing(name):
    page, files = shown(name)
    assert "--no-texts" in shlex.split(files["run"]["command"])
    assert files["run"]["inputs"]["texts"] is False
    assert "<blockquote" not in page
    assert 'data-label="text"' not in page  # the column of quotations
    assert not re.search(r"<(?:script|img|iframe|link|object|form)\b|@import|url\((?!#)", page)
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page)


def test_a_page_that_quotes_would_be_noticed():
    """The control: the course's report says what its language model wrote."""
    page = (REPOSITORY / "docs" / "results" / "course" / "report.html").read_text(encoding="utf-8")
    assert "<blockquote" in page


def test_the_figures_of_the_readme_are_those_of_the_reports():
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    films, books = (shown(name)[1]["results"]["arms"] for name in ("imdb", "cls-books"))

    def percent(arms, arm, labels, what="mean"):
        found = next(row["test_accuracy"] for row in arms if (row["arm"], row["labels"]) == (arm, labels))
        return f"{100 * found[what]:.1f}"

    few, low, high = (percent(films, "pretrained", 100, what) for what in ("mean", "low", "high"))
    sentences = (
        f"100 labels give {few} % ({low} to {high}), and all 24,000 give {percent(films, 'pretrained', 'all')} %.",
        f"From 100 labels the same network gets {percent(films, 'scratch', 100)} % if it begins with random weights, "
        f"TF-IDF + logistic regression {percent(films, 'tfidf', 100)} %, and {percent(films, 'tfidf', 'all')} % from all.",
    )
    assert " ".join(sentences) in readme
    assert f"{shown('imdb')[1]['about']['pretraining']['minutes']:g} minutes of pretraining" in readme
    assert f"{percent(books, 'pretrained', 50)} % with 50 labels" in readme
    assert "TF-IDF + logistic regression about 980 " in " ".join(shown("cls-books")[1]["results"]["verdict"])
    assert "needs about 980." in readme
