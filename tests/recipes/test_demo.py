"""The demo goes on with the data it was begun with, and touches no folder of anything else."""

import pytest

from headstart.errors import UsageError
from headstart.files import read_json
from headstart.progress import Quiet
from headstart.recipes import demo
from headstart.recipes.demo import run_demo
from tiny import write_reviews


class Begun(Exception):
    """The data is set aside and pretraining would begin."""


class Notebook(Quiet):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(autouse=True)
def _up_to_pretraining(tmp_path, monkeypatch):
    def stop(*arguments, **others):
        raise Begun

    monkeypatch.setattr(demo, "run_pretrain", stop)
    monkeypatch.chdir(tmp_path)


def begin(out, data) -> list[str]:
    said = Notebook()
    with pytest.raises(Begun):
        run_demo(out, data, said)
    return [line.split()[0] for line in said.lines]


def refused(out, data) -> str:
    said = Notebook()
    with pytest.raises(UsageError) as caught:
        run_demo(out, data, said)
    assert said.lines == []
    return str(caught.value)


def test_a_demo_records_its_data_and_goes_on_with_it(tmp_path):
    write_reviews(tmp_path / "mine")
    out = tmp_path / "out"
    assert begin(out, "mine") == ["1/3", "2/3"]
    assert read_json(out / "demo.json") == {"format": 1, "kind": "demo", "source": str(tmp_path / "mine")}
    assert sorted(path.name for path in (out / "data").iterdir()) == [
        "test.jsonl",
        "texts.jsonl",
        "train.jsonl",
        "valid.jsonl",
    ]
    assert begin(out, str(tmp_path / "mine")) == ["2/3"]  # the same folder, written otherwise


def test_a_demo_does_not_go_on_with_other_data(tmp_path):
    write_reviews(tmp_path / "mine")
    write_reviews(tmp_path / "other")
    out = tmp_path / "out"
    begin(out, "mine")
    texts = (out / "data" / "texts.jsonl").read_bytes()
    assert refused(out, None) == f"{out} was made from {tmp_path / 'mine'}; choose another --out"
    assert refused(out, "other") == f"{out} was made from {tmp_path / 'mine'}; choose another --out"
    assert (out / "data" / "texts.jsonl").read_bytes() == texts


def test_a_demo_of_the_film_reviews_says_so(tmp_path, monkeypatch):
    write_reviews(tmp_path / "mine")
    monkeypatch.setattr(demo, "_builtin", lambda: demo._own(tmp_path / "mine", demo._found(tmp_path / "mine"), Quiet()))
    begin(tmp_path / "out", None)
    assert (
        refused(tmp_path / "out", "mine") == f"{tmp_path / 'out'} was made from the film reviews; choose another --out"
    )


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_is_left_alone(tmp_path, kind):
    write_reviews(tmp_path / "mine")
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("years of work")
    else:
        out.mkdir()
        (out / "thesis.doc").write_text("years of work")
    assert refused(out, "mine") == f"{out} is not empty and holds no demo; choose another --out"
    held = [path.name for path in out.iterdir()] if kind == "folder" else []
    assert held == (["thesis.doc"] if kind == "folder" else [])


def test_an_empty_folder_is_a_place_for_a_demo(tmp_path):
    write_reviews(tmp_path / "mine")
    (tmp_path / "out").mkdir()
    assert begin(tmp_path / "out", "mine") == ["1/3", "2/3"]


def test_data_that_is_not_there_is_told_before_anything_else(tmp_path):
    assert refused(tmp_path / "out", "no") == "no such folder: no; the demo wants one with a labelled train.csv in it"
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "out", "empty") == (
        "empty has no labelled file train.csv (or .tsv, .jsonl, .parquet); found: nothing"
    )
    assert not (tmp_path / "out").exists()


def test_wrong_data_leaves_no_demo_behind(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("text,mark\nfine,1\n")
    with pytest.raises(Exception, match="usual name for the label"):
        run_demo(tmp_path / "out", "mine", Quiet())
    assert not (tmp_path / "out").exists()
