"""On a CUDA device the numbers are those of the CPU, within rounding, and a run resumes there too."""

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fixtures.linear_loss import far_target_inputs, linear_loss_inputs, reference_loss, relative_errors
from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import (
    CPU,
    SPECIAL,
    VOCABULARY,
    change_runtime,
    corpus,
    finetune_config,
    language_model,
    network_configs,
    pretrain_config,
    write_reviews,
)
from headstart.config.schema import ModelConfig, OptimConfig, TransferConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.errors import Interrupted
from headstart.files import read_json
from headstart.interrupts import StopRequested, StopSignal
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.runtime import Runtime
from headstart.train.cuda_graphs import text_graphs
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import classification_loss, language_model_loss
from headstart.train.optimizers import build_optimizer, set_trainable
from headstart.train.parallel import SINGLE
from headstart.train.scoring import score_texts
from headstart.train.transfer_batch import to_device

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
    rows = PackedDataset(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=12, layout="packed", seed=1)
    model = language_model().to(runtime.device)
    config = OptimConfig(lr=1e-2)
    state = TrainState(model, build_optimizer(model, config), 0)
    reports = fit(
        state,
        lambda step: [rows.batch(step * 4, 4)],
        lambda batch: language_model_loss(model, batch),
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
    pretrain_run(text, tmp_path / "whole", pretrain_config(**settings, loop__steps=20))
    with pytest.raises(Interrupted):
        pretrain_run(text, tmp_path / "cut", pretrain_config(**settings, loop__steps=20, runtime__time_limit=1e-5))
    change_runtime(tmp_path / "cut", time_limit=None)
    pretrain_run([], tmp_path / "cut", None, resume=True)
    whole, cut = (read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("whole", "cut"))
    assert cut == pytest.approx(whole, rel=1e-3)
    request = CompareRequest(
        str(data / "train.csv"),
        tmp_path / "cmp",
        backbones=(str(tmp_path / "whole"),),
        valid=str(data / "valid.csv"),
        test=str(data / "test.csv"),
        seeds=2,
    )
    page = run_compare(request, finetune_config(runtime__device="cuda"))
    assert page.is_file()


KINDS = network_configs(width=64, depth=3, heads=4, feedforward=96, context=48)
del KINDS["classic"]  # its dropout and its heads go another way
MODERN = KINDS["modern"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
def test_attention_between_bounds_is_attention_under_a_mask(attention, padded, kind):
    sizes = [3, 41, 7, 2, 19, 5, 8, 33] * 8
    model = language_model(shape=KINDS[kind]).cuda().eval()
    rows = PackedDataset(
        corpus(sizes),
        np.arange(len(sizes)),
        SPECIAL,
        context=48,
        layout="documents" if padded else "packed",
        seed=1,
    )
    plain = rows.batch(0, rows.num_rows, segments_always=True)
    batch = to_device(plain, torch.device("cuda"))
    assert batch.cu_seqlens is not None
    real = batch.segments_BT != -1
    with torch.inference_mode():
        expected = model.backbone(batch.ids_BT, batch.segments_BT, attention)[real]
        with CUDA_BF16.autocast():
            found = model.backbone(
                batch.ids_BT, batch.segments_BT, attention, batch.cu_seqlens, batch.unpadded_indices
            )[real]
            masked = model.backbone(batch.ids_BT, batch.segments_BT, attention)[real]
    wrong, usual = (found - expected).norm() / expected.norm(), (masked - expected).norm() / expected.norm()
    assert usual < 0.02
    assert wrong < 1.5 * usual + 1e-3


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_classifier_learns_the_same_without_padding(attention):
    texts = [np.arange(4, 4 + size) % 13 + 4 for size in (3, 11, 7, 2, 9, 40)]
    rows = LabelledDataset(texts, [0, 1, 0, 1, 0, 1], SPECIAL, context=48)
    found = []
    for runtime in (CPU, CUDA, CUDA_BF16):
        head = build_classifier_head(MODERN, 2, 0, attention)
        model = Model(build_backbone(MODERN, VOCABULARY, 0), head).to(runtime.device)
        config = OptimConfig(lr=1e-3, optimizer="adamw", weight_decay=0.01)
        state = TrainState(model, build_optimizer(model, config), 0)
        steps = fit(
            state,
            lambda _: [rows.batch(range(6))],
            lambda batch, m=model: classification_loss(m, batch),
            config,
            12,
            runtime,
        )
        found.append([report.loss for report in steps])
    cpu, cuda, short = found
    assert cuda == pytest.approx(cpu, rel=2e-3)
    assert short == pytest.approx(cpu, rel=0.05, abs=0.05)
    assert short[-1] < 0.7 * short[0]  # control: it learns


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_scores_between_bounds_are_scores_under_a_mask(attention, kind):
    texts = [np.arange(4, 4 + size) % 13 + 4 for size in (3, 11, 7, 2, 9, 40, 46)]
    rows = LabelledDataset(texts, [0] * len(texts), SPECIAL, context=48)
    head = build_classifier_head(KINDS[kind], 2, 0, attention)
    model = Model(build_backbone(KINDS[kind], VOCABULARY, 0), head).cuda()
    torch.nn.init.normal_(model.head.linear.weight)  # scores worth comparing
    tokens = []
    model.backbone.layers[0].register_forward_pre_hook(lambda _, given: tokens.append(given[0].shape[:2].numel()))
    expected, found = (score_texts(model, rows, runtime, lambda: None) for runtime in (CUDA, CUDA_BF16))
    assert np.abs(found - expected).max() < 3e-3 * np.abs(expected).max()
    padded, real = tokens
    assert padded > real == rows.lengths.sum()  # control: it went another way
    alone = [
        score_texts(model, LabelledDataset([text], [0], SPECIAL, context=48), CUDA_BF16, lambda: None) for text in texts
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
        pretrain_run(
            [str(data / "texts.txt")], tmp_path / str(compiled), pretrain_config(**settings, runtime__compile=compiled)
        )
    plain, compiled = (read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("False", "True"))
    assert compiled == pytest.approx(plain, rel=0.03)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head", [64, 100])
def test_attention_of_steady_rows_is_attention(head, causal):
    from headstart.kernels.attention import cudnn_attention
    from headstart.kernels.dispatch import supports_cudnn_attention

    if not supports_cudnn_attention(torch.device("cuda"), head):
        pytest.skip("no device on which cuDNN's attention is taken")
    torch.manual_seed(0)
    parts = [torch.randn(4, 2, 256, head, device="cuda") for _ in range(3)]
    exact = [part.double().requires_grad_() for part in parts]
    rough = [part.bfloat16().requires_grad_() for part in parts]
    usual = [part.bfloat16().requires_grad_() for part in parts]
    expected = F.scaled_dot_product_attention(*exact, is_causal=causal)
    found = cudnn_attention(*rough, causal=causal)
    theirs = F.scaled_dot_product_attention(*usual, is_causal=causal)
    slope = torch.randn_like(expected)
    for mixed in (expected, found, theirs):
        mixed.backward(slope.to(mixed.dtype))

    def wrong(mixed, sources):
        pairs = [(mixed, expected), *((a.grad, b.grad) for a, b in zip(sources, exact, strict=True))]
        return [float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs]

    for ours, torchs in zip(wrong(found, rough), wrong(theirs, usual), strict=True):
        assert ours < 1.5 * torchs + 1e-3


@pytest.mark.parametrize("kind", ["classic", "modern"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_full_rows_without_bounds_are_read_as_under_a_mask(kind, attention):
    """In training too, where another kernel reads them."""
    shape = ModelConfig(block=kind, width=200, depth=2, heads=2, feedforward=96, context=48)
    model = language_model(shape=shape).cuda().train()
    rows = PackedDataset(corpus([47] * 8), np.arange(8), SPECIAL, context=48, layout="packed", seed=1)
    batch = to_device(rows.batch(0, 8), torch.device("cuda"))
    assert batch.segments_BT is None
    segments = torch.zeros_like(batch.ids_BT)
    expected = model.backbone(batch.ids_BT, segments, attention)
    with CUDA_BF16.autocast():
        found = model.backbone(batch.ids_BT, None, attention)
        masked = model.backbone(batch.ids_BT, segments, attention)
    wrong, usual = ((each - expected).norm() / expected.norm() for each in (found, masked))
    assert wrong < 1.5 * usual + 1e-3


@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("heads", "rotary"), [(4, False), (2, False), (4, True)])
def test_attention_over_steady_rows_is_that_over_others(heads, rotary, compiled):
    from headstart.kernels.attention import AttentionContext
    from headstart.kernels.dispatch import KernelPlan, supports_cudnn_attention
    from headstart.model.attention import SelfAttention, rotary_cos_sin

    width = 200 if heads == 2 else 256
    if not supports_cudnn_attention(torch.device("cuda"), width // heads):
        pytest.skip("cuDNN's attention is not there")
    torch.manual_seed(0)
    layer = SelfAttention(width, heads, 0.0, bias=True).cuda()
    x, slopes = torch.randn(2, 4, 128, width, device="cuda")
    turned = rotary_cos_sin(torch.arange(128, device="cuda"), width // heads) if rotary else None
    found = []
    for kernel in ("sdpa", "cudnn"):
        called = torch.compile(layer) if compiled else layer
        layer.zero_grad()
        rows = x.clone().requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mixed = called(rows, AttentionContext(KernelPlan(attention=kernel), rotary=turned))
        mixed.float().backward(slopes)
        found.append([mixed.float(), rows.grad, *(parameter.grad for parameter in layer.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 0.02 * other.norm() + 1e-3


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("rows", "width", "vocabulary"),
    [(1, 5, 7), (700, 200, 64), (699, 200, 1001), (700, 512, 16384), (700, 203, 50001), (8700, 40, 1001)],
)
def test_the_loss_in_bites_is_plain_cross_entropy(rows, width, vocabulary, biased):
    """And powers in bf16 are no less exact than scores are."""
    from headstart.kernels.cross_entropy import chunked_loss_cuda, from_logits, logits_to_grad_reference
    from headstart.kernels.triton.cross_entropy import logits_to_grad

    asked = linear_loss_inputs(rows, width, vocabulary, has_bias=biased, scale=0.25, device="cuda")
    expected = reference_loss(*asked)
    usual = relative_errors(
        chunked_loss_cuda(*asked, torch.bfloat16, chunk_loss=from_logits(logits_to_grad_reference)), expected
    )
    for way in ({}, {"rows": 256}, {"chunk_loss": from_logits(logits_to_grad)}):
        assert max(relative_errors(chunked_loss_cuda(*asked, torch.float32, **way), expected)) < 1e-5, way
        found = relative_errors(chunked_loss_cuda(*asked, torch.bfloat16, **way), expected)
        # a single row is one throw of the dice
        assert max(found) < (0.01 if rows == 1 else 0.005), way
        assert rows == 1 or all(a < 1.05 * b + 1e-4 for a, b in zip(found, usual, strict=True)), (way, found, usual)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("distance", [127, 300])
def test_a_row_whose_powers_overflow_is_done_again(distance, biased):
    """And what is no number stays none."""
    from headstart.kernels.cross_entropy import chunked_loss_cuda

    asked = far_target_inputs(300, 200, 5001, has_bias=biased, distance=distance, device="cuda")
    assert max(relative_errors(chunked_loss_cuda(*asked, torch.bfloat16), reference_loss(*asked))) < 0.005
    broken = asked[0].clone()
    broken[7] = torch.nan
    assert chunked_loss_cuda(broken, *asked[1:], torch.bfloat16)[0].isnan()


def test_the_loss_has_the_same_bits_twice():
    from headstart.kernels.cross_entropy import chunked_loss_cuda

    asked = linear_loss_inputs(3000, 200, 20001, has_bias=True, scale=0.25, device="cuda")
    one, two = (chunked_loss_cuda(*asked, torch.bfloat16, rows=1024) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_the_kernels_of_the_loss_are_there():
    """Control: triton comes with torch for CUDA, and the tests above have tried it."""
    from headstart.kernels.cross_entropy import _best_chunk_loss
    from headstart.kernels.triton.cross_entropy import from_exp_logits

    assert _best_chunk_loss(torch.device("cuda"), torch.bfloat16) is from_exp_logits
    assert "from_logits" in _best_chunk_loss(torch.device("cuda"), torch.float32).__qualname__


class StopAt(StopSignal):
    """A signal after so many looks for one."""

    def __init__(self, moment):
        super().__init__()
        self.left = moment

    def check(self):
        self.left -= 1
        if not self.left:
            self.reason = "SIGTERM"
            raise StopRequested


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
        pretrain_run(text, tmp_path / name, pretrain_config(**settings, **SAME))
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert read_json(tmp_path / "one" / "environment.json")["deterministic"] is True
    cut = pretrain_config(**settings, **SAME, runtime__time_limit=1e-5)
    with pytest.raises(Interrupted):
        pretrain_run(text, tmp_path / "cut", cut)
    change_runtime(tmp_path / "cut", time_limit=None)
    pretrain_run([], tmp_path / "cut", None, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "one")
    for name in ("result.json", "metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    pretrain_run(text, tmp_path / "other", pretrain_config(**settings, **SAME, runtime__seed=1))
    assert weights(tmp_path / "other") != weights(tmp_path / "one")  # control


def test_fine_tuning_gives_the_same_bits_twice_and_when_it_is_resumed(tmp_path, monkeypatch):
    from headstart.recipes.finetune.trainer import FinetuneTrainer

    data = write_reviews(tmp_path / "data")
    shape = {"model__width": 32, "model__heads": 2, "model__block": "modern"}
    pretrain_run([str(data / "texts.txt")], tmp_path / "base", pretrain_config(**shape, **SAME, loop__steps=4))
    files = {name: str(data / f"{name}.csv") for name in ("valid", "test")}
    given = {"backbone": str(tmp_path / "base"), **files}
    config = finetune_config(**SAME, optim__ema_decay=0.5)
    for name in ("one", "two"):
        finetune_run(str(data / "train.csv"), tmp_path / name, config, **given)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    go = FinetuneTrainer.train

    def stopped(own, *, resume):
        own.stop = StopAt(10)
        return go(own, resume=resume)

    with monkeypatch.context() as changed, pytest.raises(Interrupted):
        changed.setattr(FinetuneTrainer, "train", stopped)
        finetune_run(str(data / "train.csv"), tmp_path / "cut", config, **given)
    finetune_run(None, tmp_path / "cut", None, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "one")


BOUND = 0.02
"""How far the held-out loss of a resumed run may lie from that of one that nobody touched, as a share of it, in bf16
and without the deterministic mode."""


def test_without_the_mode_a_resumed_run_ends_within_the_stated_bound(tmp_path):
    data = write_reviews(tmp_path / "data")
    text = [str(data / "texts.txt")]
    settings = {"model__width": 32, "model__heads": 2, "model__block": "modern", "loop__steps": 24}
    settings["runtime__device"] = "cuda"
    pretrain_run(text, tmp_path / "whole", pretrain_config(**settings))
    with pytest.raises(Interrupted):
        pretrain_run(text, tmp_path / "cut", pretrain_config(**settings, runtime__time_limit=1e-5))
    change_runtime(tmp_path / "cut", time_limit=None)
    pretrain_run([], tmp_path / "cut", None, resume=True)
    whole, cut = (read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("whole", "cut"))
    assert cut == pytest.approx(whole, rel=BOUND)
    assert read_json(tmp_path / "cut" / "environment.json")["deterministic"] is False


TEXTS = [3, 40, 7, 61, 9, 5, 33, 12, 80, 21]
TUNED = {
    "classic": (ModelConfig(width=40, depth=2, heads=2, feedforward=40, context=96), "causal"),
    "modern": (MODERN.model_copy(update={"context": 96}), "causal"),
    "modern, both": (MODERN.model_copy(update={"context": 96}), "bidirectional"),
}


class Tuning:
    """A small fine-tuning whose batches have two widths, and an odd one at the end of each epoch."""

    def __init__(self, kind="classic", *, seed=0, captured=True, ask=classification_loss, dropout=0.0, **optim):
        shape, attention = TUNED[kind]
        shape = shape.model_copy(update={"dropout": dropout})
        head = build_classifier_head(shape, 2, 0, attention)
        self.model, self.ask = Model(build_backbone(shape, VOCABULARY, 0), head).cuda(), ask
        self.config = OptimConfig(**{"lr": 1e-3, "clip": 0.5, **optim})
        self.state = TrainState(self.model, build_optimizer(self.model, self.config), seed)
        self.said = []
        self.graphs = self.fresh() if captured else None
        texts = [(np.arange(size) * 7 + size) % 13 + 4 for size in TEXTS]
        self.rows = LabelledDataset(texts, [size % 2 for size in TEXTS], SPECIAL, context=96)

    def fresh(self):
        return text_graphs(self.model, CUDA, SINGLE, self.said.append)

    def fetch(self, step):
        first = 3 * (step % 4)
        return [self.rows.batch(range(first, min(first + 3, len(TEXTS))))]

    def losses(self, steps=30, until=None, runtime=None):
        found = []
        runtime = runtime or CUDA
        for report in fit(
            self.state,
            self.fetch,
            lambda batch: self.ask(self.model, batch),
            self.config,
            steps,
            runtime,
            graphs=self.graphs,
        ):
            found.append(report.loss)
            if report.step == until:
                break
        return found


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("kind", TUNED)
def test_recorded_fine_tuning_follows_the_plain_one(kind, optimizer):
    settings = {"optimizer": optimizer, "warmup": 0.3, "schedule": "linear"}
    plain, captured = Tuning(kind, captured=False, **settings).losses(), Tuning(kind, **settings)
    assert captured.losses() == pytest.approx(plain, rel=5e-3)
    assert not captured.said
    assert captured.graphs.num_graphs == 3
    assert captured.graphs.update is not None
    assert max(plain) - min(plain) > 0.1  # control: something is learnt


@pytest.mark.parametrize("kind", TUNED)
def test_recorded_fine_tuning_in_bf16_follows_the_plain_one_roughly(kind):
    plain, captured = Tuning(kind, captured=False).losses(runtime=CUDA_BF16), Tuning(kind)
    assert captured.losses(runtime=CUDA_BF16) == pytest.approx(plain, rel=0.05, abs=0.05)
    assert not captured.said
    assert captured.graphs.num_graphs == 3


def test_with_muon_the_passes_alone_are_recorded():
    plain, captured = Tuning("modern", captured=False, optimizer="muon").losses(), Tuning("modern", optimizer="muon")
    assert captured.losses() == pytest.approx(plain, rel=0.05, abs=0.05)
    assert captured.graphs.num_graphs == 3
    assert captured.graphs.update is None
    assert not captured.said


def test_what_is_dropped_follows_from_seed_and_step_recorded_or_not():
    """With a rate of next to nothing only what is dropped makes losses of the same batch differ."""
    settings = {"dropout": 0.3, "lr": 1e-9}
    whole, again, other = (Tuning(seed=seed, **settings).losses(24) for seed in (0, 0, 1))
    assert whole == pytest.approx(again, rel=1e-4)
    of_one_batch = whole[0::4]
    assert min(abs(a - b) for i, a in enumerate(of_one_batch) for b in of_one_batch[:i]) > 1e-4 * whole[0]
    assert whole != pytest.approx(other, rel=1e-3)
    cut = Tuning(**settings)
    first = cut.losses(24, until=13)
    cut.graphs = cut.fresh()  # as in another process: every width is new
    assert first + cut.losses(24) == pytest.approx(whole, rel=1e-4)


def test_a_frozen_weight_does_not_move_in_a_recorded_step():
    tuning = Tuning()
    tuning.losses(until=9)
    set_trainable(tuning.model, TransferConfig(freeze=True), 0)
    before = {name: parameter.detach().clone() for name, parameter in tuning.model.named_parameters()}
    tuning.losses(until=20)
    moved = {name for name, parameter in tuning.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {"head.linear.weight", "head.linear.bias"}
    assert tuning.graphs.num_graphs == 3
    set_trainable(tuning.model, TransferConfig(), 0)
    tuning.losses()
    assert not any(torch.equal(parameter, before[name]) for name, parameter in tuning.model.named_parameters())
    assert not tuning.said


@pytest.mark.filterwarnings("ignore::UserWarning")  # what torch says of a capture that was broken off
def test_passes_that_cannot_be_recorded_go_the_plain_way():
    def asks_the_device(model, batch):
        part = classification_loss(model, batch)
        assert float(part.total.detach()) > 0
        return part

    refused = Tuning(ask=asks_the_device)
    found = refused.losses()
    assert found == pytest.approx(Tuning(captured=False).losses(), rel=5e-3)
    assert refused.graphs.num_graphs == 0
    assert len(refused.said) == 1
    assert refused.said[0].startswith("steps are not recorded as CUDA graphs here, and take longer: ")
    # the generator is whole again, and another model can be recorded
    assert all(np.isfinite(Tuning(ask=asks_the_device, dropout=0.3).losses()))
    captured = Tuning(dropout=0.3)
    assert all(np.isfinite(captured.losses()))
    assert captured.graphs.num_graphs == 3


def test_a_recorded_run_that_is_resumed_ends_within_the_stated_bound(tmp_path, monkeypatch):
    from headstart.recipes.finetune.trainer import FinetuneTrainer

    data = write_reviews(tmp_path / "data")
    given = {"backbone": "scratch", **{name: str(data / f"{name}.csv") for name in ("valid", "test")}}
    config = finetune_config(runtime__device="cuda", optim__ema_decay=0.5)
    finetune_run(str(data / "train.csv"), tmp_path / "whole", config, **given)
    go, seen = FinetuneTrainer.train, []

    def stopped(own, *, resume):
        own.stop = StopAt(10)
        try:
            return go(own, resume=resume)
        finally:
            seen.append(own._graphs.num_graphs)

    with monkeypatch.context() as changed, pytest.raises(Interrupted):
        changed.setattr(FinetuneTrainer, "train", stopped)
        finetune_run(str(data / "train.csv"), tmp_path / "cut", config, **given)
    finetune_run(None, tmp_path / "cut", None, resume=True)
    whole, cut = (read_json(tmp_path / name / "result.json")["valid"]["loss"] for name in ("whole", "cut"))
    assert cut == pytest.approx(whole, rel=BOUND, abs=BOUND)
    assert seen[0] > 0  # control: it was recorded


def test_weighted_classes_are_learnt_as_before(tmp_path):
    data = write_reviews(tmp_path / "data")
    given = {"backbone": "scratch", "valid": str(data / "valid.csv")}
    config = finetune_config(runtime__device="cuda", transfer__class_weights="balanced")
    finetune_run(str(data / "train.csv"), tmp_path / "run", config, **given)
    assert (tmp_path / "run" / "result.json").is_file()
