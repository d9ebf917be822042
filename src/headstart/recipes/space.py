"""What a search for settings may turn, between which bounds, and what to try next: a pure function of the trials so far."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from headstart.config import FinetuneConfig
from headstart.errors import ConfigError, UsageError
from headstart.store.bundle import Bundle
from headstart.store.trials import Trial

Value = float | int | str
SEARCHED = ("lr", "epochs", "layer_decay", "dropout", "reading")
"""What may be searched, by the short names that `--search` takes."""
_BY_CHANCE = 8
"""Trials before the sampler begins to learn from them."""


@dataclass(frozen=True)
class Knob:
    """A setting, where it stands, and what it may be turned to."""

    name: str
    now: Value
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    logarithmic: bool = False
    choices: tuple[str, ...] = ()

    def settle(self, value: Any) -> Value:
        """A suggestion as it is written down: three digits, within the bounds."""
        if self.choices:
            return str(value)
        if self.whole:
            return int(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)


def knobs_of(config: FinetuneConfig, source: Bundle | None, search: Sequence[str]) -> tuple[Knob, ...]:
    """The settings that are searched; those that have no meaning for this network are left out."""
    for name in search:
        if name not in SEARCHED:
            raise ConfigError(f"--search knows {', '.join(SEARCHED)}, got {name!r}")
    lr, epochs, decay = config.optim.lr, config.loop.epochs, config.transfer.layer_decay
    dropout = config.model.dropout
    found = {
        "lr": Knob("optim.lr", lr, float(f"{lr / 5:.3g}"), float(f"{lr * 5:.3g}"), logarithmic=True),
        "epochs": Knob("loop.epochs", epochs, max(1, epochs // 2), math.ceil(1.5 * epochs), whole=True),
        "dropout": Knob(
            "transfer.dropout" if source else "model.dropout", dropout, min(0.0, dropout), max(0.3, dropout)
        ),
    }
    if source and not config.transfer.freeze:
        found["layer_decay"] = Knob("transfer.layer_decay", decay, min(0.7, decay), 1.0)
    if source and source.objective == "hybrid" and config.transfer.reading == "auto":
        found["reading"] = Knob("transfer.reading", source.visibility, choices=("both", "causal"))
    knobs = tuple(found[name] for name in search if name in found)
    if not knobs:
        raise ConfigError(f"--search {','.join(search)} leaves nothing to search; what can be: {', '.join(found)}")
    return knobs


def check_installed() -> None:
    """One line where the library that suggests is not there."""
    if find_spec("optuna") is None:
        raise UsageError("tune needs optuna: pip install 'headstart[tune]'")


def suggest(knobs: Sequence[Knob], seed: int, number: int, trials: Sequence[Trial], rows: int) -> dict[str, Value]:
    """The settings of trial `number`: as they stand in the first, then by chance, then by TPE from those before it.

    Args:
        trials: those that are known, whatever their order.
        rows: of validation, which say how far accuracy can be told apart.
    """
    if number == 0:
        return {knob.name: knob.now for knob in knobs}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {knob.name: _distribution(knob) for knob in knobs}
    # a stream of its own for every trial: a search that goes on needs no random state
    sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + number) % 2**32, n_startup_trials=_BY_CHANCE)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in sorted(trials, key=lambda trial: trial.trial):
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(trial.settings), distributions=space, value=worth(trial.accuracy, trial.loss, rows)
            )
        )
    asked: Mapping[str, Any] = study.ask(space).params
    return {knob.name: knob.settle(asked[knob.name]) for knob in knobs}


def _distribution(knob: Knob) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if knob.choices:
        return CategoricalDistribution(knob.choices)
    if knob.whole:
        return IntDistribution(int(knob.low), int(knob.high))
    return FloatDistribution(knob.low, knob.high, log=knob.logarithmic)


def worth(accuracy: float, loss: float, rows: int) -> float:
    """One number to climb: accuracy, and the loss among equals; it never weighs as much as one answer.

    >>> worth(0.9, 0.5, 10) > worth(0.9, 0.6, 10) > worth(0.8, 0.1, 10)
    True
    """
    return accuracy - min(max(loss, 0.0), 10.0) / (20 * max(1, rows))
