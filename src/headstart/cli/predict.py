"""`headstart predict`: predict labels of texts from arguments, standard input or a file.

Files are read, predicted and written in windows of rows, so memory use does not depend on their size. The output of a file
is resumable (`partial_output`). Every output file is written under a temporary name and renamed when it is complete.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import (
    RUNTIME_OPTIONS,
    AsJson,
    ConfigFile,
    Encoding,
    Flags,
    InferenceSettings,
    Model,
    Options,
    Quiet,
)
from headstart.cli.partial_output import PartialOutput, PredictionSource
from headstart.cli.prediction_output import (
    InputText,
    OutputOptions,
    PredictedText,
    PredictionCounts,
    RowFormat,
    has_colour,
    write_lines,
)
from headstart.cli.text_input import InputColumns, output_dialect
from headstart.config.schema import RuntimeConfig
from headstart.errors import DataError, StoreError, UsageError
from headstart.files import os_error_reason
from headstart.runtime import resolve_threads

if TYPE_CHECKING:
    from headstart.predict.bundle_predictor import AnyPredictor
    from headstart.predict.explain import Explanation
    from headstart.predict.numpy_predictor import NumpyPredictor
    from headstart.predict.outputs import AnyPrediction, TextPredictor

OPTIONS = Options(InferenceSettings, names=RUNTIME_OPTIONS)
WINDOW_ROWS = 1000
"""Maximum number of rows per window."""
WINDOW_CHARACTERS = 16 * 1024 * 1024
"""A window ends early once its texts have this many characters in total."""
Format = Literal["line", "csv", "jsonl"]
Abstain = Annotated[
    float | None,
    Parameter(
        metavar="FLOAT",
        help="Required precision, such as 0.95; predictions below it are withheld.",
    ),
]
InputFile = Annotated[
    str | None, Parameter(name="--input", metavar="FILE", help="File of texts: csv, tsv, jsonl, txt or parquet.")
]
OutputFile = Annotated[
    Path | None, Parameter(metavar="FILE", help="Output file, .csv or .jsonl. By default, standard output.")
]
TextColumn = Annotated[
    str | None,
    Parameter(metavar="TEXT", help="Column or key of the text. By default, that of training or a common name."),
]
SecondColumn = Annotated[
    str | None,
    Parameter(metavar="TEXT", help="Second text column, for models of text pairs. By default, that of training."),
]
LabelColumn = Annotated[
    str | None,
    Parameter(metavar="TEXT", help="Column of existing labels. By default, that of training."),
]
OnlyUnlabelled = Annotated[
    bool,
    Parameter(negative=(), show_default=False, help="Predict only rows without a label; copy the others."),
]

ResumeOutput = Annotated[
    bool,
    Parameter(
        negative=(),
        show_default=False,
        help="Continue an interrupted --out where it ended.",
    ),
]
Explain = Annotated[
    bool, Parameter(negative=(), show_default=False, help="Show how much each word contributed to the prediction.")
]
Int8 = Annotated[bool, Parameter(negative=(), show_default=False, help="Use the int8 weights of an ONNX export.")]


@OPTIONS.on
def predict(
    model: Model,
    /,
    *texts: Annotated[str, Parameter(name="TEXTS", help="Texts to classify. By default, the lines of standard input.")],
    input_file: InputFile = None,
    out: OutputFile = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_column: LabelColumn = None,
    only_unlabelled: OnlyUnlabelled = False,
    encoding: Encoding = None,
    abstain: Abstain = None,
    explain: Explain = False,
    int8: Int8 = False,
    resume: ResumeOutput = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Predict labels and probabilities of texts."""
    settings, output_format = OPTIONS.settings(flags, path=config), _format(input_file, out, as_json=as_json)
    if explain and output_format == "csv":
        raise UsageError("--explain cannot be written as csv; add --json, or choose a .jsonl file for --out")
    _check_files(input_file, out, resume=resume)
    columns = InputColumns.of(model, input_file, text_column, second_column, label_column, encoding)
    counts, options = PredictionCounts(), OutputOptions(abstain, explain, only_unlabelled)
    first, inputs = _inputs(texts, input_file, columns, counts, options)
    dialect = output_dialect(input_file, out, columns.encoding) if output_format == "csv" else None
    console, runtime = Console(quiet=quiet), settings.runtime
    partial, progress = None, _Progress(console if out is not None or not sys.stdout.isatty() else None)
    if _is_resumable(input_file, out):
        assert input_file is not None
        assert out is not None
        partial = _begin_output(out, input_file, model, columns, options, runtime, int8=int8, resume=resume)
        counts.restore(partial.counts)
        runtime = runtime.model_copy(update={"threads": partial.threads})
        progress = _Progress(console, _count_rows(input_file, columns, console), partial.rows)
    predictor = _load_predictor(model, texts, options, runtime, console, int8=int8)
    if input_file is not None:
        _warn_of_poor_model(model, predictor, console)
    windows = _predict(islice(inputs, progress.done, None), predictor, options, counts, progress)
    if output_format == "line":
        single = len(texts) == (2 if columns.pair else 1)
        for window in windows:
            write_lines(window, sys.stdout, predictor.task, options, single=single, colour=has_colour())
    else:
        row_format = RowFormat(output_format, predictor.task, options, list(first.values), columns.separator, dialect)
        _write(windows, row_format, out, partial, counts, console)
    for remark in counts.remarks(out, options):
        console.say(remark)


