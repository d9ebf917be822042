"""A run is resumed with unchanged inputs only; wrong inputs leave no folder; all arms share one macro-F1."""

import numpy as np
import pytest

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from headstart.errors import ConfigError, DataError, HeadstartError, Interrupted
from headstart.metrics import evaluate_single_label
from headstart.recipes.compare.baselines import score_predictions
from headstart.recipes.compare.run import CompareRequest, run_compare


@pytest.fixture
def reviews(tmp_path):
    return write_reviews(tmp_path / "reviews")


def edit(path):
    """Other rows, as many as before, so that nothing else gives the change away."""
    path.write_text(path.read_text().replace("film", "plot").replace("superb", "boring"))


def remove_time_limit(out):
    config = out / "config.json"
    config.write_text(config.read_text().replace('"time_limit": 0.0001', '"time_limit": null'))


def test_a_pretraining_run_is_not_resumed_with_other_text(reviews, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain_run([str(reviews / "texts.txt")], out, pretrain_config(runtime__time_limit=1e-4))
    remove_time_limit(out)
    edit(reviews / "texts.txt")
    with pytest.raises(HeadstartError):
        pretrain_run([], out, None, resume=True)


def test_a_fine_tuning_run_is_not_resumed_with_other_rows(reviews, tmp_path):
    out = tmp_path / "run"
    files = {"valid": str(reviews / "valid.csv")}
    config = finetune_config(runtime__time_limit=1e-4)
    with pytest.raises(Interrupted):
        finetune_run(str(reviews / "train.csv"), out, config, backbone="scratch", **files)
    remove_time_limit(out)
    edit(reviews / "train.csv")
    with pytest.raises(HeadstartError):
        finetune_run(None, out, None, resume=True)


def test_a_comparison_is_not_resumed_with_other_rows(reviews, tmp_path):
    out = tmp_path / "cmp"
    files = {"valid": str(reviews / "valid.csv"), "test": str(reviews / "test.csv")}
    arms = ("majority", "scratch")
    with pytest.raises(Interrupted):
        request = CompareRequest(train=str(reviews / "train.csv"), out=out, seeds=1, arms=arms, **files)
        run_compare(request, finetune_config(runtime__time_limit=1e-4))
    remove_time_limit(out)
    edit(reviews / "train.csv")
    with pytest.raises(HeadstartError):
        run_compare(CompareRequest(out=out, resume=True), None)


def test_macro_f1_is_one_measure_for_all_arms():
    gold, predicted = [0, 1, 0, 1], np.array([0, 1, 1, 1])
    network = evaluate_single_label(np.eye(3)[predicted], np.array(gold), ["a", "b", "never there"])
    assert score_predictions(gold, predicted, 3).macro_f1 == pytest.approx(network.macro_f1)


def test_too_little_text_leaves_no_folder_behind(tmp_path):
    (tmp_path / "t.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(DataError):
        pretrain_run([str(tmp_path / "t.txt")], tmp_path / "run", pretrain_config(model__context=512))
    assert not (tmp_path / "run").exists()


def test_a_comparison_with_a_wrong_class_weight_leaves_no_folder_behind(reviews, tmp_path):
    files = {"valid": str(reviews / "valid.csv"), "test": str(reviews / "test.csv")}
    config = finetune_config(transfer__class_weights={"postive": 2.0})
    with pytest.raises(ConfigError):
        arms = ("majority", "scratch")
        run_compare(CompareRequest(train=str(reviews / "train.csv"), out=tmp_path / "cmp", arms=arms, **files), config)
    assert not (tmp_path / "cmp").exists()
