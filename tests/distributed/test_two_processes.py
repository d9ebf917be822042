"""Two processes give the results of one: a fast sample of `test_many_processes.py`."""

import pytest

from fixtures.distributed_jobs import jobs
from fixtures.torchrun import MAX_LOSS_DIFFERENCE, losses, max_loss_difference, run_jobs, weights
from headstart.files import read_json
from headstart.store.bundle import load_bundle

FAST = {"ddp": {"plain", "weighted"}, "fsdp": {"modern"}}


@pytest.fixture(scope="module")
def two_process_runs(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    run_jobs(2, data, [job for parallel, names in FAST.items() for job in jobs(folder, parallel, only=names)], folder)
    return folder


@pytest.mark.parametrize(("name", "steps"), [("plain", 50), ("modern", 12), ("weighted", 6)])
def test_two_processes_have_the_losses_of_one(name, steps, two_process_runs, single_process_run):
    assert len(losses(two_process_runs / name)) == steps
    assert max_loss_difference(single_process_run(name), two_process_runs / name) < MAX_LOSS_DIFFERENCE
    distributed, single = weights(two_process_runs / name), weights(single_process_run(name))
    assert list(distributed) == list(single)
    assert {name: tensor.shape for name, tensor in distributed.items()} == {
        name: tensor.shape for name, tensor in single.items()
    }


def test_the_environment_records_the_number_of_processes(two_process_runs, single_process_run):
    assert read_json(two_process_runs / "modern" / "environment.json")["processes"] == 2
    assert read_json(two_process_runs / "modern" / "environment.json")["parallel"] == "fsdp"
    assert "processes" not in read_json(single_process_run("modern") / "environment.json")


def test_a_model_trained_with_fsdp_is_a_bundle_like_any_other(two_process_runs):
    assert load_bundle(two_process_runs / "modern" / "bundle", head_type="language").config.block == "modern"
    assert not (two_process_runs / "modern" / "checkpoints").exists()
