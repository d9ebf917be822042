"""Datasets that turn token ids into batches: packed rows for language modelling, and labelled texts or text pairs.

Each row is a pure function of (seed, epoch, index), so the data position of a run is one integer.

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
from headstart.tasks import TextInput
from headstart.tokenization.base import SpecialIds, Tokenizer


class TokenCorpus(Protocol):
    """Documents as token ids: `Shards`, or arrays in memory."""

    @property
    def flat(self) -> NDArray[Any]:
        """The tokens of all documents end to end."""

    @property
    def offsets(self) -> NDArray[Any]:
        """The index in `flat` at which each document begins."""

    @property
    def lengths(self) -> Ints:
        """The number of tokens of each document."""

    def ids(self, index: int, /) -> NDArray[np.integer]:
        """The tokens of one document, without special tokens."""


class PackedDataset:
    """Rows for next-token prediction over some documents of a corpus.

    The input of a document is `<sos> t1 … tn` and its targets are `t1 … tn <eos>`. With a separator token the input is
    `<sos> t1 … tn <sep>`, and its last position has no target. In the `packed` layout, documents are laid end to end and
    cut into rows of `context` tokens. In the `documents` layout each document has its own row, truncated to the context.
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
        self._offsets = corpus.offsets[documents].astype(np.int64)
        self.num_tokens = int(self._lengths.sum())
        self.num_rows = -(-self.num_tokens // context) if layout == "packed" else len(documents)
        self.num_truncated = 0 if layout == "packed" else int((self._lengths > context).sum())
        empty: Ints = np.arange(0)
        self._epoch, self._order, self._ends = -1, empty, empty

    def batch(self, first: int, count: int, *, segments_always: bool = False) -> Batch:
        """Return rows `first` to `first + count` of the endless sequence of epochs.

        Args:
            segments_always: set `segments_BT` in the `documents` layout too.
        """
        fetch = self._packed_rows if self.layout == "packed" else self._document_rows
        chunks = []
        while count:
            epoch, row = divmod(first, self.num_rows)
            chunk_rows = min(count, self.num_rows - row)
            self._set_epoch(epoch)
            chunks.append(fetch(row, chunk_rows))
            first, count = first + chunk_rows, count - chunk_rows
        width = max(ids.shape[1] for ids, _, _ in chunks)
        ids, segments, targets = (
            np.concatenate([_pad_columns(rows, width, padding) for rows in arrays])
            for arrays, padding in zip(
                zip(*chunks, strict=True), (self.special.pad, PADDING_SEGMENT, IGNORE_INDEX), strict=True
            )
        )
        return Batch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=torch.from_numpy(segments) if self.layout == "packed" or segments_always else None,
            targets=torch.from_numpy(targets),
            num_targets=int((targets != IGNORE_INDEX).sum()),
        )

    def _packed_rows(self, row: int, count: int) -> tuple[Ints, Ints, Ints]:
        """Return ids, segments and targets of rows of the current epoch in the packed layout."""
        start, stop = row * self.context, min((row + count) * self.context, self.num_tokens)
        first = int(np.searchsorted(self._ends, start, side="right"))
        after = int(np.searchsorted(self._ends, stop, side="left")) + 1
        order, ends = self._order[first:after], self._ends[first:after]
        sizes = self._lengths[order]
        num_read = np.minimum(ends, stop) - np.maximum(ends - sizes, start)
        # vectorised without a loop over documents, so that the thread that launches GPU work is not kept waiting
        document = np.repeat(np.arange(len(order)), num_read)
        position = np.arange(start, stop) - (ends - sizes)[document]  # in its document; <sos> is 0
        index = self._offsets[order][document] + position
        flat, last = self.corpus.flat, sizes[document] - self.special.num_special_tokens
        ids = np.where(position == 0, self.special.sos, flat[np.clip(index - 1, 0, len(flat) - 1)])
        targets = np.where(position == last, self.special.eos, flat[np.minimum(index, len(flat) - 1)])
        if self.special.sep is not None:
            ids = np.where(position > last, self.special.sep, ids)
            targets = np.where(position > last, IGNORE_INDEX, targets)
        shape = (count, self.context)
        documents = _pad_to_shape(document, shape, PADDING_SEGMENT)
        segments = np.where(documents == PADDING_SEGMENT, PADDING_SEGMENT, documents - documents[:, :1])
        return _pad_to_shape(ids, shape, self.special.pad), segments, _pad_to_shape(targets, shape, IGNORE_INDEX)

    def _document_rows(self, row: int, count: int) -> tuple[Ints, Ints, Ints]:
        """Return ids, segments and targets of rows of the current epoch in the documents layout."""
        documents = [self._document(int(index)) for index in self._order[row : row + count]]
        shape = (count, max(map(len, documents)) - 1)
        ids = np.full(shape, self.special.pad, dtype=np.int64)
        segments = np.full(shape, PADDING_SEGMENT, dtype=np.int64)
        targets = np.full(shape, IGNORE_INDEX, dtype=np.int64)
        for index, tokens in enumerate(documents):
            end = len(tokens) - 1
            ids[index, :end], targets[index, :end] = tokens[:-1], tokens[1:]
            segments[index, :end] = 0
        return ids, segments, targets

    def _document(self, index: int) -> Ints:
        """Return a document truncated to the context plus one token, so that [:-1] is the input and [1:] the targets."""
        tokens = self.corpus.ids(int(self.documents[index]))  # a view: a book must not be copied for its beginning
        start = [self.special.sos]
        if self.special.sep is not None:
            room = self.context - self.special.num_special_tokens
            return np.concatenate((start, tokens[:room], [self.special.sep, IGNORE_INDEX])).astype(np.int64)
        end = [self.special.eos] if len(tokens) < self.context else []
        return np.concatenate((start, tokens[: self.context], end)).astype(np.int64)

    def _set_epoch(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        count = len(self.documents)
        self._order = np.arange(count) if self.seed is None else seeded_permutation(count, self.seed, epoch)
        self._ends = np.cumsum(self._lengths[self._order])
        self._epoch = epoch


def _pad_to_shape(values: Ints, shape: tuple[int, int], padding: int) -> Ints:
    """Lay values out in rows, and pad the end of the last rows."""
    rows = np.full(shape, padding, dtype=np.int64)
    rows.flat[: len(values)] = values
    return rows


def _pad_columns(rows: Ints, width: int, padding: int) -> Ints:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=padding)


