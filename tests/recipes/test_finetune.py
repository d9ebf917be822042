"""Arms differ in the backbone alone; validation selects; test is scored once; no text is truncated silently."""

import json

import pytest
import torch

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import Listener, finetune_config, pretrain_config, write_reviews
from headstart.errors import ConfigError, DataError, TransferError, UsageError
from headstart.files import read_json
from headstart.predict.generate import Sampling, run_generate
from headstart.recipes import memory
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.evaluate import EvaluateRequest, run_evaluate
from headstart.recipes.finetune.dataset import build_classifier, load_labelled_data
from headstart.recipes.prepare import run_prepare_labelled
from headstart.store.bundle import load_bundle
from headstart.store.tensors import load_tensors
from headstart.tokenization.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=6))
    return folder


def finetune(reviews, out, backbone="base", valid=True, test=True, config=None, listener=None, **fields):
    backbone = backbone if backbone == "scratch" else str(reviews / backbone)
    return finetune_run(
        str(reviews / "train.csv"),
        out,
        config or finetune_config(),
        backbone=backbone,
        valid=str(reviews / "valid.csv") if valid else None,
        test=str(reviews / "test.csv") if test else None,
        progress=listener,
        **fields,
    )


def test_the_two_arms_differ_in_the_backbone_alone(reviews):
    listener = Listener()
    bundle = load_bundle(reviews / "base")
    data = load_labelled_data(
        str(reviews / "train.csv"),
        str(reviews / "valid.csv"),
        None,
        finetune_config().labelled,
        tokenizer=bundle.tokenizer,
        tokenizer_config=finetune_config().tokenizer,
        seed=0,
        progress=listener,
    )
    scratch, nothing = build_classifier(bundle.config, data, None, "scratch", 3, "causal")
    torch.rand(17)
    pretrained, receipt = build_classifier(bundle.config, data, bundle, "base", 3, "causal")
    assert nothing is None
    assert receipt is not None
    for name, tensor in scratch.head.state_dict().items():
        assert torch.equal(tensor, pretrained.head.state_dict()[name])
    saved = load_tensors(bundle.path / "backbone.safetensors")
    for name, tensor in pretrained.backbone.state_dict().items():
        assert torch.equal(tensor, saved[name])
        assert tensor.shape == scratch.backbone.state_dict()[name].shape
    assert not torch.equal(scratch.backbone.embedding.weight, pretrained.backbone.embedding.weight)  # control


def test_a_finetune_run_folder_records_epochs_test_and_receipt(reviews, tmp_path):
    listener = Listener()
    run = finetune(reviews, tmp_path / "run", listener=listener)
    result = read_json(run.path / "result.json")
    epochs = run.metrics.read("epoch")
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    best = max(epochs, key=lambda line: (line["valid_accuracy"], -line["valid_loss"]))
    assert result["best_epoch"] == best["epoch"]
    assert result["valid"]["accuracy"] == best["valid_accuracy"]
    assert len(run.metrics.read("test")) == 1  # test is read once, and that is on record
    assert result["test"]["rows"] == 24
    assert all("test_accuracy" not in line for line in epochs)
    receipt = read_json(run.path / "receipt.json")
    assert receipt["source"] == str(reviews / "base")
    assert not (run.path / "checkpoints").exists()
    evaluation = run_evaluate(EvaluateRequest(run.path, str(reviews / "test.csv")))
    assert evaluation.accuracy == result["test"]["accuracy"]
    assert listener.lines[-2] == (
        f"best epoch {best['epoch']} by validation, accuracy {best['valid_accuracy']:.4f}; "
        f"test accuracy {evaluation.accuracy:.4f} (read once); model in {run.path}"
    )


