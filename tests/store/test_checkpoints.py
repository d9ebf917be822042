"""Checkpoints, bundles and transfer receipts are complete or refused; resuming uses the newest undamaged checkpoint."""

import pytest
import torch

from fixtures.tiny import SHAPE, classifier, finetune_config, language_model
from headstart.config.schema import TokenizerConfig
from headstart.errors import StoreError, TransferError, UsageError
from headstart.files import read_json, write_json
from headstart.model.heads import LanguageHead, Model, lm_logits
from headstart.model.transformer import Backbone
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.checkpoint import checkpoint_steps, load_checkpoint, newest_valid, resume_from, save_checkpoint
from headstart.store.run_folder import RunFolder
from headstart.store.transfer import transfer
from headstart.tokenization.bpe import train_tokenizer


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", kind="finetune", command="", config=finetune_config(), inputs={})


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["le livre est beau", "le film est long"] * 3, TokenizerConfig(vocab_size=270))


def language_bundle(folder, tokenizer, seed=0):
    size = tokenizer.vocab_size
    model = Model(Backbone(SHAPE, size), LanguageHead(SHAPE, size))
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_()
    save_bundle(folder, Bundle(model, tokenizer, objective="causal"))
    return model


def save(run, step, seed=0, keep=9):
    run.metrics.write("step", step=step)
    model = language_model(seed)
    return model, save_checkpoint(run, step, model, {"head.linear.bias/exp_avg": torch.ones(3)}, {"best": [1]}, keep)


def test_a_checkpoint_gives_back_what_was_saved(run):
    model, folder = save(run, 200, seed=3)
    other = language_model(seed=4)
    moments, state = load_checkpoint(folder, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert torch.equal(moments["head.linear.bias/exp_avg"], torch.ones(3))
    assert state == {"best": [1], "step": 200, "metrics": run.metrics.size()}


def test_only_the_newest_checkpoints_are_kept(run):
    for step in (100, 200, 300):
        save(run, step, keep=2)
    assert [path.name for path in checkpoint_steps(run)] == ["step-00000200", "step-00000300"]


@pytest.mark.parametrize("name", ["backbone.safetensors", "head.safetensors", "optimizer.safetensors", "state.json"])
def test_the_newest_undamaged_checkpoint_is_used(run, name):
    for step in (100, 200):
        save(run, step)
    path = checkpoint_steps(run)[-1] / name
    path.write_bytes(path.read_bytes()[:-3])
    messages = []
    assert newest_valid(run, messages.append) == checkpoint_steps(run)[0]
    size = path.stat().st_size
    assert messages == [
        f"{path} is damaged: {size} bytes where {size + 3} were written; trying the previous checkpoint"
    ]
    model = language_model(seed=9)
    _, state = resume_from(run, model, messages.append)
    assert state["step"] == 100
    assert [line["step"] for line in run.metrics.read()] == [100]  # what came after was forgotten
    save(run, 200)  # and the damaged one is not in the way
    assert newest_valid(run, messages.append) == checkpoint_steps(run)[-1]
    assert checkpoint_steps(run)[-1].name == "step-00000200"


def test_a_run_without_a_good_checkpoint_starts_again_and_says_so(run):
    save(run, 100)
    (checkpoint_steps(run)[0] / "manifest.json").unlink()
    messages = []
    optimizer_state, state = resume_from(run, language_model(), messages.append)
    assert (optimizer_state, state) == ({}, {"step": 0})
    assert messages[-1] == f"no complete checkpoint is left in {run.path}: starting from step 0"
    assert run.metrics.read() == []


def test_another_models_weights_are_refused_by_name(run):
    _, folder = save(run, 100)
    with pytest.raises(StoreError) as caught:
        load_checkpoint(folder, classifier())
    assert str(caught.value) == (
        f"{folder} does not match the model: linear.bias is (17,) for (2,) (and 1 more errors)"
    )


def test_a_folder_that_holds_a_run_is_not_overwritten(run):
    with pytest.raises(UsageError) as caught:
        RunFolder.create(run.path, kind="finetune", command="", config=finetune_config(), inputs={})
    assert str(caught.value) == f"{run.path} already contains a run; continue it with --resume, or choose another --out"


def test_a_second_process_is_kept_out(run):
    with run.locked(), pytest.raises(UsageError) as caught, RunFolder(run.path).locked():
        pass
    assert str(caught.value) == f"{run.path} is in use by another process; wait for it, or choose another --out"


def test_a_line_cut_by_a_crash_is_left_out(run):
    run.metrics.write("step", step=1)
    run.metrics.flush()
    with run.metrics.path.open("a") as file:
        file.write('{"kind": "step", "st')
    assert run.metrics.read() == [{"kind": "step", "step": 1}]


def test_a_bundle_gives_the_same_scores_after_reloading(tmp_path, tokenizer):
    model = language_bundle(tmp_path / "b", tokenizer)
    loaded = load_bundle(tmp_path / "b", head_type="language")
    ids = torch.randint(tokenizer.vocab_size, (2, 9))
    ours, theirs = (lm_logits(each, each.backbone(ids)) for each in (model, loaded.model))
    assert torch.equal(ours, theirs)
    assert loaded.tokenizer.digest == tokenizer.digest


def test_a_language_model_is_not_taken_for_a_classifier(tmp_path, tokenizer):
    language_bundle(tmp_path / "b", tokenizer)
    with pytest.raises(UsageError) as caught:
        load_bundle(tmp_path / "b", head_type="classify")
    assert str(caught.value) == (
        f"{tmp_path / 'b'} contains a language model (from headstart pretrain); this command needs a "
        f"classifier (from headstart finetune)"
    )


def test_a_folder_without_a_model_says_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError) as caught:
        load_bundle(tmp_path)
    assert str(caught.value) == f"{tmp_path} contains no Headstart model; found: notes.txt"
    with pytest.raises(UsageError) as caught:
        load_bundle(tmp_path / "nowhere")
    assert str(caught.value) == f"no such folder: {tmp_path / 'nowhere'}"


