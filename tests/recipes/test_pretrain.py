"""Pretraining reads its side of the split, every row once, and all of the held-out text at the end."""

import pytest
import torch

from fixtures.recipes import pretrain_run
from fixtures.tiny import Listener, pretrain_config, write_reviews
from headstart import api
from headstart.config.schema import TokenizerConfig
from headstart.data.datasets import PackedDataset
from headstart.data.shards import Shards
from headstart.errors import UsageError
from headstart.files import read_json
from headstart.store.bundle import load_bundle
from headstart.store.tensors import load_tensors
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=1))
    return folder


def pretrain(reviews, out, listener=None, **settings):
    """A run on the shards of the first one; returns its step lines, its evaluations and its result."""
    config = pretrain_config(model__dropout=0.0, **settings)
    run = pretrain_run([str(reviews / "base" / "tokens")], out, config, progress=listener)
    return run.metrics.read("step"), run.metrics.read("evaluation"), read_json(out / "result.json")


def split_documents(reviews):
    shards = Shards.open(reviews / "base" / "tokens")
    return shards, *shards.split(0.1, 0)


def packed_rows(reviews, documents, layout="packed"):
    special = load_tokenizer(reviews / "base" / "tokens").special
    return PackedDataset(split_documents(reviews)[0], documents, special, context=24, layout=layout, seed=0)


def test_held_out_documents_are_not_learnt_from(reviews, tmp_path):
    _, train, held_out = split_documents(reviews)
    listener = Listener()
    steps, _, _ = pretrain(
        reviews, tmp_path / "run", listener, loop__steps=None, loop__batch_size=1, loop__accumulate=1
    )
    rows = packed_rows(reviews, train)
    summary = f"{len(train)} documents for training, {len(held_out)} held out; {rows.num_tokens:,} tokens per epoch"
    assert any(line.startswith(summary) for line in listener.lines)
    assert len(steps) == rows.num_rows  # one epoch, a row a step
    assert sum(line["num_targets"] for line in steps) == rows.num_tokens  # every token once


def test_the_last_evaluation_reads_all_held_out_text_and_earlier_ones_a_part(reviews, tmp_path):
    shards, _, held_out = split_documents(reviews)
    settings = {"loop__steps": 30, "loop__evaluate_every": 20, "loop__evaluate_tokens": 1}
    _, evaluations, result = pretrain(reviews, tmp_path / "run", **settings)
    first = held_out[:1]
    assert [(line["tokens"], line["bytes"]) for line in evaluations] == [
        (int(shards.lengths[part].sum()) + len(part), int(shards.text_bytes[part].sum())) for part in (first, held_out)
    ]
    assert {name: evaluations[-1][name] for name in result["held_out"]} == result["held_out"]


def test_accumulation_reads_the_rows_of_one_large_batch(reviews, tmp_path):
    large, _, _ = pretrain(reviews, tmp_path / "large", loop__steps=4, loop__batch_size=8, loop__accumulate=1)
    small, _, _ = pretrain(reviews, tmp_path / "small", loop__steps=4, loop__batch_size=2, loop__accumulate=4)
    assert [line["num_targets"] for line in small] == [line["num_targets"] for line in large]
    assert [line["loss"] for line in small] == pytest.approx([line["loss"] for line in large], rel=1e-4)


def test_an_epoch_is_as_many_steps_as_its_rows_fill(reviews, tmp_path):
    _, train, _ = split_documents(reviews)
    rows = packed_rows(reviews, train)
    steps, _, result = pretrain(reviews, tmp_path / "run", loop__steps=None, loop__batch_size=2, loop__accumulate=3)
    assert len(steps) == result["steps"] == round(rows.num_rows / 6)
    assert result["tokens_seen"] == pytest.approx(sum(line["num_targets"] for line in steps), abs=6 * 24)


def test_the_documents_layout_reads_one_document_per_row(reviews, tmp_path):
    _, train, _ = split_documents(reviews)
    settings = {"loop__steps": None, "loop__batch_size": 8, "loop__accumulate": 1, "corpus__layout": "documents"}
    steps, _, _ = pretrain(reviews, tmp_path / "run", **settings)
    assert len(steps) == round(len(train) / 8)
    assert len(steps) != round(packed_rows(reviews, train).num_rows / 8)  # control: packed rows are fewer


