"""Evaluate a finished classifier on a labelled file, and analyse its mistakes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.merge import merge_config
from headstart.config.schema import LabelledConfig, RuntimeConfig
from headstart.data.columns import cell_value, column_named, labelled_encoding
from headstart.data.labelled import LabelledTexts, check_task, read_labelled
from headstart.data.sources import expand_paths, read_rows
from headstart.errors import ConfigError, DataError, UsageError
from headstart.metrics import Evaluation, number_bins, reliability, softmax
from headstart.predict.bundle_predictor import AnyPredictor, load_predictor
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
from headstart.progress import Progress, SilentProgress
from headstart.recipes.quality import recorded_quality
from headstart.tasks import AnyEvaluation

if TYPE_CHECKING:
    from headstart.store.bundle import AnyClassifierBundle

_NUM_WORDS = 5
"""Words shown per mistake."""


@dataclass(frozen=True)
class EvaluateRequest:
    """A model and the labelled file to evaluate it on."""

    model: Path
    """A run folder, a bundle or a starter."""
    file: str
    labelled: LabelledConfig = field(default_factory=LabelledConfig)
    """How to read the file; unset columns are those of the training file."""
    runtime: RuntimeConfig | None = None
    columns: Sequence[str] = ()
    """Error analysis: columns of the file by whose values the rows are sliced."""
    mistakes: int = 10
    """Error analysis: the number of mistakes to show."""


def run_evaluate(request: EvaluateRequest, progress: Progress | None = None) -> AnyEvaluation:
    """Compute the metrics of a model on a labelled file."""
    predictor = load_predictor(request.model, request.runtime)
    return _score(predictor, request, progress).evaluation


def run_error_analysis(request: EvaluateRequest, progress: Progress | None = None) -> ErrorAnalysis:
    """Compute the metrics and analyse the errors: confusions, the most confident errors with their words, slices."""
    if request.mistakes < 0:
        raise ConfigError(f"--mistakes must be at least 0, got {request.mistakes}")
    predictor = load_predictor(request.model, request.runtime)
    # a wrong column name is an error before the work begins
    labelled = as_trained(predictor.bundle, request.labelled) if request.columns else request.labelled
    columns = {name: _read_column(request.file, name, labelled) for name in request.columns}
    if predictor.task.kind != "classes":
        raise UsageError(f"--errors needs a model for one class per text, got {request.model}; remove --errors")
    scored = _score(predictor, request, progress)
    assert isinstance(scored.evaluation, Evaluation)
    texts, gold = scored.texts, scored.gold
    probabilities = softmax(scored.logits)
    correct = probabilities.argmax(axis=1) == gold
    length_groups, length_order = number_bins(scored.lengths, predictor.length_unit)
    slices: dict[str, tuple[Slice, ...]] = {
        "length": slice_accuracy(length_groups, correct, length_order),
        "label": slice_accuracy(texts.labels, correct, predictor.labels),
    }
    for name, values in columns.items():
        groups, order = slices_by_column([values[where] for where in texts.where])
        slices[name if name not in slices else f"column {name}"] = slice_accuracy(groups, correct, order)
    mistakes = most_confident_mistakes(probabilities, gold, request.mistakes)
    return ErrorAnalysis(
        evaluation=scored.evaluation,
        calibration=reliability(probabilities, gold),
        confused=most_confused(scored.evaluation),
        mistakes=tuple(_mistake(predictor, texts, probabilities, row) for row in mistakes),
        slices=slices,
    )


@dataclass(frozen=True)
class _ScoredFile:
    texts: LabelledTexts
    gold: NDArray[Any]
    lengths: list[int]
    logits: NDArray[np.float64]
    evaluation: AnyEvaluation


def _score(predictor: AnyPredictor, request: EvaluateRequest, progress: Progress | None) -> _ScoredFile:
    progress = progress or SilentProgress()
    texts = read_labelled(request.file, as_trained(predictor.bundle, request.labelled))
    if texts.skip_note:
        progress.say(texts.skip_note)
    if _was_trained_on(predictor.bundle.about, texts):
        progress.say(
            f"{request.model} was trained on the rows of {request.file}: the accuracy on new texts is usually lower; evaluate "
            "it on rows that it was not trained on"
        )
    for note in check_task(predictor.task, texts, f"the training data of {request.model}"):
        progress.say(note)
    gold, encoded = predictor.task.gold(texts.labels), predictor.encode(texts.text_inputs)
    with progress.task(f"evaluating {request.file}", len(texts), "texts") as bar:
        logits = predictor.logits(encoded, done=bar.advance)
    evaluation = predictor.task.measure(logits, gold, sum(map(predictor.truncates, encoded)))
    trained = recorded_quality(predictor.bundle.about)
    if trained is not None and trained.grade != "better":
        progress.say(f"when {request.model} was trained: {trained.sentence}")
    return _ScoredFile(texts, gold, [predictor.length(text) for text in encoded], logits, evaluation)


def _was_trained_on(about: Mapping[str, Any], texts: LabelledTexts) -> bool:
    """Return whether a file has the rows that a bundle was trained on, with those that were held out for the test."""
    data = about.get("data")
    train = data.get("train") if isinstance(data, Mapping) else None
    return isinstance(train, Mapping) and texts.sha256 in (train.get("sha256"), train.get("table_sha256"))


def as_trained(bundle: "AnyClassifierBundle", config: LabelledConfig) -> LabelledConfig:
    """Complete `config` with the columns of the training file; the task is that of the model."""
    task = bundle.task
    if config.task not in ("auto", task.kind):
        raise ConfigError(f"labelled.task is {config.task}, but {bundle.path} predicts {task.kind}; remove the setting")
    trained = bundle.about.get("labelled")
    trained = {
        name: value for name, value in (trained if isinstance(trained, dict) else {}).items() if value is not None
    }
    if not task.pair:
        trained.pop("second_column", None)
        if config.second_column is not None:
            raise DataError(f"{bundle.path} expects single texts; remove labelled.second_column")
    elif config.second_column is None and "second_column" not in trained:
        raise DataError(f"{bundle.path} expects pairs of texts; name the second column with labelled.second_column")
    explicit = {name: value for name, value in config.model_dump().items() if value is not None}
    return merge_config(LabelledConfig, trained | explicit | {"task": task.kind})


def _read_column(file: str, name: str, config: LabelledConfig) -> dict[str, object]:
    """Read one column of a labelled file by row location, because some rows may be skipped."""
    values: dict[str, object] = {}
    for path in expand_paths([file]):
        column = ""
        for row in read_rows(path, with_labels=True, encoding=labelled_encoding(config)):
            column = column or column_named(path, list(row.values), name)
            values[row.where] = cell_value(row.values, column, row.where)
    return values


def _mistake(predictor: AnyPredictor, texts: LabelledTexts, probabilities: NDArray[np.float64], row: int) -> Mistake:
    answer = predictor.labels[int(probabilities[row].argmax())]
    words = explain_prediction(predictor, texts.text_inputs[row], answer).strongest(_NUM_WORDS)
    return Mistake(
        where=texts.where[row],
        text=texts.texts[row],
        label=texts.labels[row],
        answer=answer,
        probability=float(probabilities[row].max()),
        words=tuple((word.text, word.weight) for word in words),
    )