def test_a_run_ends_with_its_baselines_on_the_same_rows(reviews, tmp_path):
    listener = Listener()
    config = finetune_config(optim__lr=1e-30, loop__epochs=1, loop__select="last", labelled__valid_fraction=0.5)
    run = finetune(reviews, tmp_path / "run", backbone="scratch", valid=False, config=config, listener=listener)
    result = read_json(run.path / "result.json")
    majority, linear = (result["baselines"][name] for name in ("majority", "linear"))
    assert (majority["answer"], majority["test"]["accuracy"]) == ("negative", 0.5)
    assert linear["rows"] == result["data"]["train"]["rows"] == 24
    assert min(linear["valid"]["accuracy"], linear["test"]["accuracy"]) > 0.7
    assert result["quality"]["grade"] == "poor"
    assert listener.lines[-1] == result["quality"]["sentence"]
    assert listener.lines[-1].startswith(
        f"test accuracy {result['test']['accuracy']:.4f}; always predicting 'negative' gives 0.5000, "
        f"a linear model trained on the same rows gives {linear['test']['accuracy']:.4f}: poor result: "
    )
    card = (run.path / "bundle" / "README.md").read_text("utf-8")
    sentence = result["quality"]["sentence"].replace("`", "")
    assert f"from random weights; the last epoch was kept.\n\n{sentence[0].upper()}{sentence[1:]}.\n" in card
    assert "| validation |" in card
    evaluated = Listener()
    run_evaluate(EvaluateRequest(run.path, str(reviews / "test.csv")), evaluated)
    assert evaluated.lines == [f"when {run.path} was trained: {result['quality']['sentence']}"]


def test_the_bundle_is_the_best_epoch_not_the_last(reviews, tmp_path):
    """At a rate that ruins what it learnt, the last epoch is worse than the best one."""
    run = finetune(reviews, tmp_path / "run", config=finetune_config(loop__epochs=8, optim__lr=0.05))
    epochs = run.metrics.read("epoch")
    result = read_json(run.path / "result.json")
    assert (
        run_evaluate(EvaluateRequest(run.path, str(reviews / "valid.csv"))).accuracy
        == epochs[result["best_epoch"] - 1]["valid_accuracy"]
    )


def test_without_a_validation_file_a_stratified_fraction_is_held_out_and_reported(reviews, tmp_path):
    listener = Listener()
    run = finetune(reviews, tmp_path / "run", valid=False, listener=listener)
    result = read_json(run.path / "result.json")
    assert result["data"]["valid"]["counts"] == {"negative": 5, "positive": 5}
    assert result["data"]["train"]["rows"] == 38
    train = reviews / "train.csv"
    assert f"no validation file: 10 of 48 rows of {train} held out for validation (stratified)" in listener.lines


def test_finetuning_without_a_tokenizer_trains_one(reviews, tmp_path):
    listener = Listener()
    run = finetune(reviews, tmp_path / "run", backbone="scratch", test=False, listener=listener)
    size = load_bundle(run.path).tokenizer.vocab_size
    assert (
        f"no tokenizer given: a tokenizer with {size} entries was trained on {reviews / 'train.csv'}" in listener.lines
    )
    assert read_json(run.path / "result.json")["test"] is None


def test_long_texts_are_cut_only_with_a_count(reviews, tmp_path):
    listener = Listener()
    lines = (reviews / "train.csv").read_text().splitlines()
    lines[1] = '"' + "the film was a very " * 40 + '",negative'
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    finetune_run(
        str(tmp_path / "train.csv"),
        tmp_path / "run",
        finetune_config(loop__epochs=1, model__context=64),
        backbone="scratch",
        valid=str(reviews / "valid.csv"),
        progress=listener,
    )
    assert (
        f"texts longer than the context of 64 tokens: 1 of 48 in {tmp_path / 'train.csv'}; "
        "truncated (labelled.long_texts windows reads them completely)"
    ) in listener.lines


