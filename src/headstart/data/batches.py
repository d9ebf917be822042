"""Tokens on disk to tensors: each row a pure function of (seed, epoch, index), so the data position is one integer.

B rows of a batch, T tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config import PADDING, UNSCORED, Visibility
from headstart.data.joined import cut_pair
from headstart.text.tokenizer import SpecialIds

Ints = NDArray[np.int64]


class TokenDocuments(Protocol):
    """What a corpus of token ids offers: `Shards`, or arrays in memory."""

    @property
    def flat(self) -> NDArray[Any]:
        """The tokens of all documents end to end."""

    @property
    def offsets(self) -> NDArray[Any]:
        """Where each document begins in `flat`."""

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
    bounds: Tensor | None = None
    """The documents of all rows in turn as cumulative lengths (int32), for kernels that need no padding; from `bounded`."""
    real: Tensor | None = None
    """With bounds, the flat places of real tokens; None when padding is counted as a document."""
    places: Tensor | None = None
    """The flat places of the tokens that are scored; from `bounded`."""
    idle: bool = False
    """Read along to keep step with other processes, and counted by nobody; see `portions`."""

    def to(self, device: torch.device) -> Self:
        """The same batch on a device; for a GPU, told beforehand what would have to be asked of it."""
        if device.type == self.ids_BT.device.type:
            return self
        batch = self.bounded().unsegmented() if device.type == "cuda" else self
        tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
        if device.type == "cuda":  # only from pinned memory does a copy wait for nobody
            tensors = {name: value.pin_memory() for name, value in tensors.items()}
        moved: dict[str, Any] = {name: value.to(device, non_blocking=True) for name, value in tensors.items()}
        return replace(batch, **moved)

    def bounded(self) -> Self:
        """The same batch with bounds, real and places worked out on the CPU: shapes that a GPU would have to be asked for."""
        rows, width = self.ids_BT.shape
        if self.lengths_B is not None:
            lengths = self.lengths_B.numpy()
            real = torch.from_numpy(np.flatnonzero(np.arange(width) < lengths[:, None]))
            return replace(self, bounds=_cumulative(lengths), real=real)
        assert self.targets.ndim == 2
        places = torch.from_numpy(np.flatnonzero(self.targets.numpy() != UNSCORED))
        if self.segments_BT is None:
            return replace(self, places=places)
        segments = self.segments_BT.numpy()
        starts = np.ones((rows, width), dtype=bool)
        starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
        kept = (segments != PADDING).ravel()
        if kept.mean() > WORTH_UNPADDING:  # shapes that stay the same are worth more: padding is one more document
            kept = np.ones_like(kept)
        cut = np.flatnonzero(starts.ravel() & kept)
        ends = np.cumsum(kept)
        lengths = np.diff(np.append(ends[cut] - 1, ends[-1]))
        unpadded = None if kept.all() else torch.from_numpy(np.flatnonzero(kept))
        return replace(self, bounds=_cumulative(lengths), real=unpadded, places=places)

    def unsegmented(self) -> Self:
        """The same batch without segments and bounds if they say nothing: where every row is one document and full."""
        segments = self.segments_BT
        if segments is None or (segments != segments[:, :1]).any() or (segments[:, 0] == PADDING).any():
            return self
        return replace(self, segments_BT=None, bounds=None, real=None)


WORTH_UNPADDING = 0.95
"""Share of real tokens above which padding is computed along."""
_FEWEST_BOUNDS = 256


def _cumulative(lengths: NDArray[np.integer]) -> Tensor:
    """Lengths summed up from 0, then filled with empty documents to a power of two: few shapes to compile for."""
    size = max(_FEWEST_BOUNDS, 1 << len(lengths).bit_length())
    bounds = np.full(size, lengths.sum(), dtype=np.int32)
    bounds[0] = 0
    bounds[1 : len(lengths) + 1] = np.cumsum(lengths)
    return torch.from_numpy(bounds)


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

    A document reads `<sos> t1 … tn` and its targets are `t1 … tn <eos>`; where rows are closed it reads
    `<sos> t1 … tn <close>`, and nothing is asked at the last place. In the `packed` layout documents lie end to
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
        self._lengths = corpus.lengths[documents] + special.around
        self._begins = corpus.offsets[documents].astype(np.int64)
        self.inputs = int(self._lengths.sum())
        self.rows = -(-self.inputs // context) if layout == "packed" else len(documents)
        self.truncated = 0 if layout == "packed" else int((self._lengths > context).sum())
        none: Ints = np.arange(0)
        self._epoch, self._order, self._ends = -1, none, none

    def batch(self, first: int, count: int, *, segments_always: bool = False) -> Batch:
        """Rows `first` to `first + count` of the endless run of epochs."""
        fetch = self._packed if self.layout == "packed" else self._documents
        parts = []
        while count:
            epoch, row = divmod(first, self.rows)
            bite = min(count, self.rows - row)
            self._arrange(epoch)
            parts.append(fetch(row, bite))
            first, count = first + bite, count - bite
        width = max(ids.shape[1] for ids, _, _ in parts)
        ids, segments, targets = (
            np.concatenate([_widened(part, width, filling) for part in rows])
            for rows, filling in zip(zip(*parts, strict=True), (self.special.pad, PADDING, UNSCORED), strict=True)
        )
        return Batch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=torch.from_numpy(segments) if self.layout == "packed" or segments_always else None,
            targets=torch.from_numpy(targets),
            scored=int((targets != UNSCORED).sum()),
        )

    def _packed(self, row: int, count: int) -> tuple[Ints, Ints, Ints]:
        """Ids, segments and targets of rows of the epoch in hand: one stretch of its text, cut every `context` tokens."""
        start, stop = row * self.context, min((row + count) * self.context, self.inputs)
        first = int(np.searchsorted(self._ends, start, side="right"))
        after = int(np.searchsorted(self._ends, stop, side="left")) + 1
        order, ends = self._order[first:after], self._ends[first:after]
        sizes = self._lengths[order]
        taken = np.minimum(ends, stop) - np.maximum(ends - sizes, start)
        owner = np.repeat(np.arange(len(order)), taken)
        # where each token stands in its document, <sos> being 0; no loop, so that a GPU's own thread is not kept waiting
        place = np.arange(start, stop) - (ends - sizes)[owner]
        at = self._begins[order][owner] + place
        flat, last = self.corpus.flat, sizes[owner] - self.special.around
        ids = np.where(place == 0, self.special.sos, flat[np.clip(at - 1, 0, len(flat) - 1)])
        targets = np.where(place == last, self.special.eos, flat[np.minimum(at, len(flat) - 1)])
        if self.special.close is not None:
            ids, targets = np.where(place > last, self.special.close, ids), np.where(place > last, UNSCORED, targets)
        shape = (count, self.context)
        owners = _filled(owner, shape, PADDING)
        segments = np.where(owners == PADDING, PADDING, owners - owners[:, :1])
        return _filled(ids, shape, self.special.pad), segments, _filled(targets, shape, UNSCORED)

    def _documents(self, row: int, count: int) -> tuple[Ints, Ints, Ints]:
        """The same when each document has its own row."""
        pieces = [self._document(int(index), 0, self.context) for index in self._order[row : row + count]]
        shape = (count, max(map(len, pieces)) - 1)
        ids = np.full(shape, self.special.pad, dtype=np.int64)
        segments, targets = np.full(shape, PADDING, dtype=np.int64), np.full(shape, UNSCORED, dtype=np.int64)
        for place, piece in enumerate(pieces):
            ids[place, : len(piece) - 1], targets[place, : len(piece) - 1] = piece[:-1], piece[1:]
            segments[place, : len(piece) - 1] = 0
        return ids, segments, targets

    def _document(self, index: int, start: int, stop: int) -> Ints:
        """A document between two places of its input, and the token after them: inputs [:-1], targets [1:]."""
        tokens = self.corpus.ids(int(self.documents[index]))  # a view: a book must not be copied for each of its rows
        before = [self.special.sos] if start == 0 else []
        if self.special.close is not None:
            room = stop - self.special.around
            return np.concatenate((before, tokens[:room], [self.special.close, UNSCORED])).astype(np.int64)
        stop = min(stop, len(tokens) + 1)
        after = [self.special.eos] if stop == len(tokens) + 1 else []
        return np.concatenate((before, tokens[max(start - 1, 0) : stop], after)).astype(np.int64)

    def _arrange(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        count = len(self.documents)
        self._order = np.arange(count) if self.seed is None else shuffled(count, self.seed, epoch)
        self._ends = np.cumsum(self._lengths[self._order])
        self._epoch = epoch


def _filled(values: Ints, shape: tuple[int, int], filling: int) -> Ints:
    """Values laid out in rows, the rest of the last rows filled."""
    rows = np.full(shape, filling, dtype=np.int64)
    rows.flat[: len(values)] = values
    return rows


def _widened(rows: Ints, width: int, filling: int) -> Ints:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=filling)


class LabelledRows:
    """Texts for classification: `<sos>`, as many tokens as fit, and what closes a row; or as many windows as it takes.

    Args:
        labels: of each text its class, its row of 0 and 1 over several labels, or its number.
        pair: a text is two with the end token between them, and both are cut where they are too long.
    """

    def __init__(
        self,
        texts: Sequence[NDArray[np.integer]],
        labels: Sequence[int] | NDArray[Any],
        special: SpecialIds,
        *,
        context: int,
        windows: bool = False,
        pair: bool = False,
    ) -> None:
        self.texts, self.special, self.context, self.windows, self.pair = texts, special, context, windows, pair
        self.labels = np.asarray(labels, dtype=None if isinstance(labels, np.ndarray) else np.int64)
        self.lengths = np.array([len(text) + special.around for text in texts], dtype=np.int64)
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
        targets = torch.from_numpy(self.labels[np.asarray(indices)])
        return Batch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=None,
            targets=targets.float() if targets.is_floating_point() else targets,
            scored=len(indices),
            lengths_B=torch.tensor([len(row) for row in rows]),
            owners_B=torch.tensor(owners) if len(rows) > len(indices) else None,
        )

    def buckets(self, tokens: int) -> list[Ints]:
        """All texts, those of like length together, in batches of at most `tokens` padded tokens (or one text)."""
        cost = np.minimum(self.lengths, self.context)
        around = self.special.around
        windows = -(-np.maximum(self.lengths - around, 1) // (self.context - around))
        pieces = windows if self.windows else np.ones_like(cost)
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
        room, end = self.context - self.special.around, [] if self.special.close is None else [self.special.close]
        if self.pair:
            text = cut_pair(text, room, self.special.eos)
        starts = range(0, max(len(text), 1), room) if self.windows else range(1)
        parts = (([self.special.sos], text[start : start + room], end) for start in starts)
        return [np.concatenate(part).astype(np.int64) for part in parts]
