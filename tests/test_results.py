"""The pages of results are what the result folders say: nobody types a number."""

import importlib.util
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


def results():
    spec = importlib.util.spec_from_file_location("results", REPOSITORY / "benchmarks" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_results_is_what_its_folders_say():
    pages = results().pages()
    assert len(pages) == 3
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run python benchmarks/results.py: {path.name} is out of date"


def test_a_result_folder_gives_its_report_again(tmp_path):
    import json

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
