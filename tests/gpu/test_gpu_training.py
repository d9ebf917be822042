"""On a CUDA device losses equal those of the CPU within rounding, runs resume, and fine-tuning steps are captured."""

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
from headstart.train.step import to_device

# importing the compiler warns about parts of torch that Headstart never touches
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

# the command line sets it when it is inputs for; here other tests may start CUDA first
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
    actual, expected = losses(CUDA_BF16), losses(CPU)
    assert actual == pytest.approx(expected, rel=0.05)
    assert actual != expected  # control: it is another precision


def test_pretraining_resumes_and_a_comparison_runs_on_a_gpu(tmp_path):
    data = write_reviews(tmp_path / "data")
    text = [str(data / "texts.txt")]
    settings = {"runtime__device": "cuda", "runtime__precision": "fp32"}
    pretrain_run(text, tmp_path / "uninterrupted", pretrain_config(**settings, loop__steps=20))
    with pytest.raises(Interrupted):
        pretrain_run(text, tmp_path / "resumed", pretrain_config(**settings, loop__steps=20, runtime__time_limit=1e-5))
    change_runtime(tmp_path / "resumed", time_limit=None)
    pretrain_run([], tmp_path / "resumed", None, resume=True)
    uninterrupted, resumed = (
        read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("uninterrupted", "resumed")
    )
    assert resumed == pytest.approx(uninterrupted, rel=1e-3)
    request = CompareRequest(
        train=str(data / "train.csv"),
        out=tmp_path / "cmp",
        backbones=(str(tmp_path / "uninterrupted"),),
        valid=str(data / "valid.csv"),
        test=str(data / "test.csv"),
        seeds=2,
    )
    page = run_compare(request, finetune_config(runtime__device="cuda"))
    assert page.is_file()


NETWORKS = network_configs(width=64, depth=3, heads=4, feedforward=96, context=48)
del NETWORKS["classic"]  # its dropout and its heads use other kernels
MODERN = NETWORKS["modern"]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
def test_varlen_attention_equals_attention_with_a_mask(attention, padded, network):
    sizes = [3, 41, 7, 2, 19, 5, 8, 33] * 8
    model = language_model(shape=NETWORKS[network]).cuda().eval()
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
            varlen = model.backbone(
                batch.ids_BT, batch.segments_BT, attention, batch.cu_seqlens, batch.unpadded_indices
            )[real]
            masked = model.backbone(batch.ids_BT, batch.segments_BT, attention)[real]
    error, masked_error = ((hidden - expected).norm() / expected.norm() for hidden in (varlen, masked))
    assert masked_error < 0.02
    assert error < 1.5 * masked_error + 1e-3


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_classifier_on_a_gpu_has_the_losses_of_the_cpu(attention):
    texts = [np.arange(4, 4 + size) % 13 + 4 for size in (3, 11, 7, 2, 9, 40)]
    rows = LabelledDataset(texts, [0, 1, 0, 1, 0, 1], SPECIAL, context=48)
    by_runtime = []
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
        by_runtime.append([report.loss for report in steps])
    cpu, cuda, bf16 = by_runtime
    assert cuda == pytest.approx(cpu, rel=2e-3)
    assert bf16 == pytest.approx(cpu, rel=0.05, abs=0.05)
    assert bf16[-1] < 0.7 * bf16[0]  # control: it learns


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_logits_of_unpadded_texts_equal_those_of_padded_texts(attention, network):
    texts = [np.arange(4, 4 + size) % 13 + 4 for size in (3, 11, 7, 2, 9, 40, 46)]
    rows = LabelledDataset(texts, [0] * len(texts), SPECIAL, context=48)
    head = build_classifier_head(NETWORKS[network], 2, 0, attention)
    model = Model(build_backbone(NETWORKS[network], VOCABULARY, 0), head).cuda()
    torch.nn.init.normal_(model.head.linear.weight)  # logits that differ
    num_tokens = []
    model.backbone.layers[0].register_forward_pre_hook(lambda _, inputs: num_tokens.append(inputs[0].shape[:2].numel()))
    expected, actual = (score_texts(model, rows, runtime, lambda: None) for runtime in (CUDA, CUDA_BF16))
    assert np.abs(actual - expected).max() < 3e-3 * np.abs(expected).max()
    padded, unpadded = num_tokens
    assert padded > unpadded == rows.lengths.sum()  # control: other kernels ran
    one_by_one = [
        score_texts(model, LabelledDataset([text], [0], SPECIAL, context=48), CUDA_BF16, lambda: None) for text in texts
    ]
    assert np.abs(np.concatenate(one_by_one) - actual).max() < 3e-3 * np.abs(expected).max()


