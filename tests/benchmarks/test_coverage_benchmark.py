"""The intervals of a report hold the truth as often as they say: a small, fixed part of benchmarks/coverage.py."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[2]
TABLES = 400


@pytest.fixture(scope="module")
def coverage():
    spec = importlib.util.spec_from_file_location("coverage_benchmark", REPOSITORY / "benchmarks" / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seeds", [3, 5, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "world",
    [
        {"kind": "networks", "luck": 0.0, "hardness": 4.0},
        {"kind": "networks", "luck": 3.0},
        {"kind": "networks", "difference": 3.0, "shared": 0.9},
        {"kind": "linear", "luck": 1.0},
        {"kind": "twins", "difference": 0.1},
        {"kind": "rare"},
    ],
    ids=str,
)
def test_an_interval_holds_the_truth_nineteen_times_in_twenty(coverage, seeds, world):
    result = coverage.measured(coverage.Setting(seeds=seeds, texts=200, **world), TABLES)["methods"]["headstart"]
    assert result["coverage"] >= 0.95 - coverage.tolerance(TABLES)
    assert result["width"] < 32  # control: not by being as wide as can be


@pytest.mark.parametrize("seeds", [3, 5])
def test_what_one_might_do_instead_does_not(coverage, seeds):
    methods = coverage.measured(coverage.Setting("networks", seeds, 200), TABLES)["methods"]
    assert methods["seeds bootstrap"]["coverage"] < 0.85
    spread = coverage.measured(coverage.Setting("networks", seeds, 2000, luck=3.0), TABLES // 4)["methods"]
    assert spread["texts"]["coverage"] < 0.85


def test_a_real_difference_is_detected_with_its_sign(coverage):
    few, many = (
        coverage.measured(coverage.Setting("networks", 5, texts, difference=3.0, luck=0.0), 200)["methods"]["headstart"]
        for texts in (200, 2000)
    )
    assert few["right_claims"] < 0.5 < 0.85 < many["right_claims"]
    assert many["claims"] == many["right_claims"]


def test_simulated_tables_have_the_stated_difference_and_noise(coverage):
    setting = coverage.Setting("networks", 10, 500, difference=3.0, luck=2.0, hardness=4.0, shared=0.5)
    first, second = coverage.answers(np.random.default_rng(0), setting, 300, (0.78, 0.75))
    assert first.mean() - second.mean() == pytest.approx(0.03, abs=0.004)
    # over seeds: the luck, 2 points, and what is drawn anew at every text
    assert first.mean(axis=2).var(axis=1, ddof=1).mean() == pytest.approx(0.02**2 + 0.78 * 0.22 * 0.8 / 500, rel=0.1)


@pytest.mark.parametrize("seeds", [3, 5, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "world",
    [("level", 1.0, 0.3, 0.80), ("rises", 1.0, 0.3, 0.92), ("falls", 3.0, 0.8, 0.92), ("almost", 3.0, 0.8, 0.80)],
    ids=str,
)
def test_the_interval_in_epochs_holds_the_truth_nineteen_times_in_twenty(coverage, seeds, world):
    kind, luck, jitter, final = world
    methods = coverage.epochs_measured(coverage.Epochs(kind, seeds, 200, luck, jitter, final), TABLES)["methods"]
    assert methods["headstart"]["coverage"] >= 0.95 - coverage.tolerance(TABLES)
    if kind == "almost":  # control: the first epoch that is surely as high is so by luck
        assert methods["epoch by epoch"]["coverage"] < 0.95


@pytest.mark.parametrize("kind", ["level", "rises", "almost"])
def test_the_made_up_curves_are_as_described(coverage, kind):
    world = coverage.Epochs(kind, 5, 400, 4.0, 0.5, 0.92)
    start, curve, ours, theirs = coverage.epochs_drawn(np.random.default_rng(0), world, 200)
    assert start.mean() == pytest.approx(0.75, abs=0.005)
    assert curve.mean(axis=(0, 1)) == pytest.approx(coverage.CURVES[kind], abs=0.005)
    assert (ours.mean(), theirs.mean()) == (pytest.approx(0.92, abs=0.005), pytest.approx(0.905, abs=0.005))
    assert world.truth == {"level": 1, "rises": 5, "almost": np.inf}[kind]
    # half of the luck of a run is that of its other epochs; the rest, and the texts it happens to answer, is not
    strays = curve - curve.mean(axis=1, keepdims=True)
    assert np.corrcoef(strays[..., 0].ravel(), strays[..., -1].ravel())[0, 1] == pytest.approx(0.43, abs=0.08)


@pytest.mark.parametrize("seeds", [3, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "world", [("even", "none", 0.0), ("sure", "none", 0.0), ("five", "far too sure", 2.0)], ids=str
)
def test_the_interval_of_the_calibration_error_holds_the_truth_nineteen_times_in_twenty(coverage, seeds, world):
    sure, fault, luck = world
    row = coverage.calibration_measured(coverage.Probabilities(sure, fault, seeds, 300, luck), TABLES)
    methods = row["methods"]
    assert methods["headstart"]["coverage"] >= 0.95 - coverage.tolerance(TABLES)
    assert methods["headstart"]["width"] < 18  # control: not by being as wide as can be
    if row["truth"] == 0:
        assert methods["headstart"]["claims"] <= 0.05 + coverage.tolerance(TABLES)
        assert methods["resampled"]["coverage"] == 0


@pytest.mark.parametrize("sure", ["even", "sure", "five"])
def test_simulated_probabilities_have_the_stated_calibration_error(coverage, sure):
    assert coverage.true_error(sure, "none", 0.0) == 0
    world = coverage.Probabilities(sure, "to and fro", 2, 400_000)
    confidence, correct = coverage.answered(np.random.default_rng(0), world)
    bins = coverage.bin_indices(confidence[0])
    error = np.abs(np.bincount(bins, confidence[0] - correct[0])).sum() / world.texts
    assert error == pytest.approx(coverage.true_error(sure, "to and fro", 0.0), abs=0.002)
    assert error > 0.003  # control
    assert 0.5 < (confidence[0] == confidence[1]).mean() < 0.9  # seeds are alike on some texts


@pytest.mark.parametrize("kind", ["coin", "noise", "must"])
def test_the_worlds_of_real_trainings_are_as_described(coverage, kind, tmp_path):
    coverage.write_world(tmp_path, kind, 0)
    rows = [line.split(",") for line in (tmp_path / "test.csv").read_text().split()[1:] if "," in line]
    texts = (tmp_path / "texts.txt").read_text().splitlines()
    words = {word for text in texts for word in text.split()}
    assert len(texts) == 2000
    assert len(rows) == 300
    assert (len(words) <= 120) == (kind != "noise")


def test_trainings_are_counted_by_what_a_report_would_claim(coverage):
    rows = [
        {"kind": "coin", "3": [0.1, 0.05, 0.15], "5": [0.1, -0.05, 0.15]},
        {"kind": "coin", "3": [-0.1, -0.15, -0.05], "5": [0.0, -0.05, 0.05]},
        {"kind": "must", "3": [0.1, 0.05, 0.15], "5": [0.1, 0.05, 0.15]},
    ]
    assert coverage.counted(rows, "coin", 3) == {"kind": "coin", "seeds": 3, "gain": 1, "loss": 1, "neither": 0}
    assert coverage.counted(rows, "coin", 5) == {"kind": "coin", "seeds": 5, "gain": 0, "loss": 0, "neither": 2}
    assert coverage.counted(rows, "must", 5) == {"kind": "must", "seeds": 5, "gain": 1, "loss": 0, "neither": 0}


def test_the_kept_record_is_of_the_settings_that_are_run(coverage):
    record = json.loads((REPOSITORY / "docs" / "results" / "coverage.json").read_text())["simulation"]
    names = list(coverage.Setting.__dataclass_fields__)
    assert [coverage.Setting(**{name: row[name] for name in names}) for row in record["settings"]] == list(
        coverage.settings()
    )
    assert record["tables"] >= 2000
    assert min(row["methods"]["headstart"]["coverage"] for row in record["settings"]) >= 0.95 - record["tolerance"]
    assert len(record["labels"]) == 12
    assert min(row["coverage"] for row in record["labels"]) >= 0.95 - coverage.tolerance(record["labels_tables"])


@pytest.mark.parametrize(("part", "world"), [("epochs", "Epochs"), ("calibration", "Probabilities")])
def test_the_kept_record_of_epochs_and_calibration_is_of_the_worlds_that_are_run(coverage, part, world):
    record = json.loads((REPOSITORY / "docs" / "results" / "coverage.json").read_text())[part]
    kind = getattr(coverage, world)
    names = list(kind.__dataclass_fields__)
    rows = [kind(**{name: row[name] for name in names}) for row in record["settings"]]
    assert rows == list(getattr(coverage, f"{part}_settings")())
    assert record["tables"] >= 2000
    assert min(row["methods"]["headstart"]["coverage"] for row in record["settings"]) >= 0.95 - record["tolerance"]
