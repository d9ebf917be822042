"""Load the folder of a comparison into values.

Read a comparison folder into plain values, checked against each other. No torch, and nothing computed yet.

Every cell is checked against the data it claims to answer, because a report over the wrong files looks like any other.

What the arms of a comparison are, whatever their names: linear ones, networks, and the two that the question is about.

An arm is a kind, or a kind and the name of the folder it starts from: `scratch`, `pretrained`, `pretrained:books`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import StoreError, UsageError
from headstart.files import read_json
from headstart.report.intervals import mean
from headstart.store.records import (
    DATA,
    RECORDS,
    Budget,
    ComparisonData,
    RunRecord,
    arm_type,
    read_comparison_data,
    read_excerpts,
    read_record,
)

ARM_ORDER = ("majority", "naive_bayes", "nbsvm", "tfidf", "scratch", "frozen", "pretrained")
"""The order in which arms are shown; others follow by name."""
EXPECTED_ARMS = ("majority", "tfidf", "scratch", "pretrained")
"""A comparison without one of these is told so."""


@dataclass(frozen=True)
class ComparisonResults:
    """All that a report is made from."""

    labels: tuple[str, ...]
    data: ComparisonData
    cells: tuple[RunRecord, ...]
    arms: tuple[str, ...]
    budgets: tuple[Budget, ...]  # from few labels to all
    seeds: tuple[int, ...]
    missing: tuple[str, ...]  # runs that should be there, in words
    config: dict[str, Any]
    environment: dict[str, Any]
    command: str | None
    ledger: dict[str, Any] | None = None
    receipts: tuple[dict[str, Any], ...] = ()
    """What was transferred from each pretrained folder, the first folder's first."""
    samples: tuple[dict[str, Any], ...] = ()
    quotes: dict[int, str] = field(default_factory=dict)
    """The beginnings of a few test texts, by row; empty where none may be quoted."""

    @property
    def main(self) -> Budget:
        """The largest number of labels: the one the verdict speaks of first."""
        return self.budgets[-1]

    def of(self, arm: str, budget: Budget) -> tuple[RunRecord, ...]:
        """The runs of an arm with so many labels, in the order of their seeds."""
        return tuple(cell for cell in self.cells if (cell.arm, cell.labels) == (arm, budget))

    def absent(self, budget: Budget) -> tuple[str, ...]:
        """The arms that have runs, but none with so many labels."""
        return tuple(arm for arm in self.arms if not self.of(arm, budget))

    def rows_of(self, budget: Budget) -> int:
        """How many labelled rows an arm had with so many labels."""
        return max(cell.rows for cell in self.cells if cell.labels == budget)

    def without_texts(self) -> "ComparisonResults":
        """The same without a word of anybody's text: no quotation, and nothing that a language model wrote."""
        return replace(self, quotes={}, samples=())


