"""The views of training texts: which n-grams they have, and the components that unlabelled texts give them. No torch.

N texts, F n-grams, K components.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.linear.ngrams import HashTable, count_ngrams, find_frequent, hash_rows
from headstart.linear.views import View, weigh
from headstart.linear.vocabulary import Kind, Vocabulary

LENGTHS: dict[Kind, tuple[int, int]] = {"words": (1, 2), "characters": (2, 5)}
"""The shortest and the longest n-grams of each view."""
MAX_FEATURES: dict[Kind, int] = {"words": 100_000, "characters": 200_000}
MAX_WEIGHTS = 8_000_000
"""Weights of a classifier: with many labels it has fewer features."""
MAX_SAMPLE_CHARACTERS: dict[Kind, int] = {"words": 20_000_000, "characters": 4_000_000}
"""Characters of text in which n-grams are searched; document frequencies are those of all texts."""
MIN_DF_ROWS = 2_000
"""Texts from which on an n-gram has to occur in two of them."""
MAX_ROWS_WITH_COMPONENTS = 2_000
"""Labelled texts beyond which unlabelled ones are left out: they add little."""
MAX_UNLABELLED_CHARACTERS = 3_000_000
NUM_COMPONENTS = 100


@dataclass(frozen=True)
class FittedViews:
    """Views without weights, the features of the training texts side by side, and components of these features."""

    views: tuple[View, ...]
    features: Any
    """A CSR matrix, (N, F)."""
    components: NDArray[np.float32] | None
    """Directions of most variation in labelled and unlabelled texts, (F, K); projections have a mean norm of 1."""


def fit_views(
    texts: Sequence[str], unlabelled: Sequence[str], num_labels: int, seed: int, check: Callable[[], None]
) -> FittedViews:
    """Find the n-grams of texts and compute their features; unlabelled texts add n-grams and give the components."""
    from scipy.sparse import hstack

    further = _sample(unlabelled, MAX_UNLABELLED_CHARACTERS, seed) if len(texts) <= MAX_ROWS_WITH_COMPONENTS else []
    views, blocks = [], []
    for kind in LENGTHS:
        check()
        view, features = _fit_view(kind, texts, further, num_labels, seed)
        views.append(view)
        blocks.append(features)
    check()
    features = hstack(blocks, format="csr")
    components = _components(features, seed) if len(further) else None
    return FittedViews(tuple(views), features[: len(texts)], components)


def _sample(texts: Sequence[str], max_characters: int, seed: int) -> Sequence[str]:
    """Return as many texts as have about so many characters."""
    mean_length = sum(map(len, texts)) / max(1, len(texts)) + 1
    size = math.ceil(max_characters / mean_length)
    if size >= len(texts):
        return texts
    rows = np.sort(np.random.default_rng(seed).permutation(len(texts))[:size])
    return [texts[row] for row in rows.tolist()]


def _fit_view(kind: Kind, texts: Sequence[str], further: Sequence[str], num_labels: int, seed: int) -> tuple[View, Any]:
    """Return a view without weights, and the features of the texts and of further ones below them."""
    most = min(MAX_FEATURES[kind], MAX_WEIGHTS // num_labels * MAX_FEATURES[kind] // sum(MAX_FEATURES.values()))
    frequent = find_frequent(
        kind,
        _sample(texts, MAX_SAMPLE_CHARACTERS[kind], seed),
        LENGTHS[kind],
        min_df=1 if len(texts) < MIN_DF_ROWS else 2,
        max_features=max(1000, most),
        further=further,
    )
    table, vocabulary = HashTable(hash_rows(frequent.ngrams)), Vocabulary(kind, frequent.tokens)
    counts = count_ngrams(vocabulary, table, LENGTHS[kind][1], [*texts, *further])
    frequencies = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = (1 + np.log((1 + counts.shape[0]) / (1 + frequencies))).astype(np.float32)
    view = View(kind, frequent.tokens, frequent.ngrams, idf, np.zeros((len(idf), 0), np.float32))
    return view, weigh(counts, idf)


def _components(features: Any, seed: int) -> NDArray[np.float32] | None:
    """Return the first right singular vectors of the features of all texts (latent semantic analysis)."""
    from sklearn.utils.extmath import randomized_svd

    if min(features.shape) <= NUM_COMPONENTS:
        return None
    _, _, transposed = randomized_svd(features, NUM_COMPONENTS, n_iter=3, random_state=seed)
    norms = np.linalg.norm(features @ transposed.T, axis=1)
    components: NDArray[np.float32] = (transposed.T / norms.mean()).astype(np.float32)
    return components