def _is_resumable(input_file: str | None, out: Path | None) -> bool:
    """Return True if the output can be resumed: the input is a file, which can be read again, and not a URL."""
    from headstart.data.io import is_url

    return out is not None and input_file is not None and not is_url(input_file)


def _begin_output(
    out: Path,
    input_file: str,
    model: Path,
    columns: InputColumns,
    options: OutputOptions,
    runtime: RuntimeConfig,
    *,
    int8: bool,
    resume: bool,
) -> PartialOutput:
    """Begin or continue the output of a file; a resumed run must have the same input, model and options."""
    values = {
        "--text-column": columns.text,
        "--second-column": columns.second,
        "--label-column": columns.label,
        "--encoding": columns.encoding.name,
        "--abstain": options.abstain,
        "--explain": options.explain,
        "--only-unlabelled": options.only_unlabelled,
        "--int8": int8,
        "--runtime.device": runtime.device,
        "--runtime.precision": runtime.precision,
        "rows per window": WINDOW_ROWS,
    }
    source = PredictionSource.of(input_file, model, values)
    return PartialOutput.begin(out, source, resolve_threads(runtime), resume=resume)


def _count_rows(path: str, columns: InputColumns, console: Console) -> int:
    """Count the rows of a file, which is fast compared with predicting them; a malformed row is reported before that."""
    from headstart.data.sources import read_rows

    with console.task("counting rows", None, "rows") as task:
        rows = 0
        for _ in read_rows(path, encoding=columns.encoding):
            rows += 1
            if rows % WINDOW_ROWS == 0:
                task.advance(WINDOW_ROWS)
    return rows


def _write(
    windows: Iterator[list[PredictedText]],
    row_format: RowFormat,
    out: Path | None,
    partial: PartialOutput | None,
    counts: PredictionCounts,
    console: Console,
) -> None:
    """Write each window of rows to standard output, or to a file that is renamed when it is complete."""
    if partial is None:
        with _open_output(out) as file:
            for number, window in enumerate(windows):
                row_format.write(window, file, at_start=number == 0)
        return
    complete = False
    try:
        for window in windows:
            text = io.StringIO()
            row_format.write(window, text, at_start=partial.rows == 0)
            partial.write(text.getvalue(), len(window), counts.numbers)
        partial.finish()
        complete = True
    finally:
        if not complete and partial.rows:
            console.say(
                f"saved {partial.rows:,} rows to {partial.partial}; run the same command with --resume to continue"
            )


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
        or _bundle_predictor(model, options, runtime, console)
    )


def _onnx_predictor(
    model: Path, options: OutputOptions, runtime: RuntimeConfig, console: Console, *, int8: bool
) -> "TextPredictor | None":
    """Load a folder that was exported for onnxruntime; None if it is not one."""
    if not (model / "model.onnx").is_file():
        if int8:
            raise UsageError(
                f"--int8 needs an ONNX export, got {model}; "
                f"create one with: headstart export {model} --to onnx --out FOLDER"
            )
        return None
    from headstart.predict.onnx_predictor import OnnxPredictor, is_onnx_export

    if not is_onnx_export(model):
        return None
    if options.explain or options.abstain is not None:
        option = "--explain" if options.explain else "--abstain"
        raise UsageError(f"{option} does not support ONNX exports, got {model}; use the model that was exported")
    predictor = OnnxPredictor(model, int8=int8, threads=runtime.threads)
    if predictor.agreement:
        console.say(predictor.agreement)
    return predictor


