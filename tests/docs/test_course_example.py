"""examples/course: one command runs the course experiment, on a made-up data folder always, on the real one where it is."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.config.merge import merge_config, read_toml
from headstart.config.presets import preset_values
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.model.parameter_count import count_parameters
from headstart.store.bundle import load_bundle

COURSE = Path(__file__).parents[2] / "examples" / "course"


def minidata():
    spec = importlib.util.spec_from_file_location("minidata", COURSE / "minidata.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def experiment(data, out, *options):
    return subprocess.run(
        [sys.executable, str(COURSE / "run.py"), str(data), "--out", str(out), *options],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The experiment on made-up data: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("course")
    done = experiment(minidata().write_mini(folder / "data"), folder / "out", "--tiny")
    assert done.returncode == 0, done.stderr
    return folder / "out", done.stdout


def cells_of(out):
    return [json.loads(path.read_text()) for path in sorted((out / "comparison" / "cells").iterdir())]


def test_one_command_pretrains_compares_and_generates(finished):
    out, shown = finished
    commands = [line.split()[2] for line in shown.splitlines() if line.startswith("$ headstart ")]
    assert commands == ["pretrain", "compare", "generate"]
    assert "\nBonjour les" in shown
    held_out = json.loads((out / "language-model" / "result.json").read_text())["held_out"]
    assert held_out["perplexity"] > 1
    assert sorted((cell["arm"], cell["seed"]) for cell in cells_of(out)) == [
        ("majority", 0),
        ("naive_bayes", 0),
        ("pretrained", 0),
        ("pretrained", 1),
        ("scratch", 0),
        ("scratch", 1),
        ("tfidf", 0),
    ]


def test_both_networks_measure_test_after_every_epoch_and_the_report_reads_them_two_ways(finished):
    out, _ = finished
    epochs = [epoch for cell in cells_of(out) for epoch in cell["epochs"]]
    assert len(epochs) == 2 * 2 * 2
    assert all("test_accuracy" in epoch for epoch in epochs)
    results = json.loads((out / "comparison" / "results.json").read_text())
    assert [reading["arm"] for reading in results["protocols"]] == ["scratch", "pretrained"]
    page = (out / "comparison" / "report.html").read_text("utf-8")
    assert "without the 3 test texts that also appear in train" in page
    assert "The language model writes" in page


def test_the_language_model_has_the_vocabulary_of_dict_txt(finished):
    out, _ = finished
    bundle = load_bundle(out / "language-model", head_type="language")
    pieces = (out / "data" / "cls-books" / "dict.txt").read_text("utf-8").splitlines()
    assert bundle.tokenizer.vocab_size == len(pieces) + 4
    assert bundle.tokenizer.piece(4) == pieces[0].split(" ")[0]


def test_called_again_it_repeats_nothing(finished):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (out / "comparison" / "cells").iterdir()}
    done = experiment(out / "data", out, "--tiny")
    assert done.returncode == 0, done.stderr
    assert "is finished already" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in (out / "comparison" / "cells").iterdir()} == before


def test_a_folder_without_the_courses_files_is_named(tmp_path):
    done = experiment(tmp_path, tmp_path / "out", "--tiny")
    wanted = tmp_path / "cls-books" / "sentencepiece.french.model"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        f"run.py: error: {tmp_path} is not the course's data folder: {wanted} is not there",
    )
    assert not (tmp_path / "out").exists()


def test_the_settings_are_the_courses_to_the_letter():
    pretrain = merge_config(
        PretrainConfig, preset_values("classic", "pretrain"), read_toml(COURSE / "course.toml", PretrainConfig)
    )
    finetune = merge_config(
        FinetuneConfig, preset_values("classic", "finetune"), read_toml(COURSE / "course.toml", FinetuneConfig)
    )
    shape = pretrain.model
    assert (shape.width, shape.feedforward, shape.depth, shape.heads) == (200, 200, 4, 2)
    assert (shape.dropout, shape.context, pretrain.corpus.layout) == (0.0, 512, "documents")
    assert (count_parameters(shape, 50001, None).total, count_parameters(shape, 50001, 2).total) == (
        21_018_401,
        10_968_602,
    )
    for config, lr, batch_size in ((pretrain, 3e-4, 16), (finetune, 1e-4, 8)):
        optim = config.optim
        assert (optim.optimizer, optim.lr, optim.schedule, optim.warmup) == ("adam", lr, "constant", 0.0)
        assert (optim.clip, optim.weight_decay, config.loop.batch_size) == (0.5, 0.0, batch_size)
    assert (finetune.loop.epochs, finetune.loop.watch_test, finetune.loop.patience) == (15, True, None)


@pytest.mark.data
@pytest.mark.slow
def test_the_real_data_goes_through_in_small(real_data, tmp_path):
    done = experiment(real_data, tmp_path / "out", "--tiny")
    assert done.returncode == 0, done.stderr
    bundle = load_bundle(tmp_path / "out" / "language-model", head_type="language")
    assert (bundle.tokenizer.vocab_size, bundle.tokenizer.piece(1111)) == (50_001, "▁trop")
    data = json.loads((tmp_path / "out" / "comparison" / "data.json").read_text())
    assert {name: data[name]["rows"] for name in ("train", "valid", "test")} == {"train": 48, "valid": 32, "test": 40}
    assert all(count >= 10 for count in data["train"]["counts"].values())
