"""The end of `headstart auto`: the choice, the test part, the winner's bundle, the records and the report."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import FinetuneConfig
from headstart.data.io import single_line
from headstart.errors import StoreError
from headstart.files import read_checksummed, write_checksummed
from headstart.linear.blend import blend_logits, fit_blend
from headstart.linear.classifier import LinearFit
from headstart.metrics import evaluate_single_label
from headstart.progress import Progress, pluralize
from headstart.recipes.auto.choice import (
    BLEND,
    LINEAR,
    MAJORITY,
    NAMES,
    NETWORK,
    Arm,
    above_majority,
    choose_winner,
    difference_on_test,
    majority_arm,
    make_record,
    out_of_fold_calibration,
)
from headstart.recipes.auto.network import CrossValidation, Network, calibrated_network
from headstart.recipes.auto.table import Table
from headstart.recipes.finetune.run import RECORDED_COLUMNS
from headstart.recipes.quality import Quality
from headstart.report.error_tables import error_tables
from headstart.report.load import CHOICE, load_comparison
from headstart.report.page import write_report
from headstart.report.summary import capitalize, format_interval, format_percent, format_points
from headstart.store.bundle import AnyClassifierBundle, BlendBundle, Bundle, save_bundle
from headstart.store.linear_bundle import LinearBundle
from headstart.store.records import (
    ComparisonData,
    RunRecord,
    Split,
    TestSplit,
    write_comparison_data,
    write_excerpts,
    write_record,
)
from headstart.store.run_folder import RunFolder
from headstart.train.calibration import fit_temperature
from headstart.train.optimizers import epoch_and_total_steps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AutoResult:
    """The winner of a run, and how every arm did."""

    folder: Path
    winner: str
    """linear, pretrained or blend."""
    scores: dict[str, dict[str, float]]
    """By arm: `cross_validation` and `test`, both accuracies."""
    headline: str
    """The comparison of the winner with the majority class and with the linear model, in one sentence."""
    above_majority: bool
    """False if no model is better than the majority class."""

    @property
    def report(self) -> Path:
        """The path of the report."""
        return self.folder / "report.html"

    def load(self) -> Any:
        """Load the winner: `result.load().predict(texts)`."""
        from headstart.predict.bundle_predictor import load_predictor

        return load_predictor(self.folder)


@dataclass(frozen=True)
class FittedArms:
    """Everything that was fitted, before the choice."""

    table: Table
    config: FinetuneConfig
    linear: LinearFit
    linear_seconds: float
    source: str
    """The backbone of the network, as it was typed or chosen."""
    network: Network | None = None
    validated: CrossValidation | None = None

    @cached_property
    def kept(self) -> Ints:
        """Positions in the out-of-fold predictions that count in the choice: of texts without a copy in train, if any.

        A text with many copies would count many times.
        """
        digests = np.array(self.table.train.digests, dtype=np.uint64)[self._predicted]
        _, inverse, counts = np.unique(digests, return_inverse=True, return_counts=True)
        unique = np.flatnonzero(counts[inverse] == 1)
        return unique if len(unique) else np.arange(len(digests))

    @property
    def _predicted(self) -> Ints:
        return np.arange(len(self.table.train)) if self.validated is None else self.validated.rows

    @property
    def method(self) -> str:
        """How the predictions were made."""
        return "hold-out" if self.validated and self.validated.folds == 1 else "cross-validation"

    @property
    def num_predicted(self) -> int:
        """The number of out-of-fold predictions."""
        return len(self._predicted)

    @property
    def rows(self) -> Ints:
        """The training rows by whose out-of-fold predictions the arms are compared."""
        rows: Ints = self._predicted[self.kept]
        return rows

    @property
    def gold(self) -> Ints:
        """The label indices of these rows."""
        return self.table.gold[self.rows]

    @cached_property
    def arms(self) -> dict[str, Arm]:
        """The arms with their out-of-fold logits, calibrated."""
        table, gold = self.table, self.gold
        num_rows, num_labels = len(table.train), len(table.task.labels)
        linear = self.linear
        arms = {
            MAJORITY: majority_arm(table.gold, num_labels, len(gold)),
            LINEAR: Arm(
                LINEAR,
                linear.oof_logits[self.rows],
                linear.setting,
                self.linear_seconds,
                linear.setting.get("rows", num_rows),
                linear.tried,
            ),
        }
        if self.validated is None or self.network is None:
            return arms
        validated, loop = self.validated, self.config.loop
        logits = validated.logits[self.kept]
        temperature, _ = fit_temperature(logits, gold)
        epoch_steps, total_steps = epoch_and_total_steps(num_rows, loop)
        arms[NETWORK] = Arm(
            NETWORK,
            logits / temperature,
            {
                "lr": self.network.config.optim.lr,
                "epochs": len(validated.epochs) or total_steps // epoch_steps,
                "batch_size": loop.batch_size,
            },
            validated.seconds,
            num_rows,
            epochs=validated.epochs,
            temperature=temperature,
        )
        blend = fit_blend(arms[NETWORK].logits, arms[LINEAR].logits, gold)
        logits = blend_logits(arms[NETWORK].logits, arms[LINEAR].logits, blend.weight, blend.temperature)
        setting = {"weight": blend.weight, "temperature": blend.temperature}
        arms[BLEND] = Arm(BLEND, logits, setting, 0.0, num_rows)
        return arms


def save_linear(folder: Path, fitted: FittedArms) -> None:
    """Leave the linear model as a bundle until a better one replaces it, so that an unfinished run has one to use."""
    if not (folder / "bundle").exists():
        save_bundle(
            folder / "bundle", LinearBundle(fitted.linear.classifier, fitted.table.task, _about(fitted, LINEAR))
        )


def finish_auto(folder: RunFolder, fitted: FittedArms, progress: Progress) -> AutoResult:
    """Choose by cross-validation, read test once, and write the bundle, the records and the report."""
    path, table, gold = folder.path, fitted.table, fitted.gold
    winner = choose_winner(fitted.arms, gold)
    scores = {name: format_percent(arm.accuracy(gold)) for name, arm in fitted.arms.items()}
    listed = ", ".join(f"{NAMES[name]} {score}" for name, score in scores.items())
    once = "" if len(fitted.kept) == fitted.num_predicted else " whose text occurs once"
    reason = f"{fitted.method} accuracy on {len(gold):,} rows{once}: {listed}; chosen: {NAMES[winner]}"
    progress.say(reason)
    network = None
    if fitted.network and fitted.validated:
        about = _about(fitted, NETWORK)
        network = calibrated_network(fitted.validated.network, fitted.arms[NETWORK].temperature, about)
    test_gold, test_logits = table.test_gold, _test_logits(fitted, network)
    num_labels, seed = len(table.task.labels), fitted.config.runtime.seed
    records = {
        name: make_record(arm, gold, test_logits[name], test_gold, num_labels, seed)
        for name, arm in fitted.arms.items()
    }
    headline, above = _headline(fitted, records, winner)
    about = {"test": evaluate_single_label(test_logits[winner], test_gold, table.task.labels).as_dict()}
    if not above:  # evaluate, the web page and the card repeat it
        about["quality"] = Quality("unclear", f"{headline[0].lower()}{headline[1:]}").as_dict()
    save_bundle(path / "bundle", _winner_bundle(fitted, network, winner, about))
    for record in records.values():
        write_record(path, record)
    write_comparison_data(path, _comparison_data(fitted, reason))
    write_checksummed(path / CHOICE, {"winner": winner, "arms": list(records), "sentence": headline})
    tables = error_tables(load_comparison(path))
    if tables:
        write_excerpts(path, {mistake.row: table.test.texts[mistake.row] for mistake in tables.mistakes})
    write_report(path)
    summary = {
        name: {"cross_validation": record.valid.accuracy, "test": record.test.accuracy}
        for name, record in records.items()
    }
    result = {"winner": winner, "scores": summary, "headline": headline, "above_majority": above}
    folder.write_json("result.json", result, checksummed=True)  # written last: the run is finished
    return AutoResult(path, winner, summary, headline, above)


def read_result(folder: Path) -> AutoResult:
    """Read the result of a finished run."""
    path = folder / "result.json"
    facts = read_checksummed(path)
    try:
        return AutoResult(folder, facts["winner"], facts["scores"], facts["headline"], facts["above_majority"])
    except KeyError as error:
        raise StoreError(f"{path} is damaged: it has no {error.args[0]}") from None


def _test_logits(fitted: FittedArms, network: Bundle | None) -> dict[str, Floats]:
    table, arms = fitted.table, fitted.arms
    logits = {
        MAJORITY: np.tile(arms[MAJORITY].logits[0], (len(table.test), 1)),
        LINEAR: fitted.linear.classifier.logits(table.test.texts),
    }
    if network and fitted.network:
        logits[NETWORK] = fitted.network.logits(network, table.test)
        setting = arms[BLEND].setting
        logits[BLEND] = blend_logits(logits[NETWORK], logits[LINEAR], setting["weight"], setting["temperature"])
    return logits


def _winner_bundle(
    fitted: FittedArms, network: Bundle | None, winner: str, results: dict[str, Any]
) -> AnyClassifierBundle:
    about, linear = _about(fitted, winner) | results, fitted.linear.classifier
    if winner == LINEAR:
        return LinearBundle(linear, fitted.table.task, about)
    assert network is not None
    if winner == NETWORK:
        return replace(network, about=about)
    setting = fitted.arms[BLEND].setting
    return BlendBundle(network, linear, setting["weight"], setting["temperature"], about)


def _about(fitted: FittedArms, arm: str) -> dict[str, Any]:
    """Return what a bundle says about itself, but for test."""
    table, gold = fitted.table, fitted.gold
    chosen = fitted.arms[arm]
    calibration = out_of_fold_calibration(chosen.logits, gold, chosen.temperature).as_dict()
    splits = {"train": table.train, "valid": table.train.take(fitted.rows), "test": table.test}
    data: dict[str, Any] = {
        name: {"name": split.name, "rows": len(split), "counts": split.counts(), "sha256": split.sha256}
        for name, split in splits.items()
    }
    data["train"]["table_sha256"] = table.sha256
    data["valid"]["name"] = f"held-out rows of {table.train.name}"
    return {
        **({"source": fitted.source, "select": "last"} if arm in (NETWORK, BLEND) else {}),
        "setting": chosen.setting,
        **({"linear_setting": fitted.arms[LINEAR].setting} if arm == BLEND else {}),
        "cross_validated": True,
        **({"folds": fitted.validated.folds} if fitted.validated else {}),
        "labels": list(table.task.labels),
        "task": table.task.facts(),
        "labelled": {name: getattr(fitted.config.labelled, name) for name in RECORDED_COLUMNS},
        "data": data,
        "notes": list(table.notes),
        "temperature": chosen.temperature,
        "calibration": calibration,
        "valid": evaluate_single_label(chosen.logits, gold, table.task.labels).as_dict(),
    }


def _comparison_data(fitted: FittedArms, reason: str) -> ComparisonData:
    table = fitted.table
    valid, train, test = table.train.take(fitted.rows), table.train, table.test
    return ComparisonData(
        labels=table.task.labels,
        train=Split(name=train.name, rows=len(train), counts=train.counts(), sha256=train.sha256),
        valid=Split(
            name=f"held-out rows of {train.name}",
            rows=len(valid),
            counts=valid.counts(),
            sha256=valid.sha256,
            gold=tuple(int(label) for label in fitted.gold),
        ),
        test=TestSplit(
            name=test.name,
            rows=len(test),
            counts=test.counts(),
            sha256=test.sha256,
            gold=tuple(int(label) for label in table.test_gold),
            overlap=tuple(table.leaks.exact),
            near=tuple(table.leaks.near),
        ),
        notes=(*table.notes, reason),
    )


def _headline(fitted: FittedArms, records: dict[str, RunRecord], winner: str) -> tuple[str, bool]:
    """Compare the winner with the majority class and the linear model; the second value is True if it is better."""
    counts = fitted.table.train.counts()
    common = single_line(max(counts, key=lambda name: counts[name]))
    gold = fitted.table.test_gold.tolist()
    accuracy, floor = (format_percent(records[name].test.accuracy) for name in (winner, MAJORITY))
    against_majority = difference_on_test(records, winner, MAJORITY, gold)
    texts = pluralize(len(gold), "test text")
    above = against_majority.low > 0 or above_majority(fitted.arms, winner, fitted.gold)
    if not above or against_majority.mean <= 0:
        return (
            f"No model is clearly better than always predicting '{common}': {NAMES[winner]} classifies "
            f"{accuracy} of {texts} correctly, compared with {floor} for this constant prediction "
            f"({format_points(against_majority.mean)} points, "
            f"{format_interval(against_majority)})",
            False,
        )
    only = "" if against_majority.low > 0 else f", a clear difference in {fitted.method} only"
    sentence = (
        f"{capitalize(NAMES[winner])} classifies {accuracy} of {texts} correctly: "
        f"{format_points(against_majority.mean)} points compared with always predicting '{common}' "
        f"({format_interval(against_majority)}{only})"
    )
    remark = _leak_remark(fitted.table)
    if winner == LINEAR:
        return f"{sentence}{remark}", True
    against_linear = difference_on_test(records, winner, LINEAR, gold)
    unclear = ", no clear difference" if against_linear.low <= 0 <= against_linear.high else ""
    return (
        f"{sentence}, {format_points(against_linear.mean)} points compared with the linear model "
        f"({format_interval(against_linear)}{unclear}){remark}",
        True,
    )


def _leak_remark(table: Table) -> str:
    """Return a sentence that follows the headline if at least half of the test texts nearly repeat a training row."""
    leaked, rows = len(table.leaks.exact) + len(table.leaks.near), len(table.test)
    if 2 * leaked < rows:
        return ""
    count = f"All {rows:,}" if leaked == rows else f"{leaked:,} of the {rows:,}"
    which = "The test text has" if rows == 1 else f"{count} test texts have"
    return f". {which} a duplicate or near-duplicate in the training rows, so new texts may be harder"
