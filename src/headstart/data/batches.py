"""Tokens on disk to tensors: each row a pure function of (seed, epoch, index), so the data position is one integer.

B rows of a batch, T tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config import PADDING, UNSCORED, Visibility
from headstart.text.tokenizer import SpecialIds

Ints = NDArray[np.int64]


class TokenDocuments(Protocol):
    """What a corpus of token ids offers: `Shards`, or a list in memory."""

    @property
    def lengths(self) -> Ints:
        """Tokens of each document."""

    def ids(self, index: int, /) -> NDArray[np.integer]:
        """The tokens of one document, without special ones."""


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, who belongs together in them, and what is to be predicted."""

    ids_BT: Tensor
    segments_BT: Tensor | None
    """The document of each token; None when a row is one document from its start, padded on the right."""
    targets: Tensor
    """A token for each position (B, T) or a label for each text; UNSCORED where there is none."""
    scored: int
    """How many targets count, known without asking the device."""
    lengths_B: Tensor | None = None
    owners_B: Tensor | None = None
    """The text each row is a window of, when texts are read in windows."""
    visibility: Visibility = "causal"

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return replace(
            self,
            ids_BT=self.ids_BT.to(device, non_blocking=True),
            segments_BT=move(self.segments_BT),
            targets=self.targets.to(device, non_blocking=True),
            lengths_B=move(self.lengths_B),
            owners_B=move(self.owners_B),
        )


