"""`headstart predict`: texts to labels, from arguments, from standard input, or from a file to a file.

Files are read, answered and written in chunks, so their size does not matter; an output file appears when it is whole.
"""

import csv
import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headstart.cli.console import Console, printable
from headstart.cli.options import RUNTIME, AsJson, ConfigFile, Flags, Model, Options, Quiet, Running
from headstart.errors import DataError, StoreError, UsageError

if TYPE_CHECKING:
    from headstart.predict.predictor import Prediction, Predictor

OPTIONS = Options(Running, names=RUNTIME)
CHUNK = 1000
Format = Literal["line", "csv", "jsonl"]
Answered = tuple["Question", "Prediction | None"]
"""None where there is no text to answer."""


@dataclass(frozen=True)
class Question:
    """One text, and all that its row holds."""

    values: Mapping[str, object]
    text: str


@dataclass
class Tally:
    """What was answered, and what there is to remark about it."""

    rows: int = 0
    empty: int = 0
    cut: int = 0

    def remarks(self, out: Path | None) -> Iterator[str]:
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        if self.cut:
            yield f"texts longer than the context of the model: {self.cut:,}; their ends were not read"
        if self.empty:
            left = "has no text; it is" if self.empty == 1 else "have no text; they are"
            yield f"{self.empty:,} of {rows} {left} left without an answer"
        if out is not None:
            yield f"{rows} written to {out}"


