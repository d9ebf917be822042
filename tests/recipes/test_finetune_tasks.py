"""Fine-tuning several labels, ratings and pairs: exact resume, weights of rare labels, the folded scale."""

import numpy as np
import pytest
import torch

from fixtures.predictions import write_all
from fixtures.recipes import finetune_run
from fixtures.tiny import CPU, finetune_config
from headstart.errors import Interrupted
from headstart.files import read_json
from headstart.predict.predictor import Predictor
from headstart.progress import SilentProgress
from headstart.recipes import trainer as trainer_module
from headstart.recipes.finetune.dataset import class_weights, load_labelled_data
from headstart.store.bundle import load_bundle

FILES = {
    "labels": ("labels", ".jsonl", {}),
    "rating": ("ratings", ".csv", {"labelled__task": "rating"}),
    "pair": ("pairs", ".csv", {"labelled__text_column": "premise", "labelled__second_column": "hypothesis"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("kinds"))


def config_of(task, **settings):
    return finetune_config(**{"model__context": 40, "loop__epochs": 2, **FILES[task][2], **settings})


def go(folder, task, out, **settings):
    stem, suffix, _ = FILES[task]
    names = [str(folder / f"{stem}{part}{suffix}") for part in ("", "-test")]
    return finetune_run(names[0], out, config_of(task, **settings), backbone="scratch", test=names[1])


def weights(run):
    return {path.name: path.read_bytes() for path in sorted((run / "bundle").glob("*.safetensors"))}


@pytest.mark.parametrize("task", ["labels", "rating"])
def test_a_stopped_finetuning_of_any_task_resumes_to_the_same_bits(folder, task, tmp_path, monkeypatch):
    whole = go(folder, task, tmp_path / "whole").path
    fit = trainer_module.fit

    def stopped(state, *rest):
        for report in fit(state, *rest):
            yield report
            if report.step == 25:  # in the second epoch
                raise trainer_module.StopRequested

    monkeypatch.setattr(trainer_module, "fit", stopped)
    with pytest.raises(Interrupted):
        go(folder, task, tmp_path / "run")
    monkeypatch.undo()
    finetune_run(None, tmp_path / "run", None, resume=True)
    assert weights(tmp_path / "run") == weights(whole)
    assert (tmp_path / "run" / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    other = go(folder, task, tmp_path / "other", runtime__seed=1).path
    assert weights(other) != weights(whole)  # control


def test_ratings_are_learnt_in_their_units_and_the_scale_is_folded_into_the_head(folder, tmp_path):
    """Ratings a thousand times larger: the same run, and answers a thousand times larger."""
    rows = (folder / "ratings.csv").read_text().splitlines()
    large = [rows[0], *(f"{line.rsplit(',', 1)[0]},{1000 * int(line.rsplit(',', 1)[1])}" for line in rows[1:])]
    (tmp_path / "large.csv").write_text("\n".join(large) + "\n")
    config = config_of("rating")
    for name, file in (("small", folder / "ratings.csv"), ("large", tmp_path / "large.csv")):
        finetune_run(str(file), tmp_path / name, config, backbone="scratch")
    texts = ["great great film", "awful plot", "the great awful one"]
    small, large = (
        np.array([one.value for one in Predictor(load_bundle(tmp_path / name), CPU).predict(texts)])
        for name in ("small", "large")
    )
    assert large == pytest.approx(1000 * small, rel=1e-4)
    task = load_bundle(tmp_path / "large").task
    assert (task.lowest, task.highest) == (1000.0, 5000.0)
    assert large.max() - large.min() > 300  # control: it does not answer the mean


def test_balanced_weights_of_several_labels_are_negatives_over_positives(folder):
    data = load_labelled_data(
        str(folder / "labels.jsonl"),
        str(folder / "labels-test.jsonl"),
        None,
        config_of("labels").labelled,
        tokenizer=None,
        tokenizer_config=config_of("labels").tokenizer,
        seed=0,
        progress=SilentProgress(),
    )
    has = data.train.gold.sum(axis=0)
    even = class_weights(config_of("labels", transfer__class_weights="balanced"), data.task, data.train)
    assert even.tolist() == pytest.approx(((len(data.train) - has) / has).tolist())
    assert even[0] > 2 * even[1]  # crime is rare
    named = class_weights(config_of("labels", transfer__class_weights={"love": 2.0}), data.task, data.train)
    assert named.tolist() == [1.0, 2.0, 1.0]


def test_a_row_of_a_pair_has_the_end_token_between_its_texts(folder, tmp_path):
    go(folder, "pair", tmp_path / "run", loop__epochs=1)
    predictor = Predictor(load_bundle(tmp_path / "run"), CPU)
    special, words = predictor.bundle.tokenizer.special, predictor.bundle.tokenizer
    (row,) = predictor.dataset([("the film", "a kiss")]).batch([0]).ids_BT.tolist()
    first, second = words.encode_batch(["the film", "a kiss"])
    assert row == [special.sos, *first, special.eos, *second]
    long = predictor.dataset([("the film " * 40, "a kiss")]).batch([0]).ids_BT[0]
    assert len(long) == 40
    assert long.tolist()[-len(second) - 1 :] == [special.eos, *second]  # a short side is kept whole
    answer = predictor.predict([("the film " * 40, "a kiss")])[0]
    assert answer.truncated


def test_rare_labels_stay_in_train_when_a_fraction_is_held_out(folder, tmp_path):
    lines = (folder / "labels.jsonl").read_text().splitlines()
    rare = '{"text": "a very rare thing", "label": ["rare", "war"]}'
    (tmp_path / "rare.jsonl").write_text("\n".join([*lines, rare]) + "\n")
    run = finetune_run(
        str(tmp_path / "rare.jsonl"), tmp_path / "run", config_of("labels", loop__epochs=1), backbone="scratch"
    )
    data = read_json(run.path / "result.json")["data"]
    assert (data["train"]["counts"]["rare"], data["valid"]["counts"]["rare"]) == (1, 0)
    thresholds = {one["label"]: one for one in read_json(run.path / "result.json")["thresholds"]}
    assert thresholds["rare"]["reason"] is not None
    assert thresholds["rare"]["threshold"] == 0.5
    assert torch.isfinite(load_bundle(run.path).model.head.linear.weight).all()
