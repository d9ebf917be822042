"""A cell of a comparison is the fine-tuning of its arm, rows and seed; settings reach the training; test is read once."""

import csv

import numpy as np
import pytest

from fixtures.tiny import CPU, finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig
from headstart.data.datasets import LabelledDataset
from headstart.data.labelled import label_subset, read_labelled
from headstart.errors import DataError
from headstart.files import read_json
from headstart.interrupts import StopSignal
from headstart.progress import SilentProgress
from headstart.recipes.compare.baselines import run_baseline
from headstart.recipes.compare.run import run_compare
from headstart.recipes.finetune.dataset import build_classifier, class_weights, load_labelled_data
from headstart.recipes.finetune.run import run_finetune
from headstart.recipes.finetune.trainer import FinetuneTrainer
from headstart.recipes.pretrain.run import run_pretrain
from headstart.store.run_folder import RunFolder
from headstart.tasks import SingleLabel
from headstart.tokenization.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    run_pretrain([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=3))
    return folder


@pytest.fixture(scope="module")
def cells(reviews):
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    source, out = str(reviews / "base"), reviews / "cmp"
    arms = ("tfidf", "scratch", "pretrained")
    run_compare(str(reviews / "train.csv"), out, config(), source=source, seeds=2, labels=(8,), arms=arms, **files)
    return out / "cells"


def config(**settings):
    return finetune_config(**{"loop__epochs": 2, **settings})


def write_subset(reviews, path, count, seed):
    """The rows that a comparison gives to every arm of a seed."""
    texts = read_labelled(str(reviews / "train.csv"), LabelledConfig())
    chosen = texts.take(label_subset(texts.labels, count, seed, texts.digests))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *zip(chosen.texts, chosen.labels, strict=True)])
    return path


def data_of(reviews, seed=0, valid="valid.csv"):
    """The reviews; `valid` is a file among them, a path of its own, or None."""
    return load_labelled_data(
        str(reviews / "train.csv"),
        None if valid is None else str(reviews / valid),
        str(reviews / "test.csv"),
        LabelledConfig(),
        tokenizer=load_tokenizer(reviews / "base"),
        tokenizer_config=config().tokenizer,
        seed=seed,
        progress=SilentProgress(),
    )


def training_of(reviews, out, **settings):
    wanted, data = config(**settings), data_of(reviews)
    run = RunFolder.create(out, kind="finetune", command="", config=wanted, inputs={})
    model, _ = build_classifier(wanted.model, data, None, "scratch", 0, "causal")
    return FinetuneTrainer(run, wanted, data, model, CPU, StopSignal(), SilentProgress())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arm", ["scratch", "pretrained"])
def test_a_cell_is_the_fine_tuning_of_its_arm_rows_and_seed(reviews, cells, tmp_path, arm, seed):
    source, tokenizer = ("scratch", reviews / "base") if arm == "scratch" else (str(reviews / "base"), None)
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    train = str(write_subset(reviews, tmp_path / "subset.csv", 8, seed))
    alone = config(runtime__seed=seed)
    run = run_finetune(train, tmp_path / "run", alone, source=source, tokenizer=tokenizer, **files)
    cell, result = read_json(cells / f"{arm}-8-seed{seed}.json"), read_json(run.path / "result.json")
    timeless = [
        [{name: value for name, value in line.items() if name not in ("kind", "seconds")} for line in lines]
        for lines in (cell["epochs"], run.metrics.read("epoch"))
    ]
    assert timeless[0] == timeless[1]
    assert cell["test"]["confusion"] == result["test"]["confusion"]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_linear_arms_learn_from_the_same_rows_and_choose_on_validation(reviews, cells, tmp_path, seed):
    subset = write_subset(reviews, tmp_path / "subset.csv", 8, seed)
    train, valid, test = (
        (texts.texts, [int(label == "positive") for label in texts.labels])
        for texts in (
            read_labelled(str(path), LabelledConfig()) for path in (subset, reviews / "valid.csv", reviews / "test.csv")
        )
    )
    expected = run_baseline("tfidf", train, valid, test, ("negative", "positive"), seed, budget=8)
    found = read_json(cells / f"tfidf-8-seed{seed}.json")
    assert found["predictions"] == list(expected.predictions)
    assert found["valid"]["confusion"] == [list(row) for row in expected.valid.confusion]
    assert found["valid"]["confusion"] != found["test"]["confusion"]  # control: the two files can be told apart


def test_test_rows_that_stand_in_train_are_on_record(reviews, cells):
    train, test = (read_labelled(str(reviews / f"{name}.csv"), LabelledConfig()).texts for name in ("train", "test"))
    overlap = read_json(cells.parent / "data.json")["test"]["overlap"]
    assert overlap == [row for row, text in enumerate(test) if text in train]
    assert len(overlap) < len(test)  # control