def _numpy_predictor(
    model: Path, texts: Sequence[str], options: OutputOptions, runtime: RuntimeConfig
) -> "NumpyPredictor | None":
    """Load a predictor that does not import torch, for texts on the command line; None if it does not support them."""
    if not texts or options.explain or options.abstain is not None:
        return None
    if runtime.device not in ("auto", "cpu") or runtime.precision == "bf16":
        return None
    from headstart.predict.numpy_predictor import NumpyPredictor

    return NumpyPredictor.load(model, texts)


def _bundle_predictor(model: Path, options: OutputOptions, runtime: RuntimeConfig, console: Console) -> "AnyPredictor":
    """Load a bundle of any kind; only those with a network need torch."""
    from headstart.predict.bundle_predictor import describe_threshold, load_predictor, threshold_for

    predictor = load_predictor(model, runtime)
    if options.abstain is not None:
        threshold = threshold_for(predictor.bundle, options.abstain)
        console.say(describe_threshold(threshold, predictor.bundle.about["calibration"]["rows"]))
    return predictor


def _warn_of_poor_model(model: Path, predictor: "TextPredictor", console: Console) -> None:
    """Print the recorded quality of a model if it is poor: no better than a constant prediction, or worse than linear."""
    from headstart.predict.bundle_predictor import BundlePredictor
    from headstart.recipes.quality import recorded_quality

    quality = recorded_quality(predictor.bundle.about) if isinstance(predictor, BundlePredictor) else None
    if quality is not None and quality.grade == "poor":
        console.say(f"when {model} was trained: {quality.sentence}")


def _format(input_file: str | None, out: Path | None, *, as_json: bool) -> Format:
    if out is not None:
        if out.suffix not in (".csv", ".jsonl"):
            raise UsageError(f"--out must end in .csv or .jsonl, got {out}")
        if as_json and out.suffix == ".csv":
            raise UsageError(f"--json cannot be used with --out {out}; choose a .jsonl file")
        return "csv" if out.suffix == ".csv" else "jsonl"
    if as_json:
        return "jsonl"
    if input_file is None:
        return "line"
    from headstart.data.io import suffix_of

    return "csv" if suffix_of(input_file) in (".csv", ".tsv") else "jsonl"


def _check_files(input_file: str | None, out: Path | None, *, resume: bool) -> None:
    if resume and not _is_resumable(input_file, out):
        raise UsageError("--resume needs both --input FILE and --out FILE")
    if input_file is None:
        return
    if Path(input_file).is_dir():
        raise UsageError(f"--input must be a file, got the folder {input_file}")
    if (
        Path(input_file).exists() and not Path(input_file).is_file()
    ):  # opening a named pipe without a writer would block
        raise UsageError(f"--input must be a regular file, got {input_file}")
    if out is not None and Path(input_file).resolve() == out.resolve():
        raise UsageError(f"--out {out} would overwrite the file of --input; choose another --out")


def _inputs(
    texts: Sequence[str],
    input_file: str | None,
    columns: InputColumns,
    counts: PredictionCounts,
    options: OutputOptions,
) -> tuple[InputText, Iterator[InputText]]:
    """Return the first input, and all in order; the first is read before a model is loaded, to report its errors."""
    if texts and input_file is not None:
        raise UsageError("predict accepts texts or --input, not both")
    if options.only_unlabelled and input_file is None:
        raise UsageError("--only-unlabelled needs --input FILE")
    if input_file is not None:
        inputs = _from_file(input_file, columns, counts, options)
    elif texts:
        inputs = iter(_from_arguments(texts, pair=columns.pair))
    elif not sys.stdin.isatty():
        inputs = _from_stdin(columns)
    else:
        inputs = iter(())
    first = next(inputs, None)
    if first is not None:
        return first, chain([first], inputs)
    if input_file:
        raise DataError(f"{input_file} contains no texts")
    raise UsageError("predict needs texts: as arguments, on standard input, or --input FILE")


