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
Answered = tuple["Question", "Prediction"]


@dataclass(frozen=True)
class Question:
    """One text, with all that its row holds and where it stands."""

    values: Mapping[str, object]
    text: str
    where: str


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
    questions = _questions(texts, source, text_column)
    from headstart.predict.predictor import Predictor

    console = Console(quiet=quiet)
    with _opened(out) as file:
        predictor = Predictor.load(model, runtime)
        answers = _answers(questions, predictor, console, shows_progress=out is not None or not sys.stdout.isatty())
        if form == "csv":
            _write_csv(answers, file, predictor.labels)
        elif form == "jsonl":
            _write_jsonl(answers, file)
        else:
            _write_lines(answers, file, predictor.labels, alone=len(texts) == 1)


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


def _questions(texts: Sequence[str], source: str | None, text_column: str | None) -> Iterator[Question]:
    """The texts in order, from wherever they are given; the first is read at once, so that its faults come first."""
    if texts and source is not None:
        raise UsageError("predict takes texts or --input, not both")
    if source is not None:
        found = _from_file(source, text_column)
    elif texts:
        found = iter([_question({"text": text}, text, f"text {number}") for number, text in enumerate(texts, start=1)])
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
        column = column or text_column(path, list(row.values), wanted)
        yield _question(row.values, as_text(cell(row.values, column, row.where), row.where), row.where)


def _from_stdin() -> Iterator[Question]:
    from headstart.data.opening import lines

    name = "standard input"
    for number, line in enumerate(lines(name, sys.stdin.buffer), start=1):  # type: ignore[arg-type]
        text = line.rstrip("\r\n")
        yield _question({"text": text}, text, f"{name}, line {number}")


def _question(values: Mapping[str, object], text: str, where: str) -> Question:
    if not text.strip():
        raise DataError(f"{where}: the text is empty; there is nothing to classify")
    return Question(values, text, where)


def _answers(
    questions: Iterator[Question], predictor: "Predictor", console: Console, *, shows_progress: bool
) -> Iterator[Answered]:
    cut = 0
    with console.task("predicting", None, "texts") if shows_progress else nullcontext() as bar:
        while chunk := list(islice(questions, CHUNK)):
            predictions = predictor.predict([question.text for question in chunk])
            cut += sum(prediction.truncated for prediction in predictions)
            yield from zip(chunk, predictions, strict=True)
            if bar is not None:
                bar.advance(len(chunk))
    if cut:
        console.say(f"texts longer than the context of the model: {cut:,}; their ends were not read")


def _write_lines(answers: Iterable[Answered], file: IO[str], labels: Sequence[str], *, alone: bool) -> None:
    """For people: the label, its probability and, unless there is one text alone, the beginning of the text."""
    width = max(map(len, labels))
    for question, prediction in answers:
        words = printable(" ".join(question.text.split()))
        shown = "" if alone else f"  {words if len(words) <= 60 else words[:57] + '...'}"
        file.write(f"{prediction.label:<{0 if alone else width}}  {prediction.probability:.3f}{shown}\n")


def _write_jsonl(answers: Iterable[Answered], file: IO[str]) -> None:
    """An object a text: its row, the answer, and whether its end was not read."""
    for question, prediction in answers:
        figures = {
            "label": prediction.label,
            "probability": round(prediction.probability, 6),
            "probabilities": {label: round(share, 6) for label, share in prediction.probabilities.items()},
            "truncated": prediction.truncated,
        }
        added = {_free(name, question.values): value for name, value in figures.items()}
        file.write(json.dumps({**question.values, **added}, ensure_ascii=False, default=str) + "\n")


def _write_csv(answers: Iterable[Answered], file: IO[str], labels: Sequence[str]) -> None:
    """The rows as they were, with the label, its probability, and the probability of every class added."""
    names = ["label", "probability", *(f"probability_{label}" for label in labels)]
    columns: list[str] = []
    writer = csv.writer(file, lineterminator="\n")
    for question, prediction in answers:
        if not columns:
            columns = list(question.values)
            writer.writerow([*columns, *(_free(name, columns) for name in names)])
        shares = (prediction.probability, *(prediction.probabilities[label] for label in labels))
        cells = [question.values.get(column) for column in columns]
        writer.writerow([*cells, prediction.label, *(f"{share:.6f}" for share in shares)])


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
        with draft.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(out)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