def test_an_unfinished_run_says_how_to_finish_it(run):
    with pytest.raises(UsageError) as caught:
        load_bundle(run.path)
    assert str(caught.value) == (
        f"{run.path} has no finished model yet; continue with: headstart finetune --resume --out {run.path}"
    )


def test_the_receipt_lists_every_tensor_that_moved_and_every_new_one(tmp_path, tokenizer):
    language = language_bundle(tmp_path / "b", tokenizer)
    model = Model(Backbone(SHAPE, tokenizer.vocab_size), classifier().head)
    before = model.head.linear.weight.clone()
    receipt = transfer(str(tmp_path / "b"), model, tokenizer)
    for name, tensor in language.backbone.state_dict().items():
        assert torch.equal(tensor, model.backbone.state_dict()[name])
    assert torch.equal(before, model.head.linear.weight)
    assert [line.name for line in receipt.moved] == sorted(
        f"backbone.{name}" for name in language.backbone.state_dict()
    )
    assert [line.name for line in receipt.new] == ["head.linear.bias", "head.linear.weight"]
    assert receipt.tokenizer == tokenizer.digest
    moved = sum(parameter.numel() for parameter in language.backbone.parameters())
    assert receipt.summary() == (
        f"transfer receipt: 25 tensors ({moved:,} parameters) moved from {tmp_path / 'b'}, 2 (34) new"
    )


def test_another_tokenizer_stops_the_transfer(tmp_path, tokenizer):
    language_bundle(tmp_path / "b", tokenizer)
    other = train_tokenizer(["quite another text"] * 9, TokenizerConfig(vocab_size=270))
    model = Model(Backbone(SHAPE, tokenizer.vocab_size), classifier().head)
    before = model.backbone.embedding.weight.clone()
    with pytest.raises(TransferError) as caught:
        transfer(str(tmp_path / "b"), model, other)
    assert str(caught.value) == (
        f"{tmp_path / 'b'} was pretrained with another tokenizer ({tokenizer.digest[:12]}, not {other.digest[:12]}); "
        "remove --tokenizer to use its own"
    )
    assert torch.equal(before, model.backbone.embedding.weight)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda saved: saved.pop("layers.1.up.bias"), "layers.1.up.bias is missing"),
        (lambda saved: saved.update(stranger=torch.ones(2)), "stranger is not part of the model"),
        (lambda saved: saved.update({"layers.0.up.bias": torch.ones(3)}), "layers.0.up.bias is (3,) for (24,)"),
    ],
    ids=["missing", "extra", "shape"],
)
def test_a_missing_extra_or_misshapen_tensor_stops_the_transfer(tmp_path, tokenizer, change, fault):
    """The manifest is rewritten after the change, as by a faulty program, so that the transfer itself must notice."""
    from headstart.files import _checksum, sha256_of
    from headstart.store.tensors import load_tensors, save_tensors

    language_bundle(tmp_path / "b", tokenizer)
    good = load_bundle(tmp_path / "b")
    path = tmp_path / "b" / "backbone.safetensors"
    saved = load_tensors(path)
    change(saved)
    save_tensors(path, saved)
    manifest = read_json(tmp_path / "b" / "manifest.json")
    manifest["files"]["backbone.safetensors"] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    manifest.pop("seal")
    write_json(tmp_path / "b" / "manifest.json", manifest | {"seal": _checksum(manifest)})
    model = Model(Backbone(SHAPE, tokenizer.vocab_size), classifier().head)
    before = model.backbone.embedding.weight.clone()
    with pytest.raises(TransferError) as caught:
        transfer(str(tmp_path / "b"), model, tokenizer, good)
    assert str(caught.value) == f"{path} does not match the model: {fault}; nothing was transferred"
    assert torch.equal(before, model.backbone.embedding.weight)
    with pytest.raises(StoreError):
        load_bundle(tmp_path / "b")
