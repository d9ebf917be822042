"""One training step on CPU cores in bf16, compared with fp32 and with transformers' Trainer with and without its bf16 flag.

python benchmarks/cpu_bf16.py [--threads 2] [--rounds 5] [--only classic] [--out docs/results/cpu_bf16.json]

classic: the course's language model. modern-micro: a language model of that preset; the Trainer has a Llama of the same size.
starter: fine-tuning from starter:en on short texts; the Trainer has a Llama of the same size for classification, and the same
texts padded. All sides take turns in one process. Peak memory is measured in a separate process per precision.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from cpu import keep, made_by, options
from peers import Rows, Shape, Step, gpt2, steps_of_trainer

from headstart.config.merge import merge_config
from headstart.config.presets import preset_values
from headstart.config.schema import FinetuneConfig, ModelConfig, PretrainConfig, RuntimeConfig
from headstart.data.batch import Batch
from headstart.data.datasets import LabelledDataset
from headstart.model.heads import Model, build_classifier_head, build_language_head
from headstart.model.transformer import build_backbone
from headstart.recipes.bench import lengths
from headstart.runtime import setup_runtime
from headstart.store.bundle import load_bundle
from headstart.store.locate import starter_folder
from headstart.tokenization.base import SpecialIds
from headstart.train.ema import EMA
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import classification_loss, language_model_loss
from headstart.train.optimizers import build_optimizer

CLASSIC = Shape(batch=4)
MICRO = Shape(batch=8, length=256, width=256, depth=6, heads=4, vocabulary=16384)
TEXTS, MEAN_TOKENS, LABELS = 16, 40, 6
"""A batch of fine-tuning."""
STARTER = "en"


def language_step(preset: str, shape: Shape, precision: str) -> Step:
    """A step of pretraining with the preset's network and optimizer, on rows of one document each."""
    config = merge_config(PretrainConfig, preset_values(preset, "pretrain"), {"objective": "causal"})
    model = Model(
        build_backbone(config.model, shape.vocabulary, 0), build_language_head(config.model, shape.vocabulary, 0)
    )

    def fetch(step: int) -> list[Batch]:
        ids, targets = shape.rows(step)
        return [Batch(ids, None, targets, targets.numel())]

    return steps_of(model, config.optim, fetch, language_model_loss, precision, {})


def steps_of(model: Any, optim: Any, fetch: Any, objective: Any, precision: str, rates: dict[str, float]) -> Step:
    """Return the steps of Headstart's own loop."""
    runtime = setup_runtime(RuntimeConfig(device="cpu", threads=torch.get_num_threads(), precision=precision))
    state = TrainState(model, build_optimizer(model, optim, **rates, bf16=runtime.bf16), 0)
    state.ema = EMA(model, optim.ema_decay) if optim.ema_decay else None
    reports = fit(state, fetch, lambda batch: objective(model, batch), optim, 1 << 30, runtime)
    return lambda: next(reports).loss


def texts(vocabulary: int) -> list[np.ndarray]:
    """Generate random tokens in texts of typical lengths."""
    chance = np.random.default_rng(1)
    return [chance.integers(4, vocabulary, size) for size in lengths(32 * TEXTS, MEAN_TOKENS)]


def starter_step(precision: str) -> Step:
    """A step of fine-tuning, with the settings that `headstart finetune` has for the starter."""
    backbone = load_bundle(starter_folder(STARTER)).model.backbone
    config = merge_config(FinetuneConfig, preset_values("modern-micro", "finetune"))
    model = Model(backbone, build_classifier_head(backbone.config, LABELS, 0, "bidirectional"))
    documents = texts(backbone.vocab_size)
    special = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
    rows = LabelledDataset(
        documents, [index % LABELS for index in range(len(documents))], special, context=backbone.config.context
    )

    def fetch(step: int) -> list[Batch]:
        first = step % 32 * TEXTS
        return [rows.batch(range(first, first + TEXTS))]

    rates = {"layer_decay": config.transfer.layer_decay, "head_lr_multiplier": config.transfer.head_lr_multiplier}
    return steps_of(model, config.optim, fetch, classification_loss, precision, rates)


def llama(config: ModelConfig, vocabulary: int, labels: int | None = None) -> Any:
    """Return a Llama of transformers with the size of a modern network."""
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(0)
    sizes = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=config.width,
        intermediate_size=config.feedforward,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
        pad_token_id=1,
        num_labels=labels or 2,
    )
    return LlamaForCausalLM(sizes) if labels is None else LlamaForSequenceClassification(sizes)


