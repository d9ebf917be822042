"""Compare a pretrained backbone with random weights and with linear baselines, on the same rows, seeds and head.

The runs are a grid of arms, label budgets and seeds. See `headstart.store.records` for the files of the folder.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from headstart.config.schema import FinetuneConfig
from headstart.data.hashing import text_digest
from headstart.data.labelled import label_subset
from headstart.errors import ConfigError, StoreError, UsageError
from headstart.files import MANIFEST, sha256_of, write_json
from headstart.interrupts import StopSignal
from headstart.model.parameter_count import count_parameters
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.recipes.compare.arms import (
    BLEND,
    DEFAULT_ARMS,
    NETWORK_ARMS,
    NetworkRun,
    PretrainedBackbone,
    RunSpec,
    describe_differences,
    encode_with,
    expand_arms,
    load_backbones,
    pretrained_paths,
    run_network,
)
from headstart.recipes.compare.baselines import run_baseline
from headstart.recipes.compare.blending import LOGITS, read_logits, run_blend
from headstart.recipes.executors import Executor, with_threads
from headstart.recipes.finetune.dataset import (
    LabelledData,
    check_single_label,
    check_training_memory,
    class_weights,
    load_labelled_data,
    note_pretraining_overlap,
    resolve_attention,
)
from headstart.recipes.finetune.run import choose_tokenizer, resolve_config
from headstart.recipes.grid import Grid, GridDisplay, grid_worker, run_grid
from headstart.recipes.memory import check_finetune_memory
from headstart.recipes.run_request import RunRequest, begin_or_resume, open_recorded
from headstart.recipes.workers import MakeWorker, RunJob
from headstart.report.error_tables import error_tables
from headstart.report.load import load_comparison
from headstart.report.page import write_report
from headstart.runtime import setup_runtime
from headstart.store.records import (
    Budget,
    ComparisonData,
    RunRecord,
    Split,
    TestSplit,
    arm_type,
    read_record,
    write_comparison_data,
    write_excerpts,
    write_record,
)
from headstart.store.run_folder import RunFolder

LoadBackbones = Callable[[tuple[str, ...], Path | None], tuple[PretrainedBackbone, ...]]


@dataclass(frozen=True, kw_only=True)
class CompareRequest(RunRequest):
    """The inputs and options of a comparison."""

    train: str | None = None
    """The labelled file to train on; None if the request resumes a comparison."""
    backbones: tuple[str, ...] = ()
    """Pretrained folders, starters or models of transformers; several are compared with each other."""
    valid: str | None = None
    test: str | None = None
    tokenizer: Path | None = None
    seeds: int = 5
    """Runs of each arm."""
    label_budgets: tuple[int | None, ...] = (None,)
    """How many labelled rows to train on; None is all of them."""
    arms: tuple[str, ...] = DEFAULT_ARMS
    choose: bool = False
    """Let validation choose the learning rate of each network, as it chooses the settings of naive Bayes and NB-SVM."""
    executor: Executor = field(default_factory=Executor)
    quote_texts: bool = True
    """Keep the beginnings of a few test texts, which the report quotes."""

    def inputs(self) -> dict[str, Any]:
        """Return the values that run.json records: with the settings, all inputs of the runs."""
        return {
            "train": self.train,
            "valid": self.valid,
            "test": self.test,
            "tokenizer": str(self.tokenizer) if self.tokenizer else None,
            "backbones": list(self.backbones),
            "texts": self.quote_texts,
            "seeds": self.seeds,
            "labels": list(self.label_budgets),
            "arms": list(self.arms),
            "choose": self.choose,
        }

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return this request with the inputs that run.json records."""
        return replace(
            self,
            train=inputs["train"],
            backbones=tuple(inputs["backbones"]),
            valid=inputs["valid"],
            test=inputs["test"],
            tokenizer=Path(inputs["tokenizer"]) if inputs["tokenizer"] else None,
            seeds=inputs["seeds"],
            label_budgets=tuple(inputs["labels"]),
            arms=tuple(inputs["arms"]),
            choose=inputs["choose"],
            quote_texts=inputs["texts"],
        )


