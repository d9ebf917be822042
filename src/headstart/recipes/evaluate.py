"""Measuring a finished classifier on a labelled file, and looking at its mistakes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.config.merge import merge_config
from headstart.config.schema import LabelledConfig, RuntimeConfig
from headstart.data.columns import cell_value, column_named
from headstart.data.datasets import LabelledDataset
from headstart.data.labelled import LabelledTexts, check_task, read_labelled
from headstart.data.sources import expand_paths, read_rows
from headstart.errors import ConfigError, DataError, UsageError
from headstart.metrics import Evaluation, number_bins, reliability, softmax
from headstart.predict.error_analysis import (
    ErrorAnalysis,
    Mistake,
    Slice,
    most_confident_mistakes,
    most_confused,
    slice_accuracy,
    slices_by_column,
)
from headstart.predict.explain import explain_prediction
from headstart.predict.predictor import Predictor
from headstart.progress import Progress, SilentProgress
from headstart.store.bundle import Bundle
from headstart.tasks import AnyEvaluation
from headstart.train.scoring import score_texts

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
    shares = softmax(scores)
    right = shares.argmax(axis=1) == rows.labels
    lengths = number_bins(rows.lengths - 1, "tokens")
    slices: dict[str, tuple[Slice, ...]] = {
        "length": slice_accuracy(lengths[0], right, lengths[1]),
        "label": slice_accuracy(texts.labels, right, predictor.labels),
    }
    for column, found in values.items():
        groups, order = slices_by_column([found[where] for where in texts.where])
        slices[column if column not in slices else f"column {column}"] = slice_accuracy(groups, right, order)
    shown = [_mistake(predictor, texts, shares, row) for row in most_confident_mistakes(shares, rows.labels, mistakes)]
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
) -> tuple[Predictor, LabelledTexts, LabelledDataset, NDArray[np.float64]]:
    progress = progress or SilentProgress()
    predictor = Predictor.load(folder, runtime)
    if verb and predictor.task.kind != "classes":
        raise UsageError(
            f"{verb} is for one class a text; of {folder} evaluate tells each label, or the errors, without it"
        )
    texts = read_labelled(file, as_trained(predictor.bundle, config or LabelledConfig()))
    if texts.skip_note:
        progress.say(texts.skip_note)
    for note in check_task(predictor.task, texts, f"the training data of {folder}"):
        progress.say(note)
    rows = predictor.rows(texts.text_inputs, predictor.task.gold(texts.labels))
    with progress.task(f"evaluating {file}", len(texts), "texts") as bar:
        scores = score_texts(predictor.bundle.model, rows, predictor.runtime, lambda: None, bar.advance)
    return predictor, texts, rows, scores


def as_trained(bundle: Bundle, config: LabelledConfig) -> LabelledConfig:
    """How to read rows for a model: as asked, else as its own were read; what they are for is the model's to say."""
    task = bundle.task
    if config.task not in ("auto", task.kind):
        raise ConfigError(f"labelled.task is {config.task}, but {bundle.path} answers {task.kind}; leave it out")
    trained = bundle.about.get("labelled")
    known = {name: value for name, value in (trained if isinstance(trained, dict) else {}).items() if value is not None}
    if not task.pair:
        known.pop("second_column", None)
        if config.second_column is not None:
            raise DataError(f"{bundle.path} reads one text; leave out labelled.second_column")
    elif config.second_column is None and "second_column" not in known:
        raise DataError(f"{bundle.path} reads pairs of texts; name the second column with labelled.second_column")
    asked = {name: value for name, value in config.model_dump().items() if value is not None}
    return merge_config(LabelledConfig, known | asked | {"task": task.kind})


def _evaluation(predictor: Predictor, rows: LabelledDataset, scores: NDArray[np.float64]) -> AnyEvaluation:
    return predictor.task.measure(scores, rows.labels, 0 if rows.windows else rows.num_long)


def _column(file: str, name: str) -> dict[str, object]:
    """One column of a labelled file, by the places of the rows: some of them may be left out."""
    found: dict[str, object] = {}
    for path in expand_paths([file]):
        column = ""
        for row in read_rows(path, with_labels=True):
            column = column or column_named(path, list(row.values), name)
            found[row.where] = cell_value(row.values, column, row.where)
    return found


def _mistake(predictor: Predictor, texts: LabelledTexts, shares: NDArray[np.float64], row: int) -> Mistake:
    answer = predictor.labels[int(shares[row].argmax())]
    words = explain_prediction(predictor, texts.text_inputs[row], answer).strongest(_WORDS)
    return Mistake(
        where=texts.where[row],
        text=texts.texts[row],
        label=texts.labels[row],
        answer=answer,
        probability=float(shares[row].max()),
        words=tuple((word.text, word.weight) for word in words),
    )
