"""The pages of results are generated from the records in docs/results, and these are complete."""

import html
import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from faults.runs import KINDS
from faults.torture import PARTS, SIZES

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    """The script that generates the pages."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    spec = importlib.util.spec_from_file_location("results", REPOSITORY / "benchmarks" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_results_is_up_to_date_with_docs_results(script):
    pages = script.pages()
    assert len(pages) == 1 + len(script.PAGES) + len(script.PARTS)
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run python benchmarks/results.py: {path.name} is out of date"


def test_every_page_of_results_is_registered_in_the_navigation_and_in_the_headlines(script):
    names = {f"{name}.md" for name in script.PAGES}
    assert {path.name for path in (REPOSITORY / "docs" / "results").glob("*.md")} == names
    navigation = re.findall(r"results/([\w-]+\.md)", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(navigation) == sorted(names)
    headlines = (REPOSITORY / "RESULTS.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(docs/results/([\w-]+\.md)\)", headlines)) == names


def test_a_section_is_added_to_a_page_by_its_registration(script, monkeypatch):
    title, sections = script.PAGES["serving"]
    added = (*sections, lambda: ["## Added", "", "One table."], list)
    monkeypatch.setitem(script.PAGES, "serving", (title, added))
    page = script.pages()[REPOSITORY / "docs" / "results" / "serving.md"]
    published = (REPOSITORY / "docs" / "results" / "serving.md").read_text(encoding="utf-8")
    assert page == f"{published}\n## Added\n\nOne table.\n"


def test_every_kind_of_run_and_worker_that_is_killed_has_a_name_on_the_page(script):
    assert set(KINDS) <= set(script.robustness.RUNS)
    assert set(SIZES["full"]["workers"]) == set(script.robustness.WORKERS)
    recorded = json.loads((REPOSITORY / "docs" / "results" / "torture.json").read_text(encoding="utf-8"))
    assert set(PARTS) <= set(recorded)


def test_the_headlines_fit_on_a_screen(script):
    assert len((REPOSITORY / "RESULTS.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_every_link_of_the_headlines_leads_to_a_file():
    links = re.findall(r"\]\(([^)#\s]+)", (REPOSITORY / "RESULTS.md").read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (REPOSITORY / link).is_file(), link


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


def percent_of(results, arm, labels):
    """Return a test accuracy of a comparison in per cent, as the pages show it."""
    accuracy = next(row["test_accuracy"] for row in results["arms"] if (row["arm"], row["labels"]) == (arm, labels))
    return f"{100 * accuracy['mean']:.1f}"


def read_folded(name):
    """Return a document with single spaces."""
    return " ".join((REPOSITORY / name).read_text(encoding="utf-8").split())


def test_the_accuracies_of_the_readme_are_those_of_the_reports(script):
    films, readme = script.linear.label_curve("imdb"), read_folded("README.md")
    (few, everything), (scratch_few, scratch), (linear_few, linear) = (
        [percent_of(films, arm, labels) for labels in (100, "all")] for arm in ("pretrained", "scratch", "linear")
    )
    assert (
        f"reaches {few} % with 100 labelled reviews and {everything} % with 24,000. The same network from random weights "
        f"reaches {scratch_few} % and {scratch} %, a linear model {linear_few} % and {linear} %." in readme
    )
    minutes = load_published("imdb")[1]["about"]["pretraining"]["minutes"]
    assert f"(pretraining, {minutes:g} minutes on one GPU)" in readme


def test_the_accuracies_of_the_first_page_are_those_of_the_reports(script):
    films = script.linear.label_curve("imdb")
    caption = re.search(r"\*English film reviews[^*]+\*", read_folded("docs/index.md"))[0]
    accuracies = (("pretrained", 100), ("scratch", "all"), ("linear", "all"))
    assert re.findall(r"\d+\.\d(?= %)", caption) == [percent_of(films, *accuracy) for accuracy in accuracies]


@pytest.mark.parametrize("name", SHOWN)
def test_the_linear_model_was_fitted_on_the_rows_of_the_published_arms(name, script):
    arms = script.linear.label_curve(name)["arms"]
    earlier, linear = ({arm["labels"]: arm for arm in arms if arm["arm"] == kind} for kind in ("tfidf", "linear"))
    assert list(linear) == list(earlier) == SHOWN[name]
    for labels, arm in earlier.items():
        assert (linear[labels]["rows"], linear[labels]["seeds"]) == (arm["rows"], arm["seeds"])
        assert linear[labels]["test_accuracy"]["texts"] == arm["test_accuracy"]["texts"]


@pytest.mark.parametrize("name", SHOWN)
def test_a_sentence_of_the_published_comparisons_names_no_earlier_linear_arm(name, script):
    curve = script.linear.label_curve(name)
    sentences = " ".join(curve["verdict"])
    assert "TF-IDF" not in sentences
    assert f"points above the linear model ({percent_of(curve, 'linear', 'all')} %)." in sentences
    for gain in curve["gain"]:
        needed = gain["linear_labels"]["needed"]["at"]
        if needed is not None:
            assert f"the linear model about {script.reviews.round_to_two_figures(needed)} " in sentences


def test_no_statement_of_the_headlines_compares_with_the_earlier_linear_arm():
    assert "TF-IDF" not in (REPOSITORY / "RESULTS.md").read_text(encoding="utf-8")


def test_auto_on_cpu_cores_has_a_table_once_it_is_measured(script, tmp_path, monkeypatch):
    monkeypatch.setattr("result_pages.markdown.RESULTS", tmp_path)
    assert script.auto.two_cores() == []
    run = {"set": "complaints", "seed": 0, "labels": 600, "rows": 8000, "minutes": 10.0, "seconds": 570.0}
    scores = {"majority": {"test": 0.25}, "linear": {"test": 0.5}}
    run |= {"winner": "linear", "scores": scores, "threads": 2, "load": [0.5, 1.5]}
    about = {"command": "python benchmarks/auto_cpu.py --data DATA", "cores": 2, "python": "3.11.7", "commit": "abc"}
    (tmp_path / "auto_cpu.json").write_text(json.dumps({"about": about, "runs": [run]}), encoding="utf-8")
    lines = script.auto.two_cores()
    assert lines[0] == "## 2 CPU cores"
    assert "| complaints | 0 | 600 of 8,000 | 25.0 % | 50.0 % | – | – | linear model | 9.5 of 10 |" in lines


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
