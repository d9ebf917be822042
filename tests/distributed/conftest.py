"""Data, and the runs of one process that runs of several are held against."""

import pytest

from fixtures.distributed_jobs import jobs
from fixtures.tiny import write_reviews
from fixtures.torchrun_job import go


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("ranks") / "data")


@pytest.fixture(scope="session")
def alone(data, tmp_path_factory):
    """A function from a job's name to the folder of that run, done by one process; each once."""
    folder, done = tmp_path_factory.mktemp("alone"), {}

    def run(name):
        if name not in done:
            (job,) = jobs(folder, "ddp", only={name})
            go(data, job)
            done[name] = folder / name
        return done[name]

    return run
