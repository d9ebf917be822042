"""A contrastive stage after pretraining: two passages of one document attract each other, those of other documents repel.

python benchmarks/contrastive.py RUN SHARDS --out FOLDER [--steps 1500] [--pairs 768] [--weight 0.5]

RUN is the folder of a pretrained language model, SHARDS the prepared text. Two passages without overlap are sampled from each
document of a batch. Their masked tokens are predicted as in pretraining, and their mean-pooled hidden states, projected, enter
the InfoNCE loss with in-batch negatives (van den Oord et al., 2018; Izacard et al., 2022). Every fourth step trains the
causal objective instead, so that the model still generates text. The projection is discarded. FOLDER is a bundle.
"""

import argparse
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT
from headstart.data.batch import Batch
from headstart.data.decontamination import MEMBERSHIP_FILE
from headstart.data.shards import Shards
from headstart.model.heads import LanguageHead, Model, mean_pooling
from headstart.store.bundle import load_bundle, save_bundle
from headstart.tokenization.base import NUM_SPECIAL_IDS, SpecialIds
from headstart.train.objectives import hidden_states, token_loss

SHORTEST, LONGEST = 8, 128
"""Tokens of a passage."""
TEMPERATURE = 0.05
MASKED_FRACTION = 0.2
CAUSAL_EVERY = 4


