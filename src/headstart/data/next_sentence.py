"""Pairs of pieces for the question whether one follows the other: each a pure function of (seed, epoch, index).

A row is `<sos> A <eos> B`, a segment of its own. A and B stand next to each other in one document, or B is of another.
B has the same length either way, never opens a document, and closes one where the true B would: nothing but what the
pieces say gives the answer away.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT
from headstart.data.batch import Batch
from headstart.data.datasets import TokenCorpus
from headstart.data.hashing import Ints, seeded_permutation, splitmix64
from headstart.errors import DataError
from headstart.tokenization.base import SpecialIds

_CUT, _LABEL, _OTHER, _START = 2_000_001, 2_000_002, 2_000_003, 2_000_004
"""Streams of random bits, apart from those of masking.py and from any epoch's order."""
_MIN_ROW_LENGTH = 8


@dataclass(frozen=True)
class NextSentenceBatch(Batch):
    """Rows that are pairs, and whether each belongs together."""

    pairs_B: Tensor | None = None
    """1 where B follows A, 0 where it is of another document."""
    pair_weight: float = 0.0
    """What the loss of one pair weighs beside that of one token; see `weighted`."""


@dataclass(frozen=True)
class SentencePair:
    """Where A and B lie: a document, its start and its end for each."""

    a: tuple[int, int, int]
    b: tuple[int, int, int]
    follows: bool


class NextSentenceDataset:
    """One pair a row over some documents of a corpus; a document longer than a row gives several, all about as long."""

    truncated = 0
    """Documents cut short: none, every token has its place in some pair (but see `_room_for_b`)."""

    def __init__(
        self, corpus: TokenCorpus, documents: Ints, special: SpecialIds, *, context: int, seed: int | None
    ) -> None:
        if context < _MIN_ROW_LENGTH:
            raise DataError(f"pairs need rows of {_MIN_ROW_LENGTH} tokens or more, got {context}; raise model.context")
        self.corpus, self.special, self.context, self.seed = corpus, special, context, seed
        lengths = corpus.lengths[documents]
        self.documents: Ints = documents[lengths >= 2]
        self.short = len(documents) - len(self.documents)
        """Documents that cannot be split in two, and are left out."""
        if len(self.documents) < 2:
            raise DataError(
                f"pairs need two documents of two tokens or more, got {len(self.documents)} of {len(documents)}; "
                "give more text, or leave next_sentence.weight out"
            )
        self._lengths = lengths[lengths >= 2]
        self._pieces = -(-self._lengths // (context - 2))
        self._ends = np.cumsum(self._pieces)
        self.rows = int(self._ends[-1])
        self.inputs = int(self._lengths.sum()) + 2 * self.rows
        self._by_length: Ints = np.argsort(self._lengths, kind="stable")
        self._rank = np.empty_like(self._by_length)
        self._rank[self._by_length] = np.arange(len(self._by_length))
        self._sorted = self._lengths[self._by_length]
        self._epoch = -1
        self._order: Ints = np.arange(0)

    def batch(self, first: int, count: int, *, segments_always: bool = True) -> NextSentenceBatch:  # noqa: ARG002
        """Rows `first` to `first + count` of the endless run of epochs; targets are next tokens within a piece."""
        pairs = [self.pair(*divmod(index, self.rows)) for index in range(first, first + count)]
        pieces = [(self._tokens(*pair.a), self._tokens(*pair.b)) for pair in pairs]
        width = max(len(a) + len(b) for a, b in pieces) + 2
        ids = np.full((count, width), self.special.pad, dtype=np.int64)
        segments = np.full((count, width), PADDING_SEGMENT, dtype=np.int64)
        targets = np.full((count, width), IGNORE_INDEX, dtype=np.int64)
        for row, (a, b) in enumerate(pieces):
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
        """The pair at a place of an epoch."""
        if epoch != self._epoch:
            in_order = self.seed is None
            self._order = np.arange(self.rows) if in_order else seeded_permutation(self.rows, self.seed or 0, epoch)
            self._epoch = epoch
        place = int(self._order[index])
        key = epoch * self.rows + place
        document = int(np.searchsorted(self._ends, place, side="right"))
        length, pieces = int(self._lengths[document]), int(self._pieces[document])
        piece = place - (int(self._ends[document]) - pieces)
        start, stop = piece * length // pieces, (piece + 1) * length // pieces
        least = max(1, (stop - start) // 4)  # a piece of one word tells nothing
        cut = start + least + self._draw(key, _CUT) % max(1, stop - start - 2 * least + 1)
        stop = min(stop, cut + self._room_for_b(document))
        a = (document, start, cut)
        # measured in order, every second pair is a true one: a coin has exactly one half of few right
        apart = place % 2 if self.seed is None else self._draw(key, _LABEL) % 2
        if apart:
            other = self._other(document, stop - cut, key)
            if other is not None:
                begin = self._begin(other, stop - cut, key, last=stop == length)
                return SentencePair(a, (other, begin, begin + stop - cut), follows=False)
        return SentencePair(a, (document, cut, stop), follows=True)

    def _room_for_b(self, document: int) -> int:
        """The longest B that another document has too: only the one document longer than all others is ever held to it."""
        others = self._sorted[-2] if self._rank[document] == len(self._sorted) - 1 else self._sorted[-1]
        return int(others) - 1

    def _other(self, document: int, size: int, key: int) -> int | None:
        """Any other document with more than `size` tokens, but no double of this one; None if there are doubles only."""
        shortest = int(np.searchsorted(self._sorted, size + 1))
        count, own = len(self._sorted) - shortest, int(self._rank[document]) - shortest
        drawn = self._draw(key, _OTHER) % (count - 1)
        for further in range(count - 1):
            place = (drawn + further) % (count - 1)
            other = int(self._by_length[shortest + place + (place >= own)])
            if not np.array_equal(self._tokens(other), self._tokens(document)):
                return other
        return None

    def _begin(self, other: int, size: int, key: int, *, last: bool) -> int:
        """Where B begins in another document: its end for an end, else anywhere but at its first token."""
        latest = int(self._lengths[other]) - size
        return latest if last else 1 + self._draw(key, _START) % latest

    def _draw(self, key: int, stream: int) -> int:
        return int(splitmix64(np.array([key], dtype=np.uint64), self.seed or 0, stream)[0])

    def _tokens(self, document: int, start: int = 0, stop: int | None = None) -> NDArray[np.integer]:
        return self.corpus.ids(int(self.documents[document]))[start:stop]


def weight_pairs(batches: list[Batch], weight: float) -> list[Batch]:
    """The batches of one step, told what a pair weighs: mean over tokens + weight x mean over pairs, once the loop divides.

    The loop divides the sum over all batches by all the tokens scored; so the pairs' sum is scaled by tokens a pair.
    """
    tokens = sum(batch.num_targets for batch in batches)
    pairs = sum(len(batch.ids_BT) for batch in batches if isinstance(batch, NextSentenceBatch))
    return [
        replace(batch, pair_weight=weight * tokens / pairs) if isinstance(batch, NextSentenceBatch) else batch
        for batch in batches
    ]
