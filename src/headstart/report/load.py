"""Load the folder of a comparison, and name its arms. No torch.

Every run is checked against the data it claims to predict, because a report over the wrong files looks like any other.

An arm is a type, or a type and the name of the folder it starts from: `scratch`, `pretrained`, `pretrained:books`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headstart.errors import StoreError, UsageError
from headstart.files import read_checksummed, read_json
from headstart.metrics import confusion_matrix
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

ARM_ORDER = ("majority", "naive_bayes", "nbsvm", "tfidf", "linear", "scratch", "frozen", "pretrained", "blend")
"""The order in which arms are shown; others follow by name. Only comparisons of earlier versions have `tfidf`."""
ARM_NAMES = {
    "majority": "the majority class",
    "naive_bayes": "naive Bayes",
    "tfidf": "TF-IDF + logistic regression",
    "nbsvm": "NB-SVM",
    "linear": "the linear model",
    "scratch": "the from-scratch network",
    "pretrained": "the pretrained network",
    "frozen": "the frozen pretrained network",
    "blend": "the blend",
}
EXPECTED_ARMS = ("majority", "linear", "scratch", "pretrained")
"""A report names each of these arms that has no run, unless the comparison was started with other arms."""
LINEAR_ARMS = ("majority", "tfidf", "naive_bayes", "nbsvm", "linear")
"""The arms that are not networks."""
SCRATCH, PRETRAINED = "scratch", "pretrained"
CHOICE = "choice.json"
"""Written by `headstart auto`: the arm that validation chose, the arms there are, and a sentence on the choice."""


@dataclass(frozen=True)
class ComparisonResults:
    """The runs of a comparison and all that a report shows beside them."""

    labels: tuple[str, ...]
    data: ComparisonData
    runs: tuple[RunRecord, ...]
    arms: tuple[str, ...]
    budgets: tuple[Budget, ...]
    """From few labels to all."""
    seeds: tuple[int, ...]
    missing: tuple[str, ...]
    """Descriptions of the runs that should exist but do not."""
    config: dict[str, Any]
    environment: dict[str, Any]
    command: str | None
    ledger: dict[str, Any] | None = None
    receipts: tuple[dict[str, Any], ...] = ()
    """The transfer receipt of each pretrained folder, the first folder's first."""
    samples: tuple[dict[str, Any], ...] = ()
    choice: str | None = None
    """A sentence on the arm that validation chose to be used, where a command chose one."""
    excerpts: dict[int, str] = field(default_factory=dict)
    """The beginnings of a few test texts, by row; empty where none may be quoted."""

    @property
    def largest_budget(self) -> Budget:
        """The largest number of labels, which the verdict is about."""
        return self.budgets[-1]

    def runs_of(self, arm: str, budget: Budget) -> tuple[RunRecord, ...]:
        """Return the runs of an arm with this budget, ordered by seed."""
        return tuple(run for run in self.runs if (run.arm, run.labels) == (arm, budget))

    def arms_without_runs(self, budget: Budget) -> tuple[str, ...]:
        """Return the arms that have runs, but none with this budget."""
        return tuple(arm for arm in self.arms if not self.runs_of(arm, budget))

    def rows_of(self, budget: Budget) -> int:
        """Return the number of labelled rows that a budget stands for."""
        return max(run.rows for run in self.runs if run.labels == budget)

    def without_texts(self) -> "ComparisonResults":
        """Return a copy without excerpts of test texts and without generated text."""
        return replace(self, excerpts={}, samples=())


