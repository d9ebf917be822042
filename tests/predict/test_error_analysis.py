"""Mistakes are counted, ranked and sliced correctly; predictions below a threshold are withheld."""

import csv
import json

import numpy as np
import pytest

from fixtures.recipes import finetune_run
from fixtures.tiny import Listener, finetune_config, write_reviews
from headstart import api
from headstart.config.schema import RuntimeConfig
from headstart.errors import ConfigError, DataError, UsageError
from headstart.files import read_json
from headstart.metrics import number_bins, wilson
from headstart.predict.bundle_predictor import threshold_for
from headstart.predict.error_analysis import most_confident_mistakes, slice_accuracy, slices_by_column
from headstart.predict.predictor import Predictor
from headstart.recipes.evaluate import EvaluateRequest, run_evaluate
from headstart.store.bundle import load_bundle

ONE = RuntimeConfig(threads=1, device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier that is often wrong, chosen on enough rows to be calibrated, and a test file with more columns."""
    folder = write_reviews(tmp_path_factory.mktemp("mistakes"), train=60, valid=120, test=80)
    config, listener = finetune_config(loop__epochs=2, optim__lr=2e-3), Listener()
    files = {name: str(folder / f"{name}.csv") for name in ("valid", "test")}
    finetune_run(str(folder / "train.csv"), folder / "clf", config, backbone="scratch", progress=listener, **files)
    with (folder / "test.csv").open() as file, (folder / "more.csv").open("w", newline="") as out:
        rows = list(csv.DictReader(file))
        writer = csv.DictWriter(out, ["text", "label", "shop", "length"])
        writer.writeheader()
        for number, row in enumerate(rows):
            writer.writerow(row | {"shop": "east" if number % 4 else "", "length": number})
    return folder, listener.lines


def test_a_fine_tuned_classifier_carries_its_temperature(trained):
    folder, lines = trained
    result, bundle = read_json(folder / "clf" / "result.json"), load_bundle(folder / "clf")
    calibration = result["calibration"]
    assert result["temperature"] == calibration["temperature"] != 1.0
    assert bundle.about["calibration"] == calibration
    assert calibration["reason"] is None
    assert calibration["rows"] == 120
    assert calibration["before"]["rows"] == calibration["after"]["rows"] == 120
    assert calibration["test"]["rows"] == 80
    assert any(line.startswith("probabilities calibrated on 120 validation rows: temperature ") for line in lines)


def test_the_bundle_answers_with_calibrated_probabilities(trained):
    """The loss on validation is that of the record, and lower than before calibration."""
    folder, _ = trained
    again = run_evaluate(EvaluateRequest(folder / "clf", str(folder / "valid.csv"), runtime=ONE))
    result = read_json(folder / "clf" / "result.json")
    assert again.loss == pytest.approx(result["valid"]["loss"], abs=1e-6)
    assert again.loss < result["calibration"]["before"]["log_loss"]
    assert result["calibration"]["test"]["log_loss"] == pytest.approx(result["test"]["loss"], abs=1e-6)


def test_few_validation_rows_leave_probabilities_alone_and_say_so(trained, tmp_path):
    folder, _ = trained
    lines = (folder / "valid.csv").read_text().splitlines()
    (tmp_path / "valid.csv").write_text("\n".join(lines[:31]) + "\n")
    listener = Listener()
    finetune_run(
        str(folder / "train.csv"),
        tmp_path / "clf",
        finetune_config(loop__epochs=1),
        backbone="scratch",
        valid=str(tmp_path / "valid.csv"),
        progress=listener,
    )
    more = "a larger validation file or labelled.valid_fraction gives more"
    reason = f"30 validation rows are too few to fit a temperature (at least 50; {more})"
    assert f"probabilities not calibrated (temperature 1): {reason}" in listener.lines
    result = read_json(tmp_path / "clf" / "result.json")
    assert (result["temperature"], result["calibration"]["reason"]) == (1.0, reason)
    with pytest.raises(UsageError) as caught:
        Predictor.load(tmp_path / "clf", ONE).predict(["a film"], abstain=0.9)
    assert str(caught.value) == (
        f"{tmp_path / 'clf' / 'bundle'} was chosen on 30 validation rows, too few to choose a threshold; "
        "fine-tune with a validation file of at least 50"
    )


def test_an_answer_that_is_not_sure_enough_is_withheld(trained):
    folder, _ = trained
    predictor = Predictor.load(folder / "clf", ONE)
    rows = list(csv.DictReader((folder / "valid.csv").read_text().splitlines()))
    texts = [row["text"] for row in rows]
    plain = predictor.predict(texts)
    table = predictor.bundle.about["calibration"]["thresholds"]
    precision = next(row["wanted"] for row in table if row["coverage"] < 1)
    threshold = threshold_for(predictor.bundle, precision)
    answers = predictor.predict(texts, abstain=precision)
    assert 0 < sum(one.abstained for one in answers) < len(answers)
    for before, after in zip(plain, answers, strict=True):
        sure = after.probability >= threshold.threshold - 1e-6
        assert after.abstained != sure
        assert after.label == (before.label if sure else "abstain")
        assert after.probabilities == before.probabilities
    answered = [(one, row) for one, row in zip(answers, rows, strict=True) if not one.abstained]
    right = np.mean([one.label == row["label"] for one, row in answered])
    assert right == pytest.approx(threshold.precision)
    assert right >= precision
    assert len(answered) / len(rows) == pytest.approx(threshold.coverage)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (1.0, "--abstain must be a precision between 0 and 1, such as 0.95, got 1"),
        (95.0, "--abstain must be a precision between 0 and 1, such as 0.95, got 95"),
        (
            0.999,
            "no threshold gave a precision of 0.999 on the 120 validation rows of {bundle}; the highest was {most:g}",
        ),
    ],
)
def test_a_precision_that_no_threshold_reaches_is_refused(trained, wanted, message):
    bundle = load_bundle(trained[0] / "clf")
    most = bundle.about["calibration"]["thresholds"][-1]["wanted"]
    with pytest.raises(UsageError) as caught:
        threshold_for(bundle, wanted)
    assert str(caught.value) == message.format(bundle=bundle.path, most=most)


def test_the_surest_mistakes_come_first_with_what_pushed_them(trained, monkeypatch):
    folder, _ = trained
    # as many threads both times: what others do on this machine would otherwise move the last digits of a sum
    monkeypatch.setattr("headstart.runtime.free_cores", lambda: 1)
    analysis = api.error_analysis(folder / "clf", folder / "more.csv", mistakes=3)
    assert analysis.evaluation == api.evaluate(folder / "clf", folder / "more.csv")
    assert len(analysis.mistakes) == 3
    sure = [one.probability for one in analysis.mistakes]
    assert sure == sorted(sure, reverse=True)
    for one in analysis.mistakes:
        answer = api.load(folder / "clf").predict([one.text])[0]
        assert (answer.label, answer.probability) == (one.answer, pytest.approx(one.probability, abs=1e-6))
        assert one.answer != one.label
        assert {word for word, _ in one.words} <= set(one.text.split())
    json.dumps(analysis.as_dict())


def test_slices_count_every_row_once(trained):
    folder, _ = trained
    analysis = api.error_analysis(folder / "clf", folder / "more.csv", columns=["shop", "length"], mistakes=0)
    right = round(analysis.evaluation.accuracy * 80)
    assert list(analysis.slices) == ["length", "label", "shop", "column length"]
    for slices in analysis.slices.values():
        assert sum(one.rows for one in slices) == 80
        assert sum(one.right for one in slices) == right
        for one in slices:
            assert (one.low, one.high) == wilson(one.right, one.rows)
    assert [one.name for one in analysis.slices["shop"]] == ["(empty)", "east"]
    assert [one.rows for one in analysis.slices["shop"]] == [20, 60]
    assert [one.name for one in analysis.slices["column length"]] == ["0 to 19", "20 to 39", "40 to 59", "60 to 79"]
    recalls = {one.label: one.recall for one in analysis.evaluation.per_class}
    assert {one.name: one.accuracy for one in analysis.slices["label"]} == pytest.approx(recalls)
    confused = sum(one.rows for one in analysis.confused)
    assert confused == 80 - right


def test_wrong_arguments_of_an_error_analysis_are_refused(trained):
    folder, _ = trained
    with pytest.raises(DataError) as caught:
        api.error_analysis(folder / "clf", folder / "more.csv", columns=["shopp"])
    assert str(caught.value) == (
        f"{folder / 'more.csv'} has no column 'shopp'; its columns are text, label, shop, length; did you mean 'shop'?"
    )
    with pytest.raises(ConfigError) as bare:
        api.error_analysis(folder / "clf", folder / "more.csv", columns="shop")
    assert str(bare.value) == "columns must be a list of names, as in ['shop'], got 'shop'"
    with pytest.raises(ConfigError) as below:
        api.error_analysis(folder / "clf", folder / "more.csv", mistakes=-1)
    assert str(below.value) == "--mistakes must be at least 0, got -1"


def test_columns_with_many_values_are_grouped():
    groups, order = slices_by_column([f"name {number % 30}" for number in range(90)])
    assert len(order) == len(set(groups)) == 12
    assert order[-1] == "(other)"
    assert groups.count("(other)") == 19 * 3
    assert number_bins([7, 7, 7], "tokens") == (["7 tokens"] * 3, ["7 tokens"])
    assert number_bins([1, 1], "tokens")[1] == ["1 token"]
    assert number_bins([980, 3070, 12000], "tokens")[1] == ["980 tokens", "3,070 tokens", "12,000 tokens"]
    assert number_bins([20240115, 20240116, 20250115])[1] == ["20240115", "20240116", "20250115"]


def test_the_most_confident_mistakes_leave_right_predictions_out():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.01, 0.99]])
    assert most_confident_mistakes(probabilities, np.array([1, 1, 1, 0]), 5) == [3, 0, 2]
    assert [
        (one.name, one.rows, one.right) for one in slice_accuracy(["b", "a", "b"], np.array([True, False, False]))
    ] == [
        ("a", 1, 0),
        ("b", 2, 1),
    ]
