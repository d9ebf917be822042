"""Two and four processes, ddp and fsdp: the losses of one process, and checkpoints that any number of them resumes."""

import shutil

import pytest

from fixtures.distributed_jobs import NOT_SHARDED, jobs
from fixtures.tiny import change_runtime
from fixtures.torchrun import MAX_LOSS_DIFFERENCE, losses, max_loss_difference, run_jobs, weights
from fixtures.torchrun_job import run_job
from headstart.files import read_json
from headstart.predict.predictor import Predictor
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_tensors
from headstart.train.plan import Plan

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("num_processes", [2, 4])
def test_every_kind_of_run_has_the_losses_of_one_process(num_processes, parallel, data, single_process_run, tmp_path):
    parallel_jobs = jobs(tmp_path, parallel)
    assert len(parallel_jobs) == 8 - (len(NOT_SHARDED) if parallel == "fsdp" else 0)
    run_jobs(num_processes, data, parallel_jobs, tmp_path)
    for job in parallel_jobs:
        name = job["out"].rpartition("/")[2]
        assert max_loss_difference(single_process_run(name), tmp_path / name) < MAX_LOSS_DIFFERENCE, name
    assert len(losses(tmp_path / "plain")) == 50
    texts = ["a great and lovely film", "a dull plot", "the story"]
    predictors = [Predictor.load(folder / "weighted") for folder in (tmp_path, single_process_run("weighted").parent)]
    distributed, single = (predictor.probabilities(predictor.encode(texts)) for predictor in predictors)
    assert distributed == pytest.approx(single, abs=2e-3)


STOPPED = {"runtime.time_limit": 1e-4}
"""Over before the first step is done: the run stops and saves at its first check."""


@pytest.mark.parametrize("name", ["plain", "modern", "weighted"])
def test_one_and_two_processes_resume_what_four_saved(name, data, single_process_run, tmp_path):
    (stopped,) = jobs(tmp_path, "fsdp", only={name})
    stopped["settings"] = stopped["settings"] | STOPPED
    with pytest.raises(AssertionError, match="time limit reached at step 1 of"):
        run_jobs(4, data, [stopped], tmp_path)
    (checkpoint,) = (tmp_path / name / "checkpoints").iterdir()
    assert read_json(checkpoint / "state.json")["step"] == 1
    for num_processes in (1, 2):
        out = tmp_path / f"{name}-{num_processes}"
        copy_without_limit(tmp_path / name, out)
        job = {"recipe": stopped["recipe"], "out": str(out), "resume": True}
        run_jobs(num_processes, data, [job], tmp_path) if num_processes > 1 else run_job(data, job)
        assert max_loss_difference(single_process_run(name), out) < MAX_LOSS_DIFFERENCE


def test_four_processes_resume_what_one_saved_with_ddp_and_fsdp(data, single_process_run, tmp_path):
    for parallel in ("ddp", "fsdp"):
        (job,) = jobs(tmp_path / parallel, parallel, only={"modern"})
        with pytest.raises(Exception, match="time limit reached"):
            run_job(data, job | {"settings": job["settings"] | STOPPED})
        out = tmp_path / f"{parallel}-4"
        copy_without_limit(tmp_path / parallel / "modern", out)
        run_jobs(4, data, [{"recipe": "pretrain", "out": str(out), "resume": True}], tmp_path)
        assert max_loss_difference(single_process_run("modern"), out) < MAX_LOSS_DIFFERENCE


def test_a_checkpoint_of_fsdp_has_the_names_shapes_and_values_of_any_other(data, tmp_path):
    one, four = tmp_path / "one", tmp_path / "four"
    for folder, parallel in ((one, "ddp"), (four, "fsdp")):
        (job,) = jobs(folder, parallel, only={"modern"})
        job["settings"] = job["settings"] | STOPPED
        with pytest.raises(Exception, match="time limit reached"):
            run_jobs(4, data, [job], tmp_path) if parallel == "fsdp" else run_job(data, job)
    for file in ("backbone", "head", "optimizer"):
        sharded, single = (
            load_tensors(folder / "modern" / "checkpoints" / "step-00000001" / f"{file}.safetensors")
            for folder in (four, one)
        )
        assert list(sharded) == list(single)
        for name, tensor in sharded.items():
            assert tensor.shape == single[name].shape
            assert tensor.numpy() == pytest.approx(single[name].numpy(), abs=1e-4), name


def test_four_processes_resume_to_the_same_bits(data, tmp_path):
    (uninterrupted,) = jobs(tmp_path / "uninterrupted", "ddp", only={"modern"})
    (stopped,) = jobs(tmp_path / "stopped", "ddp", only={"modern"})
    with pytest.raises(AssertionError, match="time limit reached"):
        run_jobs(4, data, [uninterrupted, stopped | {"settings": stopped["settings"] | STOPPED}], tmp_path)
    copy_without_limit(tmp_path / "stopped" / "modern", tmp_path / "resumed")
    run_jobs(4, data, [{"recipe": "pretrain", "out": str(tmp_path / "resumed"), "resume": True}], tmp_path)
    assert losses(tmp_path / "resumed") == losses(tmp_path / "uninterrupted" / "modern")
    resumed, expected = weights(tmp_path / "resumed"), weights(tmp_path / "uninterrupted" / "modern")
    assert all(bool((resumed[name] == expected[name]).all()) for name in expected)


def test_all_processes_use_one_plan_for_minutes(data, tmp_path):
    settings = {"loop.minutes": 0.1, "loop.evaluate_every": 10_000, "loop.save_every": 10_000}
    timed_jobs = [
        {"recipe": "pretrain", "out": str(tmp_path / "base"), "settings": {"loop.steps": None, **settings}},
        {
            "recipe": "finetune",
            "out": str(tmp_path / "clf"),
            "settings": {"runtime.parallel": "fsdp", "loop.minutes": 0.1},
        },
    ]
    run_jobs(2, data, timed_jobs, tmp_path)
    steps = Plan.from_dict(read_json(tmp_path / "base" / "plan.json")).steps
    assert len(RunFolder(tmp_path / "base").metrics.read("step")) == steps
    assert read_json(tmp_path / "clf" / "plan.json")["steps"] > 0


def copy_without_limit(source, target):
    """Copy a stopped run, without the limit that stopped it."""
    shutil.copytree(source, target)
    change_runtime(target, time_limit=None)