def run_compare(request: CompareRequest, config: FinetuneConfig | None, progress: Progress | None = None) -> Path:
    """Run every arm at every label budget over paired seeds; returns the path of the report."""
    progress, since = progress or SilentProgress(), time.monotonic()
    request.executor.check()
    # the backbones are checked before a folder is made, and used after: load them once
    load: LoadBackbones = cache(load_backbones)
    folder, plan, resolved = begin_or_resume(
        request,
        kind=ComparisonRun.command,
        config_class=FinetuneConfig,
        resolve=lambda: _resolve(request, config, load, progress),
    )
    if folder.finished:
        progress.say(f"{request.out} is already finished")
        return write_report(request.out)

    def load_grid() -> ComparisonRun:
        return ComparisonRun.load(folder, resolved, plan, progress, load)

    return run_grid(folder, resolved, request.executor, load_grid, resume=request.resume, since=since)


def _resolve(
    request: CompareRequest, config: FinetuneConfig | None, load: LoadBackbones, progress: Progress
) -> tuple[CompareRequest, FinetuneConfig]:
    """Return the request and the settings of a new comparison, including those that depend on backbones and machine."""
    if config is None or request.train is None or request.test is None:
        raise UsageError("compare needs a labelled training file, and a labelled test file with --test")
    paths = pretrained_paths(request.backbones)
    request = replace(request, backbones=paths, arms=expand_arms(request.arms, paths))
    _check(request, config)
    backbones = load(paths, request.tokenizer)
    first = backbones[0].bundle if backbones else None
    config = resolve_config(with_threads(config, request.executor), first, progress)
    if (frozen := _only_frozen(request.arms)) is not None:
        check_finetune_memory(config, backbone=bool(backbones), frozen=frozen)
    return request, config


def _only_frozen(arms: tuple[str, ...]) -> bool | None:
    """Return whether all networks of these arms are frozen; None without any network."""
    types = {arm_type(arm) for arm in arms} & set(NETWORK_ARMS)
    return types == {"frozen"} if types else None


def _check(request: CompareRequest, config: FinetuneConfig) -> None:
    if request.choose and config.loop.watch_test:
        raise ConfigError("--choose and loop.watch_test cannot be combined: test data may not influence the choice")
    if request.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {request.seeds}")
    for budget in request.label_budgets:
        if budget is not None and budget < 2:
            raise ConfigError(f"--labels must be at least 2 or all, got {budget}")


def compare_worker(path: str) -> RunJob:
    """Load the comparison in a folder and return the function that does its runs, in another process or machine."""
    recorded = CompareRequest(out=Path(path), resume=True)
    folder, request, config = open_recorded(recorded, kind=ComparisonRun.command, config_class=FinetuneConfig)
    # the first process has looked for duplicates
    comparison = ComparisonRun.load(folder, config, request, SilentProgress(), find_duplicates=False)
    return grid_worker(comparison, RunSpec)


