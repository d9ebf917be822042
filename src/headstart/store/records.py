"""Runs of a comparison, trials of a search and excerpts of texts, as files.

One small file a finished run of a comparison, and one file on the data they share. No torch.

    comparison/
      data.json                              Data: labels, the three splits, the right answers of test
      cells/pretrained-all-seed0.json        Cell: one arm, one number of labels, one seed

The recipe that runs the arms writes them, the report reads them, and neither knows the other.

The few test texts that a report may quote, shortened: all of a person's text that a comparison folder ever holds. No torch.

quotes.json: `{"format": 1, "texts": {"17": "the first words of test row 17 …"}}`, rows counted from 0

One small file a finished trial of a search for settings: sealed, so that none is run twice. No torch.

tuning/
  trials/0000.json        Trial: what was set, and what validation said
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headstart.errors import StoreError
from headstart.files import FORMAT, read_checksummed, read_json, write_checksummed, write_json, wrong_format_error

DATA = "data.json"
RECORDS = "cells"

Budget = int | Literal["all"]
"""How many labelled rows an arm may learn from."""
Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Confusion = tuple[Annotated[tuple[Count, ...], Field(strict=False)], ...]
"""Counts by true label (row) and predicted label (column)."""
Probabilities = Annotated[
    tuple[Probability | Annotated[tuple[Probability, ...], Field(strict=False)], ...], Field(strict=False)
]
"""Probabilities of some texts: of the second label where there are two, else of every label."""
ARM = r"[a-z][a-z0-9_]*(:[A-Za-z0-9][A-Za-z0-9_.+-]*)?"
"""An arm's name; behind the colon the folder, where several are compared."""
_DIGITS = 4
_STEP = 10**-_DIGITS


class _Record(BaseModel):
    """Frozen, closed to names it does not know, and without conversions: "0.8" is not 0.8.

    Tuples alone say `strict=False`, because JSON has lists only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Epoch(_Record):
    """What one pass over the labelled rows left behind."""

    epoch: int = Field(ge=1)
    train_loss: float
    valid_loss: float
    valid_accuracy: Probability
    valid_macro_f1: Probability
    seconds: float = Field(ge=0)
    test_accuracy: Probability | None = None
    """Only under the course's protocol, which looks at test after every epoch; nothing is chosen by it."""


class Score(_Record):
    """How many answers were right, by two measures."""

    accuracy: Probability
    macro_f1: Probability
    confusion: Confusion | None = Field(None, strict=False)


class RunRecord(_Record):
    """One arm, one number of labels, one seed: what it was set to, how it went, what it answered."""

    arm: str = Field(pattern=f"^{ARM}$")
    labels: Budget
    rows: int = Field(ge=1)
    seed: int = Field(ge=0)
    setting: dict[str, Any]
    epochs: tuple[Epoch, ...] = Field(strict=False)
    best_epoch: int | None
    """The epoch that validation chose; None for an arm that has no epochs."""
    valid: Score
    test: Score
    predictions: tuple[Count, ...] = Field(strict=False)
    """Label indices of the test rows, in file order."""
    seconds: float = Field(ge=0)
    probabilities: Probabilities | None = None
    """What stands behind `predictions`, rounded."""
    valid_probabilities: Probabilities | None = None
    """The same for the validation rows, where they are few enough for a small file."""
    temperature: float = Field(1.0, gt=0)
    """By what the scores were divided, fitted on validation; it is in the probabilities already."""
    tried: tuple[dict[str, Any], ...] = Field((), strict=False)
    """Every setting that validation chose from, with its accuracy there; empty where there was one."""
    extra: dict[str, Any] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        numbers = {epoch.epoch for epoch in self.epochs}
        if (self.best_epoch is None) != (not numbers) or (numbers and self.best_epoch not in numbers):
            raise ValueError(f"best_epoch {self.best_epoch} is none of its {len(self.epochs)} epochs")
        if self.test.confusion is None:
            raise ValueError("test has no confusion")
        self._check_probabilities(len(self.test.confusion))
        return self

    def _check_probabilities(self, labels: int) -> None:
        for name in ("probabilities", "valid_probabilities"):
            for row in getattr(self, name) or ():
                shares = full_row(row)
                if len(shares) != labels or abs(sum(shares) - 1) > labels * _STEP:
                    raise ValueError(f"{name} holds {row}, which does not share 1 among {labels} labels")
        if self.probabilities is None:
            return
        if len(self.probabilities) != len(self.predictions):
            found = f"{len(self.probabilities)} for {len(self.predictions)} predictions"
            raise ValueError(f"probabilities are {found}")
        for answer, row in zip(self.predictions, self.probabilities, strict=True):
            shares = full_row(row)
            if answer >= labels or shares[answer] < max(shares) - 2 * _STEP:
                raise ValueError(f"the prediction {answer} is not the likeliest of probabilities {row}")


