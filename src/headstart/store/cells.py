"""One small file a finished run of a comparison, and one file on the data they share. No torch.

    comparison/
      data.json                              Data: labels, the three splits, the right answers of test
      cells/pretrained-all-seed0.json        Cell: one arm, one number of labels, one seed

The recipe that runs the arms writes them, the report reads them, and neither knows the other.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headstart.errors import StoreError
from headstart.files import FORMAT, read_json, write_json

DATA = "data.json"
CELLS = "cells"

Budget = int | Literal["all"]
"""How many labelled rows an arm may learn from."""
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Confusion = tuple[Annotated[tuple[Count, ...], Field(strict=False)], ...]
"""Counts by true label (row) and predicted label (column)."""


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

    arm: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
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
    extra: dict[str, Any] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        numbers = {epoch.epoch for epoch in self.epochs}
        if (self.best_epoch is None) != (not numbers) or (numbers and self.best_epoch not in numbers):
            raise ValueError(f"best_epoch {self.best_epoch} is none of its {len(self.epochs)} epochs")
        if self.test.confusion is None:
            raise ValueError("test has no confusion")
        return self


class Split(_Record):
    """One of the three files of labelled text."""

    name: str
    rows: int = Field(ge=0)
    counts: dict[str, Count]
    sha256: str


class TestSplit(Split):
    """The file that is read once: with its right answers."""

    __test__ = False  # a name that pytest would take for a test

    gold: tuple[Count, ...] = Field(strict=False)
    overlap: tuple[Count, ...] = Field((), strict=False)
    """Rows whose text also stands in train, counted from 0; the report gives the accuracy with and without them."""
    near: tuple[Count, ...] = Field((), strict=False)
    """Rows whose text almost stands in train: words changed, or part of a longer text; treated like the others."""

    @property
    def leaked(self) -> tuple[int, ...]:
        """The rows that training may have seen the answers of."""
        return tuple(sorted({*self.overlap, *self.near}))

    @model_validator(mode="after")
    def _as_long_as_it_says(self) -> Self:
        if len(self.gold) != self.rows:
            raise ValueError(f"test.gold has {len(self.gold)} answers for {self.rows} rows")
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


def cell_path(folder: Path, arm: str, labels: Budget, seed: int) -> Path:
    """Where a cell of the comparison in `folder` stands."""
    return folder / CELLS / f"{arm}-{labels}-seed{seed}.json"


def write_cell(folder: Path, cell: Cell) -> Path:
    """Write a finished run into the comparison in `folder`, whole or not at all."""
    path = cell_path(folder, cell.arm, cell.labels, cell.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    # the optional fields are those with defaults: they are written only where they say something
    write_json(path, {"format": FORMAT} | cell.model_dump(mode="json", exclude_defaults=True))
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
    write_json(folder / DATA, {"format": FORMAT} | data.model_dump(mode="json"))


def read_data(folder: Path) -> Data:
    """Read what the cells of a comparison have in common."""
    return _read(folder / DATA, Data)


R = TypeVar("R", bound=_Record)


def _read(path: Path, kind: type[R]) -> R:
    content = read_json(path)
    if not isinstance(content, dict):
        raise StoreError(f"{path} is damaged: it is not a JSON object")
    found = content.pop("format", None)
    if found != FORMAT:
        raise StoreError(f"{path} has format {found!r}, this version of Headstart reads {FORMAT}; compare anew")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        words = fault["msg"].removeprefix("Value error, ")
        raise StoreError(f"{path} is damaged: {place + ': ' if place else ''}{words}") from None
