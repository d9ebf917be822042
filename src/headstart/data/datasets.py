"""Datasets: packed language-model rows, labelled rows and pairs of texts.

Two texts as one row: `<sos> A <eos> B`, as pretraining's pairs are laid out; what does not fit is cut from both fairly.

Tokens on disk to tensors: each row a pure function of (seed, epoch, index), so the data position is one integer.

B rows of a batch, T tokens of a row.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT
from headstart.data.batch import Batch
from headstart.data.hashing import Ints, seeded_permutation
from headstart.data.labelled import TextInput
from headstart.tokenization.base import SpecialIds, Tokenizer


def encode_inputs(tokenizer: Tokenizer, text_inputs: Sequence[TextInput]) -> list[list[int]]:
    """The tokens of texts; of a pair those of both, the end token between them, which no text contains."""
    flat = [text for one in text_inputs for text in ((one,) if isinstance(one, str) else one)]
    found = iter(tokenizer.encode_batch(flat))
    rows = []
    for one in text_inputs:
        row = list(next(found))
        if not isinstance(one, str):
            row += [tokenizer.special.eos, *next(found)]
        rows.append(row)
    return rows


def fair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens each of two texts keeps: a short one all, two long ones half of the room each.

    The same to the token as `tokenizers` cuts with its strategy `longest_first`, so that exports cut alike.

    >>> fair_lengths(3, 20, 10), fair_lengths(20, 20, 11), fair_lengths(4, 5, 10)
    ((3, 7), (5, 6), (4, 5))
    """
    if first + second <= room:
        return first, second
    short, long = min(first, second), max(first, second)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return (short, long) if first <= second else (long, short)


def truncate_pair(ids: NDArray[np.integer], room: int, eos: int) -> NDArray[Any]:
    """A pair's tokens cut to `room`, the end token between them included."""
    if len(ids) <= room:
        return ids
    middle = int(np.argmax(ids == eos))
    first, second = fair_lengths(middle, len(ids) - middle - 1, room - 1)
    return np.concatenate((ids[:first], ids[middle : middle + 1 + second]))


class TokenCorpus(Protocol):
    """What a corpus of token ids offers: `FullyShardedParallel`, or arrays in memory."""

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


class PackedDataset:
    """Rows for next-token prediction over some documents of a corpus.

    A document reads `<sos> t1 … tn` and its targets are `t1 … tn <eos>`; where rows are closed it reads
    `<sos> t1 … tn <close>`, and nothing is asked at the last place. In the `packed` layout documents lie end to
    end and rows are cut every `context` tokens, a document's rest opening the next row; `documents` gives each its own
    row and drops what lies beyond the context.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        documents: Ints,
        special: SpecialIds,
        *,
        context: int,
        layout: Literal["packed", "documents"],
        seed: int | None,
    ) -> None:
        self.corpus, self.documents, self.special, self.context = corpus, documents, special, context
        self.layout, self.seed = layout, seed
        self._lengths = corpus.lengths[documents] + special.num_special_tokens
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
            np.concatenate([_pad_columns(part, width, filling) for part in rows])
            for rows, filling in zip(
                zip(*parts, strict=True), (self.special.pad, PADDING_SEGMENT, IGNORE_INDEX), strict=True
            )
        )
        return Batch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=torch.from_numpy(segments) if self.layout == "packed" or segments_always else None,
            targets=torch.from_numpy(targets),
            num_targets=int((targets != IGNORE_INDEX).sum()),
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
        flat, last = self.corpus.flat, sizes[owner] - self.special.num_special_tokens
        ids = np.where(place == 0, self.special.sos, flat[np.clip(at - 1, 0, len(flat) - 1)])
        targets = np.where(place == last, self.special.eos, flat[np.minimum(at, len(flat) - 1)])
        if self.special.sep is not None:
            ids, targets = (
                np.where(place > last, self.special.sep, ids),
                np.where(place > last, IGNORE_INDEX, targets),
            )
        shape = (count, self.context)
        owners = _pad_to_shape(owner, shape, PADDING_SEGMENT)
        segments = np.where(owners == PADDING_SEGMENT, PADDING_SEGMENT, owners - owners[:, :1])
        return _pad_to_shape(ids, shape, self.special.pad), segments, _pad_to_shape(targets, shape, IGNORE_INDEX)

    def _documents(self, row: int, count: int) -> tuple[Ints, Ints, Ints]:
        """The same when each document has its own row."""
        pieces = [self._document(int(index), 0, self.context) for index in self._order[row : row + count]]
        shape = (count, max(map(len, pieces)) - 1)
        ids = np.full(shape, self.special.pad, dtype=np.int64)
        segments, targets = (
            np.full(shape, PADDING_SEGMENT, dtype=np.int64),
            np.full(shape, IGNORE_INDEX, dtype=np.int64),
        )
        for place, piece in enumerate(pieces):
            ids[place, : len(piece) - 1], targets[place, : len(piece) - 1] = piece[:-1], piece[1:]
            segments[place, : len(piece) - 1] = 0
        return ids, segments, targets

    def _document(self, index: int, start: int, stop: int) -> Ints:
        """A document between two places of its input, and the token after them: inputs [:-1], targets [1:]."""
        tokens = self.corpus.ids(int(self.documents[index]))  # a view: a book must not be copied for each of its rows
        before = [self.special.sos] if start == 0 else []
        if self.special.sep is not None:
            room = stop - self.special.num_special_tokens
            return np.concatenate((before, tokens[:room], [self.special.sep, IGNORE_INDEX])).astype(np.int64)
        stop = min(stop, len(tokens) + 1)
        after = [self.special.eos] if stop == len(tokens) + 1 else []
        return np.concatenate((before, tokens[max(start - 1, 0) : stop], after)).astype(np.int64)

    def _arrange(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        count = len(self.documents)
        self._order = np.arange(count) if self.seed is None else seeded_permutation(count, self.seed, epoch)
        self._ends = np.cumsum(self._lengths[self._order])
        self._epoch = epoch


def _pad_to_shape(values: Ints, shape: tuple[int, int], filling: int) -> Ints:
    """Values laid out in rows, the rest of the last rows filled."""
    rows = np.full(shape, filling, dtype=np.int64)
    rows.flat[: len(values)] = values
    return rows


def _pad_columns(rows: Ints, width: int, filling: int) -> Ints:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=filling)


class LabelledDataset:
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
        self.lengths = np.array([len(text) + special.num_special_tokens for text in texts], dtype=np.int64)
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
            num_targets=len(indices),
            lengths_B=torch.tensor([len(row) for row in rows]),
            sample_index_B=torch.tensor(owners) if len(rows) > len(indices) else None,
        )

    def buckets(self, tokens: int) -> list[Ints]:
        """All texts, those of like length together, in batches of at most `tokens` padded tokens (or one text)."""
        cost = np.minimum(self.lengths, self.context)
        around = self.special.num_special_tokens
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
        room, end = (
            self.context - self.special.num_special_tokens,
            [] if self.special.sep is None else [self.special.sep],
        )
        if self.pair:
            text = truncate_pair(text, room, self.special.eos)
        starts = range(0, max(len(text), 1), room) if self.windows else range(1)
        parts = (([self.special.sos], text[start : start + room], end) for start in starts)
        return [np.concatenate(part).astype(np.int64) for part in parts]