def load_comparison(folder: Path) -> ComparisonResults:
    """Read the comparison in `folder`; a damaged or foreign cell is named and refused, a missing one is named."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected one that `headstart compare` wrote")
    if not (folder / DATA).is_file():
        raise StoreError(
            f"{folder} is not a comparison: it has no {DATA}; expected a folder that `headstart compare` wrote"
        )
    data = read_comparison_data(folder)
    cells = [_checked(path, data) for path in sorted((folder / RECORDS).glob("*.json"))]
    if not cells:
        raise StoreError(f"{folder} has no finished run: there is no .json file in {folder / RECORDS}")
    arms = _ordered({cell.arm for cell in cells})
    cells.sort(key=lambda cell: (arms.index(cell.arm), _size(cell.labels), cell.seed))
    budgets = tuple(sorted({cell.labels for cell in cells}, key=_size))
    config, run = _optional(folder / "config.json"), _optional(folder / "run.json")
    first = config.get("runtime", {}).get("seed", 0)
    return ComparisonResults(
        labels=data.labels,
        data=data,
        cells=tuple(cells),
        arms=arms,
        budgets=budgets,
        seeds=tuple(sorted({cell.seed for cell in cells})),
        missing=tuple(_missing(cells, run.get("inputs", {}), first)),
        config=config,
        environment=_optional(folder / "environment.json"),
        command=run.get("command") or None,
        ledger=_optional(folder / "ledger.json") or None,
        receipts=tuple(filter(None, map(_optional, (folder / "receipt.json", *sorted(folder.glob("receipt-*.json")))))),
        samples=_samples(folder / "samples.json"),
        quotes=read_excerpts(folder),
    )


def _checked(path: Path, data: ComparisonData) -> RunRecord:
    cell = read_record(path)
    if len(cell.predictions) != data.test.rows:
        found = f"{len(cell.predictions)} predictions for {data.test.rows} rows of test"
        raise StoreError(f"{path} is of another comparison: it has {found}")
    if any(prediction >= len(data.labels) for prediction in cell.predictions):
        found = f"label {max(cell.predictions)}, where there are {len(data.labels)}"
        raise StoreError(f"{path} is of another comparison: it predicts {found}")
    confusion = np.zeros((len(data.labels), len(data.labels)), dtype=int)
    np.add.at(confusion, (list(data.test.gold), list(cell.predictions)), 1)
    accuracy = float(np.trace(confusion)) / max(1, data.test.rows)
    if [list(row) for row in cell.test.confusion or ()] != confusion.tolist() or abs(
        accuracy - cell.test.accuracy
    ) > 1e-6:
        raise StoreError(
            f"{path} is of another comparison: it says accuracy {cell.test.accuracy:.4f}, "
            f"its predictions give {accuracy:.4f} on {data.test.name}"
        )
    return cell


def _ordered(arms: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        sorted(
            arms,
            key=lambda arm: (ARM_ORDER.index(arm_type(arm)) if arm_type(arm) in ARM_ORDER else len(ARM_ORDER), arm),
        )
    )


def _size(budget: Budget) -> float:
    return float("inf") if budget == "all" else float(budget)


def _missing(cells: list[RunRecord], inputs: dict[str, Any], first: int) -> Iterable[str]:
    """Name arms without any run, then runs that the plan, or the other arms, make one expect.

    An arm that does not train needs one run on all labels; where it has several, its rows were drawn by seed.
    """
    arms = set(inputs.get("arms", EXPECTED_ARMS)) | {cell.arm for cell in cells}
    planned: set[Budget] = {"all" if count is None else count for count in inputs.get("labels", [])}
    budgets = sorted(planned | {cell.labels for cell in cells}, key=_size)
    seeds = set(range(first, first + inputs.get("seeds", 0))) | {cell.seed for cell in cells if cell.epochs}
    trained = {"scratch", "frozen", "pretrained"} | {cell.arm for cell in cells if cell.epochs}
    for arm in _ordered(arms):
        if not any(cell.arm == arm for cell in cells):
            yield arm
            continue
        for budget in budgets:
            found = {cell.seed for cell in cells if (cell.arm, cell.labels) == (arm, budget)}
            needed = seeds if arm in trained or arm_type(arm) in trained or len(found) > 1 else (found or {first})
            labels = budget if budget == "all" else f"{budget:,}"
            yield from (f"{arm} with {labels} labels, seed {seed}" for seed in sorted(needed - found))


def _optional(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise StoreError(f"{path} is damaged: it is not a JSON object")
    return content


def _samples(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.is_file():
        return ()
    content = read_json(path)
    if not isinstance(content, list) or not all(isinstance(sample, dict) for sample in content):
        raise StoreError(f"{path} is damaged: it is not a list of JSON objects")
    return tuple(content)


ARM_NAMES = {
    "majority": "the majority class",
    "naive_bayes": "naive Bayes",
    "tfidf": "TF-IDF + logistic regression",
    "nbsvm": "NB-SVM",
    "scratch": "the from-scratch network",
    "pretrained": "the pretrained network",
    "frozen": "the frozen pretrained network",
}
LINEAR_ARMS = ("majority", "tfidf", "naive_bayes", "nbsvm")
"""The arms that are no network."""
SCRATCH, PRETRAINED = "scratch", "pretrained"


def is_network_arm(arm: str) -> bool:
    """Whether an arm is anything but one of the linear ones.

    >>> [is_network_arm(arm) for arm in ("nbsvm", "scratch", "pretrained:books")]
    [False, True, True]
    """
    return arm_type(arm) not in LINEAR_ARMS


def arm_name(arm: str) -> str:
    """An arm in words.

    >>> arm_name("tfidf"), arm_name("distilled"), arm_name("pretrained:books")
    ('TF-IDF + logistic regression', 'distilled', 'the pretrained network books')
    """
    first, _, folder = arm.partition(":")
    return f"{ARM_NAMES.get(first, first)} {folder}".rstrip()


def network_arms(comparison: ComparisonResults) -> list[str]:
    """The arms that are networks, in the order of arms."""
    return [arm for arm in comparison.arms if is_network_arm(arm)]


def pretrained_and_scratch(comparison: ComparisonResults) -> tuple[str, str]:
    """The head start and what it is measured against: `pretrained` and `scratch`.

    Of several pretrained folders, the one that validation likes best: test must not choose whom it judges.
    """
    if comparison.of(PRETRAINED, comparison.main):
        return PRETRAINED, SCRATCH
    others = [arm for arm in comparison.arms if arm_type(arm) == PRETRAINED]
    return best_on_validation(comparison, others) or PRETRAINED, SCRATCH


def best_linear(comparison: ComparisonResults) -> str | None:
    """The linear arm that validation likes best, the majority class aside; None where there is none."""
    others = [arm for arm in comparison.arms if not is_network_arm(arm) and arm != "majority"]
    return best_on_validation(comparison, others)


def best_on_validation(comparison: ComparisonResults, arms: list[str]) -> str | None:
    """Of some arms the best on validation with the most labels; of equals the first, None where none has a run."""
    cells = {arm: comparison.of(arm, comparison.main) for arm in arms}
    found = {arm: mean([cell.valid.accuracy for cell in runs]) for arm, runs in cells.items() if runs}
    return max(found, key=lambda arm: found[arm]) if found else None
