"""The other sides of benchmarks/cpu.py: one training step of a language model with the course's code and with transformers."""

import math
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], float]
"""Takes one optimizer step on the next batch and returns its loss."""


@dataclass(frozen=True)
class Shape:
    """The shape of the network, by default that of the course, and the rows of a step."""

    batch: int = 16
    length: int = 256
    width: int = 200
    depth: int = 4
    heads: int = 2
    vocabulary: int = 50001

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens and next tokens, each row a document without padding; the same for all sides."""
        chance = torch.Generator().manual_seed(step)
        ids = torch.randint(4, self.vocabulary, (self.batch, self.length + 1), generator=chance)
        ids[:, 0] = 0
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


class CourseModel(nn.Module):
    """The course's network: embedding, sinusoids, torch's encoder with a square mask, and a linear layer over the
    vocabulary.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.width
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        layer = nn.TransformerEncoderLayer(shape.width, shape.heads, shape.width, dropout=0.0, batch_first=False)
        self.encoder = nn.TransformerEncoder(layer, shape.depth, enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, shape.vocabulary)
        position = torch.arange(shape.length)[:, None]
        rates = torch.exp(torch.arange(0, shape.width, 2) * (-math.log(10000.0) / shape.width))
        table = torch.zeros(shape.length, 1, shape.width)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(position * rates), torch.cos(position * rates)
        self.register_buffer("table", table)

    def forward(self, ids_TB: Tensor, mask_TT: Tensor) -> Tensor:
        x = self.embedding(ids_TB) * math.sqrt(self.width) + self.table[: len(ids_TB)]
        return self.head(self.encoder(x, mask_TT))


def course_step(shape: Shape) -> Step:
    """The course's step: Adam with default settings, full logits, gradient norm clipped at 0.5."""
    torch.manual_seed(0)
    model = CourseModel(shape).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    criterion = nn.CrossEntropyLoss(ignore_index=1)
    mask = nn.Transformer.generate_square_subsequent_mask(shape.length)
    count = iter(range(1 << 30))

    def step() -> float:
        ids, targets = shape.rows(next(count))
        optimizer.zero_grad()
        scores = model(ids.T, mask)
        loss = criterion(scores.view(-1, shape.vocabulary), targets.T.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.item()

    return step


def gpt2(shape: Shape) -> Any:
    """Return a GPT-2 of transformers with the same size, untied, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.depth,
        n_head=shape.heads,
        n_inner=shape.width,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def hf_step(shape: Shape) -> Step:
    """The same GPT-2 in a plain loop, with fused AdamW, the default of the Trainer."""
    model = gpt2(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    count = iter(range(1 << 30))

    def step() -> float:
        ids, _ = shape.rows(next(count))
        # the model moves the labels by one itself, so that the last target is not asked for
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


class Rows(torch.utils.data.Dataset):
    """The rows of all steps as the dataset of a Trainer."""

    def __init__(self, shape: Shape) -> None:
        self.batch = shape.batch
        self.rows = lru_cache(maxsize=2)(shape.rows)

    def __len__(self) -> int:
        return self.batch << 20

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        ids = self.rows(position // self.batch)[0][position % self.batch]
        labels = ids.clone()
        labels[0] = -100  # nothing comes before it; a Trainer divides by all labels that are not so marked
        return {"input_ids": ids, "labels": labels}


def trainer_step(shape: Shape) -> Step:
    """The same GPT-2 in transformers' Trainer, with its defaults except for the learning rate, clipping and the order of
    rows.
    """
    return steps_of_trainer(gpt2(shape), Rows(shape), shape.batch)


def steps_of_trainer(model: Any, rows: Any, batch: int, *, bf16: bool = False, clip: float = 0.5) -> Step:
    """Return the steps of a Trainer.

    Its loop cannot be asked for one step. So it runs in a thread of its own, which a callback stops at the end of every
    step until the next one is wanted: a step is all from there to the next end, the laying out of its batch included.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    wanted, done = threading.Semaphore(0), threading.Semaphore(0)
    losses: list[Tensor] = []
    broken: list[BaseException] = []

    class Stop(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            done.release()
            wanted.acquire()

    model.register_forward_hook(lambda _, __, out: losses.append(out.loss.detach()))
    with tempfile.TemporaryDirectory() as folder:  # it asks for one, and writes nothing there
        settings = TrainingArguments(
            folder,
            max_steps=1 << 20,
            per_device_train_batch_size=batch,
            learning_rate=3e-4,
            max_grad_norm=clip,
            train_sampling_strategy="sequential",
            use_cpu=True,
            bf16=bf16,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model, settings, train_dataset=rows, callbacks=[Stop()])

    def train() -> None:
        wanted.acquire()
        try:
            trainer.train()
        except BaseException as error:
            broken.append(error)
            done.release()

    threading.Thread(target=train, daemon=True).start()

    def step() -> float:
        losses.clear()
        wanted.release()
        done.acquire()
        if broken:
            raise broken[0]
        return float(losses[-1])

    return step


def headstart_step(shape: Shape) -> Step:
    """Headstart's training loop with the settings of the classic preset."""
    from headstart.config import presets
    from headstart.config.merge import merge_config
    from headstart.config.schema import ModelConfig, PretrainConfig, RuntimeConfig
    from headstart.data.batch import Batch
    from headstart.model.heads import Model, build_language_head
    from headstart.model.transformer import build_backbone
    from headstart.runtime import setup_runtime
    from headstart.train.loop import TrainState, fit
    from headstart.train.objectives import language_model_loss
    from headstart.train.optimizers import build_optimizer

    optim = merge_config(PretrainConfig, presets.preset_values("classic", "pretrain"), {}).optim
    config = ModelConfig(
        width=shape.width, depth=shape.depth, heads=shape.heads, feedforward=shape.width, context=shape.length
    )
    runtime = setup_runtime(RuntimeConfig(device="cpu", threads=torch.get_num_threads(), precision="fp32"))
    model = Model(build_backbone(config, shape.vocabulary, 0), build_language_head(config, shape.vocabulary, 0))

    def fetch(step: int) -> list[Batch]:
        ids, targets = shape.rows(step)
        return [Batch(ids, None, targets, targets.numel())]

    state = TrainState(model, build_optimizer(model, optim), 0)
    reports = fit(state, fetch, lambda batch: language_model_loss(model, batch), optim, 1 << 30, runtime)
    return lambda: next(reports).loss


PEERS: dict[str, Callable[[Shape], Step]] = {
    "headstart": headstart_step,
    "course": course_step,
    "transformers": hf_step,
    "trainer": trainer_step,
}
