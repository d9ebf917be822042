"""On a CUDA device the numbers are those of the CPU, within rounding, and a run resumes there too."""

import numpy as np
import pytest
import torch

from headstart.config import OptimConfig
from headstart.data.batches import CausalRows
from headstart.errors import Interrupted
from headstart.files import read_json
from headstart.recipes.compare import run_compare
from headstart.recipes.pretrain import run_pretrain
from headstart.runtime import Runtime
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import predict_tokens
from headstart.train.optim import build_optimizer
from tiny import CPU, SPECIAL, corpus, finetune_config, language_model, pretrain_config, write_reviews

pytestmark = pytest.mark.gpu

if torch.cuda.is_available():
    CUDA = Runtime(torch.device("cuda"), bf16=False, threads=1)
    CUDA_BF16 = Runtime(torch.device("cuda"), bf16=True, threads=1)


def losses(runtime, steps=20):
    sizes = [3, 11, 7, 2, 9, 5, 8, 12]
    rows = CausalRows(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=12, layout="packed", seed=1)
    model = language_model().to(runtime.device)
    config = OptimConfig(lr=1e-2)
    state = TrainState(model, build_optimizer(model, config), 0)
    reports = fit(
        state,
        lambda step: [rows.batch(step * 4, 4)],
        lambda batch: predict_tokens(model, batch),
        config,
        steps,
        runtime,
    )
    return [report.loss for report in reports]


def test_training_in_fp32_follows_the_cpu():
    assert losses(CUDA) == pytest.approx(losses(CPU), rel=1e-3)


def test_training_in_bf16_follows_the_cpu_roughly():
    found, expected = losses(CUDA_BF16), losses(CPU)
    assert found == pytest.approx(expected, rel=0.05)
    assert found != expected  # control: it is another precision


def test_the_whole_story_runs_and_resumes(tmp_path):
    data = write_reviews(tmp_path / "data")
    text = [str(data / "texts.txt")]
    settings = {"runtime__device": "cuda", "runtime__precision": "fp32"}
    run_pretrain(text, tmp_path / "whole", pretrain_config(**settings, loop__steps=20))
    with pytest.raises(Interrupted):
        run_pretrain(text, tmp_path / "cut", pretrain_config(**settings, loop__steps=20, runtime__time_limit=1e-5))
    config = read_json(tmp_path / "cut" / "config.json")
    config["runtime"]["time_limit"] = None
    (tmp_path / "cut" / "config.json").write_text(__import__("json").dumps(config))
    run_pretrain([], tmp_path / "cut", None, resume=True)
    whole, cut = (read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("whole", "cut"))
    assert cut == pytest.approx(whole, rel=1e-3)
    page = run_compare(
        str(data / "train.csv"),
        tmp_path / "cmp",
        finetune_config(runtime__device="cuda"),
        source=str(tmp_path / "whole"),
        valid=str(data / "valid.csv"),
        test=str(data / "test.csv"),
        seeds=2,
    )
    assert page.is_file()
