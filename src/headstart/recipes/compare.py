"""The experiment: the same rows, seeds and head, random weights against a pretrained backbone, the linear arms beside them.

One small file a finished cell, so that a killed comparison goes on where it stopped and never repeats a finished run.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.config import FinetuneConfig
from headstart.data.labelled import label_subset
from headstart.errors import ConfigError, Interrupted, UsageError
from headstart.files import read_json, write_json
from headstart.layering import layered
from headstart.model.ledger import ledger
from headstart.progress import Progress, Quiet
from headstart.recipes.baselines import run_baseline
from headstart.recipes.finetune import SCRATCH, choose_tokenizer, settled
from headstart.recipes.labelled_data import LabelledData, load_data
from headstart.recipes.leaks import pretraining_noted
from headstart.recipes.training import Finetuning, build_classifier, class_weights, reading_of
from headstart.report.page import write_report
from headstart.runtime import Halt, Runtime, Stop, environment, start, stopping
from headstart.store.bundle import Bundle, load_bundle
from headstart.store.cells import Budget, Cell, Data, Epoch, Score, Split, TestSplit, cell_path, write_cell, write_data
from headstart.store.rundir import RunFolder
from headstart.text.tokenizer import load_tokenizer
from headstart.train.evaluate import Evaluation

NETWORKS = ("scratch", "pretrained")
ARMS = ("majority", "tfidf", "naive_bayes", *NETWORKS)
DEFAULT_ARMS = ("majority", "tfidf", "scratch", "pretrained")


def run_compare(
    train: str | None,
    out: Path,
    config: FinetuneConfig | None,
    *,
    source: str | None = None,
    valid: str | None = None,
    test: str | None = None,
    tokenizer: Path | None = None,
    seeds: int = 5,
    labels: tuple[int | None, ...] = (None,),
    arms: tuple[str, ...] = DEFAULT_ARMS,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Path:
    """Run every arm at every number of labels (None: all) over paired seeds; returns the report.

    With `resume`, go on with the comparison in `out`: what it compares is read from there.
    """
    progress = progress or Quiet()
    if resume:
        run = RunFolder.open(out, kind="compare")
        config = layered(FinetuneConfig, read_json(out / "config.json"))
        inputs = run.facts["inputs"]
        if run.finished:
            progress.say(f"{out} is finished already")
            return write_report(out)
    else:
        if config is None or train is None or test is None:
            raise UsageError("compare needs a labelled file to train on and --test with one to be judged on")
        inputs = {
            "train": train,
            "valid": valid,
            "test": test,
            "source": source,
            "tokenizer": str(tokenizer) if tokenizer else None,
            "seeds": seeds,
            "labels": list(labels),
            "arms": list(arms),
        }
        _check(inputs)
        # a wrong folder is found out before anything is written
        config = settled(config, pretrained_source(source, tokenizer))
        run = RunFolder.create(out, kind="compare", command=command, config=config, inputs=inputs)
    with run.locked():
        comparison = _Comparison(run, config, inputs, progress)
        with run.discarded_on_error(new=not resume):
            comparison.prepare()
        comparison.go()
        page = write_report(out)
        write_json(out / "result.json", {"report": page.name})  # written last: the comparison is finished
    return page


def pretrained_source(source: str | None, tokenizer: str | Path | None) -> Bundle | None:
    """The language model to compare with; a classifier has seen labels, and would make the comparison void."""
    if source is None or source == SCRATCH:
        return None
    bundle = load_bundle(Path(source), task="language")
    if tokenizer is not None and load_tokenizer(Path(tokenizer)).digest != bundle.tokenizer.digest:
        raise UsageError(
            f"{source} was pretrained with another tokenizer than {tokenizer}; leave --tokenizer out to use its own"
        )
    return bundle


def _check(inputs: dict[str, Any]) -> None:
    for arm in inputs["arms"]:
        if arm not in ARMS:
            raise ConfigError(f"--arms knows {', '.join(ARMS)}, got {arm!r}")
    if "pretrained" in inputs["arms"] and inputs["source"] in (None, SCRATCH):
        raise UsageError("compare needs --from with a pretrained folder, or --arms without pretrained")
    if inputs["seeds"] < 1:
        raise ConfigError(f"--seeds must be at least 1, got {inputs['seeds']}")
    for count in inputs["labels"]:
        if count is not None and count < 2:
            raise ConfigError(f"--labels must be at least 2 or all, got {count}")


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
        self.source: Bundle | None = pretrained_source(self.inputs["source"], self.inputs["tokenizer"])
        write_json(self.run.path / "environment.json", environment(self.runtime))
        self.data: LabelledData = load_data(
            self.inputs["train"],
            self.inputs["valid"],
            self.inputs["test"],
            self.config.labelled,
            tokenizer=choose_tokenizer(self.source, self.inputs["tokenizer"]),
            tokenizer_config=self.config.tokenizer,
            seed=self.config.runtime.seed,
            progress=self.progress,
        )
        place = self.source.path if self.source else None
        self.data = pretraining_noted(self.data, place, self.inputs["source"], self.progress)
        class_weights(self.config, self.data.labels, self.data.train)
        self.run.same_inputs(self.data.fingerprints())
        self.cells = list(self._cells())
        self._write_data()

    def go(self) -> None:
        """Run what is not there yet."""
        # the linear arms take seconds: counting them in full would make the time left look shorter than it is
        weights = [1.0 if arm in NETWORKS else 0.02 for arm, _, _ in self.cells]
        bars = self.progress.task("comparing", sum(weights), "runs")
        with stopping(self.config.runtime.time_limit) as stop, bars as bar:
            for (arm, budget, seed), weight in zip(self.cells, weights, strict=True):
                if not cell_path(self.run.path, arm, budget, seed).is_file():
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
                    if arm in NETWORKS or count is not None or seed == first:
                        yield arm, budget, seed

    def _run(self, arm: str, budget: Budget, seed: int, stop: Stop) -> None:
        train = self.data.train
        if budget != "all":
            train = train.take(label_subset([self.data.labels[label] for label in train.gold], budget, seed))
        data = LabelledData(self.data.labels, self.data.tokenizer, train, self.data.valid, self.data.test, ())
        try:
            stop.check()
            cell = (
                self._network(arm, budget, seed, data, stop)
                if arm in NETWORKS
                else self._linear(arm, budget, seed, data)
            )
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

    def _linear(self, arm: str, budget: Budget, seed: int, data: LabelledData) -> Cell:
        assert data.test is not None
        train, valid, test = ((part.texts, part.gold.tolist()) for part in (data.train, data.valid, data.test))
        return run_baseline(arm, train, valid, test, data.labels, seed, budget=budget)

    def _network(self, arm: str, budget: Budget, seed: int, data: LabelledData, stop: Stop) -> Cell:
        started = time.perf_counter()
        config = layered(FinetuneConfig, self.config.model_dump(), {"runtime": {"seed": seed}})
        work = self.run.path / "work" / f"{arm}-{budget}-seed{seed}"
        resume = (work / "run.json").is_file()
        if resume:
            run = RunFolder.open(work, kind="cell")
        else:
            shutil.rmtree(work, ignore_errors=True)
            run = RunFolder.create(work, kind="cell", command="", config=config, inputs={})
        shape = self.source.config if self.source else config.model
        source = self.source if arm == "pretrained" else None
        model, receipt = build_classifier(
            shape, data, source, self.inputs["source"] or SCRATCH, seed, reading_of(config, self.source)
        )
        if receipt:
            write_json(self.run.path / "receipt.json", receipt.as_dict())
        training = Finetuning(run, config, data, model, self.runtime, stop, self.progress, quiet=True)
        if (arm, budget, seed) == next(cell for cell in self.cells if cell[0] in NETWORKS):
            training.say_truncation()  # once is enough
        outcome = training.go(resume=resume)
        assert outcome.test is not None
        cell = Cell(
            arm=arm,
            labels=budget,
            rows=len(data.train),
            seed=seed,
            setting={"lr": config.optim.lr, "epochs": config.loop.epochs, "batch_size": config.loop.batch_size},
            epochs=tuple(Epoch(**figures) for figures in outcome.epochs),
            best_epoch=outcome.best_epoch,
            valid=_score(outcome.valid),
            test=_score(outcome.test),
            predictions=outcome.predictions,
            seconds=time.perf_counter() - started,
        )
        shutil.rmtree(work, ignore_errors=True)
        return cell

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
            valid=Split(**data.valid.describe(data.labels)),
            test=TestSplit(**test),
            notes=data.notes,
        )
        write_data(self.run.path, record)
        shape = self.source.config if self.source else self.config.model
        parts = ledger(shape, data.tokenizer.vocab_size, len(data.labels))
        rows = [{"part": row.part, "formula": row.formula, "count": row.count} for row in parts.rows]
        write_json(self.run.path / "ledger.json", {"classifier": rows, "total": parts.total})


def _score(evaluation: Evaluation) -> Score:
    return Score(accuracy=evaluation.accuracy, macro_f1=evaluation.macro_f1, confusion=evaluation.confusion)