class LabelledDataset:
    """Labelled texts, each a row `<sos> text [<sep>]` that is truncated to the context, or split into several windows.

    Args:
        labels: the class of each text, its multi-hot row over several labels, or its number.
        windows: read a text that exceeds the context in windows instead of truncating it.
        pair: each text is two texts with `<eos>` between them, and truncation shortens both.
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
        self.num_long = int((self.lengths > context).sum())
        """The number of texts that exceed the context."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def tokens_read(self) -> Ints:
        """The number of tokens that are read of each text."""
        return self.lengths if self.windows else np.minimum(self.lengths, self.context)

    @property
    def num_tokens(self) -> int:
        """The number of tokens that are read."""
        return int(self.tokens_read.sum())

    def micro_batches(self, indices: Ints, max_tokens: int) -> list[Ints]:
        """Divide a batch, in order, into micro-batches of similar size, each with at most `max_tokens` tokens or one text."""
        ends = self.tokens_read[indices].cumsum()
        size = ends[-1] / -(-ends[-1] // max_tokens)
        batches, first, read = [], 0, 0
        while first < len(indices):
            last = max(first + 1, int(np.searchsorted(ends, read + size, side="right")))
            batches.append(indices[first:last])
            first, read = last, int(ends[last - 1])
        return batches

    def subset(self, indices: Sequence[int] | Ints) -> "LabelledDataset":
        """Return the texts at `indices`, in this order, as a dataset of its own."""
        chosen = np.asarray(indices, dtype=np.int64)
        return LabelledDataset(
            [self.texts[index] for index in chosen],
            self.labels[chosen],
            self.special,
            context=self.context,
            windows=self.windows,
            pair=self.pair,
        )

    def batch(self, indices: Sequence[int] | Ints) -> Batch:
        """Return the texts at `indices`, padded on the right to the longest row."""
        rows, sample_index = [], []
        for sample, index in enumerate(indices):
            for row in self._rows(self.texts[int(index)]):
                rows.append(row)
                sample_index.append(sample)
        ids = np.full((len(rows), max(map(len, rows))), self.special.pad, dtype=np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
        targets = torch.from_numpy(self.labels[np.asarray(indices)])
        return Batch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=None,
            targets=targets.float() if targets.is_floating_point() else targets,
            num_targets=len(indices),
            lengths_B=torch.tensor([len(row) for row in rows]),
            sample_index_B=torch.tensor(sample_index) if len(rows) > len(indices) else None,
        )

    def buckets(self, max_tokens: int) -> list[Ints]:
        """Group all texts by length into batches of at most `max_tokens` padded tokens, or of one text."""
        row_lengths = np.minimum(self.lengths, self.context)
        num_special = self.special.num_special_tokens
        num_windows = -(-np.maximum(self.lengths - num_special, 1) // (self.context - num_special))
        num_rows = num_windows if self.windows else np.ones_like(row_lengths)
        batches: list[Ints] = []
        batch: list[int] = []
        batch_rows = 0
        for index in np.argsort(self.lengths, kind="stable"):
            if batch and (batch_rows + num_rows[index]) * row_lengths[index] > max_tokens:
                batches.append(np.array(batch))
                batch, batch_rows = [], 0
            batch.append(int(index))
            batch_rows += int(num_rows[index])
        return [*batches, np.array(batch)] if batch else batches

    def _rows(self, text: NDArray[np.integer]) -> list[Ints]:
        room = self.context - self.special.num_special_tokens
        end = [] if self.special.sep is None else [self.special.sep]
        if self.pair:
            text = truncate_pair(text, room, self.special.eos)
        starts = range(0, max(len(text), 1), room) if self.windows else range(1)
        return [
            np.concatenate(([self.special.sos], text[start : start + room], end)).astype(np.int64) for start in starts
        ]


def encode_inputs(tokenizer: Tokenizer, text_inputs: Sequence[TextInput]) -> list[list[int]]:
    """Encode texts; the two texts of a pair are joined by `<eos>`, which no text encodes to."""
    texts = [text for text_input in text_inputs for text in _texts_of(text_input)]
    encoded = iter(tokenizer.encode_batch(texts))
    rows = []
    for text_input in text_inputs:
        row = list(next(encoded))
        if not isinstance(text_input, str):
            row += [tokenizer.special.eos, *next(encoded)]
        rows.append(row)
    return rows


def _texts_of(text_input: TextInput) -> tuple[str, ...]:
    return (text_input,) if isinstance(text_input, str) else text_input


def truncate_pair(ids: NDArray[np.integer], room: int, eos: int) -> NDArray[Any]:
    """Truncate the tokens of a pair to `room`, the `<eos>` between them included."""
    if len(ids) <= room:
        return ids
    middle = int(np.argmax(ids == eos))
    first, second = fair_lengths(middle, len(ids) - middle - 1, room - 1)
    return np.concatenate((ids[:first], ids[middle : middle + 1 + second]))


def fair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens each of two texts keeps: a short one all, two long ones half of the room each.

    The result equals that of the strategy `longest_first` of `tokenizers`, so exported models truncate alike.

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
