"""The experiment: the same rows, seeds and head, random weights against a pretrained backbone, the linear arms beside them.

One small file a finished cell, so that a killed comparison goes on where it stopped and never repeats a finished run.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from headstart.config import FinetuneConfig
from headstart.errors import ConfigError, UsageError
from headstart.files import write_json
from headstart.layering import layered
from headstart.progress import Progress, Quiet
from headstart.recipes.arms import (
    DEFAULT_ARMS,
    expanded,
    folders,
    load_sources,
)
from headstart.recipes.comparison import Comparison
from headstart.recipes.finetune import settled
from headstart.recipes.grid import Engine, with_threads
from headstart.report.page import write_report
from headstart.runtime import stopping
from headstart.store.rundir import RunFolder


def run_compare(
    train: str | None,
    out: Path,
    config: FinetuneConfig | None,
    *,
    source: str | Sequence[str] | None = None,
    valid: str | None = None,
    test: str | None = None,
    tokenizer: Path | None = None,
    seeds: int = 5,
    labels: tuple[int | None, ...] = (None,),
    arms: tuple[str, ...] = DEFAULT_ARMS,
    choose: bool = False,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    texts: bool = True,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Path:
    """Run every arm at every number of labels (None: all) over paired seeds; returns the report.

    With `resume`, go on with the comparison in `out`: what it compares is read from there.

    Args:
        source: the pretrained folder, or several to be compared with each other.
        choose: let validation choose each network's rate, as it chooses the strength of the linear arms.
        jobs: processes that run cells at the same time; the results are the same.
        engine: "local", or "ray" for the Ray cluster at `address` (None: one that is started here).
        texts: keep the beginnings of a few test texts, to be quoted in the report.
    """
    progress, since = progress or Quiet(), time.monotonic()
    grid = Engine(cast(Literal["local", "ray"], engine), jobs, address)
    grid.check()
    if resume:
        run = RunFolder.open(out, kind="compare")
        config = layered(FinetuneConfig, run.settings)
        inputs = run.facts["inputs"]
        if run.finished:
            progress.say(f"{out} is finished already")
            return write_report(out)
    else:
        if config is None or train is None or test is None:
            raise UsageError("compare needs a labelled file to train on and --test with one to be judged on")
        paths = folders(source)
        inputs = _inputs(train, valid, test, tokenizer, paths, texts)
        inputs |= {"seeds": seeds, "labels": list(labels), "arms": list(expanded(arms, paths)), "choose": choose}
        run, config = _started(out, config, inputs, grid, command)
    with run.locked():
        comparison = Comparison(run, config, inputs, progress)
        with run.discarded_on_error(new=not resume):
            comparison.prepare()
        with stopping(config.runtime.time_limit, since) as stop:
            comparison.go(stop, replace(grid, threads=config.runtime.threads))
            page = write_report(out)
            write_json(out / "result.json", {"report": page.name})  # written last: the comparison is finished
    return page


def _inputs(
    train: str, valid: str | None, test: str, tokenizer: Path | None, paths: Sequence[str], texts: bool
) -> dict[str, Any]:
    """What is read, as the person wrote it."""
    files: dict[str, Any] = {"train": train, "valid": valid, "test": test}
    files["tokenizer"] = str(tokenizer) if tokenizer else None
    return files | {"source": list(paths) if len(paths) > 1 else next(iter(paths), None), "texts": texts}


def _started(
    out: Path, config: FinetuneConfig, inputs: dict[str, Any], engine: Engine, command: str
) -> tuple[RunFolder, FinetuneConfig]:
    """The folder of a new comparison, and the settings that all its runs will have."""
    _check(inputs, config)
    # a wrong folder is found out before anything is written
    first = next(iter(load_sources(folders(inputs["source"]), inputs["tokenizer"])), None)
    config = settled(with_threads(config, engine), first.bundle if first else None)
    return RunFolder.create(out, kind="compare", command=command, config=config, inputs=inputs), config


def _check(inputs: dict[str, Any], config: FinetuneConfig) -> None:
    if inputs["choose"] and config.loop.watch_test:
        raise ConfigError("--choose and loop.watch_test exclude each other: what is tried may not see test")
    if inputs["seeds"] < 1:
        raise ConfigError(f"--seeds must be at least 1, got {inputs['seeds']}")
    for count in inputs["labels"]:
        if count is not None and count < 2:
            raise ConfigError(f"--labels must be at least 2 or all, got {count}")
