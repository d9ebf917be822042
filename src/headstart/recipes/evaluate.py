"""Measuring a finished classifier on a labelled file, and looking at its mistakes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.config import LabelledConfig, RuntimeConfig
from headstart.data.batches import LabelledRows
from headstart.data.columns import cell, column_named
from headstart.data.labelled import LabelledTexts, read_labelled
from headstart.data.sources import expand, read_rows
from headstart.data.targets import check_target
from headstart.errors import ConfigError, DataError, UsageError
from headstart.evaluations import Evaluation
from headstart.kinds import AnyEvaluation
from headstart.layering import layered
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
from headstart.store.bundle import Bundle
from headstart.train.evaluate import score_texts
from headstart.train.shares import probabilities

_WORDS = 5


def run_evaluate(
    folder: Path,
    file: str,
    config: LabelledConfig | None = None,
    runtime: RuntimeConfig | None = None,
    progress: Progress | None = None,
) -> AnyEvaluation:
    """Accuracy, macro-F1, per class and confusion of the classifier in `folder` on the rows of `file`.

    Of several labels F1, exact matches and each label; of ratings errors, beside those of the training mean.
    """
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
    predictor, texts, rows, scores = _scored(folder, file, config, runtime, progress, verb="--errors")
    evaluation = _evaluation(predictor, rows, scores)
    assert isinstance(evaluation, Evaluation)
    shares = probabilities(scores)
    right = shares.argmax(axis=1) == rows.labels
    lengths = by_number(rows.lengths - 1, "tokens")
    slices: dict[str, tuple[Slice, ...]] = {
        "length": sliced(lengths[0], right, lengths[1]),
        "label": sliced(texts.labels, right, predictor.labels),
    }
    for column, found in values.items():
        groups, order = by_column([found[where] for where in texts.where])
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
    verb: str | None = None,
) -> tuple[Predictor, LabelledTexts, LabelledRows, NDArray[np.float64]]:
    progress = progress or Quiet()
    predictor = Predictor.load(folder, runtime)
    if verb and predictor.target.kind != "classes":
        raise UsageError(
            f"{verb} is for one class a text; of {folder} evaluate tells each label, or the errors, without it"
        )
    texts = read_labelled(file, as_trained(predictor.bundle, config or LabelledConfig()))
    if texts.left_out:
        progress.say(texts.left_out)
    for note in check_target(predictor.target, texts, f"the training data of {folder}"):
        progress.say(note)
    rows = predictor.rows(texts.questions, predictor.target.gold(texts.labels))
    with progress.task(f"evaluating {file}", len(texts), "texts") as bar:
        scores = score_texts(predictor.bundle.model, rows, predictor.runtime, lambda: None, bar.advance)
    return predictor, texts, rows, scores


def as_trained(bundle: Bundle, config: LabelledConfig) -> LabelledConfig:
    """How to read rows for a model: as asked, else as its own were read; what they are for is the model's to say."""
    target = bundle.target
    if config.task not in ("auto", target.kind):
        raise ConfigError(f"labelled.task is {config.task}, but {bundle.path} answers {target.kind}; leave it out")
    trained = bundle.about.get("labelled")
    known = {name: value for name, value in (trained if isinstance(trained, dict) else {}).items() if value is not None}
    if not target.pair:
        known.pop("second_column", None)
        if config.second_column is not None:
            raise DataError(f"{bundle.path} reads one text; leave out labelled.second_column")
    elif config.second_column is None and "second_column" not in known:
        raise DataError(f"{bundle.path} reads pairs of texts; name the second column with labelled.second_column")
    asked = {name: value for name, value in config.model_dump().items() if value is not None}
    return layered(LabelledConfig, known | asked | {"task": target.kind})


def _evaluation(predictor: Predictor, rows: LabelledRows, scores: NDArray[np.float64]) -> AnyEvaluation:
    return predictor.target.measure(scores, rows.labels, 0 if rows.windows else rows.long)


def _column(file: str, name: str) -> dict[str, object]:
    """One column of a labelled file, by the places of the rows: some of them may be left out."""
    found: dict[str, object] = {}
    for path in expand([file]):
        column = ""
        for row in read_rows(path, with_labels=True):
            column = column or column_named(path, list(row.values), name)
            found[row.where] = cell(row.values, column, row.where)
    return found


def _mistake(predictor: Predictor, texts: LabelledTexts, shares: NDArray[np.float64], row: int) -> Mistake:
    answer = predictor.labels[int(shares[row].argmax())]
    words = explain(predictor, texts.questions[row], answer).strongest(_WORDS)
    return Mistake(
        where=texts.where[row],
        text=texts.texts[row],
        label=texts.labels[row],
        answer=answer,
        probability=float(shares[row].max()),
        words=tuple((word.text, word.weight) for word in words),
    )
