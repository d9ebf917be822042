"""What docs/hugging-face.md and docs/tune.md show runs as it stands there, on small files."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from fixtures.tiny import write_reviews
from headstart.cli.main import run

DOCS = Path(__file__).parents[2] / "docs"
SMALL = """
[runtime]
threads = 1
[pretrain.loop]
steps = 2
[finetune.loop]
epochs = 1
min_steps = 0
"""


def commands(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = [
        line.split("  #")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    return [shlex.split(line)[1:] for line in lines if line.startswith("headstart ")]


@pytest.fixture
def here(tmp_path, monkeypatch):
    write_reviews(tmp_path)
    (tmp_path / "texts.txt").rename(tmp_path / "reviews.txt")
    (tmp_path / "headstart.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow  # test_docs_commands.py reads the commands of the page with the parser
def test_the_commands_about_hugging_face_run(here):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    sys.path.insert(0, str(Path(__file__).parent / "interop"))
    from fixtures.hf_models import saved

    saved(transformers, here / "their-model", "bert", "ForMaskedLM")
    for command in commands("hugging-face.md"):
        more = ["--seeds", "1"] if command[0] == "compare" else []
        assert run([*command, *more, "--quiet"]) == 0, command
    assert (here / "clf-hf" / "config.json").is_file()


@pytest.mark.slow  # test_docs_commands.py reads the commands of the page with the parser
def test_the_command_about_tuning_runs(here):
    pytest.importorskip("optuna", reason="needs the extra tune")
    small = ["--model.width", "16", "--model.depth", "1", "--tokenizer.vocab-size", "300"]
    assert run(["pretrain", "reviews.txt", "--out", "runs/base", *small, "--quiet"]) == 0
    for command in commands("tune.md"):
        assert run([*command, "--trials", "2", "--quiet"]) == 0, command
    assert (here / "runs" / "tuned" / "best.toml").is_file()
