"""The arm `blend` of a comparison: the pretrained network of its seed and a linear model, weighted by validation."""

import numpy as np
import pytest

from fixtures.recipes import pretrain_run
from fixtures.tiny import Listener, finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig
from headstart.data.labelled import read_labelled
from headstart.errors import Interrupted, StoreError, UsageError
from headstart.linear.blend import blend_logits
from headstart.linear.classifier import fit_linear
from headstart.recipes.compare.arms import expand_arms
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.executors import Executor
from headstart.store.records import full_row, read_record


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=3))
    return folder


def compare(reviews, out, progress=None, **fields):
    files = {name: str(reviews / f"{name}.csv") for name in ("train", "valid", "test")}
    plan = {"seeds": 2, "arms": ("blend", "majority", "pretrained"), "backbones": (str(reviews / "base"),)}
    return run_compare(CompareRequest(out=out, **files | plan | fields), finetune_config(loop__epochs=2), progress)


@pytest.fixture(scope="module")
def compared(reviews, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "cmp"
    compare(reviews, out)
    return out


def probabilities(path):
    return np.array([full_row(row) for row in read_record(path).probabilities])


def test_a_blend_has_a_run_for_every_seed_and_pools_the_network_of_that_seed(reviews, compared):
    cells = sorted(path.stem for path in (compared / "cells").iterdir())
    assert cells == [
        "blend-all-seed0",
        "blend-all-seed1",
        "majority-all-seed0",
        "pretrained-all-seed0",
        "pretrained-all-seed1",
    ]
    assert not (compared / "logits").exists()
    train, test = (read_labelled(str(reviews / f"{name}.csv"), LabelledConfig()) for name in ("train", "test"))
    for seed in (0, 1):
        record = read_record(compared / "cells" / f"blend-all-seed{seed}.json")
        gold = np.array([("negative", "positive").index(label) for label in train.labels])
        linear = fit_linear(train.texts, gold, 2, seed=seed).classifier.logits(test.texts)
        network = np.log(probabilities(compared / "cells" / f"pretrained-all-seed{seed}.json"))
        expected = blend_logits(network, linear, record.setting["weight"], record.temperature)
        blended = probabilities(compared / "cells" / f"blend-all-seed{seed}.json")
        assert np.abs(np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True) - blended).max() < 2e-3


@pytest.mark.slow
def test_worker_processes_blend_after_the_networks(reviews, compared, tmp_path):
    compare(reviews, tmp_path / "cmp", executor=Executor("local", 2, None))
    for name in ("blend-all-seed0.json", "blend-all-seed1.json"):
        mine, theirs = (read_record(folder / "cells" / name) for folder in (tmp_path / "cmp", compared))
        assert mine.predictions == theirs.predictions
        assert mine.setting == theirs.setting


def test_a_blend_needs_the_network_that_it_blends():
    with pytest.raises(UsageError) as error:
        expand_arms(("majority", "blend"), ["base"])
    assert str(error.value) == "--arms blend also needs pretrained, the network that it blends with a linear model"
    assert expand_arms(("blend", "pretrained"), ["a", "b"]) == ("pretrained:a", "pretrained:b", "blend:a", "blend:b")


class StopAfter(Listener):
    """Interrupts once a line begins with some words."""

    def say(self, line):
        super().say(line)
        if line.startswith("pretrained, all labels, seed 1"):
            raise KeyboardInterrupt


def test_missing_logits_are_named_with_the_run_to_repeat(reviews, compared, tmp_path):
    out = tmp_path / "cmp"
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        compare(reviews, out, StopAfter())
    logits = out / "logits" / "pretrained-all-seed1.json"
    logits.unlink()
    with pytest.raises(StoreError) as error:
        run_compare(CompareRequest(out=out, resume=True), None)
    record = out / "cells" / "pretrained-all-seed1.json"
    assert str(error.value) == f"{logits} is missing; delete {record} and use --resume to repeat that run"
    record.unlink()
    run_compare(CompareRequest(out=out, resume=True), None)
    name = "cells/blend-all-seed1.json"
    assert read_record(out / name).predictions == read_record(compared / name).predictions
