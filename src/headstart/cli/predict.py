"""`headstart predict`: predict labels of texts from arguments, standard input or a file.

Files are read, predicted and written in chunks, so their size does not matter; an output file is written atomically.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME_OPTIONS, AsJson, ConfigFile, Flags, InferenceSettings, Model, Options, Quiet
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
    from headstart.predict.outputs import AnyPrediction, TextPredictor
    from headstart.predict.predictor import Predictor

OPTIONS = Options(InferenceSettings, names=RUNTIME_OPTIONS)
CHUNK = 1000
Format = Literal["line", "csv", "jsonl"]


@OPTIONS.on
def predict(
    model: Model,
    /,
    *texts: Annotated[str, Parameter(name="TEXTS", help="Texts; without any, the lines of standard input.")],
    input_file: Annotated[
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
            help="The fraction of answers that should be right, such as 0.95; what is not sure enough for it gets none.",
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
    """Predict labels and probabilities of texts."""
    runtime, output_format = OPTIONS.settings(flags, path=config).runtime, _format(input_file, out, as_json=as_json)
    if explain and output_format == "csv":
        raise UsageError("--explain gives more than a csv can hold; add --json, or choose --out with a .jsonl file")
    _check_files(input_file, out)
    columns = InputColumns.of(model, input_file, text_column, second_column)
    inputs = _inputs(texts, input_file, columns)
    dialect = output_dialect(input_file, out) if output_format == "csv" else None
    console, options = Console(quiet=quiet), OutputOptions(abstain, explain)
    predictor = _load_predictor(model, texts, options, runtime, console, int8=int8)
    with _open_output(out) as file:
        counts = PredictionCounts()
        shows_progress = out is not None or not sys.stdout.isatty()
        predicted = _predict(inputs, predictor, options, counts, console if shows_progress else None)
        if output_format == "line":
            single = len(texts) == (2 if columns.pair else 1)
            write_lines(predicted, file, predictor.task, options, single=single, colour=out is None and has_colour())
        else:
            write_rows(output_format, predicted, file, predictor.task, options, columns.separator, dialect)
    for remark in counts.remarks(out):
        console.say(remark)


def _load_predictor(
    model: Path,
    texts: Sequence[str],
    options: OutputOptions,
    runtime: RuntimeConfig,
    console: Console,
    *,
    int8: bool,
) -> "TextPredictor":
    return (
        _onnx_predictor(model, options, runtime, console, int8=int8)
        or _numpy_predictor(model, texts, options, runtime)
        or _torch_predictor(model, options, runtime, console)
    )


def _onnx_predictor(
    model: Path, options: OutputOptions, runtime: RuntimeConfig, console: Console, *, int8: bool
) -> "TextPredictor | None":
    """Load a folder that was exported for onnxruntime; None if it is not one."""
    if not (model / "model.onnx").is_file():
        if int8:
            raise UsageError(f"--int8 takes a folder that headstart export {model} --to onnx writes")
        return None
    from headstart.predict.onnx_predictor import OnnxPredictor, is_onnx_export

    if not is_onnx_export(model):
        return None
    if options.explain or options.abstain is not None:
        option = "--explain" if options.explain else "--abstain"
        raise UsageError(
            f"{model} is an export for onnxruntime, which cannot {option}; give the model it was made from"
        )
    predictor = OnnxPredictor(model, int8=int8, threads=runtime.threads)
    if predictor.agreement:
        console.say(predictor.agreement)
    return predictor


def _numpy_predictor(
    model: Path, texts: Sequence[str], options: OutputOptions, runtime: RuntimeConfig
) -> "NumpyPredictor | None":
    """Load a predictor that does not import torch, for texts on the command line; None where it does not support them."""
    if not texts or options.explain or options.abstain is not None:
        return None
    if runtime.device not in ("auto", "cpu") or runtime.precision == "bf16":
        return None
    from headstart.predict.numpy_predictor import NumpyPredictor

    return NumpyPredictor.load(model, texts)


def _torch_predictor(model: Path, options: OutputOptions, runtime: RuntimeConfig, console: Console) -> "Predictor":
    from headstart.predict.predictor import Predictor, describe_threshold, threshold_for

    predictor = Predictor.load(model, runtime)
    if options.abstain is not None:
        threshold = threshold_for(predictor.bundle, options.abstain)
        console.say(describe_threshold(threshold, predictor.bundle.about["calibration"]["rows"]))
    return predictor


def _format(input_file: str | None, out: Path | None, *, as_json: bool) -> Format:
    if out is not None:
        if out.suffix not in (".csv", ".jsonl"):
            raise UsageError(f"--out must end in .csv or .jsonl, got {out}")
        if as_json and out.suffix == ".csv":
            raise UsageError(f"--json does not go with --out {out}; choose a .jsonl file")
        return "csv" if out.suffix == ".csv" else "jsonl"
    if as_json:
        return "jsonl"
    if input_file is None:
        return "line"
    from headstart.data.io import suffix_of

    return "csv" if suffix_of(input_file) in (".csv", ".tsv") else "jsonl"


def _check_files(input_file: str | None, out: Path | None) -> None:
    if input_file is None:
        return
    if Path(input_file).is_dir():
        raise UsageError(f"{input_file} is a folder; --input takes one file")
    if out is not None and Path(input_file).resolve() == out.resolve():
        raise UsageError(f"--out {out} is the file of --input, which would be lost; choose another --out")


def _inputs(texts: Sequence[str], input_file: str | None, columns: InputColumns) -> Iterator[InputText]:
    """Return the inputs in order; the first is read at once, so that its errors are reported before a model is loaded."""
    if texts and input_file is not None:
        raise UsageError("predict takes texts or --input, not both")
    if input_file is not None:
        inputs = _from_file(input_file, columns.text, columns.second)
    elif texts:
        inputs = iter(_from_arguments(texts, pair=columns.pair))
    elif not sys.stdin.isatty():
        inputs = _from_stdin(pair=columns.pair)
    else:
        inputs = iter(())
    first = next(inputs, None)
    if first is not None:
        return chain([first], inputs)
    if input_file:
        raise DataError(f"{input_file} holds no texts")
    raise UsageError("predict needs texts: as arguments, on standard input, or --input FILE")


def _from_file(path: str, first: str | None, second: str | None) -> Iterator[InputText]:
    from headstart.data.columns import cell_value, column_named, parse_text, text_column
    from headstart.data.sources import read_rows

    names: list[str] = []
    for row in read_rows(path):
        if not names:
            columns = list(row.values)
            names = [text_column(path, columns, first, "--text-column")]
            names += [] if second is None else [column_named(path, columns, second)]
        texts = [parse_text(cell_value(row.values, name, row.where), row.where) for name in names]
        yield InputText(row.values, texts[0] if second is None else (texts[0], texts[1]))


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


def _from_arguments(texts: Sequence[str], *, pair: bool) -> list[InputText]:
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise DataError(f"text {number}: the text is empty; there is nothing to classify")
    if not pair:
        return [InputText({"text": text}, text) for text in texts]
    if len(texts) % 2:
        raise UsageError(f"this model reads pairs of texts: give two for each answer, got {len(texts)}")
    return [_pair(first, second) for first, second in zip(texts[::2], texts[1::2], strict=True)]


def _predict(
    inputs: Iterator[InputText],
    predictor: "TextPredictor",
    options: OutputOptions,
    counts: PredictionCounts,
    console: Console | None,
) -> Iterator[PredictedText]:
    """Yield every input with its prediction, in order; a row without text has none."""
    with console.task("predicting", None, "texts") if console else nullcontext() as bar:
        while chunk := list(islice(inputs, CHUNK)):
            texts = [item.text for item in chunk if item.readable]
            predictions = predictor.predict(texts, abstain=options.abstain)
            counts.rows += len(chunk)
            counts.empty += len(chunk) - len(texts)
            counts.cut += sum(prediction.truncated for prediction in predictions)
            counts.abstained += sum(prediction.abstained for prediction in predictions)
            remaining = iter(predictions)
            for item in chunk:
                prediction = next(remaining) if item.readable else None
                yield PredictedText(item, prediction, _explain(predictor, item, prediction, options))
            if bar is not None:
                bar.advance(len(chunk))


def _explain(
    predictor: "TextPredictor", item: InputText, prediction: "AnyPrediction | None", options: OutputOptions
) -> "tuple[Explanation, ...]":
    if not options.explain or prediction is None:
        return ()
    from headstart.predict.explain import explain_prediction
    from headstart.predict.predictor import Predictor

    assert isinstance(predictor, Predictor)
    # None is the predicted label, or the value of a regression
    labels: list[str | None] = list(prediction.labels) if prediction.kind == "labels" else [None]
    return tuple(explain_prediction(predictor, item.text, label) for label in labels)


@contextmanager
def _open_output(out: Path | None) -> Iterator[IO[str]]:
    """Yield standard output, or a file that is renamed to `out` once it is complete."""
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
