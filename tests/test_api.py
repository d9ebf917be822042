"""The verbs in Python pass on what they are given."""

import subprocess
import sys

import pytest

from fixtures.tiny import write_reviews
from headstart import api
from headstart.errors import ConfigError, UsageError
from headstart.files import read_json

SMALL = {
    "tokenizer.vocab_size": 300,
    "model.width": 16,
    "model.depth": 1,
    "model.feedforward": 16,
    "model.context": 24,
    "runtime.threads": 1,
}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("api"))
    api.pretrain(folder / "texts.txt", out=folder / "base", settings=SMALL | {"loop.steps": 2, "optim.lr": 0.01})
    return folder


def test_settings_win_over_the_preset(reviews):
    config = read_json(reviews / "base" / "config.json")
    assert (config["model"]["width"], config["optim"]["lr"], config["loop"]["steps"]) == (16, 0.01, 2)
    assert config["loop"]["batch_size"] == 16  # control: the preset is there below


def test_a_test_file_is_read(reviews, tmp_path):
    settings = {"loop.epochs": 1, "runtime.threads": 1}
    run = api.finetune(
        reviews / "train.csv",
        out=tmp_path / "clf",
        backbone=reviews / "base",
        test=reviews / "test.csv",
        settings=settings,
    )
    assert read_json(run.path / "result.json")["test"]["rows"] == 24


@pytest.mark.parametrize("settings", [{"model.depth": 3}, {"tokenizer.vocab_size": 300}])
def test_a_shape_beside_a_pretrained_folder_is_refused(reviews, tmp_path, settings):
    base = reviews / "base"
    with pytest.raises(ConfigError) as caught:
        api.finetune(reviews / "train.csv", out=tmp_path / "clf", backbone=base, settings=settings)
    name = next(iter(settings))
    assert (
        str(caught.value)
        == f"{name} cannot be used with {base}, which has its own {name.split('.')[0]}; remove it, or use backbone='scratch'"
    )
    assert not (tmp_path / "clf").exists()


def test_a_comparison_uses_the_requested_seeds_budgets_and_arms(reviews, tmp_path):
    api.compare(
        reviews / "train.csv",
        out=tmp_path / "cmp",
        test=reviews / "test.csv",
        valid=reviews / "valid.csv",
        seeds=2,
        label_budgets=(12,),
        arms=("majority", "linear"),
        settings={"runtime.threads": 1, "tokenizer.vocab_size": 300},
    )
    names = sorted(path.stem for path in (tmp_path / "cmp" / "cells").iterdir())
    assert names == [f"{arm}-12-seed{seed}" for arm in ("linear", "majority") for seed in (0, 1)]


def test_several_pretrained_folders_are_passed_on(reviews, tmp_path):
    with pytest.raises(UsageError) as caught:
        api.compare(
            reviews / "train.csv",
            out=tmp_path / "cmp",
            test=reviews / "test.csv",
            backbone=[reviews / "base", reviews / "base" / ".." / "base"],
        )
    assert str(caught.value) == f"--from lists {reviews / 'base'} twice; list each folder once"


def test_choosing_is_passed_on(reviews, tmp_path):
    api.compare(
        reviews / "train.csv",
        out=tmp_path / "cmp",
        test=reviews / "test.csv",
        backbone=reviews / "base",
        arms=("frozen",),
        seeds=1,
        choose=True,
        settings={"runtime.threads": 1, "loop.epochs": 1},
    )
    assert len(read_json(tmp_path / "cmp" / "cells" / "frozen-all-seed0.json")["tried"]) == 2


def test_predicting_and_serving_do_not_import_the_compiler_of_torch(reviews):
    """It takes a second. Training imports it: torch's optimizers do."""
    code = (
        "import sys; import headstart, headstart.serve.app; headstart.generate(sys.argv[1], 'the film'); "
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(reviews / "base")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
