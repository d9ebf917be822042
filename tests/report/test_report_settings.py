"""The page shows the settings of each arm and the candidates that validation selected from."""

from fixtures.comparison_folder import write_answers
from headstart.report.load import load_comparison
from headstart.report.page import render
from headstart.report.tables import setting_rows
from headstart.store.records import read_record, record_path, write_record


def test_the_page_shows_settings_and_candidates(tmp_path):
    answers = {"majority": {0: "1010"}, "linear": {0: "1111"}, "scratch": {0: "1101", 1: "1100"}}
    folder = write_answers(tmp_path, answers)
    linear = read_record(record_path(folder, "linear", "all", 0))
    tried = tuple({"C": strength, "valid_accuracy": 0.5} for strength in (1, 10))
    write_record(folder, linear.model_copy(update={"tried": tried}))
    lower = read_record(record_path(folder, "scratch", "all", 1))
    write_record(folder, lower.model_copy(update={"setting": {"lr": 0.0003}}))
    assert setting_rows(load_comparison(folder)) == [
        "linear: C 10, chosen on validation from C 1; C 10",
        "from scratch: lr 0.0001 or lr 0.0003",
    ]
    assert "<li>linear: C 10, chosen on validation from C 1; C 10</li>" in render(load_comparison(folder))
