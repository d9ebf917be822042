"""The same settings, seed and threads give the same result, byte for byte, whatever the command."""

import pytest

from faults.runs import KINDS, go, outcome, write_data
from headstart.config import CorpusConfig, TokenizerConfig
from headstart.progress import Quiet
from headstart.recipes.prepare import run_prepare, run_tokenizer
from headstart.report.page import write_report


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


QUICK = ("masked", "pairs", "stages", "muon")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_run_done_twice_gives_the_same_bytes(kind, data, tmp_path):
    for name in ("one", "two"):
        go(kind, data, tmp_path / name, resume=False, steps=6)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")
    assert len(outcome(tmp_path / "one")) >= 4
    if kind == "compare":
        for name in ("one", "two"):
            write_report(tmp_path / "one", tmp_path / f"report-{name}")
        one, two = (tmp_path / f"report-{name}" for name in ("one", "two"))
        for path in ("report.html", "results.json", "results.csv"):
            assert (one / path).read_bytes() == (two / path).read_bytes()


def test_a_tokenizer_and_shards_made_twice_are_the_same(data, tmp_path):
    for name in ("one", "two"):
        texts, config = [str(data / "texts.txt")], TokenizerConfig(vocab_size=300)
        run_tokenizer(texts, tmp_path / name / "tok", config, CorpusConfig(), Quiet())
        settings = {"tokenizer": None, "tokenizer_config": config, "progress": Quiet()}
        run_prepare(texts, tmp_path / name / "tokens", CorpusConfig(), **settings)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 8
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()