@dataclass
class ComparisonRun(Grid[RunSpec, RunRecord, Path]):
    """The runs of one comparison."""

    request: CompareRequest
    backbones: tuple[PretrainedBackbone, ...]
    data: LabelledData
    encoded: dict[str, LabelledData]
    """The same rows in the tokens of each backbone, by the digest of its tokenizer."""
    digests: list[int]
    """Digests of the training texts, by which label subsets are drawn."""

    command: ClassVar[str] = "compare"

    @classmethod
    def load(
        cls,
        folder: RunFolder,
        config: FinetuneConfig,
        request: CompareRequest,
        progress: Progress,
        load: LoadBackbones = load_backbones,
        *,
        find_duplicates: bool = True,
    ) -> "ComparisonRun":
        """Read and check everything that the runs need."""
        runtime = setup_runtime(config.runtime)
        backbones = load(request.backbones, request.tokenizer)
        first = backbones[0].bundle if backbones else None
        assert request.train is not None
        data = load_labelled_data(
            request.train,
            request.valid,
            request.test,
            config.labelled,
            tokenizer=choose_tokenizer(first, str(request.tokenizer) if request.tokenizer else None),
            tokenizer_config=config.tokenizer,
            seed=config.runtime.seed,
            progress=progress,
            find_duplicates=find_duplicates,
        )
        check_single_label(
            data,
            "compare",
            "run finetune with --test once with --from a pretrained folder and once with --from scratch, over several "
            "--runtime.seed, and compare their result.json",
        )
        notes = (*describe_differences(backbones), *_describe_time_limit(config.loop.minutes))
        for note in notes:
            progress.say(note)
        data = replace(data, notes=(*data.notes, *notes))
        for backbone in backbones:
            data = note_pretraining_overlap(data, backbone.bundle.path, backbone.path, progress)
        encoded = {
            backbone.bundle.tokenizer.digest: encode_with(data, backbone.bundle.tokenizer, backbone.path)
            for backbone in backbones
        }
        class_weights(config, data.task, data.train)
        if (frozen := _only_frozen(request.arms)) is not None:
            budgets = request.label_budgets
            max_rows = max((budget for budget in budgets if budget is not None), default=None)
            check_training_memory(config, data, first, frozen=frozen, max_rows=None if None in budgets else max_rows)
        return cls(
            folder=folder,
            config=config,
            progress=progress,
            runtime=runtime,
            specs=_run_specs(request, config.runtime.seed, len(data.train)),
            request=request,
            backbones=backbones,
            data=data,
            encoded=encoded,
            digests=[text_digest(text) for text in data.train.texts],
        )

    def record_path(self, spec: RunSpec) -> Path:
        """Return the path of the file that a finished run writes."""
        return spec.record_path(self.path)

    def load_record(self, spec: RunSpec) -> RunRecord:
        """Load the record of a finished run; the message on a damaged one says how to continue without it."""
        try:
            return read_record(self.record_path(spec))
        except StoreError as error:
            raise StoreError(f"{error}; delete the file and use --resume to repeat that run") from None

    def describe_record(self, record: RunRecord) -> str:
        """Describe a finished run in one line."""
        spec = RunSpec(record.arm, record.labels, record.seed)
        return f"{spec.describe()}: validation {record.valid.accuracy:.4f}, test {record.test.accuracy:.4f}"

    def describe_position(self) -> str:
        """Name the first run that has no record."""
        unfinished = (spec.describe() for spec in self.specs if not self.record_path(spec).is_file())
        return f"at {next(unfinished, 'the end')}"

    @contextmanager
    def display(self) -> Iterator[GridDisplay[RunSpec, RunRecord]]:
        """Show a progress bar, and a table with the mean accuracy of each arm and budget."""
        # short runs count as fractions of a network's, and as whole ones where there is no network
        costs = {spec: spec.cost if any(one.is_network for one in self.specs) else 1.0 for spec in self.specs}
        with (
            self.progress.task("comparing", sum(costs.values()), "runs") as bar,
            self.progress.board("test accuracy", Counter(spec.row_and_column for spec in self.specs)) as table,
        ):

            def add(spec: RunSpec, record: RunRecord) -> None:
                table.add(spec.row_and_column, record.test.accuracy)
                bar.advance(costs[spec], spec.describe())

            yield GridDisplay(lambda spec: table.start(spec.row_and_column), add)

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of the rows and of the pretrained models, and the way in which label subsets are drawn."""
        models = {backbone.path: sha256_of(backbone.bundle.path / MANIFEST) for backbone in self.backbones}
        subsets = {"the drawing of label subsets": "by text"} if self.request.label_budgets != (None,) else {}
        return self.data.fingerprints() | models | subsets

    def worker(self) -> tuple[MakeWorker, tuple[str, ...]]:
        """Return the function that loads this comparison in another process, and its arguments."""
        return compare_worker, (str(self.path.resolve()),)

    def prepare(self) -> None:
        """Write the environment, the fingerprints of the inputs, data.json and ledger.json."""
        super().prepare()
        self._write_data()
        self._write_parameter_count()

    def run_one(self, spec: RunSpec, stop: StopSignal) -> RunRecord:
        """Execute one run and save its record, unless another machine has saved it in the meantime."""
        path = self.record_path(spec)
        if path.is_file():
            with suppress(StoreError):  # it is still being copied: the run is done here
                return read_record(path)
        if spec.is_blend:
            record = self._run_blend(spec, stop)
        else:
            record = self._run_network(spec, stop) if spec.is_network else self._run_linear(spec, stop)
        write_record(self.path, record)
        return record

    def finish(self) -> Path:
        """Keep the texts that the report quotes, and write the report."""
        if self.request.quote_texts:
            self._write_excerpts()
        page = write_report(self.path)
        write_json(self.path / "result.json", {"report": page.name})  # written last: the comparison is finished
        shutil.rmtree(self.path / LOGITS, ignore_errors=True)
        return page

    def _subset(self, data: LabelledData, spec: RunSpec) -> LabelledData:
        """Return the rows that every arm of a seed is trained on."""
        if spec.budget == "all":
            return data
        labels = [data.labels[label] for label in data.train.gold]
        return replace(data, train=data.train.take(label_subset(labels, spec.budget, spec.seed, self.digests)))

    def _run_linear(self, spec: RunSpec, stop: StopSignal) -> RunRecord:
        data = self._subset(self.data, spec)
        assert data.test is not None
        train, valid, test = ((split.texts, split.gold.tolist()) for split in (data.train, data.valid, data.test))
        return run_baseline(spec.arm, train, valid, test, data.labels, spec.seed, budget=spec.budget, check=stop.check)

    def _run_network(self, spec: RunSpec, stop: StopSignal) -> RunRecord:
        backbone = self._backbone_of(spec.arm)
        data = self.encoded[backbone.bundle.tokenizer.digest] if backbone else self.data
        is_first = not self.backbones or backbone is self.backbones[0]
        network_run = NetworkRun(
            spec=spec,
            data=self._subset(data, spec),
            config=self.config,
            backbone=backbone,
            choose=self.request.choose,
            work_folder=self.work_folder / self.record_path(spec).stem,
            receipt=self.path / ("receipt.json" if is_first or not backbone else f"receipt-{backbone.name}.json"),
            logits=self._logits_path(spec) if self._is_blended(spec) else None,
            bound_steps=self._bound_steps(spec),
        )
        say_truncation = spec == next(spec for spec in self.specs if spec.is_network)
        return run_network(network_run, self.runtime, stop, self.progress, say_truncation=say_truncation)

    def phases(self, specs: list[RunSpec]) -> list[list[RunSpec]]:
        """Blends come last; with `loop.minutes`, the first network of a seed and budget before those with as many steps."""
        blends = [spec for spec in specs if spec.is_blend]
        later = [spec for spec in specs if spec.is_network and spec != self._networks_beside(spec)[0]]
        if self.config.loop.minutes is None:
            later = []
        return [[spec for spec in specs if spec not in later and spec not in blends], later, blends]

    def _is_blended(self, spec: RunSpec) -> bool:
        """Return True if a blend needs the logits of a run."""
        return arm_type(spec.arm) == "pretrained" and any(other.is_blend for other in self.specs)

    def _logits_path(self, spec: RunSpec) -> Path:
        return self.path / LOGITS / self.record_path(spec).name

    def _run_blend(self, spec: RunSpec, stop: StopSignal) -> RunRecord:
        network = spec._replace(arm=spec.arm.replace(BLEND, "pretrained", 1))
        logits = read_logits(self._logits_path(network), self.record_path(network))
        return run_blend(spec.arm, spec.budget, spec.seed, self._subset(self.data, spec), logits, stop)

    def _networks_beside(self, spec: RunSpec) -> list[RunSpec]:
        """Return the networks of the seed and budget of a run, this one included, in the order of the arms."""
        return [
            other for other in self.specs if other.is_network and (other.budget, other.seed) == (spec.budget, spec.seed)
        ]

    def _bound_steps(self, spec: RunSpec) -> int | None:
        """Return the steps of a finished network of this seed and budget under `loop.minutes`; None without one."""
        if self.config.loop.minutes is None:
            return None
        finished = (other for other in self._networks_beside(spec) if self.record_path(other).is_file())
        return next((record.steps for record in map(self.load_record, finished) if record.steps), None)

    def _backbone_of(self, arm: str) -> PretrainedBackbone | None:
        """Return the backbone that an arm starts from, or has the shape of: scratch has that of the first."""
        name = arm.partition(":")[2]
        return next((backbone for backbone in self.backbones if not name or backbone.name == name), None)

    def _write_excerpts(self) -> None:
        """Keep the beginnings of the texts that the report lists as mistakes."""
        assert self.data.test is not None
        tables = error_tables(load_comparison(self.path))
        if tables:
            texts = self.data.test.texts
            write_excerpts(self.path, {mistake.row: texts[mistake.row] for mistake in tables.mistakes})

    def _write_data(self) -> None:
        data = self.data
        assert data.test is not None
        test = data.test.describe(data.task) | {
            "gold": tuple(int(label) for label in data.test.gold),
            "overlap": tuple(data.leaks.exact),
            "near": tuple(data.leaks.near),
            "lengths": tuple(len(ids) for ids in data.test.ids),
        }
        comparison_data = ComparisonData(
            labels=data.labels,
            train=Split(**data.train.describe(data.task)),
            valid=Split(**data.valid.describe(data.task), gold=tuple(int(label) for label in data.valid.gold)),
            test=TestSplit(**test),
            notes=data.notes,
        )
        write_comparison_data(self.path, comparison_data)

    def _write_parameter_count(self) -> None:
        first = self.backbones[0].bundle if self.backbones else None
        model_config = first.config if first else self.config.model
        attention = resolve_attention(self.config, first)
        vocab_size, num_labels = self.data.tokenizer.vocab_size, len(self.data.labels)
        parameters = count_parameters(model_config, vocab_size, num_labels, attention=attention)
        rows = [{"part": row.part, "formula": row.formula, "count": row.count} for row in parameters.rows]
        write_json(self.path / "ledger.json", {"classifier": rows, "total": parameters.total})


def _describe_time_limit(minutes: float | None) -> tuple[str, ...]:
    """Return a note that a time limit determined the steps of the networks."""
    if minutes is None:
        return ()
    return (
        f"the first network of each seed was trained for {pluralize(minutes, 'minute')} (--minutes), which may be too "
        "short to learn anything; the other networks of the seed were trained for the same number of steps",
    )


def _run_specs(request: CompareRequest, first_seed: int, num_rows: int) -> tuple[RunSpec, ...]:
    """List the runs, arms side by side and seed after seed, so that an unfinished comparison is as balanced as possible."""
    for count in request.label_budgets:
        if count is not None and count > num_rows:
            raise ConfigError(
                f"--labels {count} is more than the {num_rows} labelled rows that are available for training"
            )
    budgets: list[Budget] = ["all" if count is None else count for count in request.label_budgets]
    seeds = range(first_seed, first_seed + request.seeds)
    specs = (RunSpec(arm, budget, seed) for budget in budgets for seed in seeds for arm in request.arms)
    # a linear arm on all rows does not depend on the seed: one run is enough
    return tuple(
        spec for spec in specs if spec.is_network or spec.is_blend or spec.budget != "all" or spec.seed == first_seed
    )
