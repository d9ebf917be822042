"""What `headstart predict` writes: answers for people, as JSON lines, or as the rows of a csv with more columns."""

import csv
import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headstart.cli.console import printable

if TYPE_CHECKING:
    from headstart.predict.explain import Explanation, Word
    from headstart.predict.prediction import Prediction

_FAINTEST = 0.15
"""Words that weigh less than this share of the heaviest are shown plain."""


@dataclass(frozen=True)
class Question:
    """One text, and all that its row holds."""

    values: Mapping[str, object]
    text: str


@dataclass(frozen=True)
class Asked:
    """What is wanted beside labels."""

    abstain: float | None = None
    explain: bool = False

    @property
    def more(self) -> list[str]:
        """The columns or keys that are added for it."""
        return [*(["abstained"] if self.abstain is not None else []), *(["explanation"] if self.explain else [])]


@dataclass(frozen=True)
class Answer:
    """A question and what was found; None where there is no text to answer, or nothing was to be explained."""

    question: Question
    prediction: "Prediction | None"
    explanation: "Explanation | None" = None


@dataclass
class Tally:
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


def weighed(words: "Sequence[Word]", *, colour: bool) -> str:
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
    answers: Iterable[Answer], file: IO[str], labels: Sequence[str], asked: Asked, *, alone: bool, colour: bool = False
) -> None:
    """For people: the label, its probability and, unless there is one text alone, the beginning of the text."""
    width = max(map(len, (*labels, *(["abstain"] if asked.abstain is not None else []))))
    for answer in answers:
        question, prediction = answer.question, answer.prediction
        words = printable(" ".join(question.text.split()))
        shown = "" if alone else f"  {words if len(words) <= 60 else words[:57] + '...'}"
        if prediction is None:
            file.write("-\n")
            continue
        file.write(f"{prediction.label:<{0 if alone else width}}  {prediction.probability:.3f}{shown}\n")
        if answer.explanation is not None:
            file.write(f"  for {answer.explanation.label}: {weighed(answer.explanation.words, colour=colour)}\n")


def write_jsonl(answers: Iterable[Answer], file: IO[str], asked: Asked) -> None:
    """An object a text: its row, the answer, whether its end was not read, and what else was asked for."""
    for answer in answers:
        question, prediction = answer.question, answer.prediction
        figures: dict[str, object] = dict.fromkeys(("label", "probability", "probabilities", "truncated", *asked.more))
        if prediction is not None:
            figures = {
                "label": prediction.label,
                "probability": round(prediction.probability, 6),
                "probabilities": {label: round(share, 6) for label, share in prediction.probabilities.items()},
                "truncated": prediction.truncated,
            }
            if asked.abstain is not None:
                figures["abstained"] = prediction.abstained
            if answer.explanation is not None:
                figures["explanation"] = _plain(answer.explanation)
        added = {_free(name, question.values): value for name, value in figures.items()}
        file.write(json.dumps({**question.values, **added}, ensure_ascii=False, default=str) + "\n")


def write_csv(answers: Iterable[Answer], file: IO[str], labels: Sequence[str], asked: Asked) -> None:
    """The rows as they were, with the label, its probability, that of every class, and whether the end was not read."""
    names = ["label", "probability", *(f"probability_{label}" for label in labels), "truncated", *asked.more]
    columns: list[str] = []
    writer = csv.writer(file, lineterminator="\n")
    for answered in answers:
        question, prediction = answered.question, answered.prediction
        if not columns:
            columns = list(question.values)
            writer.writerow([*columns, *(_free(name, columns) for name in names)])
        cells = [question.values.get(column) for column in columns]
        answer = [""] * len(names)
        if prediction is not None:
            shares = (prediction.probability, *(prediction.probabilities[label] for label in labels))
            answer = [prediction.label, *(f"{share:.6f}" for share in shares), str(prediction.truncated).lower()]
            answer += [str(prediction.abstained).lower()] if asked.abstain is not None else []
        writer.writerow([*cells, *answer])


def _free(name: str, taken: Container[str]) -> str:
    """A name for a new column that the file has not used: its own labels must not be overwritten.

    >>> _free("label", ["text"]), _free("label", ["text", "label"])
    ('label', 'predicted_label')
    """
    while name in taken:
        name = f"predicted_{name}"
    return name
