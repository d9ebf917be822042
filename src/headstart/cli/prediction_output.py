"""What `headstart predict` writes: answers for people, as JSON lines, or as the rows of a csv with more columns."""

import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from headstart.cli.console import printable

if TYPE_CHECKING:
    from headstart.data.formats import CsvDialect
    from headstart.predict.explain import Explanation, WordWeight
    from headstart.predict.predictions import AnyPrediction
    from headstart.tasks import Task

_FAINTEST = 0.15
"""Words that weigh less than this share of the heaviest are shown plain."""


@dataclass(frozen=True)
class InputText:
    """One text, or a pair, and all that its row holds."""

    values: Mapping[str, object]
    text: str | tuple[str, str]

    @property
    def parts(self) -> tuple[str, ...]:
        """The text or the two."""
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def readable(self) -> bool:
        """Whether there is anything to answer."""
        return all(part.strip() for part in self.parts)


@dataclass(frozen=True)
class OutputOptions:
    """What is wanted beside labels."""

    abstain: float | None = None
    explain: bool = False

    @property
    def more(self) -> list[str]:
        """The columns or keys that are added for it."""
        return [*(["abstained"] if self.abstain is not None else []), *(["explanation"] if self.explain else [])]


@dataclass(frozen=True)
class PredictedText:
    """A question and what was found; None where there is no text to answer, or nothing was to be explained."""

    question: InputText
    prediction: "AnyPrediction | None"
    explanations: "tuple[Explanation, ...]" = ()
    """One; of several labels, one for each that was given."""


@dataclass
class PredictionCounts:
    """What was answered, and what there is to remark about it."""

    rows: int = 0
    empty: int = 0
    cut: int = 0
    abstained: int = 0

    def remarks(self, out: Path | None) -> Iterator[str]:
        """A line for whatever a person should know."""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        if self.cut:
            yield f"texts longer than the context of the model: {self.cut:,}; their ends were not read"
        if self.empty:
            left = "has no text; it is" if self.empty == 1 else "have no text; they are"
            yield f"{self.empty:,} of {rows} {left} left without an answer"
        if self.abstained:
            yield f"{self.abstained:,} of {rows} not sure enough to be answered"
        if out is not None:
            yield f"{rows} written to {out}"


def has_colour() -> bool:
    """Whether standard output is a terminal that wants colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def highlight_words(words: "Sequence[WordWeight]", *, colour: bool) -> str:
    """A text with the weight of its words: green for what spoke for the label, red for what spoke against it, or numbers."""
    heaviest = max((abs(word.weight) for word in words), default=0.0)
    shown = []
    for word in words:
        text = printable(word.text)
        if abs(word.weight) < _FAINTEST * heaviest or not heaviest:
            shown.append(text)
        elif colour:
            strong = "1;" if abs(word.weight) > heaviest / 2 else ""
            shown.append(f"\x1b[{strong}{32 if word.weight > 0 else 31}m{text}\x1b[0m")
        else:
            shown.append(f"{text}({word.weight:+.2f})")
    return " ".join(shown)


def _plain(explanation: "Explanation") -> dict[str, Any]:
    return {
        "label": explanation.label,
        "words": [[word.text, round(word.weight, 6)] for word in explanation.words],
        "margin": round(explanation.margin, 6),
        "baseline": round(explanation.baseline, 6),
    }


def write_lines(
    answers: Iterable[PredictedText],
    file: IO[str],
    task: "Task",
    asked: OutputOptions,
    *,
    alone: bool,
    colour: bool = False,
) -> None:
    """For people: the label, its probability and, unless there is one text alone, the beginning of the text."""
    names = (*task.labels, *(["abstain"] if asked.abstain is not None else []))
    width = 0 if alone else max(map(len, names), default=0)
    for answer in answers:
        question, prediction = answer.question, answer.prediction
        words = printable(" | ".join(" ".join(part.split()) for part in question.parts))
        shown = "" if alone else f"  {words if len(words) <= 60 else words[:57] + '...'}"
        if prediction is None:
            file.write("-\n")
            continue
        file.write(f"{_describe_prediction(prediction, width)}{shown}\n")
        for found in answer.explanations:
            file.write(f"  for {found.label}: {highlight_words(found.words, colour=colour)}\n")


NONE = "(none)"
"""What stands for no label at all."""


def _describe_prediction(prediction: "AnyPrediction", width: int) -> str:
    if prediction.kind == "rating":
        return f"{prediction.value:.3f}"
    if prediction.kind == "labels":
        return ", ".join(f"{label} {prediction.probabilities[label]:.3f}" for label in prediction.labels) or NONE
    return f"{prediction.label:<{width}}  {prediction.probability:.3f}"


_KEYS = {
    "classes": ("label", "probability", "probabilities", "truncated"),
    "labels": ("labels", "probabilities", "truncated"),
    "rating": ("value", "truncated"),
}
"""What an answer of each kind consists of."""


def _probability_columns(prediction: "AnyPrediction") -> dict[str, Any]:
    """An answer's parts by their names, numbers to six digits after the point."""
    found = {name: getattr(prediction, name) for name in _KEYS[prediction.kind]}
    for name, value in found.items():
        if isinstance(value, float):
            found[name] = round(value, 6)
    if "probabilities" in found:
        found["probabilities"] = {label: round(share, 6) for label, share in found["probabilities"].items()}
    return found


