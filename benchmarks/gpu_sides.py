"""The sides of benchmarks/gpu.py: Headstart's own loop, transformers' GPT-2, the course's code, and a plain script.

Each side is a function without arguments that takes one optimizer step. Headstart prepares its rows in a thread, as always;
those of the other sides are already on the device.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from peers import CourseModel, Shape
from torch import Tensor, nn

from headstart.config import presets
from headstart.config.merge import merge_config
from headstart.config.schema import PretrainConfig, RuntimeConfig
from headstart.data.datasets import PackedDataset
from headstart.data.masking import make_batch
from headstart.kernels import dispatch
from headstart.model.heads import Model, build_language_head
from headstart.model.transformer import build_backbone
from headstart.runtime import setup_runtime
from headstart.tokenization.base import SpecialIds
from headstart.train.cuda_graphs import token_graphs
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE

SPECIAL = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
KEPT = 4
"""Batches on the device for the other sides, in turn."""


@dataclass(frozen=True)
class Task:
    """A network, its rows, and its objective."""

    name: str
    model: dict
    vocabulary: int
    batch: int
    length: int
    objective: str = "causal"
    optim: str = "classic"
    """The preset whose optimizer is used; `adamw` if no preset has it."""
    mean: float | None = None
    """Mean tokens per document; None means one document per row."""

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def config(self) -> PretrainConfig:
        """The settings of `headstart pretrain`."""
        optim = {"optimizer": "adamw", "lr": 3e-4, "weight_decay": 0.1, "clip": 1.0}
        if self.optim != "adamw":
            optim = presets.preset_values(self.optim, "pretrain")["optim"]
        model = {"dropout": 0.0, "context": self.length} | self.model
        changes = {"objective": self.objective, "model": model, "optim": optim, "masking": {"rate": 0.3}}
        return merge_config(PretrainConfig, {}, changes)

    def ids(self, device: torch.device) -> list[Tensor]:
        """Return random rows for the other sides."""
        chance = torch.Generator().manual_seed(0)
        size = (self.batch, self.length)
        return [torch.randint(4, self.vocabulary, size, generator=chance).to(device) for _ in range(KEPT)]


def documents(task: Task) -> SimpleNamespace:
    """Generate random tokens in documents that fill a row, or of log-normal length like reviews."""
    count = max(256, 4 * task.batch)
    if task.mean is None:
        sizes = np.full(count, task.length - 1)
    else:
        count = max(count, int(6 * task.tokens / task.mean))
        drawn = np.random.default_rng(0).lognormal(np.log(task.mean) - 0.32, 0.8, count)
        sizes = np.maximum(5, drawn).astype(np.int64)
    flat = np.random.default_rng(1).integers(4, task.vocabulary, sizes.sum()).astype(np.int32)
    ends = np.cumsum(sizes)
    return SimpleNamespace(
        lengths=sizes, ids=lambda i: flat[ends[i] - sizes[i] : ends[i]], flat=flat, offsets=ends - sizes
    )


class Headstart:
    """Headstart's own implementation: rows, loop, loss, optimizer, compiled layers."""

    def __init__(self, task: Task, *, device: str, compiled: bool, cudnn: bool = True) -> None:
        config = task.config()
        self.task, self.cudnn = task, cudnn
        runtime = setup_runtime(RuntimeConfig(device=device))
        backbone = build_backbone(config.model, task.vocabulary, 0)
        self.model = Model(backbone, build_language_head(config.model, task.vocabulary, 0)).to(runtime.device)
        corpus = documents(task)
        every = np.arange(len(corpus.lengths))
        rows = PackedDataset(corpus, every, SPECIAL, context=task.length, layout="packed", seed=0)
        if compiled:
            backbone.compile_layers()

        def fetch(step: int) -> list:
            return [make_batch(rows, step * task.batch, task.batch, config, SPECIAL, task.vocabulary, 0)]

        self.first = fetch(0)[
            0
        ].with_cu_seqlens()  # now, not later: rows know one epoch at a time, and the loop's thread asks them
        state = TrainState(self.model, build_optimizer(self.model, config.optim), 0)
        graphs = token_graphs(self.model, runtime, SINGLE, print)
        objective = partial(language_model_loss, self.model)
        self.reports = fit(state, fetch, objective, config.optim, 1 << 20, runtime, graphs=graphs)

    def __call__(self) -> float:
        dispatch.CUDNN_ATTENTION = self.cudnn
        return next(self.reports).loss

    def close(self) -> None:
        self.reports.close()

    def operations(self) -> tuple[float, float]:
        """Return the floating-point operations of a step by the usual formula and by a strict count.

        The usual one counts 6 a parameter and token, and attention over whole rows. The strict one counts the matrices of
        the layers, the vocabulary where a token is scored, and attention within documents, half of it where it is causal.
        """
        task, config = self.task, self.model.backbone.config
        every = sum(parameter.numel() for parameter in self.model.parameters())
        inside = sum(p.numel() for p in self.model.backbone.layers.parameters() if p.ndim == 2)
        per_square = 12 * config.depth * config.width
        usual = task.tokens * (6 * every + per_square * task.length)
        batch = self.first
        cu_seqlens = (
            batch.cu_seqlens.numpy() if batch.cu_seqlens is not None else np.arange(task.batch + 1) * task.length
        )
        squares = float((np.diff(cu_seqlens).astype(np.float64) ** 2).sum())
        share = 0.5 if batch.attention == "causal" else 1.0
        head = 6 * task.vocabulary * config.width * batch.num_targets
        return float(usual), float(6 * inside * task.tokens + head + share * per_square * squares)


