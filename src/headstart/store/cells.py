"""One small file a finished run of a comparison, and one file on the data they share. No torch.

    comparison/
      data.json                              Data: labels, the three splits, the right answers of test
      cells/pretrained-all-seed0.json        Cell: one arm, one number of labels, one seed

The recipe that runs the arms writes them, the report reads them, and neither knows the other.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headstart.errors import StoreError
from headstart.files import FORMAT, other_format, read_sealed, write_sealed

DATA = "data.json"
CELLS = "cells"

Budget = int | Literal["all"]
"""How many labelled rows an arm may learn from."""
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Confusion = tuple[Annotated[tuple[Count, ...], Field(strict=False)], ...]
"""Counts by true label (row) and predicted label (column)."""
Shares = Annotated[tuple[Share | Annotated[tuple[Share, ...], Field(strict=False)], ...], Field(strict=False)]
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
    valid_accuracy: Share
    valid_macro_f1: Share
    seconds: float = Field(ge=0)
    test_accuracy: Share | None = None
    """Only under the course's protocol, which looks at test after every epoch; nothing is chosen by it."""


class Score(_Record):
    """How many answers were right, by two measures."""

    accuracy: Share
    macro_f1: Share
    confusion: Confusion | None = Field(None, strict=False)


class Cell(_Record):
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
    probabilities: Shares | None = None
    """What stands behind `predictions`, rounded."""
    valid_probabilities: Shares | None = None
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
                shares = full(row)
                if len(shares) != labels or abs(sum(shares) - 1) > labels * _STEP:
                    raise ValueError(f"{name} holds {row}, which does not share 1 among {labels} labels")
        if self.probabilities is None:
            return
        if len(self.probabilities) != len(self.predictions):
            found = f"{len(self.probabilities)} for {len(self.predictions)} predictions"
            raise ValueError(f"probabilities are {found}")
        for answer, row in zip(self.predictions, self.probabilities, strict=True):
            shares = full(row)
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


class Data(_Record):
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


def kind_of(arm: str) -> str:
    """What an arm is, without the name of its folder.

    >>> kind_of("pretrained:base"), kind_of("tfidf")
    ('pretrained', 'tfidf')
    """
    return arm.partition(":")[0]


def rounded(shares: Sequence[Sequence[float]]) -> Shares:
    """Probabilities as a cell keeps them.

    >>> rounded([[0.25, 0.75], [0.123456, 0.876544]])
    (0.75, 0.8765)
    >>> rounded([[0.2, 0.3, 0.5]])
    ((0.2, 0.3, 0.5),)
    """
    if all(len(row) == 2 for row in shares):
        return tuple(round(float(row[1]), _DIGITS) for row in shares)
    return tuple(tuple(round(float(share), _DIGITS) for share in row) for row in shares)


def full(row: float | tuple[float, ...]) -> tuple[float, ...]:
    """The probability of every label, of a row of `Shares`.

    >>> full(0.75), full((0.2, 0.3, 0.5))
    ((0.25, 0.75), (0.2, 0.3, 0.5))
    """
    return row if isinstance(row, tuple) else (1 - row, row)


def cell_path(folder: Path, arm: str, labels: Budget, seed: int) -> Path:
    """Where a cell of the comparison in `folder` stands."""
    return folder / CELLS / f"{arm.replace(':', '@')}-{labels}-seed{seed}.json"  # no file has a colon on Windows


def write_cell(folder: Path, cell: Cell) -> Path:
    """Write a finished run into the comparison in `folder`, whole or not at all."""
    path = cell_path(folder, cell.arm, cell.labels, cell.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    # the optional fields are those with defaults: they are written only where they say something
    write_sealed(path, {"format": FORMAT} | cell.model_dump(mode="json", exclude_defaults=True))
    return path


def read_cell(path: Path) -> Cell:
    """Read a finished run; a damaged file, or one under another run's name, is refused."""
    cell = _read(path, Cell)
    expected = cell_path(path.parent.parent, cell.arm, cell.labels, cell.seed).name
    if path.name != expected:
        raise StoreError(f"{path} is damaged: it holds the run that belongs in {expected}")
    return cell


def write_data(folder: Path, data: Data) -> None:
    """Write what the cells of a comparison have in common."""
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / DATA, {"format": FORMAT} | data.model_dump(mode="json", exclude_none=True))


def read_data(folder: Path) -> Data:
    """Read what the cells of a comparison have in common."""
    return _read(folder / DATA, Data)


R = TypeVar("R", bound=_Record)


def _read(path: Path, kind: type[R]) -> R:
    content = read_sealed(path)
    found = content.pop("format", None)
    if found != FORMAT:
        raise StoreError(f"{path} {other_format(found, 'compare anew')}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        words = fault["msg"].removeprefix("Value error, ")
        raise StoreError(f"{path} is damaged: {place + ': ' if place else ''}{words}") from None