def _from_file(
    path: str, input_columns: InputColumns, counts: PredictionCounts, options: OutputOptions
) -> Iterator[InputText]:
    from headstart.data.columns import cell_value, is_empty_cell, parse_text
    from headstart.data.sources import read_rows

    names: list[str] = []
    label: str | None = None
    for row in read_rows(path, encoding=input_columns.encoding):
        if not names:
            columns = list(row.values)
            names = input_columns.text_columns(path, columns)
            label = counts.label_column = input_columns.label_column(path, columns, names)
            if label is None and options.only_unlabelled:
                raise DataError(f"{path} has no label column for --only-unlabelled; name it with --label-column")
        texts = [parse_text(cell_value(row.values, name, row.where), row.where) for name in names]
        has_label = label is not None and not is_empty_cell(row.values.get(label))
        yield InputText(row.values, texts[0] if len(texts) == 1 else (texts[0], texts[1]), has_label)


def _from_stdin(columns: InputColumns) -> Iterator[InputText]:
    from headstart.data.io import read_lines, transcoded

    name = "standard input"
    file = transcoded(name, sys.stdin.buffer, columns.encoding)  # type: ignore[arg-type]
    for number, line in enumerate(read_lines(name, file, columns.encoding), start=1):
        text = line.rstrip("\r\n")
        if not columns.pair:
            yield InputText({"text": text}, text)
            continue
        first, tab, second = text.partition("\t")
        if not tab:
            raise DataError(
                f"{name}, line {number}: got one text, but this model expects two texts, separated by a tab"
            )
        yield _pair(first, second)


def _pair(first: str, second: str) -> InputText:
    return InputText({"text": first, "second": second}, (first, second))


def _from_arguments(texts: Sequence[str], *, pair: bool) -> list[InputText]:
    if not any(text.strip() for text in texts):
        raise DataError(f"{'the text is' if len(texts) == 1 else 'all texts are'} empty; there is nothing to classify")
    if not pair:
        return [InputText({"text": text}, text) for text in texts]
    if len(texts) % 2:
        raise UsageError(f"this model expects pairs of texts, so an even number of texts, got {len(texts)}")
    return [_pair(first, second) for first, second in zip(texts[::2], texts[1::2], strict=True)]


@dataclass(frozen=True)
class _Progress:
    """The console that shows progress, the number of rows, and how many of them an earlier process finished."""

    console: Console | None
    total: int | None = None
    done: int = 0


def _windows(inputs: Iterator[InputText]) -> Iterator[list[InputText]]:
    """Yield the inputs in windows of `WINDOW_ROWS` rows, or fewer if their texts are long, to bound memory use."""
    window: list[InputText] = []
    characters = 0
    for item in inputs:
        window.append(item)
        characters += sum(map(len, item.texts))
        if len(window) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _predict(
    inputs: Iterator[InputText],
    predictor: "TextPredictor",
    options: OutputOptions,
    counts: PredictionCounts,
    progress: _Progress,
) -> Iterator[list[PredictedText]]:
    """Yield windows of inputs with their predictions; an empty row, or one that keeps its label, has no prediction."""
    console = progress.console
    with console.task("predicting", progress.total, "texts") if console else nullcontext() as bar:
        if bar is not None and progress.done:
            bar.advance(progress.done)
        for window in _windows(inputs):
            texts = [item.text for item in window if options.is_predicted(item)]
            predictions = iter(predictor.predict(texts, abstain=options.abstain))
            predicted = []
            for item in window:
                prediction = next(predictions) if options.is_predicted(item) else None
                predicted.append(PredictedText(item, prediction, _explain(predictor, item, prediction, options)))
            counts.add(predicted)
            yield predicted
            if bar is not None:
                bar.advance(len(window))


def _explain(
    predictor: "TextPredictor", item: InputText, prediction: "AnyPrediction | None", options: OutputOptions
) -> "tuple[Explanation, ...]":
    if not options.explain or prediction is None:
        return ()
    from headstart.predict.bundle_predictor import BundlePredictor
    from headstart.predict.explain import explain_prediction

    assert isinstance(predictor, BundlePredictor)
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
