"""Two and four processes, copies and shards: the numbers of one process, and checkpoints that any number of them takes up."""

import shutil

import pytest

from fixtures.distributed_jobs import NOT_SHARDED, jobs
from fixtures.tiny import change_runtime
from fixtures.torchrun import BOUND, apart, crew, losses, weights
from fixtures.torchrun_job import go
from headstart.files import read_json
from headstart.predict.predictor import Predictor
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_tensors

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("world", [2, 4])
def test_every_kind_of_run_has_the_losses_of_one_process(world, parallel, data, alone, tmp_path):
    wanted = jobs(tmp_path, parallel)
    assert len(wanted) == 8 - (len(NOT_SHARDED) if parallel == "fsdp" else 0)
    crew(world, data, wanted, tmp_path)
    for job in wanted:
        name = job["out"].rpartition("/")[2]
        assert apart(alone(name), tmp_path / name) < BOUND, name
    assert len(losses(tmp_path / "plain")) == 50
    texts = ["a great and lovely film", "a dull plot", "the story"]
    readers = [Predictor.load(folder / "weighted") for folder in (tmp_path, alone("weighted").parent)]
    ours, theirs = (reader.probabilities(reader.encode(texts)) for reader in readers)
    assert ours == pytest.approx(theirs, abs=2e-3)


STOPPED = {"runtime.time_limit": 1e-4}
"""Over before the first step is done: a run that stops where it listens first, and saves."""


@pytest.mark.parametrize("name", ["plain", "modern", "weighted"])
def test_what_four_processes_saved_one_and_two_go_on_with(name, data, alone, tmp_path):
    (stopped,) = jobs(tmp_path, "fsdp", only={name})
    stopped["settings"] = stopped["settings"] | STOPPED
    with pytest.raises(AssertionError, match="time limit reached at step 1 of"):
        crew(4, data, [stopped], tmp_path)
    (checkpoint,) = (tmp_path / name / "checkpoints").iterdir()
    assert read_json(checkpoint / "state.json")["step"] == 1
    for world in (1, 2):
        out = tmp_path / f"{name}-{world}"
        copy_without_limit(tmp_path / name, out)
        job = {"recipe": stopped["recipe"], "out": str(out), "resume": True}
        crew(world, data, [job], tmp_path) if world > 1 else go(data, job)
        assert apart(alone(name), out) < BOUND


def test_what_one_process_saved_four_go_on_with_in_shards_and_as_copies(data, alone, tmp_path):
    for parallel in ("ddp", "fsdp"):
        (job,) = jobs(tmp_path / parallel, parallel, only={"modern"})
        with pytest.raises(Exception, match="time limit reached"):
            go(data, job | {"settings": job["settings"] | STOPPED})
        out = tmp_path / f"{parallel}-4"
        copy_without_limit(tmp_path / parallel / "modern", out)
        crew(4, data, [{"recipe": "pretrain", "out": str(out), "resume": True}], tmp_path)
        assert apart(alone("modern"), out) < BOUND


def test_a_checkpoint_of_shards_has_the_names_and_shapes_of_any_other(data, tmp_path):
    one, four = tmp_path / "one", tmp_path / "four"
    for folder, parallel in ((one, "ddp"), (four, "fsdp")):
        (job,) = jobs(folder, parallel, only={"modern"})
        job["settings"] = job["settings"] | STOPPED
        with pytest.raises(Exception, match="time limit reached"):
            crew(4, data, [job], tmp_path) if parallel == "fsdp" else go(data, job)
    for file in ("backbone", "head", "optimizer"):
        ours, theirs = (
            load_tensors(folder / "modern" / "checkpoints" / "step-00000001" / f"{file}.safetensors")
            for folder in (four, one)
        )
        assert list(ours) == list(theirs)
        for name, tensor in ours.items():
            assert tensor.shape == theirs[name].shape
            assert tensor.numpy() == pytest.approx(theirs[name].numpy(), abs=1e-4), name


def test_four_processes_resume_to_the_same_bits(data, tmp_path):
    (whole,) = jobs(tmp_path / "whole", "ddp", only={"modern"})
    (stopped,) = jobs(tmp_path / "stopped", "ddp", only={"modern"})
    with pytest.raises(AssertionError, match="time limit reached"):
        crew(4, data, [whole, stopped | {"settings": stopped["settings"] | STOPPED}], tmp_path)
    copy_without_limit(tmp_path / "stopped" / "modern", tmp_path / "again")
    crew(4, data, [{"recipe": "pretrain", "out": str(tmp_path / "again"), "resume": True}], tmp_path)
    assert losses(tmp_path / "again") == losses(tmp_path / "whole" / "modern")
    ours, theirs = weights(tmp_path / "again"), weights(tmp_path / "whole" / "modern")
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)


SHARDED = {"runtime.parallel": "fsdp"}


def test_minutes_are_planned_once_for_all(data, tmp_path):
    settings = {"loop.minutes": 0.02, "loop.evaluate_every": 10_000, "loop.save_every": 10_000}
    jobs_here = [
        {"recipe": "pretrain", "out": str(tmp_path / "base"), "settings": {"loop.steps": None, **settings}},
        {"recipe": "finetune", "out": str(tmp_path / "clf"), "settings": {**SHARDED, "loop.minutes": 0.02}},
    ]
    crew(2, data, jobs_here, tmp_path)
    steps = read_json(tmp_path / "base" / "plan.json")["steps"]
    assert len(RunFolder(tmp_path / "base").metrics.read("step")) == steps > 1
    assert read_json(tmp_path / "clf" / "plan.json")["steps"] > 0


def copy_without_limit(source, target):
    """A stopped run in another place, without the limit that stopped it."""
    shutil.copytree(source, target)
    change_runtime(target, time_limit=None)
