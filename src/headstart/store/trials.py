"""One small file a finished trial of a search for settings: sealed, so that none is run twice. No torch.

tuning/
  trials/0000.json        Trial: what was set, and what validation said
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headstart.errors import StoreError
from headstart.files import FORMAT, other_format, read_sealed, write_sealed

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
    write_sealed(path, {"format": FORMAT, **trial.model_dump(mode="json")})


def read_trials(folder: Path) -> list[Trial]:
    """The finished trials, in order; a damaged one is named and refused."""
    return [_read(path) for path in sorted((folder / TRIALS).glob("[0-9]*.json"))]


def read_trial(folder: Path, number: int) -> Trial:
    """One finished trial."""
    return _read(trial_path(folder, number))


def best_of(trials: Iterable[Trial]) -> Trial:
    """The trial that validation likes best."""
    return max(trials, key=lambda trial: trial.rank)


def _read(path: Path) -> Trial:
    content = read_sealed(path)
    found = content.pop("format", None)
    if found != FORMAT:
        raise StoreError(f"{path} {other_format(found, 'search again')}")
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