def test_another_tokenizer_than_that_of_the_shards_is_refused(reviews, tmp_path):
    other = tmp_path / "tok"
    other.mkdir()
    train_tokenizer(["quite another text"] * 9, TokenizerConfig(vocab_size=270)).save(other)
    tokens = reviews / "base" / "tokens"
    with pytest.raises(UsageError) as caught:
        pretrain_run([str(tokens)], tmp_path / "run", pretrain_config(), tokenizer=other)
    assert str(caught.value) == (
        f"{tokens} was prepared with another tokenizer than {other}; prepare it again with that tokenizer"
    )
    assert not (tmp_path / "run").exists()


def test_pretraining_continues_another_model_on_other_text(reviews, tmp_path):
    """General text first, one's own next: the same weights to start with, head included, and the same tokenizer."""
    general = pretrain_run([str(reviews / "texts.txt")], tmp_path / "general", pretrain_config(loop__steps=3))
    (tmp_path / "own.txt").write_text("\n".join(f"a lovely plot and story {n}" for n in range(80)) + "\n")
    still = pretrain_config(loop__steps=1, optim__lr=1e-30)
    own = pretrain_run([str(tmp_path / "own.txt")], tmp_path / "own", still, backbone=str(general.path))
    for name in ("backbone", "head"):
        before, after = (load_tensors(run.path / "bundle" / f"{name}.safetensors") for run in (general, own))
        assert before.keys() == after.keys()
        for key in before:
            torch.testing.assert_close(before[key], after[key], rtol=0, atol=1e-12)
    receipt = read_json(own.path / "receipt.json")
    assert receipt["new"] == []
    assert {line["name"].split(".")[0] for line in receipt["moved"]} == {"backbone", "head"}
    tokenizers = [load_bundle(run.path).tokenizer.digest for run in (general, own)]
    assert tokenizers[0] == tokenizers[1]
    moving = pretrain_config(loop__steps=1)
    moved = pretrain_run([str(tmp_path / "own.txt")], tmp_path / "moved", moving, backbone=str(general.path))
    before, after = (load_tensors(run.path / "bundle" / "backbone.safetensors") for run in (general, moved))
    assert not torch.equal(before["embedding.weight"], after["embedding.weight"])  # control: it does go on learning


@pytest.mark.parametrize("objective", ["masked", "hybrid"])
def test_a_continued_model_keeps_its_objective(reviews, tmp_path, objective):
    """Nobody who continues a masked model wants a causal one in silence."""
    text = str(reviews / "texts.txt")
    pretrain_run([text], tmp_path / "general", pretrain_config(loop__steps=1, objective=objective))
    few = {"loop.steps": 1, "runtime.threads": 1}
    backbone, listener = str(tmp_path / "general"), Listener()
    own = api.pretrain(text, out=tmp_path / "own", backbone=backbone, settings=few, progress=listener)
    assert load_bundle(own.path).objective == objective
    assert not any("objective" in line for line in listener.lines)
    assert sum(line.startswith("step 0: held-out loss ") for line in listener.lines) == 1  # where it begins
    causal = few | {"objective": "causal"}
    other = api.pretrain(text, out=tmp_path / "other", backbone=backbone, settings=causal, progress=listener)
    assert load_bundle(other.path).objective == "causal"
    assert f"{backbone} was pretrained with objective {objective} and continues with causal" in listener.lines


def test_a_model_is_not_continued_on_shards_of_another_tokenizer(reviews, tmp_path):
    general = pretrain_run([str(reviews / "texts.txt")], tmp_path / "general", pretrain_config(loop__steps=1))
    (tmp_path / "own.txt").write_text("\n".join(f"quite another text, number {n}" for n in range(80)) + "\n")
    other = pretrain_run([str(tmp_path / "own.txt")], tmp_path / "other", pretrain_config(loop__steps=1))
    shards = str(other.path / "tokens")
    with pytest.raises(UsageError) as caught:
        pretrain_run([shards], tmp_path / "run", pretrain_config(), backbone=str(general.path))
    assert str(caught.value) == (
        f"{shards} was prepared with another tokenizer than the model to continue from; prepare it again with that tokenizer"
    )
