"""`headstart predict`: texts to labels, from arguments, from standard input, or from a file to a file.

Files are read, answered and written in chunks, so their size does not matter; an output file appears when it is whole.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME, AsJson, ConfigFile, Flags, Model, Options, Quiet, Running
from headstart.cli.prediction_output import (
    InputText,
    OutputOptions,
    PredictedText,
    PredictionCounts,
    has_colour,
    write_lines,
    write_rows,
)
from headstart.cli.text_input import InputColumns, output_dialect
from headstart.config.schema import RuntimeConfig
from headstart.errors import DataError, StoreError, UsageError
from headstart.files import os_error_reason

if TYPE_CHECKING:
    from headstart.predict.explain import Explanation
    from headstart.predict.numpy_predictor import NumpyPredictor
    from headstart.predict.predictions import AnyPrediction, TextPredictor
    from headstart.predict.predictor import Predictor

OPTIONS = Options(Running, names=RUNTIME)
CHUNK = 1000
Format = Literal["line", "csv", "jsonl"]


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
    second_column: Annotated[
        str | None,
        Parameter(
            metavar="TEXT", help="For a model that reads pairs, the column of the second text; else as in training."
        ),
    ] = None,
    abstain: Annotated[
        float | None,
        Parameter(
            metavar="FLOAT",
            help="The share of answers that should be right, such as 0.95; what is not sure enough for it gets none.",
        ),
    ] = None,
    explain: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show how much each word spoke for the answer.")
    ] = False,
    int8: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Of a folder that export --to onnx wrote, the int8 weights."),
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Answer texts with labels and probabilities."""
    runtime, form = OPTIONS.settings(flags, path=config).runtime, _format(source, out, as_json=as_json)
    if explain and form == "csv":
        raise UsageError("--explain gives more than a csv can hold; add --json, or choose --out with a .jsonl file")
    _check_files(source, out)
    reading = InputColumns.of(model, source, text_column, second_column)
    text_inputs, layout = _questions(texts, source, reading), output_dialect(source, out) if form == "csv" else None
    console, asked = Console(quiet=quiet), OutputOptions(abstain, explain)
    exported = _exported(model, asked, runtime, console, int8=int8)
    predictor = exported or _quick(model, texts, asked, runtime) or _usual(model, asked, runtime, console)
    with _opened(out) as file:
        tally = PredictionCounts()
        shows_progress = out is not None or not sys.stdout.isatty()
        answers = _answers(text_inputs, predictor, asked, tally, console if shows_progress else None)
        if form == "line":
            alone = len(texts) == (2 if reading.pair else 1)
            write_lines(answers, file, predictor.task, asked, alone=alone, colour=out is None and has_colour())
        else:
            write_rows(form, answers, file, predictor.task, asked, reading.separator, layout)
    for remark in tally.remarks(out):
        console.say(remark)


def _exported(
    model: Path, asked: OutputOptions, runtime: RuntimeConfig, console: Console, *, int8: bool
) -> "TextPredictor | None":
    """For a folder that was exported for onnxruntime."""
    if not (model / "model.onnx").is_file():
        if int8:
            raise UsageError(f"--int8 takes a folder that headstart export {model} --to onnx writes")
        return None
    from headstart.predict.onnx_predictor import OnnxPredictor, is_onnx_export

    if not is_onnx_export(model):
        return None
    if asked.explain or asked.abstain is not None:
        wish = "--explain" if asked.explain else "--abstain"
        raise UsageError(f"{model} is an export for onnxruntime, which cannot {wish}; give the model it was made from")
    predictor = OnnxPredictor(model, int8=int8, threads=runtime.threads)
    if predictor.agreement:
        console.say(predictor.agreement)
    return predictor


def _quick(model: Path, texts: Sequence[str], asked: OutputOptions, runtime: RuntimeConfig) -> "NumpyPredictor | None":
    """For a few texts on the command line, an answer that does not wait for torch; None where that is not to be had."""
    if not texts or asked.explain or asked.abstain is not None:
        return None
    if runtime.device not in ("auto", "cpu") or runtime.precision == "bf16":
        return None
    from headstart.predict.numpy_predictor import NumpyPredictor

    return NumpyPredictor.load(model, texts)


def _usual(model: Path, asked: OutputOptions, runtime: RuntimeConfig, console: Console) -> "Predictor":
    from headstart.predict.predictor import Predictor, describe_threshold, threshold_for

    predictor = Predictor.load(model, runtime)
    if asked.abstain is not None:
        found = threshold_for(predictor.bundle, asked.abstain)
        console.say(describe_threshold(found, predictor.bundle.about["calibration"]["rows"]))
    return predictor


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
    from headstart.data.io import suffix_of

    return "csv" if suffix_of(source) in (".csv", ".tsv") else "jsonl"