def test_a_compiled_network_learns_as_an_eager_one(tmp_path):
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
    eager, compiled = (read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("False", "True"))
    assert compiled == pytest.approx(eager, rel=0.03)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 100])
def test_cudnn_attention_equals_torchs(head_dim, causal):
    from headstart.kernels.attention import cudnn_attention
    from headstart.kernels.dispatch import supports_cudnn_attention

    if not supports_cudnn_attention(torch.device("cuda"), head_dim):
        pytest.skip("no device on which cuDNN's attention is taken")
    torch.manual_seed(0)
    qkv = [torch.randn(4, 2, 256, head_dim, device="cuda") for _ in range(3)]
    exact = [tensor.double().requires_grad_() for tensor in qkv]
    ours = [tensor.bfloat16().requires_grad_() for tensor in qkv]
    torchs = [tensor.bfloat16().requires_grad_() for tensor in qkv]
    expected = F.scaled_dot_product_attention(*exact, is_causal=causal)
    output = cudnn_attention(*ours, causal=causal)
    torchs_output = F.scaled_dot_product_attention(*torchs, is_causal=causal)
    grad = torch.randn_like(expected)
    for result in (expected, output, torchs_output):
        result.backward(grad.to(result.dtype))

    def errors_of(result, inputs):
        pairs = [(result, expected), *((a.grad, b.grad) for a, b in zip(inputs, exact, strict=True))]
        return [float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs]

    for error, torchs_error in zip(errors_of(output, ours), errors_of(torchs_output, torchs), strict=True):
        assert error < 1.5 * torchs_error + 1e-3