def mixed(keys: NDArray[np.uint64], seed: int, stream: int) -> NDArray[np.uint64]:
    """64 random-looking bits for each key, by arithmetic of ours: no library's stream to depend on."""
    start = ((seed + 1) * 0xD1B54A32D192ED03 + stream * 0x8CB92BA72F3D8DD7) % 2**64
    bits = (keys + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's finaliser
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def shuffled(count: int, seed: int, epoch: int) -> Ints:
    """A permutation that follows from (seed, epoch)."""
    return np.argsort(mixed(np.arange(count, dtype=np.uint64), seed, epoch), kind="stable")


class CausalRows:
    """Rows for next-token prediction over some documents of a corpus.

    A document reads `<sos> t1 … tn` and its targets are `t1 … tn <eos>`. In the `packed` layout documents lie end to
    end and rows are cut every `context` tokens, a document's rest opening the next row; `documents` gives each its own
    row and drops what lies beyond the context.
    """

    def __init__(
        self,
        corpus: TokenDocuments,
        documents: Ints,
        special: SpecialIds,
        *,
        context: int,
        layout: Literal["packed", "documents"],
        seed: int | None,
    ) -> None:
        self.corpus, self.documents, self.special, self.context = corpus, documents, special, context
        self.layout, self.seed = layout, seed
        self._lengths = corpus.lengths[documents] + 1
        self.inputs = int(self._lengths.sum())
        packed = layout == "packed"
        self.rows = -(-self.inputs // context) if packed else len(documents)
        self.truncated = 0 if packed else int((self._lengths > context).sum())
        self._epoch = -1
        self._order: Ints = np.arange(0)
        self._ends: Ints = np.arange(0)

    def batch(self, first: int, count: int, *, segments_always: bool = False) -> Batch:
        """Rows `first` to `first + count` of the endless run of epochs."""
        rows = [self._row(*divmod(index, self.rows)) for index in range(first, first + count)]
        width = self.context if self.layout == "packed" else max(len(ids) for ids, _, _ in rows)
        ids = np.full((count, width), self.special.pad, dtype=np.int64)
        segments = np.full((count, width), PADDING, dtype=np.int64)
        targets = np.full((count, width), UNSCORED, dtype=np.int64)
        for place, (row_ids, row_segments, row_targets) in enumerate(rows):
            ids[place, : len(row_ids)] = row_ids
            segments[place, : len(row_ids)] = row_segments
            targets[place, : len(row_ids)] = row_targets
        return Batch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=torch.from_numpy(segments) if self.layout == "packed" or segments_always else None,
            targets=torch.from_numpy(targets),
            scored=int((targets != UNSCORED).sum()),
        )

    def _row(self, epoch: int, index: int) -> tuple[Ints, Ints, Ints]:
        self._arrange(epoch)
        if self.layout == "documents":
            ids, targets = self._document(int(self._order[index]), 0, self.context)
            return ids, np.zeros_like(ids), targets
        start, stop = index * self.context, min((index + 1) * self.context, self.inputs)
        place = int(np.searchsorted(self._ends, start, side="right"))
        pieces: list[tuple[Ints, Ints, Ints]] = []
        while start < stop:
            begins = int(self._ends[place - 1]) if place else 0
            ends = min(int(self._ends[place]), stop)
            ids, targets = self._document(int(self._order[place]), start - begins, ends - begins)
            pieces.append((ids, np.full_like(ids, len(pieces)), targets))
            start, place = ends, place + 1
        ids, segments, targets = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return ids, segments, targets

    def _document(self, index: int, start: int, stop: int) -> tuple[Ints, Ints]:
        """Inputs and targets of one document between two places of its input."""
        tokens = self.corpus.ids(int(self.documents[index]))  # a view: a book must not be copied for each of its rows
        stop = min(stop, len(tokens) + 1)
        before = [self.special.sos] if start == 0 else []
        after = [self.special.eos] if stop == len(tokens) + 1 else []
        piece = np.concatenate((before, tokens[max(start - 1, 0) : stop], after)).astype(np.int64)
        return piece[:-1], piece[1:]

    def _arrange(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        count = len(self.documents)
        self._order = np.arange(count) if self.seed is None else shuffled(count, self.seed, epoch)
        self._ends = np.cumsum(self._lengths[self._order])
        self._epoch = epoch


class LabelledRows:
    """Texts for classification: `<sos>` and as many tokens as fit, or as many windows as it takes."""

    def __init__(
        self,
        texts: Sequence[NDArray[np.integer]],
        labels: Sequence[int] | Ints,
        special: SpecialIds,
        *,
        context: int,
        windows: bool = False,
    ) -> None:
        self.texts, self.special, self.context, self.windows = texts, special, context, windows
        self.labels = np.asarray(labels, dtype=np.int64)
        self.lengths = np.array([len(text) + 1 for text in texts], dtype=np.int64)
        self.long = int((self.lengths > context).sum())
        """Texts beyond the context: cut, or read in windows."""

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, indices: Sequence[int] | Ints) -> Batch:
        """The texts at `indices`, padded on the right to the longest of them."""
        rows, owners = [], []
        for owner, index in enumerate(indices):
            for row in self._rows(self.texts[int(index)]):
                rows.append(row)
                owners.append(owner)
        ids = np.full((len(rows), max(map(len, rows))), self.special.pad, dtype=np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        return Batch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=None,
            targets=torch.from_numpy(self.labels[np.asarray(indices)]),
            scored=len(indices),
            lengths_B=torch.tensor([len(row) for row in rows]),
            owners_B=torch.tensor(owners) if len(rows) > len(indices) else None,
        )

    def buckets(self, tokens: int) -> list[Ints]:
        """All texts, those of like length together, in batches of at most `tokens` padded tokens (or one text)."""
        cost = np.minimum(self.lengths, self.context)
        pieces = -(-np.maximum(self.lengths - 1, 1) // (self.context - 1)) if self.windows else np.ones_like(cost)
        batches: list[Ints] = []
        batch: list[int] = []
        rows = 0
        for index in np.argsort(self.lengths, kind="stable"):
            if batch and (rows + pieces[index]) * cost[index] > tokens:
                batches.append(np.array(batch))
                batch, rows = [], 0
            batch.append(int(index))
            rows += int(pieces[index])
        return [*batches, np.array(batch)] if batch else batches

    def _rows(self, text: NDArray[np.integer]) -> list[Ints]:
        room = self.context - 1
        starts = range(0, max(len(text), 1), room) if self.windows else range(1)
        return [np.concatenate(([self.special.sos], text[start : start + room])).astype(np.int64) for start in starts]
