"""A run of a comparison equals the fine-tuning of its arm, rows and seed; settings reach the training; test is read once."""

import csv

import numpy as np
import pytest

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import CPU, finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig
from headstart.data.datasets import LabelledDataset
from headstart.data.labelled import label_subset, read_labelled
from headstart.errors import DataError
from headstart.files import read_json
from headstart.interrupts import StopSignal
from headstart.progress import SilentProgress
from headstart.recipes.compare.baselines import run_baseline
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.finetune.dataset import build_classifier, class_weights, load_labelled_data
from headstart.recipes.finetune.trainer import FinetuneTrainer
from headstart.store.run_folder import RunFolder
from headstart.tasks import SingleLabel
from headstart.tokenization.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=3))
    return folder


@pytest.fixture(scope="module")
def records(reviews):
    """The folder of the run records of a comparison."""
    files = {name: str(reviews / f"{name}.csv") for name in ("train", "valid", "test")}
    plan = {"seeds": 2, "label_budgets": (8,), "arms": ("linear", "scratch", "pretrained")}
    out = reviews / "cmp"
    run_compare(CompareRequest(out=out, backbones=(str(reviews / "base"),), **plan, **files), config())
    return out / "cells"


def config(**settings):
    return finetune_config(**{"loop__epochs": 2, **settings})


def write_subset(reviews, path, count, seed):
    """Write the rows that every arm of a seed learns from."""
    texts = read_labelled(str(reviews / "train.csv"), LabelledConfig())
    chosen = texts.take(label_subset(texts.labels, count, seed, texts.digests))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *zip(chosen.texts, chosen.labels, strict=True)])
    return path


def load_data(reviews, seed=0, valid="valid.csv"):
    """Load the reviews; `valid` is a file among them, another path, or None."""
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


def build_trainer(reviews, out, **settings):
    finetune, data = config(**settings), load_data(reviews)
    folder = RunFolder.create(out, kind="finetune", command="", config=finetune, inputs={})
    model, _ = build_classifier(finetune.model, data, None, "scratch", 0, "causal")
    return FinetuneTrainer(folder, finetune, data, model, CPU, StopSignal(), SilentProgress())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arm", ["scratch", "pretrained"])
def test_a_run_equals_the_fine_tuning_of_its_arm_rows_and_seed(reviews, records, tmp_path, arm, seed):
    source, tokenizer = ("scratch", reviews / "base") if arm == "scratch" else (str(reviews / "base"), None)
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    train = str(write_subset(reviews, tmp_path / "subset.csv", 8, seed))
    alone = config(runtime__seed=seed)
    run = finetune_run(train, tmp_path / "run", alone, backbone=source, tokenizer=tokenizer, **files)
    record, result = read_json(records / f"{arm}-8-seed{seed}.json"), read_json(run.path / "result.json")
    timeless = [
        [{name: value for name, value in line.items() if name not in ("kind", "seconds")} for line in lines]
        for lines in (record["epochs"], run.metrics.read("epoch"))
    ]
    assert timeless[0] == timeless[1]
    assert record["test"]["confusion"] == result["test"]["confusion"]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_linear_arms_learn_from_the_same_rows_and_choose_on_validation(reviews, records, tmp_path, seed):
    subset = write_subset(reviews, tmp_path / "subset.csv", 8, seed)
    train, valid, test = (
        (texts.texts, [int(label == "positive") for label in texts.labels])
        for texts in (
            read_labelled(str(path), LabelledConfig()) for path in (subset, reviews / "valid.csv", reviews / "test.csv")
        )
    )
    expected = run_baseline("linear", train, valid, test, ("negative", "positive"), seed, budget=8)
    record = read_json(records / f"linear-8-seed{seed}.json")
    assert record["predictions"] == list(expected.predictions)
    assert record["valid"]["confusion"] == [list(row) for row in expected.valid.confusion]
    assert valid[0] != test[0]  # control: the two files differ


def test_test_rows_that_also_appear_in_train_are_recorded(reviews, records):
    train, test = (read_labelled(str(reviews / f"{name}.csv"), LabelledConfig()).texts for name in ("train", "test"))
    overlap = read_json(records.parent / "data.json")["test"]["overlap"]
    assert overlap == [row for row, text in enumerate(test) if text in train]
    assert len(overlap) < len(test)  # control


def test_every_epoch_reads_every_row_once_in_another_order(reviews, tmp_path):
    orders = []
    for seed in (0, 1):
        trainer = build_trainer(reviews, tmp_path / str(seed), runtime__seed=seed)
        for epoch in (0, 1):
            steps = range(epoch * trainer.epoch_steps, (epoch + 1) * trainer.epoch_steps)
            rows = [tuple(row) for step in steps for batch in trainer._fetch(step) for row in _unpadded(batch)]
            assert sorted(rows) == sorted((0, *map(int, ids[:23])) for ids in trainer.data.train.ids)
            orders.append(tuple(rows))
    assert len(set(orders)) == 4  # no two epochs and no two seeds have the same order


def _unpadded(batch):
    return [row[:length] for row, length in zip(batch.ids_BT.tolist(), batch.lengths_B.tolist(), strict=True)]


