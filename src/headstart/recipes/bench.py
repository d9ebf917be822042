"""Benchmark this machine: training steps, prediction on short and long texts, and the first prediction of a process.

It uses random tokens in texts of typical lengths, with the network and settings of a preset. MFU is the rate of the matrix
products of a step divided by the rate of one large product on the same device.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headstart.config.merge import Settings, merge_config, resolve_settings
from headstart.config.presets import preset_values
from headstart.config.schema import AttentionDirection, FinetuneConfig, PretrainConfig, TokenizerConfig
from headstart.data.batch import Batch
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.masking import make_batch
from headstart.model.heads import ClassifierHead, Model, build_classifier_head, build_language_head
from headstart.model.transformer import Backbone, build_backbone
from headstart.progress import Progress, SilentProgress
from headstart.recipes.memory import check_pretrain_memory
from headstart.recipes.pretrain.trainer import compiler_error
from headstart.runtime import Runtime, environment, resolve_precision, setup_runtime
from headstart.store.bundle import Bundle, save_bundle
from headstart.tasks import SingleLabel
from headstart.tokenization.base import SpecialIds
from headstart.tokenization.bpe import train_tokenizer
from headstart.train.cuda_graphs import GraphCache, text_graphs, token_graphs
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import LossSum, classification_loss, language_model_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE
from headstart.train.scoring import score_texts

SNIPPET, REVIEW = 24, 135
"""Mean tokens of a short text and of a long one."""
_SPECIAL = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
_CPU_TOKENS = 4096
"""Maximum tokens per step on a CPU, where the batches of larger presets would take minutes."""
_NUM_DOCUMENTS, _NUM_SHORT, _NUM_LONG = 2000, 256, 64
_MIN_REPETITIONS, _MAX_REPETITIONS = 3, 30
"""Timed repetitions after the warm-up."""


@dataclass(frozen=True)
class BenchRow:
    """One measurement."""

    what: str
    seconds: float
    """The median time of one step, one pass over the texts, or one command."""
    tokens_per_second: float | None = None
    texts_per_second: float | None = None
    mfu: float | None = None
    """The rate of products with weights divided by that of one large product; attention is not counted."""


@dataclass(frozen=True)
class Bench:
    """The measurements and the environment."""

    preset: str
    parameters: int
    """The number of parameters of the language model."""
    matmul_gflops: float
    figures: tuple[BenchRow, ...]
    peak_mib: float | None
    """The peak memory of the CUDA device, else of this process."""
    environment: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the measurements as plain values for JSON."""
        return asdict(self)


class _RandomDocuments:
    """Documents of random tokens in memory, with the interface of shards."""

    def __init__(self, count: int, mean: float, vocab_size: int) -> None:
        self.lengths = lengths(count, mean)
        self.flat = np.random.default_rng(1).integers(4, vocab_size, int(self.lengths.sum()))
        self.offsets = np.concatenate(([0], np.cumsum(self.lengths)))

    def ids(self, index: int, /) -> NDArray[np.int64]:
        """Return the tokens of one document."""
        return self.flat[self.offsets[index] : self.offsets[index + 1]]


def lengths(count: int, mean: float) -> NDArray[np.int64]:
    """Draw log-normal text lengths with this mean, as those of reviews are."""
    spread = 0.6
    drawn = np.random.default_rng(0).lognormal(np.log(mean) - spread**2 / 2, spread, count)
    return np.maximum(3, drawn).astype(np.int64)