class PaddedTexts(torch.utils.data.Dataset):
    """The texts of fine-tuning for a Trainer, each batch padded to its longest text."""

    def __init__(self, vocabulary: int) -> None:
        self.documents = texts(vocabulary)

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, position: int) -> dict[str, Any]:
        index = position % len(self.documents)
        first = index // TEXTS * TEXTS
        longest = max(len(document) for document in self.documents[first : first + TEXTS])
        ids = torch.ones(longest, dtype=torch.long)
        ids[: len(self.documents[index])] = torch.from_numpy(self.documents[index])
        return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": index % LABELS}


def starter_steps_of_trainer(*, bf16: bool = False) -> Step:
    """Steps of the Trainer with a Llama of the starter's size."""
    backbone = load_bundle(starter_folder(STARTER)).model.backbone
    model = llama(backbone.config, backbone.vocab_size, LABELS)
    return steps_of_trainer(model, PaddedTexts(backbone.vocab_size), TEXTS, bf16=bf16, clip=1.0)


def micro_config() -> ModelConfig:
    return merge_config(PretrainConfig, preset_values("modern-micro", "pretrain")).model


STEPS: dict[str, dict[str, Callable[[], Step]]] = {
    "classic": {
        "bf16": lambda: language_step("classic", CLASSIC, "bf16"),
        "fp32": lambda: language_step("classic", CLASSIC, "fp32"),
        "trainer": lambda: steps_of_trainer(gpt2(CLASSIC), Rows(CLASSIC), CLASSIC.batch),
        "trainer_bf16": lambda: steps_of_trainer(gpt2(CLASSIC), Rows(CLASSIC), CLASSIC.batch, bf16=True),
    },
    "modern-micro": {
        "bf16": lambda: language_step("modern-micro", MICRO, "bf16"),
        "fp32": lambda: language_step("modern-micro", MICRO, "fp32"),
        "trainer": lambda: steps_of_trainer(llama(micro_config(), MICRO.vocabulary), Rows(MICRO), MICRO.batch),
        "trainer_bf16": lambda: steps_of_trainer(
            llama(micro_config(), MICRO.vocabulary), Rows(MICRO), MICRO.batch, bf16=True
        ),
    },
    "starter": {
        "bf16": lambda: starter_step("bf16"),
        "fp32": lambda: starter_step("fp32"),
        "trainer": starter_steps_of_trainer,
        "trainer_bf16": lambda: starter_steps_of_trainer(bf16=True),
    },
}


def in_turn(sides: dict[str, Callable[[], Step]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return wall time and processor time of each step in seconds, after two warm-up steps."""
    steps = {name: build() for name, build in sides.items()}
    result: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in steps}
    for number in range(rounds + 2):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            if number >= 2:
                result[name]["wall"].append(time.perf_counter() - wall)
                result[name]["cpu"].append(time.process_time() - cpu)
    return result


def ratios(result: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Return the ratio of each other side's time to that of bf16: medians, and minimum and maximum over rounds."""
    ours, table = result["bf16"], {}
    for name in result.keys() - {"bf16"}:
        theirs = result[name]
        each = sorted(b / a for a, b in zip(ours["cpu"], theirs["cpu"], strict=True))
        table[name] = {
            "cpu": median(theirs["cpu"]) / median(ours["cpu"]),
            "cpu_min": each[0],
            "cpu_max": each[-1],
            "wall": median(theirs["wall"]) / median(ours["wall"]),
        }
    return table


def peak(what: str, side: str, threads: int) -> int:
    """Return the peak memory in MiB of a process that takes six steps, the median of three processes."""
    command = [sys.executable, __file__, "--alone", what, side, "--threads", str(threads)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    return int(median(int(done.stdout.splitlines()[-1]) for done in runs))


def alone(what: str, side: str) -> None:
    step = STEPS[what][side]()
    for _ in range(6):
        step()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    print(round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024))


def main() -> None:
    parser = options()
    parser.set_defaults(out=Path(__file__).parent.parent / "docs" / "results" / "cpu_bf16.json", threads=2)
    parser.add_argument("--only", choices=STEPS)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.alone:
        alone(*arguments.alone)
        return
    for what in [arguments.only] if arguments.only else list(STEPS):
        result = in_turn(STEPS[what], arguments.rounds)
        part = {
            "rounds": arguments.rounds,
            "ratios": ratios(result),
            "seconds": result,
            "mib": {side: peak(what, side, arguments.threads) for side in ("bf16", "fp32")},
            "machine": made_by(arguments, "python benchmarks/cpu_bf16.py"),
        }
        keep(arguments.out, **{what: part})
        print(what, json.dumps(part["ratios"]), part["mib"], flush=True)


if __name__ == "__main__":
    main()