def test_prepared_shards_give_the_same_classifier_as_text(reviews, tmp_path):
    tokenizer = load_tokenizer(reviews / "base")
    for name in ("train", "valid", "test"):
        run_prepare_labelled(
            str(reviews / f"{name}.csv"),
            tmp_path / name,
            finetune_config().labelled,
            tokenizer=tokenizer,
            progress=Listener(),
        )
    text = finetune(reviews, tmp_path / "text")
    shards = finetune_run(
        str(tmp_path / "train"),
        tmp_path / "shards",
        finetune_config(),
        backbone=str(reviews / "base"),
        valid=str(tmp_path / "valid"),
        test=str(tmp_path / "test"),
    )
    names = ("backbone.safetensors", "head.safetensors")
    for name in names:
        assert (text.path / "bundle" / name).read_bytes() == (shards.path / "bundle" / name).read_bytes()


def test_patience_ends_a_run_that_no_longer_improves(reviews, tmp_path):
    config = finetune_config(loop__epochs=30, loop__patience=2, optim__lr=1e-30)
    run = finetune(reviews, tmp_path / "run", config=config, test=False)
    epochs = run.metrics.read("epoch")
    best = read_json(run.path / "result.json")["best_epoch"]
    assert (best, len(epochs)) == (1, 3)


def test_watching_test_is_recorded_and_selects_nothing(reviews, tmp_path):
    plain = finetune(reviews, tmp_path / "plain")
    watched = finetune(reviews, tmp_path / "watched", config=finetune_config(loop__watch_test=True))
    assert all("test_accuracy" in line for line in watched.metrics.read("epoch"))
    assert (plain.path / "result.json").read_bytes() == (watched.path / "result.json").read_bytes()


@pytest.mark.parametrize(
    ("settings", "moves"),
    [
        ({"transfer__freeze": True}, False),
        ({"transfer__unfreeze_every": 5}, False),
        ({"transfer__layer_decay": 0.5}, True),
    ],
    ids=["frozen", "not yet unfrozen", "slower below"],
)
def test_frozen_layers_do_not_change(reviews, tmp_path, settings, moves):
    run = finetune(reviews, tmp_path / "run", config=finetune_config(**settings), test=False)
    before = load_tensors(reviews / "base" / "bundle" / "backbone.safetensors")
    after = load_tensors(run.path / "bundle" / "backbone.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before) is moves


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"postive": 2.0}, "transfer.class_weights names 'postive', which is not a label; labels: negative, positive")],
)
def test_class_weights_go_by_label_name(reviews, tmp_path, weights, message):
    with pytest.raises(ConfigError) as caught:
        finetune(reviews, tmp_path / "run", config=finetune_config(transfer__class_weights=weights))
    assert str(caught.value) == message
    finetune(
        reviews, tmp_path / "good", config=finetune_config(transfer__class_weights={"positive": 2.0}, loop__epochs=1)
    )
    finetune(reviews, tmp_path / "even", config=finetune_config(transfer__class_weights="balanced", loop__epochs=1))


def test_a_wrong_backbone_stops_before_anything_is_written(reviews, tmp_path):
    with pytest.raises(UsageError) as caught:
        finetune(reviews, tmp_path / "run", backbone="nowhere")
    assert str(caught.value) == f"no such folder: {reviews / 'nowhere'}"
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_than_the_backbones_is_refused(reviews, tmp_path):
    other = finetune(reviews, tmp_path / "other", backbone="scratch", test=False)
    with pytest.raises(TransferError) as caught:
        finetune(reviews, tmp_path / "run", tokenizer=other.path)
    base = load_tokenizer(reviews / "base").digest[:12]
    own = load_tokenizer(other.path).digest[:12]
    assert str(caught.value) == (
        f"{reviews / 'base'} was pretrained with another tokenizer ({base}, not {own}); remove --tokenizer to use its own"
    )


