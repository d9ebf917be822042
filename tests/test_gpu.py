"""On a CUDA device the numbers are those of the CPU, within rounding, and a run resumes there too."""

import os

import numpy as np
import pytest
import torch

from headstart.config import OptimConfig
from headstart.data.batches import CausalRows, LabelledRows
from headstart.errors import Interrupted
from headstart.files import read_json
from headstart.model.backbone import build_backbone
from headstart.model.heads import Model, build_classifier_head
from headstart.recipes.compare import run_compare
from headstart.recipes.finetune import run_finetune
from headstart.recipes.pretrain import run_pretrain
from headstart.runtime import Halt, Runtime, Stop
from headstart.train.evaluate import score_texts
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import classify, predict_tokens
from headstart.train.optim import build_optimizer
from tiny import (
    CPU,
    SPECIAL,
    VOCABULARY,
    change_runtime,
    corpus,
    finetune_config,
    kinds_of_network,
    language_model,
    pretrain_config,
    write_reviews,
)

# importing the compiler warns about parts of torch that Headstart never touches
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

# the command line sets it when it is asked for; here other tests may start CUDA first
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

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
    change_runtime(tmp_path / "cut", time_limit=None)
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


KINDS = kinds_of_network(width=64, depth=3, heads=4, feedforward=96, context=48)
del KINDS["classic"]  # its dropout and its heads go another way
MODERN = KINDS["modern"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("visibility", ["causal", "both"])
@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
def test_attention_between_bounds_is_attention_under_a_mask(visibility, padded, kind):
    sizes = [3, 41, 7, 2, 19, 5, 8, 33] * 8
    model = language_model(shape=KINDS[kind]).cuda().eval()
    rows = CausalRows(
        corpus(sizes),
        np.arange(len(sizes)),
        SPECIAL,
        context=48,
        layout="documents" if padded else "packed",
        seed=1,
    )
    plain = rows.batch(0, rows.rows, segments_always=True)
    batch = plain.to(torch.device("cuda"))
    assert batch.bounds is not None
    real = batch.segments_BT != -1
    with torch.inference_mode():
        expected = model.backbone(batch.ids_BT, batch.segments_BT, visibility)[real]
        with CUDA_BF16.autocast():
            found = model.backbone(batch.ids_BT, batch.segments_BT, visibility, batch.bounds, batch.real)[real]
            masked = model.backbone(batch.ids_BT, batch.segments_BT, visibility)[real]
    wrong, usual = (found - expected).norm() / expected.norm(), (masked - expected).norm() / expected.norm()
    assert usual < 0.02
    assert wrong < 1.5 * usual + 1e-3


@pytest.mark.parametrize("reading", ["causal", "both"])
def test_a_classifier_learns_the_same_without_padding(reading):
    texts = [np.arange(4, 4 + size) % 13 + 4 for size in (3, 11, 7, 2, 9, 40)]
    rows = LabelledRows(texts, [0, 1, 0, 1, 0, 1], SPECIAL, context=48)
    found = []
    for runtime in (CPU, CUDA, CUDA_BF16):
        head = build_classifier_head(MODERN, 2, 0, reading)
        model = Model(build_backbone(MODERN, VOCABULARY, 0), head).to(runtime.device)
        config = OptimConfig(lr=1e-3, optimizer="adamw", weight_decay=0.01)
        state = TrainState(model, build_optimizer(model, config), 0)
        steps = fit(
            state, lambda _: [rows.batch(range(6))], lambda batch, m=model: classify(m, batch), config, 12, runtime
        )
        found.append([report.loss for report in steps])
    cpu, cuda, short = found
    assert cuda == pytest.approx(cpu, rel=2e-3)
    assert short == pytest.approx(cpu, rel=0.05, abs=0.05)
    assert short[-1] < 0.7 * short[0]  # control: it learns


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reading", ["causal", "both"])
def test_scores_between_bounds_are_scores_under_a_mask(reading, kind):
    texts = [np.arange(4, 4 + size) % 13 + 4 for size in (3, 11, 7, 2, 9, 40, 46)]
    rows = LabelledRows(texts, [0] * len(texts), SPECIAL, context=48)
    head = build_classifier_head(KINDS[kind], 2, 0, reading)
    model = Model(build_backbone(KINDS[kind], VOCABULARY, 0), head).cuda()
    torch.nn.init.normal_(model.head.linear.weight)  # scores worth comparing
    tokens = []
    model.backbone.layers[0].register_forward_pre_hook(lambda _, given: tokens.append(given[0].shape[:2].numel()))
    expected, found = (score_texts(model, rows, runtime, lambda: None) for runtime in (CUDA, CUDA_BF16))
    assert np.abs(found - expected).max() < 3e-3 * np.abs(expected).max()
    padded, real = tokens
    assert padded > real == rows.lengths.sum()  # control: it went another way
    alone = [
        score_texts(model, LabelledRows([text], [0], SPECIAL, context=48), CUDA_BF16, lambda: None) for text in texts
    ]
    assert np.abs(np.concatenate(alone) - found).max() < 3e-3 * np.abs(expected).max()


def test_a_compiled_network_learns_as_a_plain_one(tmp_path):
    data = write_reviews(tmp_path / "data")
    settings = {
        "model__block": "modern",
        "model__width": 32,
        "model__heads": 2,
        "objective": "hybrid",
        "optim__optimizer": "muon",
        "loop__steps": 30,
        "runtime__device": "cuda",
    }
    for compiled in (False, True):
        run_pretrain(
            [str(data / "texts.txt")], tmp_path / str(compiled), pretrain_config(**settings, runtime__compile=compiled)
        )
    plain, compiled = (read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("False", "True"))
    assert compiled == pytest.approx(plain, rel=0.03)


class StopAt(Stop):
    """A signal after so many looks for one."""

    def __init__(self, moment):
        super().__init__()
        self.left = moment

    def check(self):
        self.left -= 1
        if not self.left:
            self.reason = "SIGTERM"
            raise Halt


def weights(run):
    return {path.name: path.read_bytes() for path in sorted((run / "bundle").glob("*.safetensors"))}


SAME = {"runtime__device": "cuda", "runtime__deterministic": True}
WAYS = {
    "classic": {"model__dropout": 0.1},
    "modern, hybrid, muon": {"objective": "hybrid", "optim__optimizer": "muon", "model__block": "modern"},
    "fp32": {"runtime__precision": "fp32"},
}


@pytest.mark.parametrize("kind", WAYS)
def test_pretraining_gives_the_same_bits_twice_and_when_it_is_resumed(kind, tmp_path):
    """Width 32 in 2 heads: without the mode, bf16 would take the kernel that knows no order."""
    data = write_reviews(tmp_path / "data")
    text = [str(data / "texts.txt")]
    settings = {"model__width": 32, "model__heads": 2, "loop__steps": 24, **WAYS[kind]}
    for name in ("one", "two"):
        run_pretrain(text, tmp_path / name, pretrain_config(**settings, **SAME))
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert read_json(tmp_path / "one" / "environment.json")["deterministic"] is True
    cut = pretrain_config(**settings, **SAME, runtime__time_limit=1e-5)
    with pytest.raises(Interrupted):
        run_pretrain(text, tmp_path / "cut", cut)
    change_runtime(tmp_path / "cut", time_limit=None)
    run_pretrain([], tmp_path / "cut", None, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "one")
    for name in ("result.json", "metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    run_pretrain(text, tmp_path / "other", pretrain_config(**settings, **SAME, runtime__seed=1))
    assert weights(tmp_path / "other") != weights(tmp_path / "one")  # control


def test_fine_tuning_gives_the_same_bits_twice_and_when_it_is_resumed(tmp_path, monkeypatch):
    from headstart.recipes.training import Finetuning

    data = write_reviews(tmp_path / "data")
    shape = {"model__width": 32, "model__heads": 2, "model__block": "modern"}
    run_pretrain([str(data / "texts.txt")], tmp_path / "base", pretrain_config(**shape, **SAME, loop__steps=4))
    files = {name: str(data / f"{name}.csv") for name in ("valid", "test")}
    given = {"source": str(tmp_path / "base"), **files}
    config = finetune_config(**SAME, optim__average=0.5)
    for name in ("one", "two"):
        run_finetune(str(data / "train.csv"), tmp_path / name, config, **given)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    go = Finetuning.go

    def stopped(own, *, resume):
        own.stop = StopAt(10)
        return go(own, resume=resume)

    with monkeypatch.context() as changed, pytest.raises(Interrupted):
        changed.setattr(Finetuning, "go", stopped)
        run_finetune(str(data / "train.csv"), tmp_path / "cut", config, **given)
    run_finetune(None, tmp_path / "cut", None, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "one")


BOUND = 0.02
"""How far the held-out loss of a resumed run may lie from that of one that nobody touched, as a share of it, in bf16
and without the deterministic mode."""


def test_without_the_mode_a_resumed_run_ends_within_the_stated_bound(tmp_path):
    data = write_reviews(tmp_path / "data")
    text = [str(data / "texts.txt")]
    settings = {"model__width": 32, "model__heads": 2, "model__block": "modern", "loop__steps": 24}
    settings["runtime__device"] = "cuda"
    run_pretrain(text, tmp_path / "whole", pretrain_config(**settings))
    with pytest.raises(Interrupted):
        run_pretrain(text, tmp_path / "cut", pretrain_config(**settings, runtime__time_limit=1e-5))
    change_runtime(tmp_path / "cut", time_limit=None)
    run_pretrain([], tmp_path / "cut", None, resume=True)
    whole, cut = (read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("whole", "cut"))
    assert cut == pytest.approx(whole, rel=BOUND)
    assert read_json(tmp_path / "cut" / "environment.json")["deterministic"] is False