class Split(_Record):
    """One of the three files of labelled text."""

    name: str
    rows: int = Field(ge=0)
    counts: dict[str, Count]
    sha256: str
    gold: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """The right answers in file order; kept for validation and test."""


class TestSplit(Split):
    """The file that is read once: with its right answers."""

    __test__ = False  # a name that pytest would take for a test

    gold: tuple[Count, ...] = Field(strict=False)
    overlap: tuple[Count, ...] = Field((), strict=False)
    """Rows whose text also stands in train, counted from 0; the report gives the accuracy with and without them."""
    near: tuple[Count, ...] = Field((), strict=False)
    """Rows whose text almost stands in train: words changed, or part of a longer text; treated like the others."""
    lengths: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """Tokens of each text, in file order."""

    @property
    def leaked(self) -> tuple[int, ...]:
        """The rows that training may have seen the answers of."""
        return tuple(sorted({*self.overlap, *self.near}))

    @model_validator(mode="after")
    def _as_long_as_it_says(self) -> Self:
        if len(self.gold) != self.rows:
            raise ValueError(f"test.gold has {len(self.gold)} answers for {self.rows} rows")
        if self.lengths is not None and len(self.lengths) != self.rows:
            raise ValueError(f"test.lengths has {len(self.lengths)} lengths for {self.rows} rows")
        for name, rows in (("overlap", self.overlap), ("near", self.near)):
            if any(row >= self.rows for row in rows):
                raise ValueError(f"test.{name} names row {max(rows)} of {self.rows}")
        return self


class ComparisonData(_Record):
    """What every cell of a comparison has in common."""

    labels: tuple[str, ...] = Field(strict=False, min_length=1)
    train: Split
    valid: Split
    test: TestSplit
    notes: tuple[str, ...] = Field((), strict=False)

    @model_validator(mode="after")
    def _gold_is_a_label(self) -> Self:
        if any(answer >= len(self.labels) for answer in self.test.gold):
            raise ValueError(f"test.gold has answer {max(self.test.gold)} of {len(self.labels)} labels")
        return self


def arm_type(arm: str) -> str:
    """What an arm is, without the name of its folder.

    >>> arm_type("pretrained:base"), arm_type("tfidf")
    ('pretrained', 'tfidf')
    """
    return arm.partition(":")[0]


def round_probabilities(shares: Sequence[Sequence[float]]) -> Probabilities:
    """Probabilities as a cell keeps them.

    >>> round_probabilities([[0.25, 0.75], [0.123456, 0.876544]])
    (0.75, 0.8765)
    >>> round_probabilities([[0.2, 0.3, 0.5]])
    ((0.2, 0.3, 0.5),)
    """
    if all(len(row) == 2 for row in shares):
        return tuple(round(float(row[1]), _DIGITS) for row in shares)
    return tuple(tuple(round(float(share), _DIGITS) for share in row) for row in shares)


def full_row(row: float | tuple[float, ...]) -> tuple[float, ...]:
    """The probability of every label, of a row of `Shares`.

    >>> full_row(0.75), full_row((0.2, 0.3, 0.5))
    ((0.25, 0.75), (0.2, 0.3, 0.5))
    """
    return row if isinstance(row, tuple) else (1 - row, row)


def record_path(folder: Path, arm: str, labels: Budget, seed: int) -> Path:
    """Where a cell of the comparison in `folder` stands."""
    return folder / RECORDS / f"{arm.replace(':', '@')}-{labels}-seed{seed}.json"  # no file has a colon on Windows