def _check_files(source: str | None, out: Path | None) -> None:
    if source is None:
        return
    if Path(source).is_dir():
        raise UsageError(f"{source} is a folder; --input takes one file")
    if out is not None and Path(source).resolve() == out.resolve():
        raise UsageError(f"--out {out} is the file of --input, which would be lost; choose another --out")


def _questions(texts: Sequence[str], source: str | None, reading: InputColumns) -> Iterator[InputText]:
    """The texts in order, from wherever they are given; the first is read at once, so that its faults come first."""
    if texts and source is not None:
        raise UsageError("predict takes texts or --input, not both")
    if source is not None:
        found = _from_file(source, reading.text, reading.second)
    elif texts:
        found = iter(_arguments(texts, pair=reading.pair))
    elif not sys.stdin.isatty():
        found = _from_stdin(pair=reading.pair)
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


def _chain(first: InputText, rest: Iterator[InputText]) -> Iterator[InputText]:
    yield first
    yield from rest


def _from_file(path: str, wanted: str | None, second: str | None) -> Iterator[InputText]:
    from headstart.data.columns import cell_value, column_named, parse_text, text_column
    from headstart.data.sources import read_rows

    names: list[str] = []
    for row in read_rows(path):
        if not names:
            columns = list(row.values)
            names = [text_column(path, columns, wanted, "--text-column")]
            names += [] if second is None else [column_named(path, columns, second)]
        text, *more = (parse_text(cell_value(row.values, name, row.where), row.where) for name in names)
        yield InputText(row.values, (text, more[0]) if more else text)


def _from_stdin(*, pair: bool) -> Iterator[InputText]:
    from headstart.data.io import read_lines

    name = "standard input"
    for number, line in enumerate(read_lines(name, sys.stdin.buffer), start=1):  # type: ignore[arg-type]
        text = line.rstrip("\r\n")
        if not pair:
            yield InputText({"text": text}, text)
            continue
        first, tab, second = text.partition("\t")
        if not tab:
            raise DataError(f"{name}, line {number}: one text; this model reads pairs, with a tab between the two")
        yield _pair(first, second)


def _pair(first: str, second: str) -> InputText:
    return InputText({"text": first, "second": second}, (first, second))


def _arguments(texts: Sequence[str], *, pair: bool) -> list[InputText]:
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise DataError(f"text {number}: the text is empty; there is nothing to classify")
    if not pair:
        return [InputText({"text": text}, text) for text in texts]
    if len(texts) % 2:
        raise UsageError(f"this model reads pairs of texts: give two for each answer, got {len(texts)}")
    return [_pair(first, second) for first, second in zip(texts[::2], texts[1::2], strict=True)]


def _answers(
    text_inputs: Iterator[InputText],
    predictor: "TextPredictor",
    asked: OutputOptions,
    tally: PredictionCounts,
    console: Console | None,
) -> Iterator[PredictedText]:
    """Every question with its answer; a row without text keeps its place."""
    with console.task("predicting", None, "texts") if console else nullcontext() as bar:
        while chunk := list(islice(text_inputs, CHUNK)):
            texts = [question.text for question in chunk if question.readable]
            predictions = predictor.predict(texts, abstain=asked.abstain)
            tally.rows += len(chunk)
            tally.empty += len(chunk) - len(texts)
            tally.cut += sum(prediction.truncated for prediction in predictions)
            tally.abstained += sum(prediction.abstained for prediction in predictions)
            found = iter(predictions)
            for question in chunk:
                prediction = next(found) if question.readable else None
                yield PredictedText(question, prediction, _explained(predictor, question, prediction, asked))
            if bar is not None:
                bar.advance(len(chunk))


def _labels(prediction: "AnyPrediction") -> list[str | None]:
    """The labels to explain: each of several, else the one answer, by whatever name."""
    return list(prediction.labels) if prediction.kind == "labels" else [None]


def _explained(
    predictor: "TextPredictor", question: InputText, prediction: "AnyPrediction | None", asked: OutputOptions
) -> "tuple[Explanation, ...]":
    if not asked.explain or prediction is None:
        return ()
    from headstart.predict.explain import explain_prediction
    from headstart.predict.predictor import Predictor

    assert isinstance(predictor, Predictor)
    return tuple(explain_prediction(predictor, question.text, label) for label in _labels(prediction))


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
        raise StoreError(f"cannot write {out}: {os_error_reason(error, out)}") from error
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