def test_every_row_of_test_is_read_once(reviews, tmp_path):
    class CountingDataset(LabelledDataset):
        num_read = 0

        def batch(self, indices):
            self.num_read += len(indices)
            return super().batch(indices)

    trainer = build_trainer(reviews, tmp_path / "run")
    test = trainer.data.test
    trainer.test_dataset = CountingDataset(test.ids, test.gold, trainer.data.tokenizer.special, context=24)
    trainer.train(resume=False)
    assert trainer.test_dataset.num_read == len(test)


def test_layer_decay_reaches_the_optimizer(reviews, tmp_path):
    trainer = build_trainer(reviews, tmp_path / "run", transfer__layer_decay=0.5, optim__lr=1.0)
    assert {group["max_lr"] for group in trainer.state.optimizer.param_groups} == {1.0, 0.5, 0.25, 0.125}


def test_the_multiple_of_the_head_reaches_the_optimizer(reviews, tmp_path):
    settings = {"transfer__layer_decay": 0.5, "transfer__head_lr_multiplier": 5.0, "optim__lr": 1.0}
    trainer = build_trainer(reviews, tmp_path / "run", **settings)
    assert {group["max_lr"] for group in trainer.state.optimizer.param_groups} == {5.0, 0.5, 0.25, 0.125}


def test_more_labels_ask_for_more_steps(reviews, tmp_path):
    steps = build_trainer(reviews, tmp_path / "a", loop__epochs=1, loop__min_steps=1).steps
    more = build_trainer(reviews, tmp_path / "b", loop__epochs=1, loop__min_steps_per_label=10 * steps).steps
    assert more == 20 * steps  # two labels


def test_class_weights_go_by_name_and_reach_the_loss(reviews, tmp_path):
    labels, train = SingleLabel(("negative", "positive")), load_data(reviews).train
    named = class_weights(config(transfer__class_weights={"positive": 3.0, "negative": 5.0}), labels, train)
    assert named.tolist() == [5.0, 3.0]
    uneven = train.take([0, 2, 4, 1])  # three negative, one positive
    even = class_weights(config(transfer__class_weights="balanced"), labels, uneven)
    assert even.tolist() == pytest.approx([4 / (2 * 3), 4 / (2 * 1)])
    trainer = build_trainer(reviews, tmp_path / "run", transfer__class_weights={"positive": 3.0})
    batch = trainer.train_dataset.batch([0, 1, 2, 3])
    assert trainer._objective(batch).count == 2 * 1 + 2 * 3


def test_gradual_unfreezing_continues_through_the_epochs(reviews, tmp_path):
    is_trainable = []
    for epochs in (1, 4):
        trainer = build_trainer(reviews, tmp_path / str(epochs), transfer__unfreeze_every=1, loop__epochs=epochs)
        trainer.train(resume=False)
        is_trainable.append(trainer.model.backbone.embedding.weight.requires_grad)
    assert is_trainable == [False, True]


def test_the_weights_of_the_best_epoch_are_restored(reviews, tmp_path):
    """Backbone and head are those of the epoch that validation chose: the loss is the same to the last digit."""
    trainer = build_trainer(reviews, tmp_path / "run", optim__lr=2e-2, loop__epochs=8)
    outcome = trainer.train(resume=False)
    assert outcome.best_epoch < 8  # control: the last epoch is not the best
    assert outcome.valid.loss == outcome.epochs[outcome.best_epoch - 1]["valid_loss"]
    assert outcome.valid.loss != outcome.epochs[-1]["valid_loss"]


def test_among_equal_accuracies_the_lower_loss_is_best(reviews, tmp_path):
    trainer = build_trainer(reviews, tmp_path / "run", optim__lr=1e-6, loop__epochs=3, model__dropout=0.0)
    outcome = trainer.train(resume=False)
    losses = [line["valid_loss"] for line in outcome.epochs]
    assert len({line["valid_accuracy"] for line in outcome.epochs}) == 1  # control: a tie
    assert len(set(losses)) == 3
    assert outcome.best_epoch == 1 + int(np.argmin(losses))


def test_labels_are_numbered_by_the_training_file_in_every_split(reviews, tmp_path):
    one = tmp_path / "valid.csv"
    one.write_text("text,label\na lovely film,positive\n")
    data = load_data(reviews, valid=one)
    assert data.labels == ("negative", "positive")
    assert data.valid.gold.tolist() == [1]


def test_a_label_typo_in_validation_names_the_row(reviews, tmp_path):
    wrong = tmp_path / "valid.csv"
    wrong.write_text("text,label\na lovely film,postive\n")
    with pytest.raises(DataError) as caught:
        load_data(reviews, valid=wrong)
    assert str(caught.value) == (
        f"{wrong}, row 1: label 'postive' does not occur in {reviews / 'train.csv'}; did you mean 'positive'?"
    )


def test_which_rows_are_held_out_for_validation_follows_from_the_seed(reviews):
    held_out = [load_data(reviews, seed=seed, valid=None).valid.texts for seed in (0, 0, 1)]
    assert held_out[0] == held_out[1]
    assert held_out[0] != held_out[2]
