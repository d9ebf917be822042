"""Fixtures: the data, and reference runs in one process."""

import pytest

from fixtures.distributed_jobs import jobs
from fixtures.tiny import write_reviews
from fixtures.torchrun_job import run_job


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("ranks") / "data")


@pytest.fixture(scope="session")
def single_process_run(data, tmp_path_factory):
    """A function that returns the folder of a job's run in one process; each job is run once."""
    folder, finished = tmp_path_factory.mktemp("single"), {}

    def run(name):
        if name not in finished:
            (job,) = jobs(folder, "ddp", only={name})
            run_job(data, job)
            finished[name] = folder / name
        return finished[name]

    return run