def test_a_label_typo_between_splits_names_the_row(reviews, tmp_path):
    text = (reviews / "test.csv").read_text().splitlines()
    text[3] = text[3].rsplit(",", 1)[0] + ",postive"
    (tmp_path / "test.csv").write_text("\n".join(text) + "\n")
    with pytest.raises(DataError) as caught:
        finetune_run(
            str(reviews / "train.csv"),
            tmp_path / "run",
            finetune_config(),
            backbone="scratch",
            test=str(tmp_path / "test.csv"),
        )
    assert str(caught.value) == (
        f"{tmp_path / 'test.csv'}, row 3: label 'postive' does not occur in {reviews / 'train.csv'}; did you mean 'positive'?"
    )


def test_a_comparison_has_every_arm_over_paired_seeds(reviews, tmp_path):
    request = CompareRequest(
        train=str(reviews / "train.csv"),
        out=tmp_path / "cmp",
        backbones=(str(reviews / "base"),),
        valid=str(reviews / "valid.csv"),
        test=str(reviews / "test.csv"),
        seeds=2,
        label_budgets=(12, None),
    )
    page = run_compare(request, finetune_config())
    assert page == tmp_path / "cmp" / "report.html"
    names = sorted(path.stem for path in (tmp_path / "cmp" / "cells").iterdir())
    assert names == sorted(
        [f"{arm}-12-seed{seed}" for arm in ("majority", "linear", "scratch", "pretrained") for seed in (0, 1)]
        + [f"{arm}-all-seed{seed}" for arm in ("scratch", "pretrained") for seed in (0, 1)]
        + ["majority-all-seed0", "linear-all-seed0"]
    )
    cell = json.loads((tmp_path / "cmp" / "cells" / "pretrained-12-seed1.json").read_text())
    assert cell["rows"] == 12
    assert len(cell["predictions"]) == 24
    assert not (tmp_path / "cmp" / "work").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"backbones": ()},
            "compare needs --from with a pretrained folder or a starter such as starter:en, or --arms without pretrained",
        ),
        (
            {"arms": ("scratch", "bert")},
            "--arms must be among majority, linear, naive_bayes, nbsvm, scratch, pretrained, frozen, blend, got 'bert'",
        ),
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"label_budgets": (1,)}, "--labels must be at least 2 or all, got 1"),
        ({"label_budgets": (4000,)}, "--labels 4000 is more than the 48 labelled rows that are available for training"),
    ],
)
def test_a_wrong_comparison_is_refused_with_a_message(reviews, tmp_path, settings, message):
    fields = {
        "backbones": (str(reviews / "base"),),
        "test": str(reviews / "test.csv"),
        "valid": str(reviews / "valid.csv"),
        **settings,
    }
    with pytest.raises((ConfigError, UsageError)) as caught:
        run_compare(CompareRequest(train=str(reviews / "train.csv"), out=tmp_path / "cmp", **fields), finetune_config())
    assert str(caught.value) == message


@pytest.mark.parametrize("objective", ["masked", "hybrid"])
def test_a_bidirectional_objective_pretrains_and_fine_tunes(reviews, tmp_path, objective):
    modern = {"model__block": "modern", "objective": objective, "loop__prompt": ""}
    base = pretrain_run([str(reviews / "texts.txt")], tmp_path / "base", pretrain_config(loop__steps=30, **modern))
    bundle = load_bundle(base.path)
    assert (bundle.objective, bundle.attention) == (objective, "bidirectional")
    result = read_json(base.path / "result.json")
    assert (result["held_out"]["bits_per_byte"] is None) == (objective == "masked")
    losses = [line["loss"] for line in base.metrics.read("step")]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert bool(base.metrics.read("sample")) == (objective == "hybrid")
    run = finetune_run(
        str(reviews / "train.csv"),
        tmp_path / "clf",
        finetune_config(),
        backbone=str(base.path),
        valid=str(reviews / "valid.csv"),
    )
    assert load_bundle(run.path).attention == "bidirectional"
    assert (
        run_evaluate(EvaluateRequest(run.path, str(reviews / "valid.csv"))).accuracy
        == read_json(run.path / "result.json")["valid"]["accuracy"]
    )


