"""The output of `headstart predict`: plain lines, JSON lines, or a csv with additional columns."""

import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from headstart.cli.console import printable, printable_line

if TYPE_CHECKING:
    from headstart.data.formats import CsvDialect
    from headstart.predict.explain import Explanation, WordWeight
    from headstart.predict.outputs import AnyPrediction
    from headstart.tasks import Task

_MIN_RELATIVE_WEIGHT = 0.15
"""Words whose weight is below this fraction of the largest weight are shown without it."""
NONE = "(none)"
"""Printed for a text without any label."""
_KEYS = {
    "classes": ("label", "probability", "probabilities", "truncated"),
    "labels": ("labels", "probabilities", "truncated"),
    "rating": ("value", "truncated"),
}
"""The fields of a prediction by task."""


@dataclass(frozen=True)
class InputText:
    """One text or pair of texts, with the values of its row."""

    values: Mapping[str, object]
    text: str | tuple[str, str]
    has_label: bool = False
    """True if its row has a value in the label column."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The one text, or the two of a pair."""
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def readable(self) -> bool:
        """True if no text is empty."""
        return all(text.strip() for text in self.texts)


@dataclass(frozen=True)
class OutputOptions:
    """Options that change which rows are predicted and what is written about them."""

    abstain: float | None = None
    explain: bool = False
    only_unlabelled: bool = False
    """Do not predict rows that have a label."""

    def is_predicted(self, item: InputText) -> bool:
        """Return True if an input gets a prediction."""
        return item.readable and not (self.only_unlabelled and item.has_label)

    @property
    def extra_columns(self) -> list[str]:
        """The columns or keys that the options add."""
        return [*(["abstained"] if self.abstain is not None else []), *(["explanation"] if self.explain else [])]


@dataclass(frozen=True)
class PredictedText:
    """An input and its prediction, which is None for an empty text and for a row that keeps its label."""

    input: InputText
    prediction: "AnyPrediction | None"
    explanations: "tuple[Explanation, ...]" = ()
    """One explanation, or one per predicted label of a multi-label task."""


@dataclass
class PredictionCounts:
    """Counts of the inputs, for the remarks at the end."""

    rows: int = 0
    labelled: int = 0
    empty: int = 0
    cut: int = 0
    abstained: int = 0

    label_column: str | None = None

    def add(self, predicted: "Sequence[PredictedText]") -> None:
        """Count some inputs with their predictions."""
        predictions = [item.prediction for item in predicted if item.prediction is not None]
        self.rows += len(predicted)
        self.labelled += sum(item.input.has_label for item in predicted)
        self.empty += sum(not item.input.readable for item in predicted)
        self.cut += sum(prediction.truncated for prediction in predictions)
        self.abstained += sum(prediction.abstained for prediction in predictions)

    @property
    def numbers(self) -> dict[str, int]:
        """The counts by name."""
        names = ("rows", "labelled", "empty", "cut", "abstained")
        return {name: getattr(self, name) for name in names}

    def restore(self, numbers: Mapping[str, int]) -> None:
        """Continue from the counts of an earlier process."""
        for name in self.numbers:
            setattr(self, name, numbers.get(name, 0))

    def remarks(self, out: Path | None, options: OutputOptions) -> Iterator[str]:
        """Yield one line per remark about the rows."""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        if 0 < self.labelled < self.rows or (self.labelled and options.only_unlabelled):
            verb, pronoun = ("has", "it was") if self.labelled == 1 else ("have", "they were")
            done = (
                "not predicted"
                if options.only_unlabelled
                else "also predicted; use --only-unlabelled to skip such rows"
            )
            column = printable(self.label_column or "")
            yield f"{self.labelled:,} of {rows} {verb} a value in the label column '{column}'; {pronoun} {done}"
        if self.cut:
            verb = "was" if self.cut == 1 else "were"
            yield f"{self.cut:,} of {rows} {verb} truncated to the context of the model"
        if self.empty:
            yield f"{self.empty:,} of {rows} {'has' if self.empty == 1 else 'have'} no text and no prediction"
        if self.abstained:
            verb = "is" if self.abstained == 1 else "are"
            yield f"{self.abstained:,} of {rows} {verb} below the threshold of --abstain and not classified"
        if out is not None:
            yield f"{rows} written to {out}"


