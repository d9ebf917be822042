"""The pages of results are generated from the records in docs/results, and these are complete."""

import html
import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def load_results_script():
    spec = importlib.util.spec_from_file_location("results", REPOSITORY / "benchmarks" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_results_is_up_to_date_with_docs_results():
    script = load_results_script()
    pages = script.pages() | script.shown_reports()
    assert len(pages) == 5
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run python benchmarks/results.py: {path.name} is out of date"


def test_the_report_of_the_course_can_be_regenerated(tmp_path):
    from headstart.report.page import write_report

    folder = REPOSITORY / "docs" / "results" / "course"
    write_report(folder, tmp_path)
    again = json.loads((tmp_path / "results.json").read_text())
    published = json.loads((folder / "results.json").read_text())
    assert again == published


def test_published_results_contain_no_path_of_a_machine():
    paths = [path for path in (REPOSITORY / "docs" / "results").rglob("*") if path.suffix in {".json", ".html", ".csv"}]
    assert len(paths) > 10
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not any(word in text for word in ("/home/", "/root/", "/Users/", "/tmp/")), path


SHOWN = {"cls-books": [50, 100, 200, 500, "all"], "imdb": [100, 500, 1000, 5000, "all"]}
"""The reports that docs/reports.md shows, and their label budgets."""


def load_published(name):
    """Return the page of a report and its JSON files by name."""
    folder = REPOSITORY / "docs" / "results" / name
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "about.json",
        "config.json",
        "environment.json",
        "report.html",
        "results.json",
        "run.json",
    }, "run records and data are not part of the project"
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    return (folder / "report.html").read_text(encoding="utf-8"), files


@pytest.mark.parametrize("name", SHOWN)
def test_a_published_report_is_complete(name):
    page, files = load_published(name)
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert len(page) < 1_500_000
    assert files["run"]["command"] in text
    for sentence in files["results"]["verdict"]:
        assert " ".join(sentence.split()) in text
    for figure in ("budgets", "curves", "test", "confusion-pretrained", "calibration-pretrained"):
        assert f'id="{figure}-' in page, figure


@pytest.mark.parametrize("name", SHOWN)
def test_a_published_report_has_five_label_budgets_with_five_seeds(name):
    accuracies = {
        (arm["arm"], arm["labels"]): arm["test_accuracies"] for arm in load_published(name)[1]["results"]["arms"]
    }
    networks = ["pretrained", "scratch"]
    budgets = {arm: [labels for key, labels in accuracies if key == arm] for arm in ("majority", "tfidf", *networks)}
    assert budgets["majority"] == budgets["tfidf"] == budgets["pretrained"] == budgets["scratch"] == SHOWN[name]
    assert all(len(accuracies[arm, labels]) == 5 for arm in networks for labels in budgets[arm])
    assert load_published(name)[1]["results"]["missing"] == []


def test_every_run_of_the_film_reviews_belongs_to_one_of_the_published_commands():
    page, files = load_published("imdb")
    runs = [
        (arm, many)
        for command in files["about"]["commands"]
        for arm, labels in command["runs"].items()
        for many in labels
    ]
    assert len(runs) == len(set(runs))
    assert set(runs) == {(arm["arm"], arm["labels"]) for arm in files["results"]["arms"]}
    for command in files["about"]["commands"]:
        assert f"commit {command['commit']}" in page
    settings = [re.search(r"--labelled.*--no-texts", command["command"])[0] for command in files["about"]["commands"]]
    assert set(settings) == {"--labelled.valid-fraction 0.04 --runtime.compile --no-texts"}


@pytest.mark.parametrize("name", SHOWN)
def test_a_published_report_quotes_no_text_and_loads_nothing(name):
    page, files = load_published(name)
    assert "--no-texts" in shlex.split(files["run"]["command"])
    assert files["run"]["inputs"]["texts"] is False
    assert "<blockquote" not in page
    assert 'data-label="text"' not in page  # the column of quotations
    assert not re.search(r"<(?:script|img|iframe|link|object|form)\b|@import|url\((?!#)", page)
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page)


def test_a_report_that_quotes_texts_would_be_noticed():
    """The control: the report of the course contains generated text."""
    page = (REPOSITORY / "docs" / "results" / "course" / "report.html").read_text(encoding="utf-8")
    assert "<blockquote" in page


def test_the_accuracies_of_the_readme_are_those_of_the_reports():
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    films, books = (load_published(name)[1]["results"]["arms"] for name in ("imdb", "cls-books"))

    def percent(arms, arm, labels, what="mean"):
        accuracy = next(row["test_accuracy"] for row in arms if (row["arm"], row["labels"]) == (arm, labels))
        return f"{100 * accuracy[what]:.1f}"

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
    assert f"{load_published('imdb')[1]['about']['pretraining']['minutes']:g} minutes of pretraining" in readme
    assert f"{percent(books, 'pretrained', 50)} % with 50 labels" in readme
    assert "TF-IDF + logistic regression about 980 " in " ".join(load_published("cls-books")[1]["results"]["verdict"])
    assert "needs about 980." in readme


def test_the_speeds_of_the_readme_are_the_measured_ones():
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


def test_the_corpus_benchmark_has_equal_ids_and_several_turns():
    record = json.loads((REPOSITORY / "docs" / "results" / "corpus.json").read_text(encoding="utf-8"))
    speed, rows = record["speed"], record["sizes"]["rows"]
    assert {side: len(turns) for side, turns in speed["sides"].items()} == dict.fromkeys(
        ("fast", "plain", "datasets"), speed["turns"]
    )
    assert speed["turns"] >= 3
    assert len(rows) >= 3
    assert all(row["same_ids"] for row in (speed, *rows) if "datasets" in row["sides"])
    for benchmark in record.values():
        assert benchmark["commit"]
        assert benchmark["date"]
        assert all(benchmark["versions"].values())


def test_the_fast_encoder_gave_the_ids_of_the_reference_for_a_million_strings():
    record = json.loads((REPOSITORY / "docs" / "results" / "encoders.json").read_text(encoding="utf-8"))
    assert sum(row["strings"] for row in record["parity"]) >= 1_000_000
    assert {row["differ"]["headstart, fast"] for row in record["parity"]} == {0}
    assert {row["differ"]["headstart"] for row in record["parity"]} == {0}
    # the control: without the guard there are strings that the quicker engine reads otherwise
    assert sum(row["differ"]["gigatoken"] for row in record["parity"]) > 0