def write_rows(
    form: Literal["csv", "jsonl"],
    answers: Iterable[PredictedText],
    file: IO[str],
    task: "Task",
    asked: OutputOptions,
    separator: str | None,
    layout: "CsvDialect | None" = None,
) -> None:
    """For programs: the rows as they were, with the answers; of a csv, in the layout of the file they were read from."""
    if form == "csv":
        write_csv(answers, file, task, asked, separator, layout)
    else:
        write_jsonl(answers, file, task, asked)


def write_jsonl(answers: Iterable[PredictedText], file: IO[str], task: "Task", asked: OutputOptions) -> None:
    """An object a text: its row, the answer, whether its end was not read, and what else was asked for."""
    for answer in answers:
        question, prediction = answer.question, answer.prediction
        figures: dict[str, object] = dict.fromkeys((*_KEYS[task.kind], *asked.more))
        if prediction is not None:
            figures = _probability_columns(prediction)
            if asked.abstain is not None:
                figures["abstained"] = prediction.abstained
            if asked.explain:
                plain = [_plain(one) for one in answer.explanations]
                figures["explanation"] = plain if task.kind == "labels" else plain[0]
        added = {_unused_name(name, question.values): value for name, value in figures.items()}
        file.write(json.dumps({**question.values, **added}, ensure_ascii=False, default=str) + "\n")


def write_csv(
    answers: Iterable[PredictedText],
    file: IO[str],
    task: "Task",
    asked: OutputOptions,
    separator: str | None = None,
    layout: "CsvDialect | None" = None,
) -> None:
    """The rows as they were, with the label, its probability, that of every class, and whether the end was not read.

    Several labels stand in one cell with the separator between them that the training file had, else a semicolon.
    """
    names = [name for name in _KEYS[task.kind] if name not in ("probabilities", "truncated")]
    names += [*(f"probability_{label}" for label in task.labels), "truncated", *asked.more]
    from headstart.data.formats import CsvDialect, TableWriter

    columns: list[str] = []
    writer = TableWriter(file, layout or CsvDialect())
    for answered in answers:
        question, prediction = answered.question, answered.prediction
        if not columns:
            columns = list(question.values)
            writer.header([*columns, *(_unused_name(name, columns) for name in names)])
        cells = [question.values.get(column) for column in columns]
        answer = [""] * len(names)
        if prediction is not None:
            answer = _cells(prediction, task, separator or ";")
            answer += [str(prediction.abstained).lower()] if asked.abstain is not None else []
        writer.row([*cells, *answer])


def _cells(prediction: "AnyPrediction", task: "Task", separator: str) -> list[str]:
    truncated = str(prediction.truncated).lower()
    if prediction.kind == "rating":
        return [f"{prediction.value:.6f}", truncated]
    shares = [f"{prediction.probabilities[label]:.6f}" for label in task.labels]
    if prediction.kind == "labels":
        return [separator.join(prediction.labels), *shares, truncated]
    return [prediction.label, f"{prediction.probability:.6f}", *shares, truncated]


def _unused_name(name: str, taken: Container[str]) -> str:
    """A name for a new column that the file has not used: its own labels must not be overwritten.

    >>> _unused_name("label", ["text"]), _unused_name("label", ["text", "label"])
    ('label', 'predicted_label')
    """
    while name in taken:
        name = f"predicted_{name}"
    return name