@pytest.mark.parametrize("block", ["classic", "modern"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_full_rows_need_no_mask(block, attention):
    """In training too, where another kernel is used."""
    shape = ModelConfig(block=block, width=200, depth=2, heads=2, feedforward=96, context=48)
    model = language_model(shape=shape).cuda().train()
    rows = PackedDataset(corpus([47] * 8), np.arange(8), SPECIAL, context=48, layout="packed", seed=1)
    batch = to_device(rows.batch(0, 8), torch.device("cuda"))
    assert batch.segments_BT is None
    segments = torch.zeros_like(batch.ids_BT)
    expected = model.backbone(batch.ids_BT, segments, attention)
    with CUDA_BF16.autocast():
        unmasked = model.backbone(batch.ids_BT, None, attention)
        masked = model.backbone(batch.ids_BT, segments, attention)
    error, masked_error = ((hidden - expected).norm() / expected.norm() for hidden in (unmasked, masked))
    assert error < 1.5 * masked_error + 1e-3


@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("heads", "rotary"), [(4, False), (2, False), (4, True)])
def test_a_layer_with_cudnn_attention_equals_one_without(heads, rotary, compiled):
    from headstart.kernels.attention import AttentionContext
    from headstart.kernels.dispatch import KernelPlan, supports_cudnn_attention
    from headstart.model.attention import SelfAttention, rotary_cos_sin

    width = 200 if heads == 2 else 256
    if not supports_cudnn_attention(torch.device("cuda"), width // heads):
        pytest.skip("cuDNN's attention is not available")
    torch.manual_seed(0)
    layer = SelfAttention(width, heads, 0.0, bias=True).cuda()
    x, grad = torch.randn(2, 4, 128, width, device="cuda")
    cos_sin = rotary_cos_sin(torch.arange(128, device="cuda"), width // heads) if rotary else None
    results = []
    for kernel in ("sdpa", "cudnn"):
        called = torch.compile(layer) if compiled else layer
        layer.zero_grad()
        rows = x.clone().requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = called(rows, AttentionContext(KernelPlan(attention=kernel), rotary=cos_sin))
        output.float().backward(grad)
        results.append([output.float(), rows.grad, *(parameter.grad for parameter in layer.parameters())])
    for plain, cudnn in zip(*results, strict=True):
        assert (plain - cudnn).norm() < 0.02 * cudnn.norm() + 1e-3


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("rows", "width", "vocabulary"),
    [(1, 5, 7), (700, 200, 64), (699, 200, 1001), (700, 512, 16384), (700, 203, 50001), (8700, 40, 1001)],
)
def test_the_chunked_loss_equals_cross_entropy(rows, width, vocabulary, biased):
    """Exponentials in bf16 are no less exact than logits."""
    from headstart.kernels.cross_entropy import chunked_loss_cuda, from_logits, logits_to_grad_reference
    from headstart.kernels.triton.cross_entropy import logits_to_grad

    inputs = linear_loss_inputs(rows, width, vocabulary, has_bias=biased, scale=0.25, device="cuda")
    expected = reference_loss(*inputs)
    reference = relative_errors(
        chunked_loss_cuda(*inputs, torch.bfloat16, chunk_loss=from_logits(logits_to_grad_reference)), expected
    )
    for options in ({}, {"rows": 256}, {"chunk_loss": from_logits(logits_to_grad)}):
        assert max(relative_errors(chunked_loss_cuda(*inputs, torch.float32, **options), expected)) < 1e-5, options
        bf16_errors = relative_errors(chunked_loss_cuda(*inputs, torch.bfloat16, **options), expected)
        # the rounding of a single row is not averaged
        assert max(bf16_errors) < (0.01 if rows == 1 else 0.005), options
        no_worse = all(a < 1.05 * b + 1e-4 for a, b in zip(bf16_errors, reference, strict=True))
        assert rows == 1 or no_worse, (options, bf16_errors, reference)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("distance", [127, 300])
def test_a_row_whose_exponentials_overflow_is_computed_again(distance, biased):
    """A NaN stays a NaN."""
    from headstart.kernels.cross_entropy import chunked_loss_cuda

    inputs = far_target_inputs(300, 200, 5001, has_bias=biased, distance=distance, device="cuda")
    assert max(relative_errors(chunked_loss_cuda(*inputs, torch.bfloat16), reference_loss(*inputs))) < 0.005
    broken = inputs[0].clone()
    broken[7] = torch.nan
    assert chunked_loss_cuda(broken, *inputs[1:], torch.bfloat16)[0].isnan()


def test_the_loss_has_the_same_bits_twice():
    from headstart.kernels.cross_entropy import chunked_loss_cuda

    inputs = linear_loss_inputs(3000, 200, 20001, has_bias=True, scale=0.25, device="cuda")
    one, two = (chunked_loss_cuda(*inputs, torch.bfloat16, rows=1024) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_the_loss_uses_triton_kernels_on_a_gpu():
    """Control: triton comes with torch for CUDA, and the tests above have used it."""
    from headstart.kernels.cross_entropy import _best_chunk_loss
    from headstart.kernels.triton.cross_entropy import from_exp_logits

    assert _best_chunk_loss(torch.device("cuda"), torch.bfloat16) is from_exp_logits
    assert "from_logits" in _best_chunk_loss(torch.device("cuda"), torch.float32).__qualname__


class StopAfter(StopSignal):
    """Requests a stop after some checks."""

    def __init__(self, num_checks):
        super().__init__()
        self.remaining = num_checks

    def check(self):
        self.remaining -= 1
        if not self.remaining:
            self.reason = "SIGTERM"
            raise StopRequested


def weights(run):
    return {path.name: path.read_bytes() for path in sorted((run / "bundle").glob("*.safetensors"))}


DETERMINISTIC = {"runtime__device": "cuda", "runtime__deterministic": True}
PRETRAININGS = {
    "classic": {"model__dropout": 0.1},
    "modern, hybrid, muon": {"objective": "hybrid", "optim__optimizer": "muon", "model__block": "modern"},
    "fp32": {"runtime__precision": "fp32"},
}


@pytest.mark.parametrize("name", PRETRAININGS)
def test_deterministic_pretraining_gives_the_same_bits_twice_and_when_resumed(name, tmp_path):
    """Width 32 in 2 heads: without the mode, bf16 would use a kernel that adds in any order."""
    data = write_reviews(tmp_path / "data")
    text = [str(data / "texts.txt")]
    settings = {"model__width": 32, "model__heads": 2, "loop__steps": 24, **PRETRAININGS[name]}
    for folder in ("one", "two"):
        pretrain_run(text, tmp_path / folder, pretrain_config(**settings, **DETERMINISTIC))
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert read_json(tmp_path / "one" / "environment.json")["deterministic"] is True
    stopped = pretrain_config(**settings, **DETERMINISTIC, runtime__time_limit=1e-5)
    with pytest.raises(Interrupted):
        pretrain_run(text, tmp_path / "resumed", stopped)
    change_runtime(tmp_path / "resumed", time_limit=None)
    pretrain_run([], tmp_path / "resumed", None, resume=True)
    assert weights(tmp_path / "resumed") == weights(tmp_path / "one")
    for file in ("result.json", "metrics.jsonl"):
        assert (tmp_path / "resumed" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()
    pretrain_run(text, tmp_path / "other", pretrain_config(**settings, **DETERMINISTIC, runtime__seed=1))
    assert weights(tmp_path / "other") != weights(tmp_path / "one")  # control


def test_deterministic_fine_tuning_gives_the_same_bits_twice_and_when_resumed(tmp_path, monkeypatch):
    from headstart.recipes.finetune.trainer import FinetuneTrainer

    data = write_reviews(tmp_path / "data")
    shape = {"model__width": 32, "model__heads": 2, "model__block": "modern"}
    pretrain_run([str(data / "texts.txt")], tmp_path / "base", pretrain_config(**shape, **DETERMINISTIC, loop__steps=4))
    files = {name: str(data / f"{name}.csv") for name in ("valid", "test")}
    inputs = {"backbone": str(tmp_path / "base"), **files}
    config = finetune_config(**DETERMINISTIC, optim__ema_decay=0.5)
    for name in ("one", "two"):
        finetune_run(str(data / "train.csv"), tmp_path / name, config, **inputs)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    run = FinetuneTrainer.train

    def stopped(trainer, *, resume):
        trainer.stop = StopAfter(10)
        return run(trainer, resume=resume)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(FinetuneTrainer, "train", stopped)
        finetune_run(str(data / "train.csv"), tmp_path / "resumed", config, **inputs)
    finetune_run(None, tmp_path / "resumed", None, resume=True)
    assert weights(tmp_path / "resumed") == weights(tmp_path / "one")


RESUME_TOLERANCE = 0.02
"""Relative difference between the held-out losses of a resumed and an uninterrupted run, in bf16 without the
deterministic mode."""


def test_a_resumed_run_ends_within_the_tolerance_without_the_deterministic_mode(tmp_path):
    data = write_reviews(tmp_path / "data")
    text = [str(data / "texts.txt")]
    settings = {"model__width": 32, "model__heads": 2, "model__block": "modern", "loop__steps": 24}
    settings["runtime__device"] = "cuda"
    pretrain_run(text, tmp_path / "uninterrupted", pretrain_config(**settings))
    with pytest.raises(Interrupted):
        pretrain_run(text, tmp_path / "resumed", pretrain_config(**settings, runtime__time_limit=1e-5))
    change_runtime(tmp_path / "resumed", time_limit=None)
    pretrain_run([], tmp_path / "resumed", None, resume=True)
    uninterrupted, resumed = (
        read_json(tmp_path / name / "result.json")["held_out"]["loss"] for name in ("uninterrupted", "resumed")
    )
    assert resumed == pytest.approx(uninterrupted, rel=RESUME_TOLERANCE)
    assert read_json(tmp_path / "resumed" / "environment.json")["deterministic"] is False


TEXT_LENGTHS = [3, 40, 7, 61, 9, 5, 33, 12, 80, 21]
CLASSIFIERS = {
    "classic": (ModelConfig(width=40, depth=2, heads=2, feedforward=40, context=96), "causal"),
    "modern": (MODERN.model_copy(update={"context": 96}), "causal"),
    "modern, bidirectional": (MODERN.model_copy(update={"context": 96}), "bidirectional"),
}


class FineTuning:
    """A small fine-tuning whose batches have two lengths, and a smaller one at the end of each epoch."""

    def __init__(self, name="classic", *, seed=0, captured=True, objective=classification_loss, dropout=0.0, **optim):
        shape, attention = CLASSIFIERS[name]
        shape = shape.model_copy(update={"dropout": dropout})
        head = build_classifier_head(shape, 2, 0, attention)
        self.model, self.objective = Model(build_backbone(shape, VOCABULARY, 0), head).cuda(), objective
        self.config = OptimConfig(**{"lr": 1e-3, "clip": 0.5, **optim})
        self.state = TrainState(self.model, build_optimizer(self.model, self.config), seed)
        self.messages = []
        self.graphs = self.new_graphs() if captured else None
        texts = [(np.arange(size) * 7 + size) % 13 + 4 for size in TEXT_LENGTHS]
        self.rows = LabelledDataset(texts, [size % 2 for size in TEXT_LENGTHS], SPECIAL, context=96)

    def new_graphs(self):
        return text_graphs(self.model, CUDA, SINGLE, self.messages.append)

    def fetch(self, step):
        first = 3 * (step % 4)
        return [self.rows.batch(range(first, min(first + 3, len(TEXT_LENGTHS))))]

    def losses(self, steps=30, last_step=None, runtime=None):
        step_losses = []
        runtime = runtime or CUDA
        for report in fit(
            self.state,
            self.fetch,
            lambda batch: self.objective(self.model, batch),
            self.config,
            steps,
            runtime,
            graphs=self.graphs,
        ):
            step_losses.append(report.loss)
            if report.step == last_step:
                break
        return step_losses


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_captured_fine_tuning_on_a_gpu_follows_the_eager_one(name, optimizer):
    settings = {"optimizer": optimizer, "warmup": 0.3, "schedule": "linear"}
    eager, captured = FineTuning(name, captured=False, **settings).losses(), FineTuning(name, **settings)
    assert captured.losses() == pytest.approx(eager, rel=5e-3)
    assert not captured.messages
    assert captured.graphs.num_graphs == 3
    assert captured.graphs.update is not None
    assert max(eager) - min(eager) > 0.1  # control: something is learnt


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_captured_fine_tuning_in_bf16_follows_the_eager_one_roughly(name):
    eager, captured = FineTuning(name, captured=False).losses(runtime=CUDA_BF16), FineTuning(name)
    assert captured.losses(runtime=CUDA_BF16) == pytest.approx(eager, rel=0.05, abs=0.05)
    assert not captured.messages
    assert captured.graphs.num_graphs == 3


def test_fine_tuning_with_muon_captures_the_passes_alone():
    eager = FineTuning("modern", captured=False, optimizer="muon").losses()
    captured = FineTuning("modern", optimizer="muon")
    assert captured.losses() == pytest.approx(eager, rel=0.05, abs=0.05)
    assert captured.graphs.num_graphs == 3
    assert captured.graphs.update is None
    assert not captured.messages


def test_dropout_in_fine_tuning_depends_on_seed_and_step_captured_or_not():
    """With a learning rate near 0, only dropout makes the losses of one batch differ."""
    settings = {"dropout": 0.3, "lr": 1e-9}
    uninterrupted, repeated, other_seed = (FineTuning(seed=seed, **settings).losses(24) for seed in (0, 0, 1))
    assert uninterrupted == pytest.approx(repeated, rel=1e-4)
    of_one_batch = uninterrupted[0::4]
    assert min(abs(a - b) for i, a in enumerate(of_one_batch) for b in of_one_batch[:i]) > 1e-4 * uninterrupted[0]
    assert uninterrupted != pytest.approx(other_seed, rel=1e-3)
    resumed = FineTuning(**settings)
    first_losses = resumed.losses(24, last_step=13)
    resumed.graphs = resumed.new_graphs()  # as in another process: no shape is captured yet
    assert first_losses + resumed.losses(24) == pytest.approx(uninterrupted, rel=1e-4)


def test_a_frozen_weight_does_not_move_in_a_captured_step():
    tuning = FineTuning()
    tuning.losses(last_step=9)
    set_trainable(tuning.model, TransferConfig(freeze=True), 0)
    before = {name: parameter.detach().clone() for name, parameter in tuning.model.named_parameters()}
    tuning.losses(last_step=20)
    moved = {name for name, parameter in tuning.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {"head.linear.weight", "head.linear.bias"}
    assert tuning.graphs.num_graphs == 3
    set_trainable(tuning.model, TransferConfig(), 0)
    tuning.losses()
    assert not any(torch.equal(parameter, before[name]) for name, parameter in tuning.model.named_parameters())
    assert not tuning.messages


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's warnings about a capture that was broken off
def test_an_objective_that_waits_for_the_device_is_run_eagerly():
    def waits_for_device(model, batch):
        loss = classification_loss(model, batch)
        assert float(loss.total.detach()) > 0
        return loss

    refused = FineTuning(objective=waits_for_device)
    assert refused.losses() == pytest.approx(FineTuning(captured=False).losses(), rel=5e-3)
    assert refused.graphs.num_graphs == 0
    assert len(refused.messages) == 1
    assert refused.messages[0].startswith("CUDA graphs are not used, so steps take longer: ")
    # the random generator works again, and another model can be captured
    assert all(np.isfinite(FineTuning(objective=waits_for_device, dropout=0.3).losses()))
    captured = FineTuning(dropout=0.3)
    assert all(np.isfinite(captured.losses()))
    assert captured.graphs.num_graphs == 3


def test_a_resumed_run_with_captured_steps_ends_within_the_tolerance(tmp_path, monkeypatch):
    from headstart.recipes.finetune.trainer import FinetuneTrainer

    data = write_reviews(tmp_path / "data")
    inputs = {"backbone": "scratch", **{name: str(data / f"{name}.csv") for name in ("valid", "test")}}
    config = finetune_config(runtime__device="cuda", optim__ema_decay=0.5)
    finetune_run(str(data / "train.csv"), tmp_path / "uninterrupted", config, **inputs)
    run, num_graphs = FinetuneTrainer.train, []

    def stopped(trainer, *, resume):
        trainer.stop = StopAfter(10)
        try:
            return run(trainer, resume=resume)
        finally:
            num_graphs.append(trainer._graphs.num_graphs)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(FinetuneTrainer, "train", stopped)
        finetune_run(str(data / "train.csv"), tmp_path / "resumed", config, **inputs)
    finetune_run(None, tmp_path / "resumed", None, resume=True)
    uninterrupted, resumed = (
        read_json(tmp_path / name / "result.json")["valid"]["loss"] for name in ("uninterrupted", "resumed")
    )
    assert resumed == pytest.approx(uninterrupted, rel=RESUME_TOLERANCE, abs=RESUME_TOLERANCE)
    assert num_graphs[0] > 0  # control: steps were captured


def test_fine_tuning_with_class_weights_runs_on_a_gpu(tmp_path):
    data = write_reviews(tmp_path / "data")
    inputs = {"backbone": "scratch", "valid": str(data / "valid.csv")}
    config = finetune_config(runtime__device="cuda", transfer__class_weights="balanced")
    finetune_run(str(data / "train.csv"), tmp_path / "run", config, **inputs)
    assert (tmp_path / "run" / "result.json").is_file()