def steps_of(
    model: nn.Module, optimizers: list, batches: list, loss_of: Callable[..., Tensor], clip: float, *, bf16: bool = True
) -> Callable[[], None]:
    """The loop body of a training script: autocast, backward, clip, step."""
    turns: Iterator[int] = iter(range(1 << 30))
    device = next(model.parameters()).device.type

    def step() -> None:
        batch = batches[next(turns) % len(batches)]
        context = torch.autocast(device, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()
        with context:
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def transformers_gpt2(
    task: Task, *, device: str, compiled: bool, tied: bool, filled: bool | None = None
) -> Callable[[], None]:
    """GPT-2 of transformers in the same size, no dropout, fused AdamW, the whole model compiled.

    Args:
        filled: whether the compiler fills up every matrix of an odd size, or none; unless told, it times by itself
            whether that pays, and the same model may end up either way.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = task.model
    config = GPT2Config(
        vocab_size=task.vocabulary,
        n_positions=task.length,
        n_embd=shape["width"],
        n_layer=shape["depth"],
        n_head=shape["heads"],
        n_inner=shape["feedforward"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=tied,
    )
    model = GPT2LMHeadModel(config).to(device).train()
    padding = {None: None, True: {"force_shape_pad": True}, False: {"shape_padding": False}}[filled]
    called = torch.compile(model, options=padding) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    batches = task.ids(torch.device(device))
    return steps_of(model, [optimizer], batches, lambda ids: called(input_ids=ids, labels=ids).loss, 1.0)


def course(task: Task, *, device: str, bf16: bool) -> Callable[[], None]:
    """The course's code: torch's encoder with a square mask, full logits, plain Adam."""
    torch.manual_seed(0)
    shape = Shape(task.batch, task.length, task.model["width"], task.model["depth"], task.model["heads"])
    model = CourseModel(Shape(**(vars(shape) | {"vocabulary": task.vocabulary}))).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    mask = nn.Transformer.generate_square_subsequent_mask(task.length).to(device)

    def loss_of(ids: Tensor) -> Tensor:
        scores = model(ids.T, mask)
        return F.cross_entropy(scores.view(-1, task.vocabulary), ids.T.roll(-1, 0).reshape(-1))

    return steps_of(model, [optimizer], task.ids(torch.device(device)), loss_of, 0.5, bf16=bf16)


class PlainLayer(nn.Module):
    """Pre-norm RMSNorm, rotary attention through SDPA, SwiGLU, as in a carefully written script."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, feedforward, bias=False) for _ in range(2))
        self.down = nn.Linear(feedforward, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))

        def turned(part: Tensor) -> Tensor:
            low, high = part.chunk(2, dim=-1)
            return (part * cos + torch.cat((-high, low), dim=-1) * sin).to(part.dtype)

        mixed = F.scaled_dot_product_attention(turned(q), turned(k), v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class PlainModel(nn.Module):
    """A masked language model of a plain script, with the head tied to the embedding."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        shape = task.model
        width, head = shape["width"], shape["width"] // shape["heads"]
        self.embedding = nn.Embedding(task.vocabulary, width)
        sizes = width, shape["heads"], shape["feedforward"]
        self.layers = nn.ModuleList(PlainLayer(*sizes) for _ in range(shape["depth"]))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        rates = 10000.0 ** (-torch.arange(0, head, 2) / head)
        turns = torch.arange(task.length)[:, None] * rates
        both = torch.cat((turns, turns), dim=-1)
        self.register_buffer("cos", both.cos())
        self.register_buffer("sin", both.sin())

    def forward(self, ids: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        scores = F.linear(self.norm(x), self.embedding.weight).flatten(0, 1)
        return F.cross_entropy(scores[positions].float(), targets)


def plain_script(task: Task, *, device: str, compiled: bool) -> Callable[[], None]:
    """The whole model compiled, logits at the target positions only, Muon and fused AdamW of torch."""
    torch.manual_seed(0)
    model = PlainModel(task).to(device).train()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    called = torch.compile(model) if compiled else model
    inner = [parameter for parameter in model.layers.parameters() if parameter.ndim == 2]
    chosen = {id(parameter) for parameter in inner}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw") if hasattr(torch.optim, "Muon") else None
    optimizers = [torch.optim.AdamW(rest if muon else model.parameters(), lr=2e-3, weight_decay=0.1, fused=True)]
    if muon:
        optimizers.append(muon(inner, lr=2e-3, weight_decay=0.1))
    batches = []
    count = int(0.3 * task.tokens)
    for number, ids in enumerate(task.ids(torch.device(device))):
        chance = torch.Generator().manual_seed(number)
        positions = torch.randperm(task.tokens, generator=chance)[:count].sort().values.to(device)
        hidden = ids.flatten().clone()
        hidden[positions] = SPECIAL.mask
        batches.append((hidden.view_as(ids), positions, ids.flatten()[positions]))
    return steps_of(model, optimizers, batches, lambda batch: called(*batch), 1.0)
