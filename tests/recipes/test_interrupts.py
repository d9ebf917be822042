"""A stop at any check, in training or in evaluation, changes no bit of the result."""

from dataclasses import replace

import pytest

from fixtures.recipes import pretrain_run
from fixtures.tiny import CPU, finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig
from headstart.data.shards import Shards
from headstart.errors import Interrupted
from headstart.interrupts import StopRequested, StopSignal
from headstart.progress import SilentProgress
from headstart.recipes.finetune.dataset import build_classifier, load_labelled_data
from headstart.recipes.finetune.trainer import FinetuneTrainer
from headstart.recipes.pretrain.trainer import PretrainTrainer, prepare_pretraining
from headstart.store.run_folder import RunFolder


class StopAt(StopSignal):
    """Asks to stop the so-manieth time a run listens; 0 never asks."""

    def __init__(self, moment):
        super().__init__()
        self.moment = moment
        self.checks = 0

    def check(self):
        self.checks += 1
        if self.checks == self.moment:
            self.reason = "SIGTERM"
            raise StopRequested


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=1))
    return folder


def pretraining(reviews, out, moment, resume=False, runtime=CPU, **settings):
    config = pretrain_config(**{"loop__steps": 9, "loop__save_every": 4, "loop__evaluate_every": 2} | settings)
    run = open_or_create(out, "pretrain", config, resume)
    stop = StopAt(moment)
    shards = [Shards.open(reviews / "base" / "tokens")] * max(1, len(config.stages))
    setup = prepare_pretraining(config, shards, runtime)
    PretrainTrainer(run, config, setup, runtime, stop, SilentProgress()).train(resume=resume)
    return run, stop


def staged(reviews, out, moment, resume=False):
    stages = [{"texts": ["a"], "context": 9}, {"texts": ["a"], "fraction": 2}]
    return pretraining(reviews, out, moment, resume, stages=stages, loop__evaluate_every=4)


def finetuning(reviews, out, moment, resume=False):
    config = finetune_config(loop__batch_size=16)
    run = open_or_create(out, "finetune", config, resume)
    files = [str(reviews / f"{name}.csv") for name in ("train", "valid", "test")]
    settings = {"tokenizer": None, "tokenizer_config": config.tokenizer, "seed": 0, "progress": SilentProgress()}
    data = load_labelled_data(*files, LabelledConfig(), **settings)
    model, _ = build_classifier(config.model, data, None, "scratch", 0, "causal")
    stop = StopAt(moment)
    FinetuneTrainer(run, config, data, model, CPU, stop, SilentProgress()).train(resume=resume)
    return run, stop


def open_or_create(out, kind, config, resume):
    if resume:
        return RunFolder.open(out, kind=kind)
    return RunFolder.create(out, kind=kind, command="", config=config, inputs={})


def numbers(run):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in run.metrics.read()]


@pytest.mark.parametrize("recipe", [pretraining, pytest.param(staged, marks=pytest.mark.slow), finetuning])
def test_a_stop_at_any_moment_changes_no_number(recipe, reviews, tmp_path):
    whole, never = recipe(reviews, tmp_path / "whole", 0)
    assert never.checks > 12  # control: training, measuring and the end are all among the moments
    for moment in range(1, never.checks + 1):
        out = tmp_path / str(moment)
        with pytest.raises((StopRequested, Interrupted)):
            recipe(reviews, out, moment)
        again, _ = recipe(reviews, out, 0, resume=True)
        assert numbers(again) == numbers(whole), f"stopped at moment {moment}"


def test_a_stop_changes_no_number_of_a_run_with_masked_tokens_in_bf16(reviews, tmp_path):
    runs = {}
    for bf16 in (False, True):
        hybrid = {"objective": "hybrid", "runtime": replace(CPU, bf16=bf16)}
        whole, never = pretraining(reviews, tmp_path / f"whole-{bf16}", 0, **hybrid)
        out = tmp_path / f"stopped-{bf16}"
        with pytest.raises((StopRequested, Interrupted)):
            pretraining(reviews, out, never.checks // 2, **hybrid)
        again, _ = pretraining(reviews, out, 0, resume=True, **hybrid)
        runs[bf16] = numbers(whole)
        assert numbers(again) == runs[bf16]
    assert runs[False] != runs[True]  # control: the second did compute in bf16


@pytest.mark.parametrize("recipe", [pretraining, finetuning])
def test_a_stop_saves_the_step_it_came_at(recipe, reviews, tmp_path):
    with pytest.raises((StopRequested, Interrupted)):
        recipe(reviews, tmp_path / "run", 1)
    saved = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert saved == ["step-00000001"]  # no multiple of save_every