def sample_pairs(shards: Shards, documents: np.ndarray, pairs: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return two passages of each of some documents: first all first ones, then all second ones."""
    chosen = rng.choice(documents, pairs, replace=False)
    starts, lengths = shards.offsets[chosen].astype(np.int64), shards.lengths[chosen].astype(np.int64)
    longest = np.minimum(LONGEST, lengths // 2)
    sizes = np.exp(rng.uniform(np.log(SHORTEST), np.log(longest + 0.999), (2, pairs))).astype(np.int64)
    room = lengths - sizes.sum(axis=0)
    first = rng.integers(0, room + 1)
    second = first + sizes[0] + rng.integers(0, room - first + 1)
    flat = shards.flat
    spans = ((starts + first, sizes[0]), (starts + second, sizes[1]))
    return [flat[a : a + n] for begin, size in spans for a, n in zip(begin, size, strict=True)]


def make_batch(passages: list[np.ndarray], sos: int, pad: int) -> Batch:
    """Return the passages as padded rows with their cumulative lengths; targets are added on the device."""
    lengths = np.array([len(passage) + 1 for passage in passages])
    ids = np.full((len(passages), int(lengths.max())), pad, dtype=np.int64)
    ids[:, 0] = sos
    for row, passage in zip(ids, passages, strict=True):
        row[1 : 1 + len(passage)] = passage
    real = np.arange(ids.shape[1]) < lengths[:, None]
    segments = torch.from_numpy(np.where(real, 0, PADDING_SEGMENT))
    ids_BT = torch.from_numpy(ids)
    batch = Batch(ids_BT, segments, ids_BT, 0, lengths_B=torch.from_numpy(lengths), attention="bidirectional")
    return batch.with_cu_seqlens()


def prefetch(make: Callable[[np.random.Generator], Batch], depth: int = 8) -> Iterator[Batch]:
    """Yield what `make` returns, computed ahead in threads."""
    ready: queue.Queue = queue.Queue(depth)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while True:
            ready.put(make(rng))

    for seed in range(4):
        threading.Thread(target=work, args=(seed,), daemon=True).start()
    while True:
        yield ready.get()


def with_targets(batch: Batch, mask: int, vocab_size: int, *, causal: bool, shifted: bool) -> Batch:
    """Return the batch with masked tokens and their targets, or with the next tokens as targets."""
    assert batch.lengths_B is not None
    ids = batch.ids_BT
    position = torch.arange(ids.shape[1], device=ids.device)
    real = (position > 0) & (position < batch.lengths_B[:, None])
    if not causal:
        draw = torch.rand(ids.shape, device=ids.device)
        selected = real & (draw < MASKED_FRACTION)
        random_ids = torch.randint(NUM_SPECIAL_IDS, vocab_size, ids.shape, device=ids.device)
        replaced = torch.where(draw < 0.8 * MASKED_FRACTION, mask, random_ids)
        changed = torch.where(selected & (draw < 0.9 * MASKED_FRACTION), replaced, ids)
    else:
        selected, changed = real, ids
    targets = torch.where(selected, ids, IGNORE_INDEX)
    if causal or shifted:
        targets = torch.cat([targets[:, 1:], torch.full_like(targets[:, :1], IGNORE_INDEX)], dim=1)
    indices = (targets.flatten() != IGNORE_INDEX).nonzero()[:, 0]
    attention = "causal" if causal else "bidirectional"
    return replace(
        batch,
        ids_BT=changed,
        targets=targets,
        num_targets=len(indices),
        target_indices=indices,
        attention=attention,
    )


def contrast(vectors_BD: Tensor) -> Tensor:
    """Return the InfoNCE loss of B / 2 pairs in both directions."""
    first, second = F.normalize(vectors_BD.float(), dim=1).chunk(2)
    logits = first @ second.T / TEMPERATURE
    labels = torch.arange(len(first), device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def train(
    model: Model[LanguageHead], batches: Iterator[Batch], special: SpecialIds, options: argparse.Namespace
) -> None:
    """Train the model in place."""
    assert special.mask is not None
    device, vocab_size = torch.device(options.device), model.backbone.vocab_size
    projection = nn.Linear(model.backbone.config.width, model.backbone.config.width).to(device)
    parameters = [*model.parameters(), *projection.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, betas=(0.9, 0.98), weight_decay=0.05)
    sums, log = torch.zeros(3, device=device), max(CAUSAL_EVERY, options.steps // 10)
    for step in range(options.steps):
        rate = min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate
        causal = step % CAUSAL_EVERY == CAUSAL_EVERY - 1
        batch = next(batches).to(device, non_blocking=True)
        batch = with_targets(batch, special.mask, vocab_size, causal=causal, shifted=options.shifted)
        with torch.autocast(device.type, torch.bfloat16):
            hidden = hidden_states(model, batch)
            loss = tokens = token_loss(model, hidden, batch) / batch.num_targets
            if not causal:
                assert batch.lengths_B is not None
                pooled = contrast(projection(mean_pooling(hidden, batch.lengths_B)))
                loss = tokens + options.weight * pooled
                sums += torch.stack([tokens.detach(), pooled.detach(), torch.ones_like(pooled)])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % log == 0:
            mean = (sums[:2] / sums[2]).tolist()
            print(f"step {step + 1}: token loss {mean[0]:.3f}, contrastive {mean[1]:.3f}", flush=True)
            sums.zero_()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--pairs", type=int, default=768)
    parser.add_argument(
        "--weight", type=float, default=0.5, help="of the contrastive loss; the other is the token loss"
    )
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    started = time.monotonic()
    bundle, shards = load_bundle(options.run, head_type="language"), Shards.open(options.shards, deep=False)
    special, options.shifted = bundle.tokenizer.special, bundle.objective == "hybrid"
    documents = np.flatnonzero(shards.lengths >= 2 * SHORTEST)
    pairs = min(options.pairs, len(documents))
    batches = prefetch(lambda rng: make_batch(sample_pairs(shards, documents, pairs, rng), special.sos, special.pad))
    torch.manual_seed(0)
    train(bundle.model.to(options.device).train(), batches, special, options)
    seconds = round(time.monotonic() - started)
    stage = {"steps": options.steps, "pairs": pairs, "weight": options.weight, "lr": options.lr, "seconds": seconds}
    membership = bundle.path / MEMBERSHIP_FILE
    extra = {MEMBERSHIP_FILE: membership.read_bytes()} if membership.is_file() else None
    bundle.model.cpu().eval()
    save_bundle(options.out, replace(bundle, about=bundle.about | {"contrastive": stage}, folder=None), extra=extra)
    print(f"{options.out}: {seconds} s")


if __name__ == "__main__":
    main()