@OPTIONS.on
def predict(
    model: Model,
    /,
    *texts: Annotated[str, Parameter(name="TEXTS", help="Texts; without any, the lines of standard input.")],
    source: Annotated[
        str | None,
        Parameter(name="--input", metavar="FILE", help="A file of texts: csv, jsonl, txt, parquet and others."),
    ] = None,
    out: Annotated[
        Path | None, Parameter(metavar="FILE", help="Where to write, as .csv or .jsonl; else standard output.")
    ] = None,
    text_column: Annotated[
        str | None, Parameter(metavar="TEXT", help="The column or key of the text; else the usual names are tried.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Answer texts with labels and probabilities."""
    runtime = OPTIONS.settings(flags, path=config).runtime
    form = _format(source, out, as_json=as_json)
    _check_files(source, out)
    questions = _questions(texts, source, text_column)
    from headstart.predict.predictor import Predictor

    console = Console(quiet=quiet)
    predictor = Predictor.load(model, runtime)
    with _opened(out) as file:
        tally = Tally()
        shows_progress = out is not None or not sys.stdout.isatty()
        answers = _answers(questions, predictor, tally, console if shows_progress else None)
        if form == "csv":
            _write_csv(answers, file, predictor.labels)
        elif form == "jsonl":
            _write_jsonl(answers, file)
        else:
            _write_lines(answers, file, predictor.labels, alone=len(texts) == 1)
    for remark in tally.remarks(out):
        console.say(remark)


def _format(source: str | None, out: Path | None, *, as_json: bool) -> Format:
    if out is not None:
        if out.suffix not in (".csv", ".jsonl"):
            raise UsageError(f"--out must end in .csv or .jsonl, got {out}")
        if as_json and out.suffix == ".csv":
            raise UsageError(f"--json does not go with --out {out}; choose a .jsonl file")
        return "csv" if out.suffix == ".csv" else "jsonl"
    if as_json:
        return "jsonl"
    if source is None:
        return "line"
    from headstart.data.opening import suffix_of

    return "csv" if suffix_of(source) in (".csv", ".tsv") else "jsonl"


def _check_files(source: str | None, out: Path | None) -> None:
    if source is None:
        return
    if Path(source).is_dir():
        raise UsageError(f"{source} is a folder; --input takes one file")
    if out is not None and Path(source).resolve() == out.resolve():
        raise UsageError(f"--out {out} is the file of --input, which would be lost; choose another --out")


def _questions(texts: Sequence[str], source: str | None, text_column: str | None) -> Iterator[Question]:
    """The texts in order, from wherever they are given; the first is read at once, so that its faults come first."""
    if texts and source is not None:
        raise UsageError("predict takes texts or --input, not both")
    if source is not None:
        found = _from_file(source, text_column)
    elif texts:
        found = iter([_argument(text, number) for number, text in enumerate(texts, start=1)])
    elif not sys.stdin.isatty():
        found = _from_stdin()
    else:
        found = iter(())
    first = next(found, None)
    if first is None:
        empty = (
            f"{source} holds no texts"
            if source
            else "predict needs texts: as arguments, on standard input, or --input FILE"
        )
        raise (DataError if source else UsageError)(empty)
    return _chain(first, found)


def _chain(first: Question, rest: Iterator[Question]) -> Iterator[Question]:
    yield first
    yield from rest


def _from_file(path: str, wanted: str | None) -> Iterator[Question]:
    from headstart.data.columns import as_text, cell, text_column
    from headstart.data.sources import read_rows

    column = ""
    for row in read_rows(path):
        column = column or text_column(path, list(row.values), wanted, "--text-column")
        yield Question(row.values, as_text(cell(row.values, column, row.where), row.where))


def _from_stdin() -> Iterator[Question]:
    from headstart.data.opening import lines

    name = "standard input"
    for line in lines(name, sys.stdin.buffer):  # type: ignore[arg-type]
        text = line.rstrip("\r\n")
        yield Question({"text": text}, text)


def _argument(text: str, number: int) -> Question:
    if not text.strip():
        raise DataError(f"text {number}: the text is empty; there is nothing to classify")
    return Question({"text": text}, text)


def _answers(
    questions: Iterator[Question], predictor: "Predictor", tally: Tally, console: Console | None
) -> Iterator[Answered]:
    """Every question with its answer; a row without text keeps its place."""
    with console.task("predicting", None, "texts") if console else nullcontext() as bar:
        while chunk := list(islice(questions, CHUNK)):
            texts = [question.text for question in chunk if question.text.strip()]
            predictions = predictor.predict(texts)
            tally.rows += len(chunk)
            tally.empty += len(chunk) - len(texts)
            tally.cut += sum(prediction.truncated for prediction in predictions)
            answers = iter(predictions)
            yield from ((question, next(answers) if question.text.strip() else None) for question in chunk)
            if bar is not None:
                bar.advance(len(chunk))


def _write_lines(answers: Iterable[Answered], file: IO[str], labels: Sequence[str], *, alone: bool) -> None:
    """For people: the label, its probability and, unless there is one text alone, the beginning of the text."""
    width = max(map(len, labels))
    for question, prediction in answers:
        words = printable(" ".join(question.text.split()))
        shown = "" if alone else f"  {words if len(words) <= 60 else words[:57] + '...'}"
        if prediction is None:
            file.write("-\n")
            continue
        file.write(f"{prediction.label:<{0 if alone else width}}  {prediction.probability:.3f}{shown}\n")


def _write_jsonl(answers: Iterable[Answered], file: IO[str]) -> None:
    """An object a text: its row, the answer, and whether its end was not read."""
    for question, prediction in answers:
        figures: dict[str, object] = dict.fromkeys(("label", "probability", "probabilities", "truncated"))
        if prediction is not None:
            figures = {
                "label": prediction.label,
                "probability": round(prediction.probability, 6),
                "probabilities": {label: round(share, 6) for label, share in prediction.probabilities.items()},
                "truncated": prediction.truncated,
            }
        added = {_free(name, question.values): value for name, value in figures.items()}
        file.write(json.dumps({**question.values, **added}, ensure_ascii=False, default=str) + "\n")


def _write_csv(answers: Iterable[Answered], file: IO[str], labels: Sequence[str]) -> None:
    """The rows as they were, with the label, its probability, that of every class, and whether the end was not read."""
    names = ["label", "probability", *(f"probability_{label}" for label in labels), "truncated"]
    columns: list[str] = []
    writer = csv.writer(file, lineterminator="\n")
    for question, prediction in answers:
        if not columns:
            columns = list(question.values)
            writer.writerow([*columns, *(_free(name, columns) for name in names)])
        cells = [question.values.get(column) for column in columns]
        answer = [""] * len(names)
        if prediction is not None:
            shares = (prediction.probability, *(prediction.probabilities[label] for label in labels))
            answer = [prediction.label, *(f"{share:.6f}" for share in shares), str(prediction.truncated).lower()]
        writer.writerow([*cells, *answer])


def _free(name: str, taken: Container[str]) -> str:
    """A name for a new column that the file has not used: its own labels must not be overwritten.

    >>> _free("label", ["text"]), _free("label", ["text", "label"])
    ('label', 'predicted_label')
    """
    while name in taken:
        name = f"predicted_{name}"
    return name


@contextmanager
def _opened(out: Path | None) -> Iterator[IO[str]]:
    """Standard output, or a file that appears at `out` once it is whole."""
    if out is None:
        yield sys.stdout
        return
    draft = out.with_name(f".{out.name}.writing-{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}") from error
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(out)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
