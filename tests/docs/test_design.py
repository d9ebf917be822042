"""The figures of docs/design.md are those of the code."""

import importlib.util
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DESIGN = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")


def test_the_numbers_of_files_that_a_task_crosses_are_those_that_are_counted(tmp_path):
    spec = importlib.util.spec_from_file_location("files_crossed", REPOSITORY / "benchmarks" / "files_crossed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = module.files_crossed(tmp_path)
    stated = re.search(
        r"(\d+) for a fine-tuning, (\d+) for a prediction in Python, (\d+) for one training step",
        " ".join(DESIGN.split()),
    )
    assert list(map(int, stated.groups())) == [len(names) for names in files.values()]


def test_no_row_of_a_table_is_longer_than_two_hundred_characters():
    rows = [line for line in DESIGN.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert [row for row in rows if len(row) > 200] == []


def test_the_glossary_has_at_most_forty_rows():
    glossary = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Glossary")[1]
    rows = [line for line in glossary.splitlines() if line.startswith("| ")][1:]
    assert 20 < len(rows) <= 40
