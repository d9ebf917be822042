"""Compare a model with two baselines on the same rows: a constant prediction, and a linear model. No torch.

A difference is significant if, among the rows that only one of the two classifies correctly, the 95 % interval (Wilson) of
the model's fraction does not contain one half. A rating is informative if the 95 % interval (Fisher) of its correlation with
the true values is above 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.data.io import single_line
from headstart.data.labelled import label_subset
from headstart.linear.classifier import fit_linear
from headstart.metrics import (
    Evaluation,
    MultiLabelEvaluation,
    RegressionEvaluation,
    confusion_matrix,
    macro_f1,
    wilson,
)
from headstart.tasks import AnyEvaluation

Grade = Literal["better", "unclear", "poor"]
_MAX_ROWS = 10_000
_MAX_CHARACTERS = 1_500_000
"""Maximum rows and characters of the training data of the linear model, so that fitting takes seconds."""
_Z95 = 1.96
_AUTO = "`headstart auto`"


@dataclass(frozen=True)
class Quality:
    """The grade of a model, and a sentence that explains it."""

    grade: Grade
    """better than the baselines; unclear; or poor, which is no better than a constant prediction or worse than linear."""
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ConstantBaseline:
    """A constant prediction for all rows, and the comparison of a model with it."""

    name: str
    """majority, or mean for ratings."""
    answer: str | list[str] | float | None
    """The constant prediction; None if the mean of the training rows is not known."""
    figures: dict[str, float]
    """The metrics of the baseline, the headline first."""
    grade: Grade
    only_answer: str | None = None
    """The label that the model predicts for all rows, if it is always the same."""

    @property
    def description(self) -> str:
        """A description of the baseline."""
        if self.name == "mean":
            return "always predicting the training mean"
        labels = self.answer if isinstance(self.answer, list) else [str(self.answer)]
        return f"always predicting {' and '.join(map(_quoted, labels))}"

    @property
    def headline(self) -> float:
        """The first metric."""
        return next(iter(self.figures.values()))


@dataclass(frozen=True)
class LinearPredictions:
    """The predictions of a linear model that was fitted to the training rows."""

    rows: int
    """The number of training rows that it was fitted on."""
    all_rows: int
    """The number of all training rows."""
    predictions: dict[str, NDArray[np.int64]]
    """The predicted label of each row, by split."""


@dataclass(frozen=True)
class LinearBaseline:
    """A linear model on the rows of one split, and the comparison of another model with it."""

    figures: dict[str, float]
    grade: Grade
    trained_on: str
    """A description of its training rows."""


def constant_baseline(evaluation: AnyEvaluation, answer: str | Sequence[str] | float | None = None) -> ConstantBaseline:
    """Compare a model with a constant prediction.

    Args:
        answer: a label, several labels, or the mean of the training rows; by default the most frequent label of these rows.
    """
    if isinstance(evaluation, Evaluation):
        return _majority(evaluation, answer if isinstance(answer, str) else None)
    if isinstance(evaluation, MultiLabelEvaluation):
        labels = answer if isinstance(answer, (list, tuple)) else _commonest_labels(evaluation)
        return _majority_labels(evaluation, list(labels))
    figures = {"rmse": evaluation.baseline_rmse, "mae": evaluation.baseline_mae}
    grade: Grade = "poor" if evaluation.rmse >= evaluation.baseline_rmse else "better"
    if grade == "better" and not _is_correlated(evaluation):
        grade = "unclear"
    return ConstantBaseline("mean", answer if isinstance(answer, float) else None, figures, grade)


def _majority(evaluation: Evaluation, answer: str | None) -> ConstantBaseline:
    confusion = np.array(evaluation.confusion)
    gold, hits = confusion.sum(axis=1), np.diag(confusion)
    index = evaluation.labels.index(answer) if answer is not None else int(gold.argmax())
    constant = np.zeros_like(confusion)
    constant[:, index] = gold
    figures = {"accuracy": float(gold[index] / max(1, evaluation.rows)), "macro_f1": macro_f1(constant)}
    wins, losses = int(hits.sum() - hits[index]), int(gold[index] - hits[index])
    predicted = np.flatnonzero(confusion.sum(axis=0))
    only = evaluation.labels[int(predicted[0])] if len(predicted) == 1 else None
    grade = "poor" if wins <= losses else paired_grade(wins, losses)
    return ConstantBaseline("majority", evaluation.labels[index], figures, grade, only)


def _majority_labels(evaluation: MultiLabelEvaluation, labels: list[str]) -> ConstantBaseline:
    micro_f1 = _constant_f1({result.label: result.rows for result in evaluation.per_class}, labels, evaluation.rows)
    grade: Grade = "better" if evaluation.micro_f1 > micro_f1 else "poor"
    return ConstantBaseline("majority", labels, {"micro_f1": micro_f1}, grade)


def commonest_labels(counts: Mapping[str, int], rows: int) -> list[str]:
    """Return the most frequent labels, as many as maximize the micro-F1 of predicting them for all rows."""
    ordered = sorted(counts, key=lambda label: (-counts[label], label))
    prefixes = [ordered[:size] for size in range(1, len(ordered) + 1)]
    return max(prefixes, key=lambda labels: _constant_f1(counts, labels, rows))


def _commonest_labels(evaluation: MultiLabelEvaluation) -> list[str]:
    return commonest_labels({result.label: result.rows for result in evaluation.per_class}, evaluation.rows)


def _constant_f1(counts: Mapping[str, int], labels: Sequence[str], rows: int) -> float:
    """Return the micro-F1 of predicting `labels` for all rows."""
    total = len(labels) * rows + sum(counts.values())
    return 2 * sum(counts[label] for label in labels) / total if total else 1.0


def _is_correlated(evaluation: RegressionEvaluation) -> bool:
    if evaluation.rows <= 3:
        return False
    correlation = math.atanh(min(evaluation.pearson, 1 - 1e-9))
    return correlation > _Z95 / math.sqrt(evaluation.rows - 3)


def paired_grade(wins: int, losses: int) -> Grade:
    """Grade a model by the rows that only the model, and those that only the baseline predicts correctly.

    >>> paired_grade(20, 4), paired_grade(6, 4), paired_grade(4, 20)
    ('better', 'unclear', 'poor')
    """
    low, high = wilson(wins, wins + losses)
    return "better" if low > 0.5 else "poor" if high < 0.5 else "unclear"


def fit_linear_predictions(
    train: tuple[Sequence[str], NDArray[np.int64]], splits: Mapping[str, Sequence[str]], num_labels: int, seed: int
) -> LinearPredictions:
    """Fit a linear model to training texts and their labels, and predict the texts of each split.

    Of many rows, a stratified part is read, so that this takes seconds.
    """
    texts, gold = train
    mean_length = max(1.0, sum(map(len, texts)) / max(1, len(texts)))
    count = max(1, min(len(texts), _MAX_ROWS, int(_MAX_CHARACTERS / mean_length)))
    rows = label_subset([str(label) for label in gold], count, seed) if count < len(texts) else range(len(texts))
    fitted = fit_linear([texts[row] for row in rows], gold[list(rows)], num_labels, seed=seed)
    predictions = {name: fitted.classifier.logits(list(split)).argmax(axis=1) for name, split in splits.items()}
    return LinearPredictions(count, len(texts), predictions)


def linear_baseline(
    linear: LinearPredictions, split: str, model: NDArray[np.int64], gold: NDArray[np.int64], num_labels: int
) -> LinearBaseline:
    """Compare the predictions of a model with those of a linear model on the rows of a split."""
    predictions = linear.predictions[split]
    figures = {
        "accuracy": float((predictions == gold).mean()),
        "macro_f1": macro_f1(confusion_matrix(gold, predictions, num_labels)),
    }
    wins = int(((model == gold) & (predictions != gold)).sum())
    losses = int(((model != gold) & (predictions == gold)).sum())
    part = "the same rows" if linear.rows == linear.all_rows else f"{linear.rows:,} of the {linear.all_rows:,} rows"
    return LinearBaseline(figures, paired_grade(wins, losses), part)


def judge(
    evaluation: AnyEvaluation, constant: ConstantBaseline, linear: LinearBaseline | None = None, split: str = ""
) -> Quality:
    """Return the grade of a model and one line about it.

    Args:
        split: the name of the rows after training, such as validation. Empty for an evaluation, whose metrics are printed
            above the line, and which gives no advice on training.
    """
    numbers = f"{constant.description} gives {constant.headline:.4f}"
    if linear is not None:
        numbers += f", a linear model trained on {linear.trained_on} gives {linear.figures['accuracy']:.4f}"
    prefix = f"{split} {evaluation.headline}; " if split else ""
    grade, conclusion = _conclusion(evaluation, constant, linear)
    advice = f"; {_advice(constant, linear)}" if split and constant.grade == "poor" else ""
    return Quality(grade, f"{prefix}{numbers}: {conclusion}{advice}")


def _conclusion(
    evaluation: AnyEvaluation, constant: ConstantBaseline, linear: LinearBaseline | None
) -> tuple[Grade, str]:
    if constant.grade == "poor":
        only = constant.only_answer
        reason = f"the model predicts {_quoted(only)} for every row" if only else "no better than a constant prediction"
        return "poor", f"poor result: {reason}"
    if linear is not None and linear.grade == "poor":
        return "poor", f"the linear model is better; {_AUTO} would use it"
    phrases = []
    if constant.grade == "unclear":
        phrases.append(
            f"{evaluation.rows:,} rows are too few to tell whether the model is better than a constant prediction"
        )
    if linear is not None and linear.grade == "unclear":
        than = "clearly better" if evaluation.selection_metric > linear.figures["accuracy"] else "better"
        phrases.append(f"the model is not {than} than the linear model, which {_AUTO} would try")
    if phrases:
        return "unclear", "; ".join(phrases)
    return "better", "the model is better" if linear is None else "the model is better than both"


def _advice(constant: ConstantBaseline, linear: LinearBaseline | None) -> str:
    if linear is None:
        return "train longer, or with another learning rate"
    if linear.figures["accuracy"] > constant.headline:
        return f"the linear model is better, and {_AUTO} would use it"
    return "the linear model is no better: the texts may not contain information about the labels"


def _quoted(label: str) -> str:
    return f"'{single_line(label)}'"


def recorded_quality(about: Mapping[str, Any]) -> Quality | None:
    """Return the quality that a bundle records; None for a model without one."""
    recorded = about.get("quality")
    if not isinstance(recorded, Mapping) or recorded.get("grade") not in ("better", "unclear", "poor"):
        return None
    return Quality(recorded["grade"], str(recorded.get("sentence", "")))
