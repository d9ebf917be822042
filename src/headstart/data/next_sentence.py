"""Sentence pairs for next-sentence prediction; each pair is a pure function of (seed, epoch, index).

A row is `<sos> A <eos> B` in one segment. A and B are adjacent in one document, or B comes from another document. B has
the same length in both cases, never begins a document, and ends one exactly when the true B would. Only the content of A
and B can therefore give the answer away.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT
from headstart.data.batch import Batch
from headstart.data.datasets import TokenCorpus
from headstart.data.hashing import Ints, random_bits, seeded_permutation
from headstart.errors import DataError
from headstart.tokenization.base import SpecialIds

_CUT_STREAM, _LABEL_STREAM, _DOCUMENT_STREAM, _START_STREAM = 2_000_001, 2_000_002, 2_000_003, 2_000_004
"""Streams of random bits, independent of those of masking.py and of the order of any epoch."""
_MIN_ROW_LENGTH = 8


@dataclass(frozen=True)
class NextSentenceBatch(Batch):
    """A batch whose rows are sentence pairs."""

    pairs_B: Tensor | None = None
    """1 where B follows A, 0 where it comes from another document."""
    pair_weight: float = 0.0
    """The weight of the loss of one pair relative to that of one token; see `weight_pairs`."""


@dataclass(frozen=True)
class SentencePair:
    """A and B as (document, start, stop) token ranges."""

    a: tuple[int, int, int]
    b: tuple[int, int, int]
    follows: bool


class NextSentenceDataset:
    """One pair per row over some documents of a corpus.

    A document longer than a row is cut into several rows of about the same length.
    """

    num_truncated = 0
    """Documents that lose tokens: none, every token belongs to some pair (but see `_max_b_length`)."""

    def __init__(
        self, corpus: TokenCorpus, documents: Ints, special: SpecialIds, *, context: int, seed: int | None
    ) -> None:
        if context < _MIN_ROW_LENGTH:
            raise DataError(
                f"pairs need rows of {_MIN_ROW_LENGTH} tokens or more, got {context}; increase model.context"
            )
        self.corpus, self.special, self.context, self.seed = corpus, special, context, seed
        lengths = corpus.lengths[documents]
        self.documents: Ints = documents[lengths >= 2]
        self.num_short = len(documents) - len(self.documents)
        """Documents of fewer than two tokens, which cannot be split and are skipped."""
        if len(self.documents) < 2:
            raise DataError(
                f"pairs need two documents of two tokens or more, got {len(self.documents)} of {len(documents)}; "
                "add more text, or remove next_sentence.weight"
            )
        self._lengths = lengths[lengths >= 2]
        self._rows_per_document = -(-self._lengths // (context - 2))
        self._row_ends = np.cumsum(self._rows_per_document)
        self.num_rows = int(self._row_ends[-1])
        self.num_tokens = int(self._lengths.sum()) + 2 * self.num_rows
        self._by_length: Ints = np.argsort(self._lengths, kind="stable")
        self._length_rank = np.empty_like(self._by_length)
        self._length_rank[self._by_length] = np.arange(len(self._by_length))
        self._sorted_lengths = self._lengths[self._by_length]
        self._epoch = -1
        self._order: Ints = np.arange(0)

    def batch(self, first: int, count: int, *, segments_always: bool = True) -> NextSentenceBatch:  # noqa: ARG002
        """Return rows `first` to `first + count` of the endless sequence of epochs.

        The targets are the next tokens within A and within B.
        """
        pairs = [self.pair(*divmod(index, self.num_rows)) for index in range(first, first + count)]
        tokens = [(self._tokens(*pair.a), self._tokens(*pair.b)) for pair in pairs]
        width = max(len(a) + len(b) for a, b in tokens) + 2
        ids = np.full((count, width), self.special.pad, dtype=np.int64)
        segments = np.full((count, width), PADDING_SEGMENT, dtype=np.int64)
        targets = np.full((count, width), IGNORE_INDEX, dtype=np.int64)
        for row, (a, b) in enumerate(tokens):
            middle, end = len(a) + 1, len(a) + len(b) + 2
            ids[row, :end] = np.concatenate(([self.special.sos], a, [self.special.eos], b))
            segments[row, :end] = 0
            targets[row, : middle - 1] = a
            targets[row, middle + 1 : end - 1] = b[1:]
        return NextSentenceBatch(
            ids_BT=torch.from_numpy(ids),
            segments_BT=torch.from_numpy(segments),
            targets=torch.from_numpy(targets),
            num_targets=int((targets != IGNORE_INDEX).sum()),
            pairs_B=torch.tensor([int(pair.follows) for pair in pairs]),
        )

    def pair(self, epoch: int, index: int) -> SentencePair:
        """Return the pair at an index of an epoch."""
        if epoch != self._epoch:
            in_order = self.seed is None
            self._order = (
                np.arange(self.num_rows) if in_order else seeded_permutation(self.num_rows, self.seed or 0, epoch)
            )
            self._epoch = epoch
        row = int(self._order[index])
        key = epoch * self.num_rows + row
        document = int(np.searchsorted(self._row_ends, row, side="right"))
        length, num_rows = int(self._lengths[document]), int(self._rows_per_document[document])
        row_in_document = row - (int(self._row_ends[document]) - num_rows)
        start, stop = row_in_document * length // num_rows, (row_in_document + 1) * length // num_rows
        min_length = max(1, (stop - start) // 4)  # a piece of one word carries no information
        cut = start + min_length + self._draw(key, _CUT_STREAM) % max(1, stop - start - 2 * min_length + 1)
        stop = min(stop, cut + self._max_b_length(document))
        a = (document, start, cut)
        # an evaluation in order alternates the two labels: random labels would make a small sample uneven
        is_random_b = row % 2 if self.seed is None else self._draw(key, _LABEL_STREAM) % 2
        if is_random_b:
            b_document = self._draw_document(document, stop - cut, key)
            if b_document is not None:
                b_start = self._draw_start(b_document, stop - cut, key, ends_document=stop == length)
                return SentencePair(a, (b_document, b_start, b_start + stop - cut), follows=False)
        return SentencePair(a, (document, cut, stop), follows=True)

    def _max_b_length(self, document: int) -> int:
        """Return the longest B that another document can also provide; it limits the longest document only."""
        is_longest = self._length_rank[document] == len(self._sorted_lengths) - 1
        return int(self._sorted_lengths[-2] if is_longest else self._sorted_lengths[-1]) - 1

    def _draw_document(self, document: int, size: int, key: int) -> int | None:
        """Draw another document of more than `size` tokens that is no duplicate; None if there are only duplicates."""
        first = int(np.searchsorted(self._sorted_lengths, size + 1))
        count, rank = len(self._sorted_lengths) - first, int(self._length_rank[document]) - first
        drawn = self._draw(key, _DOCUMENT_STREAM) % (count - 1)
        for step in range(count - 1):
            offset = (drawn + step) % (count - 1)
            candidate = int(self._by_length[first + offset + (offset >= rank)])
            if not np.array_equal(self._tokens(candidate), self._tokens(document)):
                return candidate
        return None

    def _draw_start(self, document: int, size: int, key: int, *, ends_document: bool) -> int:
        """Return where B begins: at the end of the document if the true B ends one, else anywhere but its first token."""
        last_start = int(self._lengths[document]) - size
        return last_start if ends_document else 1 + self._draw(key, _START_STREAM) % last_start

    def _draw(self, key: int, stream: int) -> int:
        return int(random_bits(np.array([key], dtype=np.uint64), self.seed or 0, stream)[0])

    def _tokens(self, document: int, start: int = 0, stop: int | None = None) -> NDArray[np.integer]:
        return self.corpus.ids(int(self.documents[document]))[start:stop]


def weight_pairs(batches: list[Batch], weight: float) -> list[Batch]:
    """Set the pair weight of the batches of one step, so that the loss is mean(tokens) + weight x mean(pairs).

    The training loop divides the summed loss by the number of token targets, so the sum over pairs is scaled by tokens
    per pair.
    """
    tokens = sum(batch.num_targets for batch in batches)
    pairs = sum(len(batch.ids_BT) for batch in batches if isinstance(batch, NextSentenceBatch))
    return [
        replace(batch, pair_weight=weight * tokens / pairs) if isinstance(batch, NextSentenceBatch) else batch
        for batch in batches
    ]
