"""A run records its threads and shape, is locked by one process, and survives an error on resuming."""

import pytest
import torch

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from headstart.errors import DataError, Interrupted, TrainingError, UsageError
from headstart.files import read_json
from headstart.progress import SilentProgress
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.prepare import run_prepare_labelled
from headstart.store.run_folder import RunFolder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=2, runtime__threads=None))
    return folder


LABELLED = {"train": "no.csv", "valid": None, "test": "not.csv", "tokenizer": None}
TEXTS = {"texts": ["no.txt"], "tokenizer": None, "backbone": None}
GRID = {"backbones": [], "seeds": 1, "labels": [None], "arms": ["majority"], "choose": False, "texts": True}
KINDS = {
    "pretrain": (lambda out: pretrain_run([], out, None, resume=True), TEXTS),
    "finetune": (lambda out: finetune_run(None, out, None, resume=True), LABELLED | {"backbone": "scratch"}),
    "compare": (lambda out: run_compare(CompareRequest(out=out, resume=True), None), LABELLED | GRID),
}


def started(out, kind):
    config = pretrain_config() if kind == "pretrain" else finetune_config()
    return RunFolder.create(out, kind=kind, command="", config=config, inputs=KINDS[kind][1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_locked_against_a_second_process(kind, tmp_path):
    run = started(tmp_path / "run", kind)
    with run.locked(), pytest.raises(UsageError) as caught:
        KINDS[kind][0](run.path)
    assert str(caught.value) == f"{run.path} is in use by another process; wait for it, or choose another --out"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_on_resuming_keeps_the_run(kind, tmp_path):
    run = started(tmp_path / "run", kind)
    with pytest.raises(DataError):
        KINDS[kind][0](run.path)
    assert (run.path / "run.json").is_file()


def test_the_threads_of_a_run_are_recorded_for_resuming(reviews, tmp_path):
    config = finetune_config(loop__epochs=1, runtime__threads=None)
    finetune_run(str(reviews / "train.csv"), tmp_path / "clf", config, backbone=str(reviews / "base"))
    for folder in (reviews / "base", tmp_path / "clf"):
        recorded = read_json(folder / "config.json")["runtime"]["threads"]
        assert recorded == read_json(folder / "environment.json")["threads"]
        assert recorded >= 1


def test_a_run_is_resumed_with_the_threads_it_began_with(reviews, tmp_path, monkeypatch):
    before, run = torch.get_num_threads(), tmp_path / "run"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("headstart.runtime.free_cores", lambda: 2)
    with pytest.raises(Interrupted):
        cut = pretrain_config(runtime__threads=None, runtime__time_limit=1e-5)
        pretrain_run([str(reviews / "texts.txt")], run, cut)
    try:
        monkeypatch.setattr("headstart.runtime.free_cores", lambda: 1)
        with pytest.raises(Interrupted):  # the limit of time is kept too
            pretrain_run([], run, None, resume=True)
        assert torch.get_num_threads() == 2
        assert read_json(run / "environment.json")["threads"] == 2
        pretrain_run(
            [str(reviews / "texts.txt")], tmp_path / "other", pretrain_config(loop__steps=1, runtime__threads=None)
        )  # control
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_recorded_shape_is_that_of_the_backbone(reviews, tmp_path):
    config = finetune_config(loop__epochs=1, model__depth=1)
    finetune_run(str(reviews / "train.csv"), tmp_path / "clf", config, backbone=str(reviews / "base"))
    shapes = [read_json(folder / "config.json")["model"] for folder in (reviews / "base", tmp_path / "clf")]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("part", ["train", "valid"])
def test_shards_of_another_tokenizer_are_refused(reviews, tmp_path, part):
    other = finetune_run(
        str(reviews / "train.csv"), tmp_path / "other", finetune_config(loop__epochs=1), backbone="scratch"
    )
    shards = tmp_path / "shards"
    run_prepare_labelled(
        str(reviews / f"{part}.csv"),
        shards,
        finetune_config().labelled,
        tokenizer=other.path,
        progress=SilentProgress(),
    )
    files = {name: str(reviews / f"{name}.csv") for name in ("train", "valid")} | {part: str(shards)}
    with pytest.raises(UsageError) as caught:
        finetune_run(
            files["train"], tmp_path / "run", finetune_config(), backbone=str(reviews / "base"), valid=files["valid"]
        )
    than, which = ("the model's", "the model's") if part == "train" else ("the other files", "the same")
    assert str(caught.value) == (
        f"{shards} was prepared with another tokenizer than {than}; prepare it again with {which} tokenizer"
    )
    assert not (tmp_path / "run").exists()


FAR_TOO_FAST = {"optim__lr": 1e30}


def contents(folder):
    """Every file below a folder but the lock, with its bytes."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def pretrained(reviews, out, **settings):
    return pretrain_run([str(reviews / "texts.txt")], out, pretrain_config(loop__steps=6, **settings))


def finetuned(reviews, out, **settings):
    config = finetune_config(loop__epochs=1, **settings)
    return finetune_run(str(reviews / "train.csv"), out, config, backbone="scratch")


@pytest.mark.parametrize("go", [pretrained, finetuned])
def test_the_folder_of_a_run_that_failed_without_a_checkpoint_can_be_reused(go, reviews, tmp_path):
    with pytest.raises(TrainingError):
        go(reviews, tmp_path / "run", **FAR_TOO_FAST)
    assert read_json(tmp_path / "run" / "failed.json") == {"error": "TrainingError"}
    assert (tmp_path / "run" / "run.json").is_file()  # to be looked at until then
    go(reviews, tmp_path / "run")
    go(reviews, tmp_path / "new")
    again, new = contents(tmp_path / "run" / "bundle"), contents(tmp_path / "new" / "bundle")
    assert len(new) > 3
    assert again == new
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in (tmp_path / "new").iterdir()}


def test_a_failed_run_that_saved_a_checkpoint_is_kept(reviews, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(TrainingError):
        pretrained(reviews, out, loop__save_every=1, **FAR_TOO_FAST)
    assert [path.name for path in (out / "checkpoints").iterdir()] != []
    before = contents(out)
    with pytest.raises(UsageError) as caught:
        pretrained(reviews, out)
    assert str(caught.value) == f"{out} already contains a run; continue it with --resume, or choose another --out"
    assert contents(out) == before


@pytest.mark.parametrize("strange", ["notes.txt", "bundle", "result.json", "tokens", "metrics.jsonl.old", "cells"])
def test_unknown_files_beside_a_failed_run_are_kept(strange, reviews, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(TrainingError):
        finetuned(reviews, out, **FAR_TOO_FAST)
    (out / strange).write_text("years of work")
    before = contents(out)
    with pytest.raises(UsageError) as caught:
        finetuned(reviews, out)
    assert str(caught.value) == f"{out} already contains a run; continue it with --resume, or choose another --out"
    assert contents(out) == before


def test_resuming_a_failed_run_removes_its_failure_record(reviews, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(TrainingError):
        pretrained(reviews, out, **FAR_TOO_FAST)
    with RunFolder.open(out, kind="pretrain").locked():
        assert not (out / "failed.json").exists()
        with pytest.raises(UsageError):
            pretrained(reviews, out)  # nobody takes it for worthless while it lasts
    assert (out / "run.json").is_file()
