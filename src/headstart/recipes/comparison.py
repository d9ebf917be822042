"""One comparison under way: its cells, and how each is made, here or in a process of its own.

One small file a finished cell, so that a killed comparison goes on where it stopped and never repeats a finished run.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.config import FinetuneConfig
from headstart.data.digests import text_digest
from headstart.data.labelled import label_subset
from headstart.errors import ConfigError, Interrupted, StoreError
from headstart.files import MANIFEST, sha256_of, write_json
from headstart.layering import layered
from headstart.model.ledger import ledger
from headstart.progress import Progress, Quiet, counted
from headstart.recipes.arms import (
    Source,
    differences,
    encoded_by,
    folders,
    is_network,
    load_sources,
)
from headstart.recipes.baselines import run_baseline
from headstart.recipes.classifier import class_weights, reading_of
from headstart.recipes.finetune import choose_tokenizer
from headstart.recipes.grid import Engine, run_grid
from headstart.recipes.labelled_data import LabelledData, check_one_class, load_data
from headstart.recipes.leaks import pretraining_noted
from headstart.recipes.networks import NetworkRun, run_network
from headstart.report.collect import collect
from headstart.report.mistakes import errors
from headstart.runtime import Halt, Runtime, Stop, environment, start
from headstart.store.cells import Budget, Cell, Data, Split, TestSplit, cell_path, read_cell, write_cell, write_data
from headstart.store.quotes import write_quotes
from headstart.store.rundir import RunFolder

Place = tuple[str, Budget, int]
"""A cell: its arm, its number of labels and its seed."""


def _weight(place: Place) -> float:
    """Of a run beside others: linear arms take seconds, and in full would make the time left look shorter than it is."""
    return 1.0 if is_network(place[0]) else 0.02


def _words(place: Place) -> str:
    arm, budget, seed = place
    return f"{arm}, {budget} labels, seed {seed}"


def _read(path: Path) -> Cell:
    """A finished cell; of a damaged one, how to go on without it."""
    try:
        return read_cell(path)
    except StoreError as error:
        raise StoreError(f"{error}; take the file away, and --resume runs that cell again") from None


def _square(place: Place) -> tuple[str, str]:
    """Where in the table of runs a cell belongs."""
    return place[0], str(place[1])


def worker(path: str) -> Callable[[Place, Stop], Place]:
    """What a process of its own, here or on another machine, does with the cells it is given: all it needs is on disk."""
    run = RunFolder.open(Path(path), kind="compare")
    comparison = Comparison(run, layered(FinetuneConfig, run.settings), run.facts["inputs"], Quiet())
    comparison.read(doubles=False)  # the first process has looked for them

    def make(place: Place, stop: Stop) -> Place:
        comparison.make(place, stop)
        return place

    return make


@dataclass
class Comparison:
    """One comparison under way."""

    run: RunFolder
    config: FinetuneConfig
    inputs: dict[str, Any]
    progress: Progress

    def prepare(self) -> None:
        """Read and check everything before the first run, and write down what was found."""
        self.read()
        write_json(self.run.path / "environment.json", environment(self.runtime))
        self.run.same_inputs(self._fingerprints())
        self._write_data()

    def read(self, *, doubles: bool = True) -> None:
        """Read and check everything."""
        self.runtime: Runtime = start(self.config.runtime)
        self.sources = load_sources(folders(self.inputs["source"]), self.inputs["tokenizer"])
        first = self.sources[0].bundle if self.sources else None
        data = load_data(
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
        check_one_class(
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
            self.data = pretraining_noted(self.data, source.bundle.path, source.path, self.progress)
        self.digests = [text_digest(text) for text in data.train.texts]
        self.encoded = {
            source.bundle.tokenizer.digest: encoded_by(data, source.bundle.tokenizer, source.path)
            for source in self.sources
        }
        class_weights(self.config, self.data.target, self.data.train)
        self.cells = list(self._cells())

    def _hurried(self) -> tuple[str, ...]:
        """What whoever reads the numbers must know of networks that were given minutes, and not the epochs they need."""
        minutes = self.config.loop.minutes
        if minutes is None:
            return ()
        return (
            f"every network was given {counted(minutes, 'minute')} (--minutes) in place of all its "
            "epochs, which may be too few to learn anything",
        )

    def _fingerprints(self) -> dict[str, Any]:
        """What a comparison must not go on without: its rows, its pretrained models, and its way of choosing rows."""
        models = {source.path: sha256_of(source.bundle.path / MANIFEST) for source in self.sources}
        drawn = {"the drawing of label subsets": "by text"} if self.inputs["labels"] != [None] else {}
        return self.data.fingerprints() | models | drawn

    def go(self, stop: Stop, engine: Engine) -> None:
        """Run what is not there yet."""
        paths = {place: cell_path(self.run.path, *place) for place in self.cells}
        # now, so that a damaged one is named before the last run
        there = {place: _read(path) for place, path in paths.items() if path.is_file()}
        left = [place for place in self.cells if place not in there]
        bars = self.progress.task("comparing", sum(map(_weight, self.cells)), "runs")
        board = self.progress.board("test accuracy", Counter(map(_square, self.cells)))
        with bars as bar, board as table:
            for place, cell in there.items():
                table.add(_square(place), cell.test.accuracy)
                bar.advance(_weight(place), _words(place))
            try:
                for cell in self._done(left, engine, stop, table.start):
                    place = cell.arm, cell.labels, cell.seed
                    table.add(_square(place), cell.test.accuracy)
                    bar.advance(_weight(place), _words(place))
                    found = f"validation {cell.valid.accuracy:.4f}, test {cell.test.accuracy:.4f}"
                    self.progress.say(f"{_words(place)}: {found}")
            except Halt:
                here = next((_words(place) for place in left if not paths[place].is_file()), "the end")
                raise Interrupted(
                    f"{stop.why} at {here}; saved. Go on with: {self._again}", stop.reason or ""
                ) from None
        shutil.rmtree(self.run.path / "work", ignore_errors=True)
        self._quote()

    def _quote(self) -> None:
        """Keep the beginnings of the texts that the report lists as mistakes, unless no text was to be kept."""
        assert self.data.test is not None
        found = errors(collect(self.run.path)) if self.inputs.get("texts", True) else None
        if found:
            texts = self.data.test.texts
            write_quotes(self.run.path, {mistake.row: texts[mistake.row] for mistake in found.mistakes})

    @property
    def _again(self) -> str:
        return f"headstart compare --resume --out {self.run.path}"

    def _done(
        self, left: list[Place], engine: Engine, stop: Stop, begin: Callable[[tuple[str, str]], None]
    ) -> Iterator[Cell]:
        """The cells that are left, as they are finished; each is on disk when it comes."""
        if engine.is_apart and left:
            folder = self.run.path
            for place in run_grid(engine, worker, (str(folder.resolve()),), left, folder, stop, self._again):
                if place is not None:
                    yield _read(cell_path(folder, *place))
            stop.check()
            return
        for place in left:
            stop.check()
            begin(_square(place))
            yield self.make(place, stop)

    def make(self, place: Place, stop: Stop) -> Cell:
        """Run one cell and write it down, unless another machine has done so meanwhile."""
        arm, budget, seed = place
        path = cell_path(self.run.path, *place)
        if path.is_file():
            with suppress(StoreError):  # still being copied: then it is made here
                return read_cell(path)
        run = self._network if is_network(arm) else self._linear
        cell = run(arm, budget, seed, stop)
        write_cell(self.run.path, cell)
        return cell

    def _cells(self) -> Iterator[Place]:
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
        test = data.test.describe(data.target) | {
            "gold": tuple(int(label) for label in data.test.gold),
            "overlap": tuple(data.leaks.exact),
            "near": tuple(data.leaks.near),
            "lengths": tuple(len(ids) for ids in data.test.ids),
        }
        record = Data(
            labels=data.labels,
            train=Split(**data.train.describe(data.target)),
            valid=Split(**data.valid.describe(data.target), gold=tuple(int(label) for label in data.valid.gold)),
            test=TestSplit(**test),
            notes=data.notes,
        )
        write_data(self.run.path, record)
        first = self.sources[0].bundle if self.sources else None
        shape, reading = first.config if first else self.config.model, reading_of(self.config, first)
        parts = ledger(shape, data.tokenizer.vocab_size, len(data.labels), reading=reading)
        rows = [{"part": row.part, "formula": row.formula, "count": row.count} for row in parts.rows]
        write_json(self.run.path / "ledger.json", {"classifier": rows, "total": parts.total})