def test_a_masked_language_model_does_not_continue_a_prompt(reviews, tmp_path):
    config = pretrain_config(loop__steps=2, objective="masked")
    base = pretrain_run([str(reviews / "texts.txt")], tmp_path / "base", config)
    with pytest.raises(UsageError) as caught:
        run_generate(base.path, "the film", sampling=Sampling())
    assert str(caught.value) == (
        f"{base.path} was trained with objective masked and cannot continue a prompt; causal and hybrid models can"
    )


def test_texts_that_appear_in_two_files_are_counted_and_reported(reviews, tmp_path):
    listener = Listener()
    train, test = ((reviews / f"{name}.csv").read_text().splitlines() for name in ("train", "test"))
    test[1:3] = train[1:3]
    (tmp_path / "test.csv").write_text("\n".join(test) + "\n")
    files = {"valid": str(reviews / "valid.csv"), "test": str(tmp_path / "test.csv")}
    run = finetune_run(
        str(reviews / "train.csv"),
        tmp_path / "run",
        finetune_config(loop__epochs=1),
        backbone="scratch",
        progress=listener,
        **files,
    )
    note = f"2 of 24 texts of {tmp_path / 'test.csv'} have an exact duplicate in {reviews / 'train.csv'}"
    assert note in listener.lines
    assert note in read_json(run.path / "result.json")["notes"]


def test_the_training_file_is_refused_as_test_file(reviews, tmp_path):
    train = str(reviews / "train.csv")
    with pytest.raises(UsageError) as caught:
        finetune_run(train, tmp_path / "run", finetune_config(), backbone="scratch", test=train)
    assert (
        str(caught.value)
        == f"{train} is both the training file and the test file; a score on training rows is meaningless"
    )
    assert not (tmp_path / "run").exists()


def test_a_classifier_is_not_compared_as_if_it_were_pretrained(reviews, tmp_path):
    run = finetune(reviews, tmp_path / "clf", config=finetune_config(loop__epochs=1), test=False)
    files = {"train": str(reviews / "train.csv"), "test": str(reviews / "test.csv")}
    with pytest.raises(UsageError) as caught:
        run_compare(CompareRequest(out=tmp_path / "cmp", backbones=(str(run.path),), **files), finetune_config())
    assert str(caught.value) == (
        f"{run.path} contains a classifier (from headstart finetune); "
        "this command needs a language model (from headstart pretrain)"
    )


def test_a_test_file_with_one_label_gets_a_note(reviews, tmp_path):
    listener = Listener()
    rows = [line for line in (reviews / "test.csv").read_text().splitlines() if line.endswith(("label", "positive"))]
    (tmp_path / "test.csv").write_text("\n".join(rows) + "\n")
    finetune_run(
        str(reviews / "train.csv"),
        tmp_path / "run",
        finetune_config(loop__epochs=1),
        backbone="scratch",
        test=str(tmp_path / "test.csv"),
        progress=listener,
    )
    assert f"{tmp_path / 'test.csv'} has one label only (positive): its score has little meaning" in listener.lines


def test_micro_batches_have_the_gradients_of_the_batch(reviews, tmp_path, monkeypatch):
    config = finetune_config(model__dropout=0.0, runtime__precision="fp32")
    losses = {}
    for name, limit in (("whole", 10**12), ("divided", 1)):
        monkeypatch.setattr(memory, "_MAX_ACTIVATION_BYTES", limit)
        run = finetune_run(str(reviews / "train.csv"), tmp_path / name, config, backbone="scratch")
        losses[name] = [line["train_loss"] for line in run.metrics.read("epoch")]
    assert losses["divided"] == pytest.approx(losses["whole"], rel=1e-4)
    assert losses["divided"] != losses["whole"]  # control: the sums are rounded in another order