def run_bench(
    preset: str, settings: Settings | None = None, progress: Progress | None = None, seconds: float = 8.0
) -> Bench:
    """Benchmark a preset on this machine.

    Args:
        settings: such as {"runtime.threads": 1} or {"model.depth": 2}.
        seconds: about how long each measurement may take, with at least three repetitions.
    """
    progress = progress or SilentProgress()
    pretraining = resolve_settings(PretrainConfig, preset, "pretrain", settings)
    model, vocab_size = pretraining.model, pretraining.tokenizer.vocab_size
    finetuning = merge_config(FinetuneConfig, preset_values(preset, "finetune"), {"model": model.model_dump()})
    precision = resolve_precision(pretraining.runtime, model)
    runtime = setup_runtime(pretraining.runtime.model_copy(update={"precision": precision}))
    check_pretrain_memory(
        merge_config(
            PretrainConfig, pretraining.model_dump(), {"loop": {"batch_size": _num_rows(pretraining, runtime)}}
        ),
        vocab_size,
    )
    progress.say(
        f"timing {preset} on {runtime.device}, threads: {runtime.threads}, {'bf16' if runtime.bf16 else 'fp32'}"
    )
    rate = matmul_rate(runtime)
    language = Model(build_backbone(model, vocab_size, 0), build_language_head(model, vocab_size, 0)).to(runtime.device)
    compiles = pretraining.runtime.compile
    if compiles or (compiles is None and runtime.device.type == "cuda" and compiler_error(runtime.device) is None):
        language.backbone.compile_layers()  # as a long run does
    figures = [_pretraining(language, pretraining, runtime, rate, seconds)]
    parameters = sum(parameter.numel() for parameter in language.parameters())
    attention: AttentionDirection = "causal" if pretraining.objective == "causal" else "bidirectional"
    head = build_classifier_head(model, 2, 0, attention)
    del language
    classifier = Model(build_backbone(model, vocab_size, 0), head).to(runtime.device)
    figures.append(_finetuning(classifier, finetuning, runtime, rate, seconds))
    if runtime.device.type == "cpu" and runtime.bf16:  # predictions are computed in fp32
        rate = matmul_rate(replace(runtime, bf16=False))
    for what, count, mean in (("short", _NUM_SHORT, SNIPPET), ("long", _NUM_LONG, REVIEW)):
        texts = _RandomDocuments(count, mean, vocab_size)
        figures.append(_prediction(f"predicting {what} texts", classifier, texts, runtime, rate, seconds))
    figures.append(_first_prediction(classifier, attention))
    return Bench(preset, parameters, rate, tuple(figures), peak_mib(runtime), environment(runtime))


def matmul_rate(runtime: Runtime) -> float:
    """Return the GFLOP/s of a square matrix product in the precision of training, the best of a few."""
    size = 1024 if runtime.device.type == "cpu" else 4096
    factor = torch.randn(size, size, device=runtime.device, dtype=torch.bfloat16 if runtime.bf16 else torch.float32)

    def multiply() -> None:
        factor @ factor
        _synchronize(runtime)

    return 2e-9 * size**3 / min(_time(multiply, 1.0))


