"""Files of a comparison and of a search: run records, shared data, excerpts of texts and trials. This module needs no torch.

    comparison/
      data.json                              ComparisonData: labels, the three splits, the test labels
      cells/pretrained-all-seed0.json        RunRecord: one arm, one label budget, one seed
      quotes.json                            excerpts: {"format": 2, "texts": {"17": "the first words of test row 17 …"}}
    tuning/
      trials/0000.json                       Trial: the settings tried, and their validation metrics

The recipes write these files and the report reads them; neither imports the other. Excerpts are the only text of the
user's that a comparison folder holds; their rows are counted from 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headstart.errors import StoreError
from headstart.files import FORMAT, read_checksummed, read_json, write_checksummed, write_json, wrong_format_error

DATA = "data.json"
RECORDS = "cells"
EXCERPTS = "quotes.json"
TRIALS = "trials"

Budget = int | Literal["all"]
"""The number of labelled rows that an arm is trained on."""
Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Confusion = tuple[Annotated[tuple[Count, ...], Field(strict=False)], ...]
"""Counts by true label (row) and predicted label (column)."""
Probabilities = Annotated[
    tuple[Probability | Annotated[tuple[Probability, ...], Field(strict=False)], ...], Field(strict=False)
]
"""One entry per text: the probability of the second label if there are two labels, else of every label."""
ARM = r"[a-z][a-z0-9_]*(:[A-Za-z0-9][A-Za-z0-9_.+-]*)?"
"""The name of an arm, with the name of the backbone's folder after the colon if several are compared."""
MAX_EXCERPT = 160
"""Characters of an excerpt."""
_DIGITS = 4
_STEP = 10**-_DIGITS


class _Record(BaseModel):
    """Frozen and strict: unknown fields and conversions such as "0.8" to 0.8 are refused.

    Tuples are declared with `strict=False`, because JSON has only lists.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Epoch(_Record):
    """The metrics of one epoch."""

    epoch: int = Field(ge=1)
    train_loss: float
    valid_loss: float
    valid_accuracy: Probability
    valid_macro_f1: Probability
    seconds: float = Field(ge=0)
    valid_rows: int | None = Field(None, ge=0)
    """The rows that the epoch was evaluated on, if these are a part of the validation rows."""
    test_accuracy: Probability | None = None
    """Only with the course's protocol, which evaluates test after every epoch; nothing is selected by it."""


class Score(_Record):
    """Accuracy, macro-F1 and the confusion matrix."""

    accuracy: Probability
    macro_f1: Probability
    confusion: Confusion | None = Field(None, strict=False)


class RunRecord(_Record):
    """The settings, metrics and predictions of one run: one arm, one label budget, one seed."""

    arm: str = Field(pattern=f"^{ARM}$")
    labels: Budget
    rows: int = Field(ge=1)
    seed: int = Field(ge=0)
    setting: dict[str, Any]
    epochs: tuple[Epoch, ...] = Field(strict=False)
    best_epoch: int | None
    """The epoch selected on validation; None for an arm without epochs."""
    valid: Score
    test: Score
    predictions: tuple[Count, ...] = Field(strict=False)
    """Label indices of the test rows, in file order."""
    seconds: float = Field(ge=0)
    probabilities: Probabilities | None = None
    """The rounded probabilities of the test rows."""
    valid_probabilities: Probabilities | None = None
    """The rounded probabilities of the validation rows, if these are few enough for a small file."""
    temperature: float = Field(1.0, gt=0)
    """The temperature fitted on validation; the probabilities include it."""
    steps: int | None = Field(None, ge=1)
    """The steps that a network was planned for; None for an arm without steps, or where they were not recorded."""
    tried: tuple[dict[str, Any], ...] = Field((), strict=False)
    """Every setting that was tried, with its validation accuracy; empty if there was only one."""
    extra: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        numbers = {epoch.epoch for epoch in self.epochs}
        if (self.best_epoch is None) != (not numbers) or (numbers and self.best_epoch not in numbers):
            raise ValueError(f"best_epoch {self.best_epoch} is none of its {len(self.epochs)} epochs")
        if self.test.confusion is None:
            raise ValueError("test has no confusion")
        self._check_probabilities(len(self.test.confusion))
        return self

    def _check_probabilities(self, num_labels: int) -> None:
        for name in ("probabilities", "valid_probabilities"):
            for row in getattr(self, name) or ():
                probabilities = full_row(row)
                if len(probabilities) != num_labels or abs(sum(probabilities) - 1) > num_labels * _STEP:
                    raise ValueError(f"{name} holds {row}, which does not sum to 1 over {num_labels} labels")
        if self.probabilities is None:
            return
        if len(self.probabilities) != len(self.predictions):
            raise ValueError(f"probabilities are {len(self.probabilities)} for {len(self.predictions)} predictions")
        for prediction, row in zip(self.predictions, self.probabilities, strict=True):
            probabilities = full_row(row)
            if prediction >= num_labels or probabilities[prediction] < max(probabilities) - 2 * _STEP:
                raise ValueError(f"the prediction {prediction} is not the most likely of the probabilities {row}")