def has_colour() -> bool:
    """Return True if standard output is a terminal that supports colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def highlight_words(words: "Sequence[WordWeight]", *, colour: bool) -> str:
    """Format words with their weights: green for positive and red for negative weights, or numbers without colours."""
    heaviest = max((abs(word.weight) for word in words), default=0.0)
    highlighted = []
    for word in words:
        text = printable(word.text)
        if abs(word.weight) < _MIN_RELATIVE_WEIGHT * heaviest or not heaviest:
            highlighted.append(text)
        elif colour:
            bold = "1;" if abs(word.weight) > heaviest / 2 else ""
            highlighted.append(f"\x1b[{bold}{32 if word.weight > 0 else 31}m{text}\x1b[0m")
        else:
            highlighted.append(f"{text}({word.weight:+.2f})")
    return " ".join(highlighted)


def _explanation_values(explanation: "Explanation") -> dict[str, Any]:
    return {
        "label": explanation.label,
        "words": [[word.text, round(word.weight, 6)] for word in explanation.words],
        "margin": round(explanation.margin, 6),
        "baseline": round(explanation.baseline, 6),
    }


def write_lines(
    predicted: Iterable[PredictedText],
    file: IO[str],
    task: "Task",
    options: OutputOptions,
    *,
    single: bool,
    colour: bool = False,
) -> None:
    """Write plain lines: label, probability and, unless there is a single text, the beginning of the text."""
    names = (*task.labels, *(["abstain"] if options.abstain is not None else []))
    width = 0 if single else max(map(len, names), default=0)
    for item in predicted:
        text = printable(" | ".join(" ".join(text.split()) for text in item.input.texts))
        excerpt = "" if single else f"  {text if len(text) <= 60 else text[:57] + '...'}"
        if item.prediction is None:
            file.write("-\n")
            continue
        file.write(f"{_describe_prediction(item.prediction, width)}{excerpt}\n")
        for explanation in item.explanations:
            file.write(
                f"  for {printable_line(explanation.label)}: {highlight_words(explanation.words, colour=colour)}\n"
            )


def _describe_prediction(prediction: "AnyPrediction", width: int) -> str:
    if prediction.kind == "rating":
        return f"{prediction.value:.3f}"
    if prediction.kind == "labels":
        return (
            ", ".join(f"{printable_line(label)} {prediction.probabilities[label]:.3f}" for label in prediction.labels)
            or NONE
        )
    return f"{printable_line(prediction.label):<{width}}  {prediction.probability:.3f}"


def _prediction_values(prediction: "AnyPrediction") -> dict[str, Any]:
    """Return the fields of a prediction by name, numbers rounded to six decimals."""
    values = {name: getattr(prediction, name) for name in _KEYS[prediction.kind]}
    for name, value in values.items():
        if isinstance(value, float):
            values[name] = round(value, 6)
    if "probabilities" in values:
        values["probabilities"] = {label: round(number, 6) for label, number in values["probabilities"].items()}
    return values


@dataclass
class RowFormat:
    """Writes rows with their predictions as csv or JSON lines, one window after another."""

    form: Literal["csv", "jsonl"]
    task: "Task"
    options: OutputOptions
    columns: Sequence[str]
    """The columns of the first input row, which are the columns of a csv."""
    separator: str | None = None
    """The separator of several labels in a cell of a csv: that of the training file, or a semicolon."""
    dialect: "CsvDialect | None" = None
    """The dialect of a csv, which is that of the input file."""

    def write(self, predicted: Iterable[PredictedText], file: IO[str], *, at_start: bool) -> None:
        """Write rows; a csv begins with a header."""
        if self.form == "jsonl":
            write_jsonl(predicted, file, self.task, self.options)
        else:
            self._write_csv(predicted, file, at_start=at_start)

    def _write_csv(self, predicted: Iterable[PredictedText], file: IO[str], *, at_start: bool) -> None:
        """Write the row, the label, its probability, the probability of every class, and if the text was truncated."""
        from headstart.data.formats import CsvDialect, TableWriter

        names = [name for name in _KEYS[self.task.kind] if name not in ("probabilities", "truncated")]
        names += [*(f"probability_{label}" for label in self.task.labels), "truncated", *self.options.extra_columns]
        writer = TableWriter(file, self.dialect or CsvDialect())
        if at_start:
            writer.header([*self.columns, *(_unused_name(name, self.columns) for name in names)])
        for item in predicted:
            added = [""] * len(names)
            if item.prediction is not None:
                added = _cells(item.prediction, self.task, self.separator or ";")
                added += [str(item.prediction.abstained).lower()] if self.options.abstain is not None else []
            writer.row([*(item.input.values.get(column) for column in self.columns), *added])


def write_jsonl(predicted: Iterable[PredictedText], file: IO[str], task: "Task", options: OutputOptions) -> None:
    """Write one object per text: its row, the prediction, if it was truncated, and the fields that the options add."""
    for item in predicted:
        row, prediction = item.input.values, item.prediction
        values: dict[str, object] = dict.fromkeys((*_KEYS[task.kind], *options.extra_columns))
        if prediction is not None:
            values = _prediction_values(prediction)
            if options.abstain is not None:
                values["abstained"] = prediction.abstained
            if options.explain:
                explanations = [_explanation_values(explanation) for explanation in item.explanations]
                values["explanation"] = explanations if task.kind == "labels" else explanations[0]
        added = {_unused_name(name, row): value for name, value in values.items()}
        file.write(json.dumps({**row, **added}, ensure_ascii=False, default=str) + "\n")


def _cells(prediction: "AnyPrediction", task: "Task", separator: str) -> list[str]:
    truncated = str(prediction.truncated).lower()
    if prediction.kind == "rating":
        return [f"{prediction.value:.6f}", truncated]
    probabilities = [f"{prediction.probabilities[label]:.6f}" for label in task.labels]
    if prediction.kind == "labels":
        return [separator.join(prediction.labels), *probabilities, truncated]
    return [prediction.label, f"{prediction.probability:.6f}", *probabilities, truncated]


def _unused_name(name: str, taken: Container[str]) -> str:
    """Return a name for a new column that the file does not use, so that its own labels are not overwritten.

    >>> _unused_name("label", ["text"]), _unused_name("label", ["text", "label"])
    ('label', 'predicted_label')
    """
    while name in taken:
        name = f"predicted_{name}"
    return name
