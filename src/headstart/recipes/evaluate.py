"""Measuring a finished classifier on a labelled file, and looking at its mistakes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.config import LabelledConfig, RuntimeConfig
from headstart.data.batches import LabelledRows
from headstart.data.columns import cell, column_named
from headstart.data.labelled import LabelledTexts, LabelSet, check_split, read_labelled
from headstart.data.sources import expand, read_rows
from headstart.errors import ConfigError
from headstart.measures import by_number, reliability
from headstart.predict.explain import explain
from headstart.predict.mistakes import (
    ErrorAnalysis,
    Mistake,
    Slice,
    by_column,
    most_confused,
    sliced,
    surest,
)
from headstart.predict.predictor import Predictor
from headstart.progress import Progress, Quiet
from headstart.train.evaluate import Evaluation, evaluate_scores, score_texts
from headstart.train.shares import probabilities

_WORDS = 5


def run_evaluate(
    folder: Path,
    file: str,
    config: LabelledConfig | None = None,
    runtime: RuntimeConfig | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Accuracy, macro-F1, per class and confusion of the classifier in `folder` on the rows of `file`."""
    predictor, _, rows, scores = _scored(folder, file, config, runtime, progress)
    return _evaluation(predictor, rows, scores)


def run_errors(
    folder: Path,
    file: str,
    config: LabelledConfig | None = None,
    runtime: RuntimeConfig | None = None,
    progress: Progress | None = None,
    *,
    columns: Sequence[str] = (),
    mistakes: int = 10,
) -> ErrorAnalysis:
    """The same and what is behind it: confusions, the surest mistakes with their words, and slices of the rows.

    Args:
        columns: columns of the file by whose values the rows are cut too.
        mistakes: how many to show.
    """
    if mistakes < 0:
        raise ConfigError(f"--mistakes must be at least 0, got {mistakes}")
    values = {column: _column(file, column) for column in columns}  # a wrong name is found out before the work
    predictor, texts, rows, scores = _scored(folder, file, config, runtime, progress)
    evaluation = _evaluation(predictor, rows, scores)
    shares = probabilities(scores)
    right = shares.argmax(axis=1) == rows.labels
    lengths = by_number(rows.lengths - 1, "tokens")
    slices: dict[str, tuple[Slice, ...]] = {
        "length": sliced(lengths[0], right, lengths[1]),
        "label": sliced(texts.labels, right, predictor.labels),
    }
    for column, found in values.items():
        groups, order = by_column(found)
        slices[column if column not in slices else f"column {column}"] = sliced(groups, right, order)
    shown = [_mistake(predictor, texts, shares, row) for row in surest(shares, rows.labels, mistakes)]
    return ErrorAnalysis(
        evaluation=evaluation,
        calibration=reliability(shares, rows.labels),
        confused=most_confused(evaluation),
        mistakes=tuple(shown),
        slices=slices,
    )


def _scored(
    folder: Path,
    file: str,
    config: LabelledConfig | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> tuple[Predictor, LabelledTexts, LabelledRows, NDArray[np.float64]]:
    progress = progress or Quiet()
    texts = read_labelled(file, config or LabelledConfig())
    predictor = Predictor.load(folder, runtime)
    labels = LabelSet(predictor.labels)
    check_split(labels, texts, f"the training data of {folder}")
    gold = [labels.index(label) for label in texts.labels]
    rows = predictor.rows(texts.texts, gold)
    with progress.task(f"evaluating {file}", len(texts), "texts") as bar:
        scores = score_texts(predictor.bundle.model, rows, predictor.runtime, lambda: None, bar.advance)
    return predictor, texts, rows, scores


def _evaluation(predictor: Predictor, rows: LabelledRows, scores: NDArray[np.float64]) -> Evaluation:
    return evaluate_scores(scores, rows.labels, predictor.labels, 0 if rows.windows else rows.long)


def _column(file: str, name: str) -> list[object]:
    """One column of a labelled file, row by row as `read_labelled` takes them."""
    found: list[object] = []
    for path in expand([file]):
        column = ""
        for row in read_rows(path, with_labels=True):
            column = column or column_named(path, list(row.values), name)
            found.append(cell(row.values, column, row.where))
    return found


def _mistake(predictor: Predictor, texts: LabelledTexts, shares: NDArray[np.float64], row: int) -> Mistake:
    answer = predictor.labels[int(shares[row].argmax())]
    words = explain(predictor, texts.texts[row], answer).strongest(_WORDS)
    return Mistake(
        where=texts.where[row],
        text=texts.texts[row],
        label=texts.labels[row],
        answer=answer,
        probability=float(shares[row].max()),
        words=tuple((word.text, word.weight) for word in words),
    )
