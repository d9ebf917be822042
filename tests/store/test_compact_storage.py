"""bf16 and int8 storage: size, reproducible loading, and receipts."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from fixtures.small_models import LABELS, classifier, language
from headstart.data.decontamination import Membership
from headstart.data.hashing import text_digest
from headstart.errors import StoreError, UsageError
from headstart.files import read_json, write_json
from headstart.interop.export import export_compact, run_export
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.store.bundle import load_bundle, save_bundle
from headstart.store.tensors import load_packed, pack_tensors, save_tensors, tensor_sha256
from headstart.store.transfer import transfer
from headstart.tasks import MultiLabel, Regression, SingleLabel


def saved(path, tensors, storage):
    save_tensors(path, pack_tensors(tensors, storage))
    return load_packed(path)


@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 9),
    size=st.floats(1e-6, 1e6),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_a_rounded_weight_lies_within_half_a_step_of_what_it_was(tmp_path_factory, rows, columns, size, seed):
    weight = size * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    for storage, step in (("bf16", weight.abs() / 128), ("int8", weight.abs().amax(dim=1, keepdim=True) / 127)):
        back = saved(path, {"w": weight}, storage)["w"]
        assert back.dtype == torch.float32
        assert bool(((back - weight).abs() <= 0.501 * step).all()), storage
    assert torch.equal(saved(path, {"w": weight}, "fp32")["w"], weight)  # control


@pytest.mark.parametrize("storage", ["bf16", "int8"])
def test_what_was_rounded_once_is_not_rounded_again(tmp_path, storage):
    weight = {"w": torch.randn(5, 7, generator=torch.Generator().manual_seed(0)), "b": torch.randn(7)}
    once = saved(tmp_path / "once.safetensors", weight, storage)
    twice = saved(tmp_path / "twice.safetensors", once, storage)
    assert all(torch.equal(once[name], twice[name]) for name in weight)


def test_a_row_of_zeros_stays_one(tmp_path):
    weight = torch.tensor([[0.0, 0.0], [127.0, -2.0]])
    assert torch.equal(saved(tmp_path / "w.safetensors", {"w": weight}, "int8")["w"], weight)


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ({"w": torch.ones(2, 2, dtype=torch.int8)}, "w is torch.int8, without a scale"),
        ({"w": torch.ones(2, 2), "w@scale": torch.ones(2)}, "w is torch.float32, with a scale"),
        ({"w": torch.ones(2, 2, dtype=torch.int64)}, "w is torch.int64, without a scale"),
        ({"w": torch.ones(2, 2, dtype=torch.int8), "w@scale": torch.ones(3)}, "w@scale is not one number per row of w"),
        ({"w": torch.ones(2), "v@scale": torch.ones(3)}, "v@scale belongs to no tensor"),
    ],
)
def test_a_file_that_does_not_add_up_is_refused(tmp_path, tensors, fault):
    path = tmp_path / "w.safetensors"
    save_file(tensors, path)
    with pytest.raises(StoreError) as caught:
        load_packed(path)
    assert str(caught.value) == f"{path} is damaged: {fault}"


@pytest.mark.parametrize("storage", ["bf16", "int8"])
def test_a_compact_bundle_is_a_bundle_and_the_receipt_proves_what_came_from_it(tmp_path, storage):
    whole = language(tmp_path / "whole", "modern", "hybrid")
    export_compact(whole, tmp_path / "small", storage)
    small = load_bundle(tmp_path / "small", head_type="language")
    assert (small.objective, small.attention, small.config) == (whole.objective, whole.attention, whole.config)
    head = build_classifier_head(small.config, 2, 0, "bidirectional")
    model = Model(build_backbone(small.config, small.model.backbone.vocab_size, 9), head)
    receipt = transfer(str(tmp_path / "small"), model, small.tokenizer)
    kept = {f"backbone.{name}": tensor_sha256(tensor) for name, tensor in small.model.backbone.state_dict().items()}
    assert {line.name: line.sha256 for line in receipt.moved} == kept
    other = {f"backbone.{name}": tensor_sha256(tensor) for name, tensor in whole.model.backbone.state_dict().items()}
    assert kept["backbone.embedding.weight"] != other["backbone.embedding.weight"]  # control: it was rounded


def test_what_a_teacher_had_read_counts_as_seen(tmp_path):
    whole = language(tmp_path / "whole", "modern", "hybrid")
    also = Membership.from_digests([text_digest("read by the teacher")])
    for name, more in (("with", also), ("without", None)):
        export_compact(whole, tmp_path / name, extra_membership=more)
    known = Membership.load(tmp_path / "with")
    assert known.rows_in(["something else", "read by the teacher"]) == [1]
    assert Membership.load(tmp_path / "without") is None  # control: this bundle was written without one
    seen = load_bundle(tmp_path / "with", head_type="language")
    export_compact(seen, tmp_path / "both", extra_membership=Membership.from_digests([text_digest("and more")]))
    assert Membership.load(tmp_path / "both").rows_in(["and more", "read by the teacher", "nobody's"]) == [0, 1]


def test_the_file_is_half_or_a_quarter_of_what_it_was(tmp_path):
    weight = {"w": torch.randn(64, 256)}
    sizes = {}
    for storage in ("fp32", "bf16", "int8"):
        saved(tmp_path / storage, weight, storage)
        sizes[storage] = (tmp_path / storage).stat().st_size
    assert 0.49 < sizes["bf16"] / sizes["fp32"] < 0.51
    assert 0.25 < sizes["int8"] / sizes["fp32"] < 0.27


def test_a_classifier_in_half_the_bytes_answers_alike(tmp_path):
    whole = classifier(tmp_path / "whole", "modern", "bidirectional")
    (summary,) = run_export(tmp_path / "whole", tmp_path / "small", "compact")
    assert summary.endswith(f"MB in {tmp_path / 'small'} (bf16)")
    small = load_bundle(tmp_path / "small", head_type="classify")
    assert small.labels == LABELS
    for (name, one), (_, other) in zip(whole.model.state_dict().items(), small.model.state_dict().items(), strict=True):
        assert torch.allclose(one, other, rtol=2**-8), name
    assert "Weights are safetensors in bf16, fp32 in memory" in (tmp_path / "small" / "README.md").read_text()


def test_a_wrong_export_option_is_refused_with_a_message(tmp_path):
    classifier(tmp_path / "clf", "modern", "bidirectional")
    with pytest.raises(UsageError) as caught:
        run_export(tmp_path / "clf", tmp_path / "out", "hf", None, "bf16")
    assert str(caught.value) == "--weights is for --to compact, got --to hf"
    with pytest.raises(UsageError) as caught:
        run_export(tmp_path / "clf", tmp_path / "out", "compact", None, "int4")  # type: ignore[arg-type]
    assert str(caught.value) == "--weights must be one of fp32, bf16, int8, got 'int4'"
    assert not (tmp_path / "out").exists()


def test_a_model_that_was_not_loaded_can_be_saved_and_has_no_folder(tmp_path):
    whole = classifier(tmp_path / "whole", "modern", "bidirectional")
    fresh = replace(whole, folder=None, about={"best_epoch": 3})
    with pytest.raises(ValueError) as caught:
        _ = fresh.path
    assert str(caught.value) == "this model was not loaded from a folder"
    save_bundle(tmp_path / "again", fresh)
    again = load_bundle(tmp_path / "again", head_type="classify")
    assert (again.path, again.about, again.task) == (tmp_path / "again", {"best_epoch": 3}, whole.task)


def test_a_target_that_is_not_the_heads_is_refused(tmp_path):
    whole = classifier(tmp_path / "clf", "modern", "bidirectional")
    for task, words in (
        (SingleLabel(()), "(classes) 0"),
        (Regression(()), "(rating) 1"),
        (MultiLabel(("a", "b")), "(labels) 2"),
    ):
        with pytest.raises(ValueError) as caught:
            replace(whole, task=task)
        assert str(caught.value) == f"the head has 3 outputs, its target {words}"
    with pytest.raises(ValueError) as caught:
        replace(language(tmp_path / "base", "modern", "causal"), task=SingleLabel(LABELS))
    assert str(caught.value) == "the head has 0 outputs, its target (classes) 3"


@pytest.mark.parametrize(
    ("facts", "kind"), [({"labels": ["a", "b"]}, "classes"), ({"task": Regression(()).facts()}, "rating")]
)
def test_a_language_model_with_a_target_is_damaged(tmp_path, facts, kind):
    from faults.readers import seal

    folder = language(tmp_path / "base", "modern", "causal").path
    write_json(folder / "bundle.json", read_json(folder / "bundle.json") | facts)
    seal(folder, ("bundle.json",))
    with pytest.raises(StoreError) as caught:
        load_bundle(folder)
    words = f"it describes a language model whose task is {kind}"
    assert str(caught.value) == f"{folder / 'bundle.json'} is damaged: {words}"
