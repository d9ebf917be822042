"""Run a comparison: the grid of arms, label budgets and seeds.

One comparison under way: its cells, and how each is made, here or in a process of its own.

One small file a finished cell, so that a killed comparison goes on where it stopped and never repeats a finished run.

The experiment: the same rows, seeds and head, random weights against a pretrained backbone, the linear arms beside them.

One small file a finished cell, so that a killed comparison goes on where it stopped and never repeats a finished run.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig
from headstart.data.hashing import text_digest
from headstart.data.labelled import label_subset
from headstart.errors import ConfigError, Interrupted, StoreError, UsageError
from headstart.files import MANIFEST, sha256_of, write_json
from headstart.interrupts import StopRequested, StopSignal, handle_signals
from headstart.model.parameter_count import count_parameters
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.recipes.compare.arms import (
    DEFAULT_ARMS,
    NetworkJob,
    PretrainedSource,
    differences,
    encode_with,
    expand_arms,
    is_network,
    load_sources,
    run_network,
    source_folders,
)
from headstart.recipes.compare.baselines import run_baseline
from headstart.recipes.executors import Executor, run_grid, with_threads
from headstart.recipes.finetune.dataset import (
    LabelledData,
    check_single_label,
    class_weights,
    load_labelled_data,
    note_pretraining_overlap,
    resolve_attention,
)
from headstart.recipes.finetune.run import choose_tokenizer, resolve_config
from headstart.report.error_tables import error_tables
from headstart.report.load import load_comparison
from headstart.report.page import write_report
from headstart.runtime import Runtime, environment, setup_runtime
from headstart.store.records import (
    Budget,
    ComparisonData,
    RunRecord,
    Split,
    TestSplit,
    read_record,
    record_path,
    write_comparison_data,
    write_excerpts,
    write_record,
)
from headstart.store.run_folder import RunFolder

RunSpec = tuple[str, Budget, int]
"""A cell: its arm, its number of labels and its seed."""


def _run_cost(place: RunSpec) -> float:
    """Of a run beside others: linear arms take seconds, and in full would make the time left look shorter than it is."""
    return 1.0 if is_network(place[0]) else 0.02


def _describe_run(place: RunSpec) -> str:
    arm, budget, seed = place
    return f"{arm}, {budget} labels, seed {seed}"


def _read(path: Path) -> RunRecord:
    """A finished cell; of a damaged one, how to go on without it."""
    try:
        return read_record(path)
    except StoreError as error:
        raise StoreError(f"{error}; take the file away, and --resume runs that cell again") from None


def _square_matrix(place: RunSpec) -> tuple[str, str]:
    """Where in the table of runs a cell belongs."""
    return place[0], str(place[1])


def compare_worker(path: str) -> Callable[[RunSpec, StopSignal], RunSpec]:
    """What a process of its own, here or on another machine, does with the cells it is given: all it needs is on disk."""
    run = RunFolder.open(Path(path), kind="compare")
    comparison = ComparisonRun(run, merge_config(FinetuneConfig, run.settings), run.facts["inputs"], SilentProgress())
    comparison.read(doubles=False)  # the first process has looked for them

    def make(place: RunSpec, stop: StopSignal) -> RunSpec:
        comparison.make(place, stop)
        return place

    return make


@dataclass
class ComparisonRun:
    """One comparison under way."""

    run: RunFolder
    config: FinetuneConfig
    inputs: dict[str, Any]
    progress: Progress

    def prepare(self) -> None:
        """Read and check everything before the first run, and write down what was found."""
        self.read()
        write_json(self.run.path / "environment.json", environment(self.runtime))
        self.run.check_inputs_unchanged(self._fingerprints())
        self._write_data()

    def read(self, *, doubles: bool = True) -> None:
        """Read and check everything."""
        self.runtime: Runtime = setup_runtime(self.config.runtime)
        self.sources = load_sources(source_folders(self.inputs["source"]), self.inputs["tokenizer"])
        first = self.sources[0].bundle if self.sources else None
        data = load_labelled_data(
            self.inputs["train"],
            self.inputs["valid"],
            self.inputs["test"],
            self.config.labelled,
            tokenizer=choose_tokenizer(first, self.inputs["tokenizer"]),
            tokenizer_config=self.config.tokenizer,
            seed=self.config.runtime.seed,
            progress=self.progress,
            doubles=doubles,
        )
        check_single_label(
            data,
            "compare",
            "run finetune with --test once with --from a pretrained folder and once with --from scratch, over several "
            "--runtime.seed, and compare their result.json",
        )
        notes = (*differences(self.sources), *self._hurried())
        for note in notes:
            self.progress.say(note)
        self.data: LabelledData = replace(data, notes=(*data.notes, *notes))
        for source in self.sources:
            self.data = note_pretraining_overlap(self.data, source.bundle.path, source.path, self.progress)
        self.digests = [text_digest(text) for text in data.train.texts]
        self.encoded = {
            source.bundle.tokenizer.digest: encode_with(data, source.bundle.tokenizer, source.path)
            for source in self.sources
        }
        class_weights(self.config, self.data.task, self.data.train)
        self.cells = list(self._cells())

    def _hurried(self) -> tuple[str, ...]:
        """What whoever reads the numbers must know of networks that were given minutes, and not the epochs they need."""
        minutes = self.config.loop.minutes
        if minutes is None:
            return ()
        return (
            f"every network was given {pluralize(minutes, 'minute')} (--minutes) in place of all its "
            "epochs, which may be too few to learn anything",
        )

    def _fingerprints(self) -> dict[str, Any]:
        """What a comparison must not go on without: its rows, its pretrained models, and its way of choosing rows."""
        models = {source.path: sha256_of(source.bundle.path / MANIFEST) for source in self.sources}
        drawn = {"the drawing of label subsets": "by text"} if self.inputs["labels"] != [None] else {}
        return self.data.fingerprints() | models | drawn

    def go(self, stop: StopSignal, engine: Executor) -> None:
        """Run what is not there yet."""
        paths = {place: record_path(self.run.path, *place) for place in self.cells}
        # now, so that a damaged one is named before the last run
        there = {place: _read(path) for place, path in paths.items() if path.is_file()}
        left = [place for place in self.cells if place not in there]
        bars = self.progress.task("comparing", sum(map(_run_cost, self.cells)), "runs")
        board = self.progress.board("test accuracy", Counter(map(_square_matrix, self.cells)))
        with bars as bar, board as table:
            for place, cell in there.items():
                table.add(_square_matrix(place), cell.test.accuracy)
                bar.advance(_run_cost(place), _describe_run(place))
            try:
                for cell in self._done(left, engine, stop, table.start):
                    place = cell.arm, cell.labels, cell.seed
                    table.add(_square_matrix(place), cell.test.accuracy)
                    bar.advance(_run_cost(place), _describe_run(place))
                    found = f"validation {cell.valid.accuracy:.4f}, test {cell.test.accuracy:.4f}"
                    self.progress.say(f"{_describe_run(place)}: {found}")
            except StopRequested:
                here = next((_describe_run(place) for place in left if not paths[place].is_file()), "the end")
                raise Interrupted(
                    f"{stop.why} at {here}; saved. Go on with: {self._again}", stop.reason or ""
                ) from None
        shutil.rmtree(self.run.path / "work", ignore_errors=True)
        self._quote()

    def _quote(self) -> None:
        """Keep the beginnings of the texts that the report lists as mistakes, unless no text was to be kept."""
        assert self.data.test is not None
        found = error_tables(load_comparison(self.run.path)) if self.inputs.get("texts", True) else None
        if found:
            texts = self.data.test.texts
            write_excerpts(self.run.path, {mistake.row: texts[mistake.row] for mistake in found.mistakes})

    @property
    def _again(self) -> str:
        return f"headstart compare --resume --out {self.run.path}"

    def _done(
        self, left: list[RunSpec], engine: Executor, stop: StopSignal, begin: Callable[[tuple[str, str]], None]
    ) -> Iterator[RunRecord]:
        """The cells that are left, as they are finished; each is on disk when it comes."""
        if engine.is_apart and left:
            folder = self.run.path
            for place in run_grid(engine, compare_worker, (str(folder.resolve()),), left, folder, stop, self._again):
                if place is not None:
                    yield _read(record_path(folder, *place))
            stop.check()
            return
        for place in left:
            stop.check()
            begin(_square_matrix(place))
            yield self.make(place, stop)

    def make(self, place: RunSpec, stop: StopSignal) -> RunRecord:
        """Run one cell and write it down, unless another machine has done so meanwhile."""
        arm, budget, seed = place
        path = record_path(self.run.path, *place)
        if path.is_file():
            with suppress(StoreError):  # still being copied: then it is made here
                return read_record(path)
        run = self._network if is_network(arm) else self._linear
        cell = run(arm, budget, seed, stop)
        write_record(self.run.path, cell)
        return cell

    def _cells(self) -> Iterator[RunSpec]:
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

    def _subset(self, data: LabelledData, budget: Budget, seed: int) -> LabelledData:
        """The rows that every arm of a seed learns from."""
        if budget == "all":
            return data
        labels = [data.labels[label] for label in data.train.gold]
        return replace(data, train=data.train.take(label_subset(labels, budget, seed, self.digests)))

    def _linear(self, arm: str, budget: Budget, seed: int, _stop: StopSignal) -> RunRecord:
        data = self._subset(self.data, budget, seed)
        assert data.test is not None
        train, valid, test = ((part.texts, part.gold.tolist()) for part in (data.train, data.valid, data.test))
        return run_baseline(arm, train, valid, test, data.labels, seed, budget=budget)

    def _network(self, arm: str, budget: Budget, seed: int, stop: StopSignal) -> RunRecord:
        source = self._source_of(arm)
        data = self.encoded[source.bundle.tokenizer.digest] if source else self.data
        first = not self.sources or source is self.sources[0]
        job = NetworkJob(
            arm=arm,
            budget=budget,
            seed=seed,
            data=self._subset(data, budget, seed),
            config=self.config,
            shape=source,
            choose=self.inputs.get("choose", False),
            work=self.run.path / "work" / record_path(self.run.path, arm, budget, seed).stem,
            receipt=self.run.path / ("receipt.json" if first or not source else f"receipt-{source.name}.json"),
        )
        say = (arm, budget, seed) == next(cell for cell in self.cells if is_network(cell[0]))  # once is enough
        return run_network(job, self.runtime, stop, self.progress, say_truncation=say)

    def _source_of(self, arm: str) -> PretrainedSource | None:
        """The folder an arm begins from, or has the shape of: scratch that of the first."""
        name = arm.partition(":")[2]
        return next((source for source in self.sources if not name or source.name == name), None)

    def _write_data(self) -> None:
        data = self.data
        assert data.test is not None
        test = data.test.describe(data.task) | {
            "gold": tuple(int(label) for label in data.test.gold),
            "overlap": tuple(data.leaks.exact),
            "near": tuple(data.leaks.near),
            "lengths": tuple(len(ids) for ids in data.test.ids),
        }
        record = ComparisonData(
            labels=data.labels,
            train=Split(**data.train.describe(data.task)),
            valid=Split(**data.valid.describe(data.task), gold=tuple(int(label) for label in data.valid.gold)),
            test=TestSplit(**test),
            notes=data.notes,
        )
        write_comparison_data(self.run.path, record)
        first = self.sources[0].bundle if self.sources else None
        shape, attention = first.config if first else self.config.model, resolve_attention(self.config, first)
        parts = count_parameters(shape, data.tokenizer.vocab_size, len(data.labels), attention=attention)
        rows = [{"part": row.part, "formula": row.formula, "count": row.count} for row in parts.rows]
        write_json(self.run.path / "ledger.json", {"classifier": rows, "total": parts.total})


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
    progress, since = progress or SilentProgress(), time.monotonic()
    grid = Executor(cast(Literal["local", "ray"], engine), jobs, address)
    grid.check()
    if resume:
        run = RunFolder.open(out, kind="compare")
        config = merge_config(FinetuneConfig, run.settings)
        inputs = run.facts["inputs"]
        if run.finished:
            progress.say(f"{out} is finished already")
            return write_report(out)
    else:
        if config is None or train is None or test is None:
            raise UsageError("compare needs a labelled file to train on and --test with one to be judged on")
        paths = source_folders(source)
        inputs = _inputs(train, valid, test, tokenizer, paths, texts)
        inputs |= {"seeds": seeds, "labels": list(labels), "arms": list(expand_arms(arms, paths)), "choose": choose}
        run, config = _started(out, config, inputs, grid, command)
    with run.locked():
        comparison = ComparisonRun(run, config, inputs, progress)
        with run.remove_on_error(new=not resume):
            comparison.prepare()
        with handle_signals(config.runtime.time_limit, since) as stop:
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
    out: Path, config: FinetuneConfig, inputs: dict[str, Any], engine: Executor, command: str
) -> tuple[RunFolder, FinetuneConfig]:
    """The folder of a new comparison, and the settings that all its runs will have."""
    _check(inputs, config)
    # a wrong folder is found out before anything is written
    first = next(iter(load_sources(source_folders(inputs["source"]), inputs["tokenizer"])), None)
    config = resolve_config(with_threads(config, engine), first.bundle if first else None)
    return RunFolder.create(out, kind="compare", command=command, config=config, inputs=inputs), config


def _check(inputs: dict[str, Any], config: FinetuneConfig) -> None:
    if inputs["choose"] and config.loop.watch_test:
        raise ConfigError("--choose and loop.watch_test exclude each other: what is tried may not see test")
    if inputs["seeds"] < 1:
        raise ConfigError(f"--seeds must be at least 1, got {inputs['seeds']}")
    for count in inputs["labels"]:
        if count is not None and count < 2:
            raise ConfigError(f"--labels must be at least 2 or all, got {count}")
