"""What docs/labels.md says is so: its commands run in its order, and its Python names exist."""

import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from fixtures.predictions import write_all
from headstart.cli.main import run

PAGE = (Path(__file__).parents[2] / "docs" / "labels.md").read_text(encoding="utf-8")
FILES = {"labels": "films", "ratings": "stars", "pairs": "pairs"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stranger's folder, with the files that the page names, and a pretrained model."""
    folder = write_all(tmp_path_factory.mktemp("page"))
    for path in list(folder.iterdir()):
        stem, dash, rest = path.stem.partition("-")
        if FILES.get(stem, stem) != stem:
            shutil.copy(path, path.with_name(f"{FILES[stem]}{dash}{rest}{path.suffix}"))
    settings = (folder / "headstart.toml").read_text().replace("epochs = 4", "epochs = 1")
    (folder / "headstart.toml").write_text(settings)
    (folder / "texts.txt").write_text("the film was a battle\nthe story was a kiss\n" * 40)
    with chdir(folder):
        assert run(shlex.split("pretrain texts.txt --out runs/base --loop.steps 3 -q")) == 0
    return folder


@pytest.mark.slow  # test_docs_commands.py reads the commands of the page with the parser
def test_the_commands_run_in_their_order(folder, capsys):
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    assert len(lines) == 12
    with chdir(folder):
        for line in lines:
            capsys.readouterr()
            line = line.replace("--seeds 3", "--seeds 1 --arms linear,pretrained")
            assert run(shlex.split(line)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.slow
def test_the_python_of_the_labels_page_runs(folder, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with chdir(folder):
        exec(code.replace('out="runs/stars"', 'out="runs/stars-python"'), {})
    value, labels, label, words = capsys.readouterr().out.splitlines()
    assert 1 <= float(value) <= 5
    assert labels.startswith("(")
    assert label in ("other", "same")
    assert words.count("WordWeight(") == 3
