"""A view of texts: TF-IDF of the n-grams of their words or of their characters, and the weights of a classifier on them.

N texts, F n-grams, C labels.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.linear.ngrams import Hashes, HashTable, Ints, count_ngrams, hash_rows, rolling_hashes
from headstart.linear.vocabulary import SEPARATOR, Ids, Kind, Vocabulary, token_spans

LARGEST = 65_504
"""The largest value of float16."""
MAX_LENGTH = 16
"""Tokens of the longest n-gram that a stored view may have."""


@dataclass(frozen=True, eq=False)
class View:
    """The n-grams of one kind of token, with their inverse document frequencies and weights.

    A text's feature is (1 + log count) x idf of each n-gram, divided by the Euclidean norm over the view.
    """

    kind: Kind
    tokens: tuple[str, ...]
    """The token vocabulary: words in lower case, or single characters."""
    ngrams: Ids
    """The token ids of each n-gram, (F, longest), padded with -1 at the end."""
    idf: NDArray[np.float32]
    """The inverse document frequency of each n-gram, (F,)."""
    weight: NDArray[np.float32]
    """The weights of the labels, (F, C); every value fits into float16."""

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self.kind, self.tokens)

    @functools.cached_property
    def _table(self) -> HashTable:
        return HashTable(hash_rows(self.ngrams))

    def features(self, texts: Sequence[str]) -> Any:
        """Return the TF-IDF features of texts, a CSR matrix (N, F) of float32."""
        return weigh(count_ngrams(self._vocabulary, self._table, self.ngrams.shape[1], texts), self.idf)

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return this view's summand of the logits, (N, C)."""
        logits: NDArray[np.float32] = self.features(texts) @ self.weight
        return logits

    def contributions(self, text: str, direction: NDArray[np.float64]) -> list[tuple[int, int, float]]:
        """Return (start, end, contribution) per token to the product of the features with `direction`, (F,).

        The occurrences of an n-gram share its contribution, and so do the tokens of an occurrence; a space gets none.
        """
        ids_T = self._vocabulary.tokenize([text]).ids_T
        spans = np.array([*token_spans(self.kind, text), (0, 0)], dtype=np.int64)  # the last is the separator
        features = self.features([text])
        amounts = features.data * direction[features.indices]
        wide = spans[:, 1] > spans[:, 0]
        wide_before = np.concatenate([[0], np.cumsum(wide)])
        scores = np.zeros(len(spans))
        for n, hashes, valid in rolling_hashes(ids_T, self.ngrams.shape[1]):
            positions, columns = self._matches(hashes, valid)
            feature = np.searchsorted(features.indices, columns)
            share = amounts[feature] / np.bincount(feature, minlength=1)[feature]
            share /= wide_before[positions + n] - wide_before[positions]
            for offset in range(n):
                scores += np.bincount(positions + offset, share * wide[positions + offset], len(spans))
        return [(*span, score) for span, score in zip(spans[wide].tolist(), scores[wide].tolist(), strict=True)]

    def _matches(self, hashes: Hashes, valid: NDArray[np.bool_]) -> tuple[Ints, Ids]:
        """Return the positions of n-grams of this view, and their columns."""
        positions = np.flatnonzero(valid)
        columns = self._table.columns(hashes[positions])
        return positions[columns >= 0], columns[columns >= 0]


def weigh(counts: Any, idf: NDArray[np.float32]) -> Any:
    """Turn counts into TF-IDF features with sublinear counts and rows of norm 1, in the same matrix."""
    counts.data = (1 + np.log(counts.data)) * idf[counts.indices]
    lengths = np.diff(counts.indptr)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    norms = np.sqrt(np.bincount(rows, counts.data.astype(np.float64) ** 2, len(lengths)))
    counts.data = (counts.data / norms[rows]).astype(np.float32)
    return counts


def checked_view(kind: Kind, tokens: tuple[str, ...], tensors: Mapping[str, NDArray[Any]], *, num_labels: int) -> View:
    """Return a view of stored arrays; a ValueError says what does not fit."""
    ngrams, idf, weight = _checked_ngrams(kind, tensors["ngrams"], tokens), tensors["idf"], tensors["weight"]
    for name, array, shape in (("idf", idf, (len(ngrams),)), ("weight", weight, (len(ngrams), num_labels))):
        if array.dtype.kind != "f" or array.shape != shape:
            raise ValueError(f"{kind}.{name} is {array.dtype} {list(array.shape)}; expected numbers {list(shape)}")
        if not np.isfinite(array).all() or np.abs(array).max(initial=0) > LARGEST:
            raise ValueError(f"{kind}.{name} has a value that is not finite or beyond {LARGEST:,}")
    if len(idf) and idf.min() <= 0:
        raise ValueError(f"{kind}.idf has a value of {idf.min()}; expected positive ones")
    return View(kind, tokens, ngrams, idf.astype(np.float32), weight.astype(np.float32))


def _checked_ngrams(kind: Kind, ngrams: NDArray[Any], tokens: tuple[str, ...]) -> Ids:
    if ngrams.ndim != 2 or ngrams.dtype != np.int32 or not 1 <= ngrams.shape[1] <= MAX_LENGTH:
        raise ValueError(
            f"{kind}.ngrams are {ngrams.dtype} {list(ngrams.shape)}; expected int32 [n-grams, 1 to {MAX_LENGTH}]"
        )
    if ngrams.size and (ngrams.min() < SEPARATOR or ngrams.max() >= len(tokens)):
        raise ValueError(
            f"{kind}.ngrams have ids from {ngrams.min()} to {ngrams.max()}; there are {len(tokens)} tokens"
        )
    padding = ngrams == SEPARATOR
    if padding[:, 0].any() or (padding[:, :-1] & ~padding[:, 1:]).any():
        raise ValueError(f"{kind}.ngrams have padding before the end of an n-gram")
    spaces = ngrams == (tokens.index(" ") if " " in tokens else len(tokens))
    if (spaces | padding).all(axis=1).any():
        raise ValueError(f"{kind}.ngrams have an n-gram of nothing but spaces")
    if len(np.unique(hash_rows(ngrams))) < len(ngrams):
        raise ValueError(f"{kind}.ngrams have the same n-gram twice")
    return ngrams