class Split(_Record):
    """The train, validation or test file."""

    name: str
    rows: int = Field(ge=0)
    counts: dict[str, Count]
    sha256: str
    gold: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """True label indices in file order, for validation and test."""


class TestSplit(Split):
    """The test file, with its true labels."""

    __test__ = False  # pytest would collect a class of this name

    gold: tuple[Count, ...] = Field(strict=False)
    overlap: tuple[Count, ...] = Field((), strict=False)
    """Rows, from 0, whose text is in train too; the report gives the accuracy with and without them."""
    near: tuple[Count, ...] = Field((), strict=False)
    """Rows that are near-duplicates of a text in train, or contained in a longer one; treated like `overlap`."""
    lengths: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """The number of tokens of each text, in file order."""

    @property
    def leaked(self) -> tuple[int, ...]:
        """The rows that training may have seen."""
        return tuple(sorted({*self.overlap, *self.near}))

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.gold) != self.rows:
            raise ValueError(f"test.gold has {len(self.gold)} labels for {self.rows} rows")
        if self.lengths is not None and len(self.lengths) != self.rows:
            raise ValueError(f"test.lengths has {len(self.lengths)} lengths for {self.rows} rows")
        for name, rows in (("overlap", self.overlap), ("near", self.near)):
            if any(row >= self.rows for row in rows):
                raise ValueError(f"test.{name} names row {max(rows)} of {self.rows}")
        return self


class ComparisonData(_Record):
    """The labels and splits that all runs of a comparison have in common."""

    labels: tuple[str, ...] = Field(strict=False, min_length=1)
    train: Split
    valid: Split
    test: TestSplit
    notes: tuple[str, ...] = Field((), strict=False)

    @model_validator(mode="after")
    def _check_gold(self) -> Self:
        if any(index >= len(self.labels) for index in self.test.gold):
            raise ValueError(f"test.gold has answer {max(self.test.gold)} of {len(self.labels)} labels")
        return self


def arm_type(arm: str) -> str:
    """The type of an arm, without the name of its folder.

    >>> arm_type("pretrained:base"), arm_type("linear")
    ('pretrained', 'linear')
    """
    return arm.partition(":")[0]


def round_probabilities(probabilities: Sequence[Sequence[float]]) -> Probabilities:
    """Round the probabilities of texts for a record.

    >>> round_probabilities([[0.25, 0.75], [0.123456, 0.876544]])
    (0.75, 0.8765)
    >>> round_probabilities([[0.2, 0.3, 0.5]])
    ((0.2, 0.3, 0.5),)
    """
    if all(len(row) == 2 for row in probabilities):
        return tuple(round(float(row[1]), _DIGITS) for row in probabilities)
    return tuple(tuple(round(float(probability), _DIGITS) for probability in row) for row in probabilities)


def full_row(row: float | tuple[float, ...]) -> tuple[float, ...]:
    """The probability of every label, from an entry of `Probabilities`.

    >>> full_row(0.75), full_row((0.2, 0.3, 0.5))
    ((0.25, 0.75), (0.2, 0.3, 0.5))
    """
    return row if isinstance(row, tuple) else (1 - row, row)


def record_path(folder: Path, arm: str, labels: Budget, seed: int) -> Path:
    """The file of a run of the comparison in `folder`."""
    # file names have no colon on Windows
    return folder / RECORDS / f"{arm.replace(':', '@')}-{labels}-seed{seed}.json"


