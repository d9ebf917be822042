"""The weights of a linear classifier: support vector machines with naive Bayes, folds, calibration. No torch.

N texts, F features, K components, C labels.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import log_loss

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ABSENT = -30.0
"""The logit of a label that no training text has."""
CLASS_WEIGHT = "balanced"
"""All labels count the same, however many texts they have."""
BAYES = (0.25, 0.0, 0.5)
"""The spreads of naive Bayes's logits, relative to that of the machines' logits, of which cross-validation chooses."""
SMOOTHING = 0.03
"""What naive Bayes adds to the sum of each feature."""
USUAL_TEMPERATURE = 0.3
PRIOR_ROWS = 10.0
"""The rows that a usual calibration counts for."""
_ROUNDING = 1e-9
"""Logits whose standard deviation is not above this are equal but for rounding errors."""


@dataclass(frozen=True)
class Design:
    """The features of training texts and their labels."""

    features: Any
    """A CSR matrix, (N, F)."""
    gold: Ints
    groups: Ints
    """A number for each distinct text: equal texts share a fold."""
    num_labels: int
    seed: int
    components: Any = None
    """Directions in the space of features, (F, K), whose projections are further features; None without them."""
    projections: Any = None
    """The features times the components, (N, K)."""
    scale: float = 0.0
    """The weight of the projections beside the features."""

    def take(self, rows: Ints) -> "Design":
        """Return the design of some of the texts."""
        projections = None if self.projections is None else self.projections[rows]
        return replace(
            self, features=self.features[rows], gold=self.gold[rows], groups=self.groups[rows], projections=projections
        )

    @property
    def present(self) -> Ints:
        """The labels that some text has."""
        return np.unique(self.gold)


def fit_machines(design: Design, strength: float) -> tuple[Floats, Floats]:
    """Fit one support vector machine per label against the rest; return weights (F, C) and biases (C,).

    `strength` is C: a larger one fits the texts more closely.
    A label without texts has the bias `ABSENT`.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    features, present = design.features, design.present
    num_features = features.shape[1]
    weight, bias = np.zeros((num_features, design.num_labels)), np.full(design.num_labels, ABSENT)
    if len(present) == 1 or not features.nnz:
        bias[present] = np.log(np.bincount(design.gold)[present] / len(design.gold))
        return weight, bias
    if design.scale:
        features = hstack([features, csr_matrix(design.scale * design.projections)], format="csr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # that there are nearly as many labels as texts
        machine = LinearSVC(C=strength, tol=1e-2, max_iter=200, class_weight=CLASS_WEIGHT, random_state=design.seed)
        machine.fit(features, design.gold)
    coefficients, intercepts = machine.coef_, machine.intercept_
    if len(present) == 2:
        coefficients, intercepts = np.vstack([-coefficients, coefficients]), np.concatenate([-intercepts, intercepts])
    weight[:, present], bias[present] = coefficients.T[:num_features], intercepts
    if design.scale:
        weight[:, present] += design.scale * (design.components @ coefficients.T[num_features:])
    return weight, bias


def fit_naive_bayes(design: Design) -> Floats:
    """Return the weights of complement naive Bayes, (F, C): how rare each feature is in the texts of other labels.

    After Rennie and others (Tackling the poor assumptions of naive Bayes text classifiers, 2003).
    """
    present = design.present
    targets = (design.gold[:, None] == present) / np.bincount(design.gold)[present]
    sums = np.asarray(design.features.T @ targets) * (len(design.gold) / len(present))
    others = sums.sum(axis=1, keepdims=True) - sums + SMOOTHING
    logs = -np.log(others / others.sum(axis=0))
    weight = np.zeros((design.features.shape[1], design.num_labels))
    weight[:, present] = logs - logs.mean(axis=1, keepdims=True)
    return weight


def measure_fit(design: Design, strength: float) -> float:
    """Return the seconds that fitting the support vector machines and naive Bayes takes."""
    started = time.perf_counter()
    fit_machines(design, strength)
    fit_naive_bayes(design)
    return time.perf_counter() - started


@dataclass(frozen=True)
class OutOfFold:
    """The logits of each text by what was fitted without its fold, (N, C)."""

    machines: Floats
    bayes: Floats

    def coefficient(self, bayes: float) -> float:
        """Return the factor of naive Bayes's weights beside those of the machines; `bayes` is its relative spread."""
        spread = self.bayes.std()
        return float(bayes * self.machines.std() / spread) if spread > _ROUNDING else 0.0

    def logits(self, bayes: float) -> Floats:
        """Return the sum of both, in their proportion."""
        return self.machines + self.coefficient(bayes) * self.bayes


def out_of_fold(
    design: Design, strength: float, folds: Ints, *, rows: Ints | None = None, check: Callable[[], None]
) -> OutOfFold:
    """Fit without each fold and compute its logits.

    A label that the other folds lack has the lowest of a text's other logits, and so has a label without texts.

    Args:
        rows: the texts that are fitted; all by default.
        check: called before each fit.
    """
    machines, bayes = (np.zeros((len(design.gold), design.num_labels)) for _ in range(2))
    fitted = np.isin(np.arange(len(folds)), rows) if rows is not None else np.ones(len(folds), dtype=bool)
    for fold in np.unique(folds):
        check()
        outside, inside = folds == fold, fitted & (folds != fold)
        if not inside.any():
            continue
        others, features = design.take(np.flatnonzero(inside)), design.features[outside]
        weight, bias = fit_machines(others, strength)
        for logits, part in (
            (machines, features @ weight + bias),
            (bayes, features @ fit_naive_bayes(others)),
        ):
            lowest = part[:, others.present].min(axis=1, keepdims=True)
            logits[outside] = np.where(np.isin(np.arange(design.num_labels), others.present), part, lowest)
    return OutOfFold(machines, bayes)


def fold_numbers(design: Design, num_folds: int) -> Ints:
    """Return the fold of each text; the texts of a label are spread evenly, and equal texts share a fold."""
    gold = design.gold
    order = np.random.default_rng(design.seed).permutation(len(gold))
    order = order[np.argsort(gold[order], kind="stable")]
    folds = np.empty(len(gold), dtype=np.int64)
    folds[order] = np.arange(len(gold)) % num_folds
    _, first, group = np.unique(design.groups, return_index=True, return_inverse=True)
    return folds[first][group]


def sample_rows(gold: Ints, size: int, seed: int) -> Ints:
    """Return the indices of at most so many texts, with about the same proportions of labels."""
    if size >= len(gold):
        return np.arange(len(gold))
    order = np.random.default_rng(seed).permutation(len(gold))
    order = order[np.argsort(gold[order], kind="stable")]  # equal steps through this order are proportional
    rows: Ints = np.sort(order[np.linspace(0, len(gold) - 1, size).astype(np.int64)])
    return rows


@dataclass(frozen=True)
class LinearCalibration:
    """What turns sums of features into calibrated logits: logits / temperature + prior x log frequencies of labels."""

    temperature: float
    prior: float
    shift: Floats
    """The second term, (C,)."""

    def apply(self, logits: Floats) -> Floats:
        """Return calibrated logits; a label without texts has `ABSENT`."""
        calibrated: Floats = np.where(np.isfinite(self.shift), logits / self.temperature + self.shift, ABSENT)
        return calibrated


@dataclass(frozen=True)
class Mixture:
    """The proportion of naive Bayes and the calibration that fit out-of-fold logits best."""

    bayes: float
    calibration: LinearCalibration
    logits: Floats
    """The out-of-fold logits, calibrated, (N, C)."""
    loss: float


def fit_mixture(out: OutOfFold, gold: Ints) -> Mixture:
    """Choose the proportion of naive Bayes with the lowest loss; a tie goes to the earlier one."""
    mixtures = []
    for bayes in BAYES:
        calibration = fit_calibration(out.logits(bayes), gold)
        logits = calibration.apply(out.logits(bayes))
        mixtures.append(Mixture(bayes, calibration, logits, log_loss(logits, gold)))
    return min(mixtures, key=lambda mixture: mixture.loss)


def fit_calibration(logits: Floats, gold: Ints) -> LinearCalibration:
    """Fit the calibration with the lowest log-loss of out-of-fold logits, drawn to a usual one if texts are few."""
    from scipy.optimize import minimize

    counts = np.bincount(gold, minlength=logits.shape[1])
    frequencies = np.log(np.where(counts, counts, np.nan))
    frequencies -= np.nanmean(frequencies)
    usual = np.log(USUAL_TEMPERATURE)

    def calibration(parameters: Floats) -> LinearCalibration:
        return LinearCalibration(float(np.exp(parameters[0])), float(parameters[1]), parameters[1] * frequencies)

    def objective(parameters: Floats) -> float:
        penalty = PRIOR_ROWS * (parameters[0] - usual) ** 2 + PRIOR_ROWS / 5 * parameters[1] ** 2
        return float(log_loss(calibration(parameters).apply(logits), gold) * len(gold) + penalty)

    result = minimize(objective, [usual, 0.0], bounds=[(np.log(0.01), np.log(100)), (-3, 3)], method="L-BFGS-B")
    return calibration(result.x)