def write_record(folder: Path, cell: RunRecord) -> Path:
    """Write a finished run into the comparison in `folder`, whole or not at all."""
    path = record_path(folder, cell.arm, cell.labels, cell.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    # the optional fields are those with defaults: they are written only where they say something
    write_checksummed(path, {"format": FORMAT} | cell.model_dump(mode="json", exclude_defaults=True))
    return path


def read_record(path: Path) -> RunRecord:
    """Read a finished run; a damaged file, or one under another run's name, is refused."""
    cell = _read_record(path, RunRecord)
    expected = record_path(path.parent.parent, cell.arm, cell.labels, cell.seed).name
    if path.name != expected:
        raise StoreError(f"{path} is damaged: it holds the run that belongs in {expected}")
    return cell


def write_comparison_data(folder: Path, data: ComparisonData) -> None:
    """Write what the cells of a comparison have in common."""
    folder.mkdir(parents=True, exist_ok=True)
    write_checksummed(folder / DATA, {"format": FORMAT} | data.model_dump(mode="json", exclude_none=True))


def read_comparison_data(folder: Path) -> ComparisonData:
    """Read what the cells of a comparison have in common."""
    return _read_record(folder / DATA, ComparisonData)


R = TypeVar("R", bound=_Record)


def _read_record(path: Path, kind: type[R]) -> R:
    content = read_checksummed(path)
    found = content.pop("format", None)
    if found != FORMAT:
        raise StoreError(f"{path} {wrong_format_error(found, 'compare anew')}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        words = fault["msg"].removeprefix("Value error, ")
        raise StoreError(f"{path} is damaged: {place + ': ' if place else ''}{words}") from None


EXCERPTS = "quotes.json"
MAX_EXCERPT = 160
"""Characters of a quotation."""


def shortened(text: str, longest: int = MAX_EXCERPT) -> str:
    """A text in one line, cut between words where it is too long; what steers a terminal or a page is left out.

    >>> shortened("one  two\\nthree\\x1b[0m four", longest=14)
    'one two …'
    """
    line = "".join(mark if mark.isprintable() else " " for mark in text)
    line = " ".join(line.split())
    if len(line) <= longest:
        return line
    cut = line[: longest - 1]
    between = cut.rpartition(" ")[0]
    # a language without spaces is cut where it stands
    return f"{between} …" if len(between) > longest // 3 else f"{cut}…"


def write_excerpts(folder: Path, texts: Mapping[int, str]) -> None:
    """Keep the beginnings of these test rows, and of no others."""
    kept = {str(row): shortened(text) for row, text in sorted(texts.items())}
    write_json(folder / EXCERPTS, {"format": FORMAT, "texts": kept})


def read_excerpts(folder: Path) -> dict[int, str]:
    """The texts that may be quoted, by test row; none where none were kept."""
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
    return name.isdecimal() and len(name) < 20  # Python reads no number of thousands of digits


TRIALS = "trials"


class Trial(BaseModel):
    """What one setting came to on validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    trial: int = Field(ge=0)
    settings: dict[str, float | int | str]
    """What was searched, by dotted name."""
    state: Literal["done", "stopped", "failed"]
    """stopped: given up half-way, where it was behind the others; failed: its loss was not finite."""
    accuracy: float = Field(ge=0, le=1)
    loss: float
    macro_f1: float = Field(ge=0, le=1)
    """Of the epoch that is kept; of a stopped one, of its last."""
    epochs: int = Field(ge=0)
    """That were run."""
    half: tuple[float, float] | None = Field(None, strict=False)
    """Accuracy and loss half-way."""
    seconds: float = Field(ge=0)

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """What is better comes later: finished before stopped, accuracy, the lower loss among equals, the earlier trial."""
        return self.state == "done", self.accuracy, -self.loss, -self.trial


def trial_path(folder: Path, number: int) -> Path:
    """Where trial `number` is kept."""
    return folder / TRIALS / f"{number:04d}.json"


def write_trial(folder: Path, trial: Trial) -> None:
    """Write a trial whole."""
    path = trial_path(folder, trial.trial)
    path.parent.mkdir(exist_ok=True)
    write_checksummed(path, {"format": FORMAT, **trial.model_dump(mode="json")})


def read_trials(folder: Path) -> list[Trial]:
    """The finished trials, in order; a damaged one is named and refused."""
    return [_read_trial_file(path) for path in sorted((folder / TRIALS).glob("[0-9]*.json"))]


def read_trial(folder: Path, number: int) -> Trial:
    """One finished trial."""
    return _read_trial_file(trial_path(folder, number))


def best_trial(trials: Iterable[Trial]) -> Trial:
    """The trial that validation likes best."""
    return max(trials, key=lambda trial: trial.rank)


def _read_trial_file(path: Path) -> Trial:
    content = read_checksummed(path)
    found = content.pop("format", None)
    if found != FORMAT:
        raise StoreError(f"{path} {wrong_format_error(found, 'search again')}")
    content.pop("seal", None)
    try:
        trial = Trial.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise StoreError(
            f"{path} is damaged: {place}: {fault['msg']}; take it away, and --resume runs it again"
        ) from None
    if path.name != f"{trial.trial:04d}.json":
        raise StoreError(f"{path} is damaged: it holds trial {trial.trial}")
    return trial