def write_record(folder: Path, record: RunRecord) -> Path:
    """Write the record of a finished run into the comparison in `folder`."""
    path = record_path(folder, record.arm, record.labels, record.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    # exactly the optional fields have defaults
    write_checksummed(path, {"format": FORMAT} | record.model_dump(mode="json", exclude_defaults=True))
    return path


def read_record(path: Path) -> RunRecord:
    """Read the record of a finished run; a damaged file, or one under another run's name, raises StoreError."""
    record = _read_versioned(path, RunRecord, "run the comparison again")
    expected = record_path(path.parent.parent, record.arm, record.labels, record.seed).name
    if path.name != expected:
        raise StoreError(f"{path} is damaged: it contains the run that belongs in {expected}")
    return record


def write_comparison_data(folder: Path, data: ComparisonData) -> None:
    """Write the data that all runs of a comparison have in common."""
    folder.mkdir(parents=True, exist_ok=True)
    write_checksummed(folder / DATA, {"format": FORMAT} | data.model_dump(mode="json", exclude_none=True))


def read_comparison_data(folder: Path) -> ComparisonData:
    """Read the data that all runs of a comparison have in common."""
    return _read_versioned(folder / DATA, ComparisonData, "run the comparison again")


R = TypeVar("R", bound=_Record)


def _read_versioned(path: Path, record_class: type[R], way_out: str, remedy: str = "") -> R:
    """Read a checksummed record of the current format.

    Args:
        way_out: the remedy for a file of another format.
        remedy: the remedy for a damaged file.
    """
    content = read_checksummed(path)
    version = content.pop("format", None)
    if version != FORMAT:
        raise StoreError(f"{path} {wrong_format_error(version, way_out)}")
    try:
        return record_class.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(key) for key in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        raise StoreError(f"{path} is damaged: {field + ': ' if field else ''}{message}{remedy}") from None


def shortened(text: str, max_length: int = MAX_EXCERPT) -> str:
    """Put a text on one line without control characters, and cut it between words if it is too long.

    >>> shortened("one  two\\nthree\\x1b[0m four", max_length=14)
    'one two …'
    """
    line = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(line.split())
    if len(line) <= max_length:
        return line
    cut = line[: max_length - 1]
    at_word_end = cut.rpartition(" ")[0]
    # in a language without spaces the text is cut within a word
    return f"{at_word_end} …" if len(at_word_end) > max_length // 3 else f"{cut}…"


def write_excerpts(folder: Path, texts: Mapping[int, str]) -> None:
    """Write excerpts of test rows."""
    excerpts = {str(row): shortened(text) for row, text in sorted(texts.items())}
    write_json(folder / EXCERPTS, {"format": FORMAT, "texts": excerpts})


def read_excerpts(folder: Path) -> dict[int, str]:
    """Read the excerpts by test row; empty if the comparison has none."""
    path = folder / EXCERPTS
    if not path.is_file():
        return {}
    content = read_json(path)
    texts = content.get("texts") if isinstance(content, dict) else None
    rows = texts.items() if isinstance(texts, dict) else ()
    if not isinstance(texts, dict) or not all(_is_row(row) and isinstance(text, str) for row, text in rows):
        raise StoreError(f"{path} is damaged: it does not list texts by row")
    return {int(row): text for row, text in texts.items()}


def _is_row(name: str) -> bool:
    return name.isdecimal() and len(name) < 20  # int() refuses thousands of digits


class Trial(_Record):
    """The validation metrics of one trial of a search."""

    trial: int = Field(ge=0)
    settings: dict[str, float | int | str]
    """The searched settings by dotted name."""
    state: Literal["done", "stopped", "failed"]
    """stopped: pruned at half of the epochs; failed: its loss was not finite."""
    accuracy: float = Field(ge=0, le=1)
    loss: float
    macro_f1: float = Field(ge=0, le=1)
    """Metrics of the best epoch, or of the last epoch of a stopped trial."""
    epochs: int = Field(ge=0)
    """The number of epochs that were run."""
    half: tuple[float, float] | None = Field(None, strict=False)
    """Accuracy and loss half-way."""
    seconds: float = Field(ge=0)

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """A sort key, larger is better: finished before stopped, accuracy, lower loss, earlier trial."""
        return self.state == "done", self.accuracy, -self.loss, -self.trial


def trial_path(folder: Path, number: int) -> Path:
    """The file of a trial."""
    return folder / TRIALS / f"{number:04d}.json"


def write_trial(folder: Path, trial: Trial) -> None:
    """Write a finished trial."""
    path = trial_path(folder, trial.trial)
    path.parent.mkdir(exist_ok=True)
    write_checksummed(path, {"format": FORMAT, **trial.model_dump(mode="json")})


def read_trials(folder: Path) -> list[Trial]:
    """Read the finished trials in order; a damaged one raises StoreError."""
    return [_read_trial_file(path) for path in sorted((folder / TRIALS).glob("[0-9]*.json"))]


def read_trial(folder: Path, number: int) -> Trial:
    """Read one finished trial."""
    return _read_trial_file(trial_path(folder, number))


def best_trial(trials: Iterable[Trial]) -> Trial:
    """The trial with the best validation metrics."""
    return max(trials, key=lambda trial: trial.rank)


def _read_trial_file(path: Path) -> Trial:
    trial = _read_versioned(
        path, Trial, "run the search again", remedy="; delete it and use --resume to repeat the trial"
    )
    if path.name != f"{trial.trial:04d}.json":
        raise StoreError(f"{path} is damaged: it contains trial {trial.trial}")
    return trial
