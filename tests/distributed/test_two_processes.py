"""Two processes, started by torchrun, do what one does: the fast sample of `test_many_processes.py`."""

import pytest

from fixtures.distributed_jobs import jobs
from fixtures.torchrun import BOUND, apart, crew, losses, weights
from headstart.files import read_json
from headstart.store.bundle import load_bundle

FAST = {"ddp": {"plain", "weighted"}, "fsdp": {"modern"}}


@pytest.fixture(scope="module")
def pair(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    crew(2, data, [job for parallel, names in FAST.items() for job in jobs(folder, parallel, only=names)], folder)
    return folder


@pytest.mark.parametrize(("name", "steps"), [("plain", 50), ("modern", 12), ("weighted", 6)])
def test_the_losses_are_those_of_one_process(name, steps, pair, alone):
    assert len(losses(pair / name)) == steps
    assert apart(alone(name), pair / name) < BOUND
    ours, theirs = weights(pair / name), weights(alone(name))
    assert list(ours) == list(theirs)
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}


def test_the_record_says_how_many_they_were(pair, alone):
    assert read_json(pair / "modern" / "environment.json")["processes"] == 2
    assert read_json(pair / "modern" / "environment.json")["parallel"] == "fsdp"
    assert "processes" not in read_json(alone("modern") / "environment.json")


def test_what_shards_made_is_a_model_like_any_other(pair):
    assert load_bundle(pair / "modern" / "bundle", head_type="language").config.block == "modern"
    assert not (pair / "modern" / "checkpoints").exists()
