"""Executors of the runs of a grid: this process, several worker processes, or a Ray cluster.

Several runs are executed at once, because a small network uses a fraction of a GPU or of many cores. A run writes the same
files with any executor. Workers read the data themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig
from headstart.errors import UsageError
from headstart.interrupts import StopSignal
from headstart.recipes.ray_cluster import RayCluster, run_on_cluster
from headstart.recipes.workers import MakeWorker, run_parallel
from headstart.runtime import free_cores

EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class Executor:
    """The executor of the runs of a grid, and the number of concurrent runs."""

    name: str = "local"
    """One of `EXECUTORS`."""
    jobs: int | None = None
    """The number of concurrent runs; None means one on this machine, and the capacity of a cluster."""
    address: str | None = None
    """The address of the cluster; None starts one on this machine."""
    threads: int | None = None
    """CPU threads of one run; None is one on a cluster."""

    @property
    def is_multiprocess(self) -> bool:
        """True if runs are executed in other processes than this one."""
        return self.name == "ray" or (self.jobs or 1) > 1

    def check(self) -> None:
        """Refuse invalid options."""
        if self.name not in EXECUTORS:
            raise UsageError(f"--engine must be local or ray, got {self.name!r}")
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"--jobs must be at least 1, got {self.jobs}")
        if self.address is not None and self.name != "ray":
            raise UsageError("--address needs --engine ray")

    def map(
        self,
        make_worker: MakeWorker,
        arguments: tuple[str, ...],
        jobs: Sequence[tuple[Any, ...]],
        folder: Path,
        stop: StopSignal,
        resume_command: str,
    ) -> Iterator[Any]:
        """Do every job in other processes and yield results as they arrive; `StopRequested` once all have stopped.

        Args:
            make_worker: a module-level function; called in each process with `arguments`, it returns the function that
                does a job.
            folder: the run folder, which all processes see.
            resume_command: the command that finishes the remaining jobs; error messages end with it.
        """
        if self.name == "local":
            return run_parallel(make_worker, arguments, jobs, min(self.jobs or 1, len(jobs)), stop, resume_command)
        cluster = RayCluster(self.address, max_jobs=self.jobs, num_cpus=self.threads or 1)
        return run_on_cluster(make_worker, arguments, jobs, cluster, folder, stop, resume_command)


def with_threads(config: FinetuneConfig, executor: Executor) -> FinetuneConfig:
    """Return the settings of runs that share a machine: threads are divided among them unless they are set."""
    if not executor.is_multiprocess or config.runtime.threads is not None:
        return config
    # the number of free cores of a cluster's machines is not known
    threads = 1 if executor.name == "ray" else max(1, free_cores() // (executor.jobs or 1))
    return merge_config(FinetuneConfig, config.model_dump(), {"runtime": {"threads": threads}})