def load_comparison(folder: Path) -> ComparisonResults:
    """Load the comparison in `folder`; a damaged run or one of another comparison is refused, a missing one is listed."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected one that `headstart compare` wrote")
    if not (folder / DATA).is_file():
        raise StoreError(
            f"{folder} is not a comparison: it has no {DATA}; expected a folder that `headstart compare` wrote"
        )
    data = read_comparison_data(folder)
    runs = [_load_run(path, data) for path in sorted((folder / RECORDS).glob("*.json"))]
    if not runs:
        raise StoreError(f"{folder} has no finished run: there is no .json file in {folder / RECORDS}")
    arms = _sort_arms({run.arm for run in runs})
    runs.sort(key=lambda run: (arms.index(run.arm), _budget_size(run.labels), run.seed))
    config, facts = _load_optional(folder / "config.json"), _load_optional(folder / "run.json")
    first_seed = config.get("runtime", {}).get("seed", 0)
    choice = read_checksummed(folder / CHOICE) if (folder / CHOICE).is_file() else {}
    inputs = facts.get("inputs", {}) | ({"arms": choice["arms"]} if choice else {})
    receipts = map(_load_optional, (folder / "receipt.json", *sorted(folder.glob("receipt-*.json"))))
    return ComparisonResults(
        labels=data.labels,
        data=data,
        runs=tuple(runs),
        arms=arms,
        budgets=tuple(sorted({run.labels for run in runs}, key=_budget_size)),
        seeds=tuple(sorted({run.seed for run in runs})),
        missing=tuple(_missing_runs(runs, inputs, first_seed)),
        config=config,
        environment=_load_optional(folder / "environment.json"),
        command=facts.get("command") or None,
        ledger=_load_optional(folder / "ledger.json") or None,
        receipts=tuple(filter(None, receipts)),
        samples=_load_samples(folder / "samples.json"),
        choice=choice.get("sentence"),
        excerpts=read_excerpts(folder),
    )


def _load_run(path: Path, data: ComparisonData) -> RunRecord:
    run = read_record(path)
    if len(run.predictions) != data.test.rows:
        problem = f"{len(run.predictions)} predictions for {data.test.rows} rows of test"
        raise StoreError(f"{path} belongs to another comparison: it has {problem}")
    if any(prediction >= len(data.labels) for prediction in run.predictions):
        problem = f"label {max(run.predictions)}, where there are {len(data.labels)}"
        raise StoreError(f"{path} belongs to another comparison: it predicts {problem}")
    confusion = confusion_matrix(data.test.gold, run.predictions, len(data.labels))
    accuracy = float(confusion.trace()) / max(1, data.test.rows)
    recorded_confusion = [list(row) for row in run.test.confusion or ()]
    if recorded_confusion != confusion.tolist() or abs(accuracy - run.test.accuracy) > 1e-6:
        raise StoreError(
            f"{path} belongs to another comparison: it records accuracy {run.test.accuracy:.4f}, "
            f"its predictions give {accuracy:.4f} on {data.test.name}"
        )
    return run


def _sort_arms(arms: Iterable[str]) -> tuple[str, ...]:
    def key(arm: str) -> tuple[int, str]:
        return (ARM_ORDER.index(arm_type(arm)) if arm_type(arm) in ARM_ORDER else len(ARM_ORDER), arm)

    return tuple(sorted(arms, key=key))


def _budget_size(budget: Budget) -> float:
    return float("inf") if budget == "all" else float(budget)


def _missing_runs(runs: list[RunRecord], inputs: dict[str, Any], first_seed: int) -> Iterable[str]:
    """Describe arms without any run, then runs that the plan, or the runs of the other arms, lead one to expect.

    An arm that does not train needs one run on all labels; where it has several, its rows were drawn by seed.
    """
    arms = set(inputs.get("arms", EXPECTED_ARMS)) | {run.arm for run in runs}
    planned: set[Budget] = {"all" if count is None else count for count in inputs.get("labels", [])}
    budgets = sorted(planned | {run.labels for run in runs}, key=_budget_size)
    seeds = set(range(first_seed, first_seed + inputs.get("seeds", 0))) | {run.seed for run in runs if run.epochs}
    trained = {"scratch", "frozen", "pretrained"} | {run.arm for run in runs if run.epochs}
    for arm in _sort_arms(arms):
        if not any(run.arm == arm for run in runs):
            yield arm
            continue
        for budget in budgets:
            finished = {run.seed for run in runs if (run.arm, run.labels) == (arm, budget)}
            needs_every_seed = arm in trained or arm_type(arm) in trained or len(finished) > 1
            needed = seeds if needs_every_seed else (finished or {first_seed})
            labels = budget if budget == "all" else f"{budget:,}"
            yield from (f"{arm} with {labels} labels, seed {seed}" for seed in sorted(needed - finished))


def _load_optional(path: Path) -> dict[str, Any]:
    """Load a JSON object; an empty one where there is no such file."""
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise StoreError(f"{path} is damaged: it is not a JSON object")
    return content


def _load_samples(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.is_file():
        return ()
    content = read_json(path)
    if not isinstance(content, list) or not all(isinstance(sample, dict) for sample in content):
        raise StoreError(f"{path} is damaged: it is not a list of JSON objects")
    return tuple(content)


def is_network_arm(arm: str) -> bool:
    """Return True for every arm that is not a linear one.

    >>> [is_network_arm(arm) for arm in ("nbsvm", "scratch", "pretrained:books")]
    [False, True, True]
    """
    return arm_type(arm) not in LINEAR_ARMS


def arm_name(arm: str) -> str:
    """Name an arm in a sentence.

    >>> arm_name("linear"), arm_name("distilled"), arm_name("pretrained:books")
    ('the linear model', 'distilled', 'the pretrained network books')
    """
    first, _, folder = arm.partition(":")
    return f"{ARM_NAMES.get(first, first)} {folder}".rstrip()


def network_arms(comparison: ComparisonResults) -> list[str]:
    """Return the arms that are networks, in the order of arms."""
    return [arm for arm in comparison.arms if is_network_arm(arm)]


def pretrained_and_scratch(comparison: ComparisonResults) -> tuple[str, str]:
    """Return the pretrained arm and the arm it is measured against.

    Of several pretrained folders, it is the one with the best validation accuracy: test must not select what it judges.
    """
    if comparison.runs_of(PRETRAINED, comparison.largest_budget):
        return PRETRAINED, SCRATCH
    candidates = [arm for arm in comparison.arms if arm_type(arm) == PRETRAINED]
    return best_on_validation(comparison, candidates) or PRETRAINED, SCRATCH


def best_linear(comparison: ComparisonResults) -> str | None:
    """Return the linear arm with the best validation accuracy, not counting the majority class."""
    candidates = [arm for arm in comparison.arms if not is_network_arm(arm) and arm != "majority"]
    return best_on_validation(comparison, candidates)


def best_on_validation(comparison: ComparisonResults, arms: list[str]) -> str | None:
    """Return the arm with the best mean validation accuracy at the largest budget; the first of equals, None without runs."""
    runs_by_arm = {arm: comparison.runs_of(arm, comparison.largest_budget) for arm in arms}
    accuracies = {arm: mean([run.valid.accuracy for run in runs]) for arm, runs in runs_by_arm.items() if runs}
    return max(accuracies, key=lambda arm: accuracies[arm]) if accuracies else None