def peak_mib(runtime: Runtime) -> float | None:
    """Return the peak memory so far."""
    if runtime.device.type == "cuda":
        return torch.cuda.max_memory_allocated(runtime.device) / 2**20
    try:
        import resource
    except ImportError:  # Windows has no resource module
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _num_rows(config: PretrainConfig, runtime: Runtime) -> int:
    """Return the rows of a pretraining step."""
    rows = config.loop.batch_size
    return max(1, min(rows, _CPU_TOKENS // config.model.context)) if runtime.device.type == "cpu" else rows


def random_batches(config: PretrainConfig, vocab_size: int, rows: int) -> list[Batch]:
    """Return a few batches of pretraining: random tokens in packed documents of usual lengths."""
    corpus = _RandomDocuments(_NUM_DOCUMENTS, REVIEW, vocab_size)
    dataset = PackedDataset(
        corpus, np.arange(_NUM_DOCUMENTS), _SPECIAL, context=config.model.context, layout="packed", seed=0
    )
    return [make_batch(dataset, step * rows, rows, config, _SPECIAL, vocab_size, step) for step in range(4)]


def _pretraining(model: Any, config: PretrainConfig, runtime: Runtime, rate: float, seconds: float) -> BenchRow:
    rows = _num_rows(config, runtime)
    vocab_size = model.backbone.vocab_size
    batches = random_batches(config, vocab_size, rows)
    layer_products = sum(batch.ids_BT.numel() for batch in batches) / len(batches) * num_layer_weights(model.backbone)
    head_products = sum(batch.num_targets for batch in batches) / len(batches) * vocab_size * config.model.width
    graphs = token_graphs(model, runtime, SINGLE, lambda _: None)
    seconds_per_step = time_steps(model, batches, language_model_loss, config, runtime, seconds, graphs)
    return BenchRow(
        f"pretraining step{', compiled' if model.backbone.compiled else ''}, {rows} rows of {config.model.context} tokens",
        seconds_per_step,
        tokens_per_second=rows * config.model.context / seconds_per_step,
        mfu=6e-9 * (layer_products + head_products) / seconds_per_step / rate,
    )


def _finetuning(model: Any, config: FinetuneConfig, runtime: Runtime, rate: float, seconds: float) -> BenchRow:
    count = config.loop.batch_size
    texts = _RandomDocuments(4 * count, REVIEW, model.backbone.vocab_size)
    rows = _dataset(texts, config.model.context)
    batches = [rows.batch(range(first, first + count)) for first in range(0, 4 * count, count)]
    tokens = float(np.minimum(rows.lengths, config.model.context).sum()) / len(batches)
    graphs = text_graphs(model, runtime, SINGLE, lambda _: None)
    seconds_per_step = time_steps(model, batches, classification_loss, config, runtime, seconds, graphs)
    return BenchRow(
        f"fine-tuning step, {count} texts of {tokens / count:.0f} tokens",
        seconds_per_step,
        tokens_per_second=tokens / seconds_per_step,
        texts_per_second=count / seconds_per_step,
        mfu=6e-9 * tokens * num_layer_weights(model.backbone) / seconds_per_step / rate,
    )


def time_steps(
    model: Any,
    batches: list[Batch],
    objective: Callable[[Any, Batch], LossSum],
    config: PretrainConfig | FinetuneConfig,
    runtime: Runtime,
    seconds: float,
    graphs: GraphCache | None = None,
) -> float:
    """Return the median time of a step over these batches in turn, after all of them were compiled and captured.

    Args:
        seconds: about how long the timed steps may take, with at least three of them.
    """
    state = TrainState(model, build_optimizer(model, config.optim, bf16=runtime.bf16), 0)
    # each batch may be compiled and captured, twice where the first time is an eager step
    warmup = 2 * len(batches) if graphs or model.backbone.compiled else 1
    reports = fit(
        state,
        lambda step: [batches[step % len(batches)]],
        lambda batch: objective(model, batch),
        config.optim,
        _MAX_REPETITIONS + warmup,
        runtime,
        graphs=graphs,
    )
    return median(_time(lambda: next(reports), seconds, warmup=warmup))


def _prediction(
    what: str, model: Model[ClassifierHead], texts: _RandomDocuments, runtime: Runtime, rate: float, seconds: float
) -> BenchRow:
    rows = _dataset(texts, model.backbone.config.context)
    tokens = int(np.minimum(rows.lengths, rows.context).sum())
    seconds_per_pass = median(_time(lambda: score_texts(model, rows, runtime, lambda: None), seconds))
    return BenchRow(
        f"{what}, {tokens / len(rows):.0f} tokens",
        seconds_per_pass,
        tokens_per_second=tokens / seconds_per_pass,
        texts_per_second=len(rows) / seconds_per_pass,
        mfu=2e-9 * tokens * num_layer_weights(model.backbone) / seconds_per_pass / rate,
    )


def _first_prediction(model: Model[ClassifierHead], attention: AttentionDirection) -> BenchRow:
    """Time the full command in its own process, imports included."""
    tokenizer = train_tokenizer(["a text to learn the letters from"] * 4, TokenizerConfig(vocab_size=300))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "classifier"
        save_bundle(folder, Bundle(model.cpu(), tokenizer, SingleLabel(("no", "yes")), attention=attention))
        command = [sys.executable, "-m", "headstart", "predict", str(folder), "a text"]
        times = _time(lambda: subprocess.run(command, check=True, capture_output=True), 0.0)
    return BenchRow("headstart predict, one text, from the start of the process", median(times))


def _dataset(texts: _RandomDocuments, context: int) -> LabelledDataset:
    count = len(texts.lengths)
    return LabelledDataset(
        [texts.ids(index) for index in range(count)], np.arange(count) % 2, _SPECIAL, context=context
    )


def num_layer_weights(backbone: Backbone) -> int:
    """Count the weights of the layers' matrices: multiply-adds per token."""
    matrices = (module.weight for module in backbone.layers.modules() if isinstance(module, nn.Linear))
    return sum(matrix.numel() for matrix in matrices)


def _time(run: Callable[[], object], seconds: float, *, warmup: int = 1) -> list[float]:
    """Time repetitions after a warm-up: a minimum number, then as many as fit into `seconds`."""
    for _ in range(warmup):
        run()
    times: list[float] = []
    while len(times) < _MIN_REPETITIONS or (len(times) < _MAX_REPETITIONS and sum(times) < seconds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _synchronize(runtime: Runtime) -> None:
    if runtime.device.type == "cuda":
        torch.cuda.synchronize(runtime.device)
