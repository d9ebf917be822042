"""The experiment: the same rows, seeds and head, random weights against a pretrained backbone, the linear arms beside them.

One small file a finished cell, so that a killed comparison goes on where it stopped and never repeats a finished run.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.config import FinetuneConfig
from headstart.data.digests import text_digest
from headstart.data.labelled import label_subset
from headstart.errors import ConfigError, Interrupted, StoreError, UsageError
from headstart.files import MANIFEST, sha256_of, write_json
from headstart.layering import layered
from headstart.model.ledger import ledger
from headstart.progress import Progress, Quiet
from headstart.recipes.arms import (
    DEFAULT_ARMS,
    Source,
    differences,
    encoded_by,
    expanded,
    folders,
    is_network,
    load_sources,
)
from headstart.recipes.baselines import run_baseline
from headstart.recipes.classifier import class_weights
from headstart.recipes.finetune import choose_tokenizer, settled
from headstart.recipes.labelled_data import LabelledData, load_data
from headstart.recipes.leaks import pretraining_noted
from headstart.recipes.networks import NetworkRun, run_network
from headstart.report.page import write_report
from headstart.runtime import Halt, Runtime, Stop, environment, start, stopping
from headstart.store.cells import Budget, Cell, Data, Split, TestSplit, cell_path, read_cell, write_cell, write_data
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
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Path:
    """Run every arm at every number of labels (None: all) over paired seeds; returns the report.

    With `resume`, go on with the comparison in `out`: what it compares is read from there.

    Args:
        source: the pretrained folder, or several to be compared with each other.
        choose: let validation choose each network's rate, as it chooses the strength of the linear arms.
    """
    progress, since = progress or Quiet(), time.monotonic()
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
        files = {"train": train, "valid": valid, "test": test, "tokenizer": str(tokenizer) if tokenizer else None}
        inputs = files | {
            "source": list(paths) if len(paths) > 1 else next(iter(paths), None),
            "seeds": seeds,
            "labels": list(labels),
            "arms": list(expanded(arms, paths)),
            "choose": choose,
        }
        _check(inputs, config)
        # a wrong folder is found out before anything is written
        first = next(iter(load_sources(paths, tokenizer)), None)
        config = settled(config, first.bundle if first else None)
        run = RunFolder.create(out, kind="compare", command=command, config=config, inputs=inputs)
    with run.locked():
        comparison = _Comparison(run, config, inputs, progress)
        with run.discarded_on_error(new=not resume):
            comparison.prepare()
        with stopping(config.runtime.time_limit, since) as stop:
            comparison.go(stop)
            page = write_report(out)
            write_json(out / "result.json", {"report": page.name})  # written last: the comparison is finished
    return page


def _check(inputs: dict[str, Any], config: FinetuneConfig) -> None:
    if inputs["choose"] and config.loop.watch_test:
        raise ConfigError("--choose and loop.watch_test exclude each other: what is tried may not see test")
    if inputs["seeds"] < 1:
        raise ConfigError(f"--seeds must be at least 1, got {inputs['seeds']}")
    for count in inputs["labels"]:
        if count is not None and count < 2:
            raise ConfigError(f"--labels must be at least 2 or all, got {count}")


def _check_cell(path: Path) -> None:
    """Refuse a damaged cell, and say how to go on without it."""
    try:
        read_cell(path)
    except StoreError as error:
        raise StoreError(f"{error}; take the file away, and --resume runs that cell again") from None


@dataclass
class _Comparison:
    """One comparison under way."""

    run: RunFolder
    config: FinetuneConfig
    inputs: dict[str, Any]
    progress: Progress

    def prepare(self) -> None:
        """Read and check everything before the first run."""
        self.runtime: Runtime = start(self.config.runtime)
        self.sources = load_sources(folders(self.inputs["source"]), self.inputs["tokenizer"])
        first = self.sources[0].bundle if self.sources else None
        write_json(self.run.path / "environment.json", environment(self.runtime))
        data = load_data(
            self.inputs["train"],
            self.inputs["valid"],
            self.inputs["test"],
            self.config.labelled,
            tokenizer=choose_tokenizer(first, self.inputs["tokenizer"]),
            tokenizer_config=self.config.tokenizer,
            seed=self.config.runtime.seed,
            progress=self.progress,
        )
        notes = differences(self.sources)
        for note in notes:
            self.progress.say(note)
        self.data: LabelledData = replace(data, notes=(*data.notes, *notes))
        for source in self.sources:
            self.data = pretraining_noted(self.data, source.bundle.path, source.path, self.progress)
        self.digests = [text_digest(text) for text in data.train.texts]
        self.encoded = {
            source.bundle.tokenizer.digest: encoded_by(data, source.bundle.tokenizer, source.path)
            for source in self.sources
        }
        class_weights(self.config, self.data.labels, self.data.train)
        self.run.same_inputs(self._fingerprints())
        self.cells = list(self._cells())
        self._write_data()

    def _fingerprints(self) -> dict[str, Any]:
        """What a comparison must not go on without: its rows, its pretrained models, and its way of choosing rows."""
        models = {source.path: sha256_of(source.bundle.path / MANIFEST) for source in self.sources}
        drawn = {"the drawing of label subsets": "by text"} if self.inputs["labels"] != [None] else {}
        return self.data.fingerprints() | models | drawn

    def go(self, stop: Stop) -> None:
        """Run what is not there yet."""
        # the linear arms take seconds: counting them in full would make the time left look shorter than it is
        weights = [1.0 if is_network(arm) else 0.02 for arm, _, _ in self.cells]
        with self.progress.task("comparing", sum(weights), "runs") as bar:
            for (arm, budget, seed), weight in zip(self.cells, weights, strict=True):
                path = cell_path(self.run.path, arm, budget, seed)
                if path.is_file():
                    _check_cell(path)  # now, not after the last run
                else:
                    self._run(arm, budget, seed, stop)
                bar.advance(weight, f"{arm}, {budget} labels, seed {seed}")
        shutil.rmtree(self.run.path / "work", ignore_errors=True)

    def _cells(self) -> Iterator[tuple[str, Budget, int]]:
        """Arms side by side, seed after seed, so that an unfinished comparison is balanced as far as it goes."""
        first = self.config.runtime.seed
        for count in self.inputs["labels"]:
            if count is not None and count > len(self.data.train):
                raise ConfigError(
                    f"--labels {count} is more than the {len(self.data.train)} labelled rows there are to learn from"
                )
        for count in self.inputs["labels"]:
            budget: Budget = "all" if count is None else count
            for seed in range(first, first + self.inputs["seeds"]):
                for arm in self.inputs["arms"]:
                    # a linear arm on all rows has nothing left to chance: one run says it all
                    if is_network(arm) or count is not None or seed == first:
                        yield arm, budget, seed

    def _run(self, arm: str, budget: Budget, seed: int, stop: Stop) -> None:
        try:
            stop.check()
            make = self._network if is_network(arm) else self._linear
            cell = make(arm, budget, seed, stop)
        except Halt:
            raise Interrupted(
                f"{stop.reason} at {arm}, {budget} labels, seed {seed}; saved. Go on with: "
                f"headstart compare --resume --out {self.run.path}",
                stop.reason or "",
            ) from None
        write_cell(self.run.path, cell)
        self.progress.say(
            f"{arm}, {budget} labels, seed {seed}: validation {cell.valid.accuracy:.4f}, test {cell.test.accuracy:.4f}"
        )

    def _subset(self, data: LabelledData, budget: Budget, seed: int) -> LabelledData:
        """The rows that every arm of a seed learns from."""
        if budget == "all":
            return data
        labels = [data.labels[label] for label in data.train.gold]
        return replace(data, train=data.train.take(label_subset(labels, budget, seed, self.digests)))

    def _linear(self, arm: str, budget: Budget, seed: int, _stop: Stop) -> Cell:
        data = self._subset(self.data, budget, seed)
        assert data.test is not None
        train, valid, test = ((part.texts, part.gold.tolist()) for part in (data.train, data.valid, data.test))
        return run_baseline(arm, train, valid, test, data.labels, seed, budget=budget)

    def _network(self, arm: str, budget: Budget, seed: int, stop: Stop) -> Cell:
        source = self._source_of(arm)
        data = self.encoded[source.bundle.tokenizer.digest] if source else self.data
        first = not self.sources or source is self.sources[0]
        job = NetworkRun(
            arm=arm,
            budget=budget,
            seed=seed,
            data=self._subset(data, budget, seed),
            config=self.config,
            shape=source,
            choose=self.inputs.get("choose", False),
            work=self.run.path / "work" / cell_path(self.run.path, arm, budget, seed).stem,
            receipt=self.run.path / ("receipt.json" if first or not source else f"receipt-{source.name}.json"),
        )
        say = (arm, budget, seed) == next(cell for cell in self.cells if is_network(cell[0]))  # once is enough
        return run_network(job, self.runtime, stop, self.progress, say_truncation=say)

    def _source_of(self, arm: str) -> Source | None:
        """The folder an arm begins from, or has the shape of: scratch that of the first."""
        name = arm.partition(":")[2]
        return next((source for source in self.sources if not name or source.name == name), None)

    def _write_data(self) -> None:
        data = self.data
        assert data.test is not None
        test = data.test.describe(data.labels) | {
            "gold": tuple(int(label) for label in data.test.gold),
            "overlap": tuple(data.leaks.exact),
            "near": tuple(data.leaks.near),
        }
        record = Data(
            labels=data.labels,
            train=Split(**data.train.describe(data.labels)),
            valid=Split(**data.valid.describe(data.labels), gold=tuple(int(label) for label in data.valid.gold)),
            test=TestSplit(**test),
            notes=data.notes,
        )
        write_data(self.run.path, record)
        shape = self.sources[0].bundle.config if self.sources else self.config.model
        parts = ledger(shape, data.tokenizer.vocab_size, len(data.labels))
        rows = [{"part": row.part, "formula": row.formula, "count": row.count} for row in parts.rows]
        write_json(self.run.path / "ledger.json", {"classifier": rows, "total": parts.total})