def test_every_row_once_an_epoch_in_an_order_of_its_own(reviews, tmp_path):
    orders = []
    for seed in (0, 1):
        training = training_of(reviews, tmp_path / str(seed), runtime__seed=seed)
        for epoch in (0, 1):
            steps = range(epoch * training.epoch_steps, (epoch + 1) * training.epoch_steps)
            rows = [tuple(row) for step in steps for batch in training._fetch(step) for row in _real(batch)]
            assert sorted(rows) == sorted((0, *map(int, ids[:23])) for ids in training.data.train.ids)
            orders.append(tuple(rows))
    assert len(set(orders)) == 4  # no two epochs and no two seeds alike


def _real(batch):
    return [row[:length] for row, length in zip(batch.ids_BT.tolist(), batch.lengths_B.tolist(), strict=True)]


def test_every_row_of_test_is_read_once(reviews, tmp_path):
    class Counted(LabelledDataset):
        read = 0

        def batch(self, indices):
            self.read += len(indices)
            return super().batch(indices)

    training = training_of(reviews, tmp_path / "run")
    test = training.data.test
    training.test = Counted(test.ids, test.gold, training.data.tokenizer.special, context=24)
    training.go(resume=False)
    assert training.test.read == len(test)


def test_layer_decay_reaches_the_optimizer(reviews, tmp_path):
    training = training_of(reviews, tmp_path / "run", transfer__layer_decay=0.5, optim__lr=1.0)
    assert {group["max_lr"] for group in training.state.optimizer.param_groups} == {1.0, 0.5, 0.25, 0.125}


def test_class_weights_go_by_name_and_reach_the_loss(reviews, tmp_path):
    labels, train = SingleLabel(("negative", "positive")), data_of(reviews).train
    named = class_weights(config(transfer__class_weights={"positive": 3.0, "negative": 5.0}), labels, train)
    assert named.tolist() == [5.0, 3.0]
    uneven = train.take([0, 2, 4, 1])  # three negative, one positive
    even = class_weights(config(transfer__class_weights="balanced"), labels, uneven)
    assert even.tolist() == pytest.approx([4 / (2 * 3), 4 / (2 * 1)])
    training = training_of(reviews, tmp_path / "run", transfer__class_weights={"positive": 3.0})
    batch = training.train.batch([0, 1, 2, 3])
    assert training._objective(batch).count == 2 * 1 + 2 * 3


def test_gradual_unfreezing_goes_on_through_the_epochs(reviews, tmp_path):
    moving = []
    for epochs in (1, 4):
        training = training_of(reviews, tmp_path / str(epochs), transfer__unfreeze_every=1, loop__epochs=epochs)
        training.go(resume=False)
        moving.append(training.model.backbone.embedding.weight.requires_grad)
    assert moving == [False, True]


def test_the_best_epoch_comes_back_whole(reviews, tmp_path):
    """Backbone and head of the epoch that validation chose: its loss again, to the last digit."""
    training = training_of(reviews, tmp_path / "run", optim__lr=1e-3, loop__epochs=8)
    outcome = training.go(resume=False)
    assert outcome.best_epoch < 8  # control: the last epoch is not the best
    assert outcome.valid.loss == outcome.epochs[outcome.best_epoch - 1]["valid_loss"]
    assert outcome.valid.loss != outcome.epochs[-1]["valid_loss"]


def test_among_equal_accuracies_the_lower_loss_is_best(reviews, tmp_path):
    training = training_of(reviews, tmp_path / "run", optim__lr=1e-6, loop__epochs=3, model__dropout=0.0)
    outcome = training.go(resume=False)
    losses = [line["valid_loss"] for line in outcome.epochs]
    assert len({line["valid_accuracy"] for line in outcome.epochs}) == 1  # control: a tie
    assert len(set(losses)) == 3
    assert outcome.best_epoch == 1 + int(np.argmin(losses))


def test_labels_are_numbered_by_the_training_file_in_every_split(reviews, tmp_path):
    one = tmp_path / "valid.csv"
    one.write_text("text,label\na lovely film,positive\n")
    data = data_of(reviews, valid=one)
    assert data.labels == ("negative", "positive")
    assert data.valid.gold.tolist() == [1]


def test_a_label_typo_in_validation_names_the_row(reviews, tmp_path):
    wrong = tmp_path / "valid.csv"
    wrong.write_text("text,label\na lovely film,postive\n")
    with pytest.raises(DataError) as caught:
        data_of(reviews, valid=wrong)
    assert str(caught.value) == (
        f"{wrong}, row 1: label 'postive' does not occur in {reviews / 'train.csv'}; did you mean 'positive'?"
    )


def test_which_rows_are_held_out_for_validation_follows_from_the_seed(reviews):
    held = [data_of(reviews, seed=seed, valid=None).valid.texts for seed in (0, 0, 1)]
    assert held[0] == held[1]
    assert held[0] != held[2]
