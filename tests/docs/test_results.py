"""The pages of results are what the result folders say: nobody types a number."""

import html
import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def results():
    spec = importlib.util.spec_from_file_location("results", REPOSITORY / "benchmarks" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_results_is_what_its_folders_say():
    made = results()
    pages = made.pages() | made.shown_reports()
    assert len(pages) == 5
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
    assert ran["majority"] == ran["tfidf"] == ran["pretrained"] == ran["scratch"] == SHOWN[name]
    assert all(len(found[arm, labels]) == 5 for arm in networks for labels in ran[arm])
    assert shown(name)[1]["results"]["missing"] == []


def test_every_run_of_the_film_reviews_is_of_one_of_the_sittings_that_the_report_names():
    page, files = shown("imdb")
    said = [(arm, many) for one in files["about"]["commands"] for arm, labels in one["runs"].items() for many in labels]
    assert len(said) == len(set(said))
    assert set(said) == {(arm["arm"], arm["labels"]) for arm in files["results"]["arms"]}
    for one in files["about"]["commands"]:
        assert f"commit {one['commit']}" in page
    settings = [re.search(r"--labelled.*--no-texts", one["command"])[0] for one in files["about"]["commands"]]
    assert set(settings) == {"--labelled.valid-fraction 0.04 --runtime.compile --no-texts"}


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
        f"If it begins with random weights, the same network gets {percent(films, 'scratch', 100)} % from 100 labels and "
        f"{percent(films, 'scratch', 'all')} % from all; TF-IDF + logistic regression gets {percent(films, 'tfidf', 100)} % "
        f"and {percent(films, 'tfidf', 'all')} %.",
    )
    assert " ".join(sentences) in readme
    first_page = " ".join((REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8").split())
    assert (
        f"100 labels give {few} %. From 24,000, the same network gets {percent(films, 'scratch', 'all')} % if it begins with "
        f"random weights, and a linear model {percent(films, 'tfidf', 'all')} % (" in first_page
    )
    assert f"{shown('imdb')[1]['about']['pretraining']['minutes']:g} minutes of pretraining" in readme
    assert f"{percent(books, 'pretrained', 50)} % with 50 labels" in readme
    assert "TF-IDF + logistic regression about 980 " in " ".join(shown("cls-books")[1]["results"]["verdict"])
    assert "needs about 980." in readme


def test_the_speeds_of_the_readme_are_those_that_were_measured():
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    folder = REPOSITORY / "docs" / "results"
    gpu, cpu = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("gpu.json", "cpu.json"))
    sides, memory = gpu["classic"]["sides"], cpu["memory"]["mib"]
    ours, theirs = sides["headstart"], sides["transformers"]
    ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
    assert f"is {ratio:.1f} times as fast as transformers' compiled GPT-2 of that size, in about a quarter" in readme
    assert f"on two CPU cores it is {cpu['step_2']['ratios']['trainer']['wall']:.1f} times as fast as its `Tr" in readme
    assert 0.22 < ours["gib"] / theirs["gib"] < 0.28
    assert 0.22 < memory["headstart"]["peak"] / memory["trainer"]["peak"] < 0.28
    assert all(row["wall"] > 10 for row in cpu["cold"]["rows"] if row["who"] == "transformers")
    assert "the first answer of `predict` is there ten times sooner" in readme


def test_the_corpus_was_prepared_in_turns_and_its_ids_are_those_of_the_peer():
    record = json.loads((REPOSITORY / "docs" / "results" / "corpus.json").read_text(encoding="utf-8"))
    speed, rows = record["speed"], record["sizes"]["rows"]
    assert {side: len(turns) for side, turns in speed["sides"].items()} == dict.fromkeys(
        ("fast", "plain", "datasets"), speed["turns"]
    )
    assert speed["turns"] >= 3
    assert len(rows) >= 3
    assert all(row["same_ids"] for row in (speed, *rows) if "datasets" in row["sides"])
    for part in record.values():
        assert part["commit"]
        assert part["date"]
        assert all(part["versions"].values())


def test_the_quicker_encoder_gave_the_ids_of_the_reference_a_million_times():
    record = json.loads((REPOSITORY / "docs" / "results" / "encoders.json").read_text(encoding="utf-8"))
    assert sum(row["strings"] for row in record["parity"]) >= 1_000_000
    assert {row["differ"]["headstart, fast"] for row in record["parity"]} == {0}
    assert {row["differ"]["headstart"] for row in record["parity"]} == {0}
    # the control: without the guard there are strings that the quicker engine reads otherwise
    assert sum(row["differ"]["gigatoken"] for row in record["parity"]) > 0
