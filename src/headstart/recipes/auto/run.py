"""The best classifier for a table in one command: `run_auto`.

Linear first, because it is cheap; then a network if one fits the language and the time; then the blend of the two.
Cross-validation chooses among them, the test part is read once after that, and the winner is left as a bundle. The
folder is a comparison folder too, with a record of every arm and a report.
"""

import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from headstart.config.merge import Settings, flatten_settings, resolve_settings
from headstart.config.presets import preset_for_width, preset_values
from headstart.config.schema import FinetuneConfig
from headstart.data.shards import is_shards
from headstart.errors import ConfigError, Interrupted, UsageError
from headstart.files import MANIFEST, read_checksummed
from headstart.interop.model_source import load_model_source
from headstart.interrupts import StopRequested, StopSignal, handle_signals
from headstart.kernels.dispatch import is_asynchronous
from headstart.linear.classifier import LinearFit, fit_linear
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.recipes.auto.column_search import choose_columns
from headstart.recipes.auto.finish import AutoResult, FittedArms, finish_auto, read_result, save_linear
from headstart.recipes.auto.linear_probe import PROBE_FRACTION, choose_probe, probe_starters
from headstart.recipes.auto.network import CrossValidation, Network, cross_validate
from headstart.recipes.auto.parts import PARTS, read_linear_fit, write_linear_fit
from headstart.recipes.auto.pretraining import own_backbone
from headstart.recipes.auto.schedule import (
    FINISH_SECONDS,
    FOLDS,
    FULL_PLAN_FOLDS,
    LINEAR_FRACTION,
    TIME_FRACTION,
    NetworkPlan,
    Speed,
    most_rows,
    plan_network,
    pretraining_minutes,
    seconds_for_network,
    steps_for_few_rows,
)
from headstart.recipes.auto.table import Table, describe_table, load_table
from headstart.recipes.finetune.backbone_preset import default_preset
from headstart.recipes.finetune.run import resolve_config
from headstart.recipes.finetune.trainer import Deadline
from headstart.recipes.run_request import RunRequest, begin_or_resume
from headstart.recipes.starter_choice import FittingStarters, fitting_starters
from headstart.runtime import Runtime, environment, setup_runtime
from headstart.store.locate import STARTER_AUTO, is_starter
from headstart.store.run_folder import RunFolder

KIND = "auto"
NO_NETWORK, OWN_TEXT = "none", "own text"
PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True)
class AutoRequest(RunRequest):
    """The inputs and options of `headstart auto`."""

    table: str | None = None
    """The table; None if the request resumes a run."""
    texts: tuple[str, ...] = ()
    """Files with unlabelled text that is similar to the texts of the table."""
    test: str | None = None
    minutes: float = 10.0
    backbone: str | None = None
    """The network to start from, or "none" for no network; None and "starter:auto" choose one by the language of the table."""
    max_folds: int | None = None
    """The largest number of folds of the network's cross-validation; None takes as many as the time allows, up to 5."""
    settings: Settings = field(default_factory=dict)
    """The columns and the runtime, by dotted name."""

    def inputs(self) -> dict[str, Any]:
        """Return the inputs as the JSON values that run.json records."""
        return {
            "table": self.table,
            "texts": list(self.texts),
            "test": self.test,
            "minutes": self.minutes,
            "backbone": self.backbone,
            "max_folds": self.max_folds,
        }

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return this request with the inputs that run.json records."""
        return replace(
            self,
            table=inputs["table"],
            texts=tuple(inputs["texts"]),
            test=inputs["test"],
            minutes=float(inputs["minutes"]),
            backbone=inputs["backbone"],
            max_folds=inputs["max_folds"],
        )


def default_out(table: str) -> Path:
    """Return the folder of a run on a table where none is named.

    >>> default_out("data/my mails.csv.gz").as_posix()
    'runs/auto-my_mails'
    """
    name = re.sub(r"[^\w.+-]+", "_", Path(table).name.partition(".")[0]).strip("_") or "table"
    return Path("runs") / f"auto-{name}"


def run_auto(request: AutoRequest, progress: Progress | None = None) -> AutoResult:
    """Find the best classifier for a table within the minutes, or continue an interrupted run."""
    progress, began = progress or SilentProgress(), request.began or time.monotonic()
    tables: list[Table] = []  # read before a folder is made, because its language decides on the settings

    def resolve() -> tuple[AutoRequest, FinetuneConfig]:
        started, config, table = _resolve(request, progress)
        tables.append(table)
        return started, config

    folder, started, config = begin_or_resume(request, kind=KIND, config_class=FinetuneConfig, resolve=resolve)
    if folder.finished:
        progress.say(f"{request.out} is already finished")
        return read_result(folder.path)
    with folder.locked():
        with folder.remove_on_error(new=not request.resume):
            table = tables[0] if tables else _load(started, config, progress)
            runtime = setup_runtime(config.runtime)
            folder.write_json("environment.json", environment(runtime))
            folder.check_inputs_unchanged(dict(table.fingerprints()))
        with handle_signals(config.runtime.time_limit, began) as stop, _explain_stop(stop, folder.path):
            return _Job(folder, started, config, table, runtime, stop, progress, began).run()


def _resolve(request: AutoRequest, progress: Progress) -> tuple[AutoRequest, FinetuneConfig, Table]:
    """Read the table, and return the request and the settings with all that its language and this machine decide."""
    if request.table is None:
        raise UsageError("auto needs TABLE, a file with a text and a label in each row; see headstart auto --help")
    if not math.isfinite(request.minutes):
        raise ConfigError(f"--minutes must be a finite number, got {request.minutes:g}")
    if request.minutes <= 0:
        raise ConfigError(f"--minutes must be greater than 0, got {request.minutes:g}")
    if request.backbone not in (None, NO_NETWORK, STARTER_AUTO):
        load_model_source(request.backbone, head_type="language")  # what is wrong with it is reported at once
    config, settings = _find_columns(request, progress)
    table = _load(request, config, progress)
    progress.say(describe_table(table))
    backbone = request.backbone
    if backbone in (None, STARTER_AUTO):
        backbone = _choose_backbone(table, request, config, progress)
    preset = "modern-micro" if backbone in (NO_NETWORK, OWN_TEXT, STARTER_AUTO) else default_preset(backbone)
    config = resolve_config(resolve_settings(FinetuneConfig, preset, "finetune", settings), None)
    few_rows = "loop.min_steps" not in flatten_settings(FinetuneConfig, settings)
    return replace(request, backbone=backbone), _with_min_steps(config, table, few_rows=few_rows), table


def _find_columns(request: AutoRequest, progress: Progress) -> tuple[FinetuneConfig, Settings]:
    """Return the settings, whole and as they are set, with the columns of the table."""
    config = resolve_settings(FinetuneConfig, "modern", "finetune", request.settings)
    if is_shards(str(request.table)):
        return config, request.settings  # refused where the table is read
    labelled, line = choose_columns(str(request.table), config.labelled)
    if line:
        progress.say(line)
    columns = {f"labelled.{name}": getattr(labelled, name) for name in ("text_column", "label_column")}
    settings = flatten_settings(FinetuneConfig, request.settings) | columns
    return config.model_copy(update={"labelled": labelled}), settings


def _with_min_steps(config: FinetuneConfig, table: Table, *, few_rows: bool) -> FinetuneConfig:
    """Return the settings with the smallest number of steps for the table, so that a plan need not know its labels.

    Args:
        few_rows: whether few rows are trained for fewer steps.
    """
    min_steps = config.loop.min_steps
    if few_rows:
        min_steps = steps_for_few_rows(len(table.train), min_steps)
    min_steps = max(min_steps, config.loop.min_steps_per_label * len(table.task.labels))
    loop = config.loop.model_copy(update={"min_steps": min_steps, "min_steps_per_label": 0})
    return config.model_copy(update={"loop": loop})


def _load(request: AutoRequest, config: FinetuneConfig, progress: Progress) -> Table:
    assert request.table is not None
    return load_table(request.table, request.texts, request.test, config.labelled, config.runtime.seed, progress)


def _choose_backbone(table: Table, request: AutoRequest, config: FinetuneConfig, progress: Progress) -> str:
    """Return the starter that fits the table, else the table's own text if it suffices to pretrain on, else no network.

    `starter:auto` stands for several starters that fit, of which a linear probe will choose one.
    """
    choice = _fitting_starters(table, config)
    if choice.names:
        fit = "fits" if len(choice.names) == 1 else "fit"
        progress.say(f"{', '.join(choice.names)} {fit}: {choice.reason}")
        return choice.names[0] if len(choice.names) == 1 else STARTER_AUTO
    gpu = is_asynchronous(setup_runtime(config.runtime).device)
    if pretraining_minutes(table.megabytes, request.minutes, gpu=gpu, starter=False):
        progress.say(f"{choice.reason}: a network is pretrained on the text of the table")
        return OWN_TEXT
    amount = f"{table.megabytes:.1f} MB" if table.megabytes >= 0.05 else "less than 0.1 MB"
    progress.say(
        f"no network: {choice.reason}; {amount} of text and "
        f"{pluralize(request.minutes, 'minute')} on {'a GPU' if gpu else 'a CPU'} are not enough to pretrain a network"
    )
    return NO_NETWORK


def _fitting_starters(table: Table, config: FinetuneConfig) -> FittingStarters:
    return fitting_starters((*table.train.texts, *table.unlabelled), config.runtime.seed)


@contextmanager
def _explain_stop(stop: StopSignal, path: Path) -> Iterator[None]:
    """Describe how to continue after a stop, and that the linear model is usable if it exists."""
    try:
        yield
    except (StopRequested, Interrupted) as error:
        reason = stop.reason or (error.reason if isinstance(error, Interrupted) else "")
        why = "Ctrl-C" if reason == "SIGINT" else reason
        usable = "; the linear model can already be used" if (path / "bundle" / MANIFEST).is_file() else ""
        raise Interrupted(
            f"{why}; saved{usable}. Continue with: headstart auto --resume --out {path}", reason
        ) from None


@dataclass(frozen=True)
class _Job:
    """One run, from the table to the winner."""

    folder: RunFolder
    request: AutoRequest
    config: FinetuneConfig
    table: Table
    runtime: Runtime
    stop: StopSignal
    progress: Progress
    began: float

    @property
    def path(self) -> Path:
        return self.folder.path

    def deadline(self, fraction: float = 1.0, seconds_per_row: float = 0.0) -> float:
        """When the network should be trained; the end of the minutes is for test, bundle and report."""
        finish = FINISH_SECONDS + seconds_per_row * len(self.table.test)
        return self.began + fraction * 60 * self.request.minutes - finish

    def run(self) -> AutoResult:
        """Fit every arm, choose, read test once and write everything; remove what only an unfinished run needs."""
        linear, seconds = self._fit_linear()
        arms = FittedArms(self.table, self.config, linear, seconds, str(self.request.backbone))
        save_linear(self.path, arms)
        network = self._build_network()
        validated = self._cross_validate(network) if network else None
        if network and validated:
            source = network.name if self.request.backbone == STARTER_AUTO else arms.source
            arms = replace(arms, network=network, validated=validated, source=source)
        result = finish_auto(self.folder, arms, self.progress)
        for leftover in (PARTS, "work"):
            shutil.rmtree(self.path / leftover, ignore_errors=True)
        return result

    def _fit_linear(self) -> tuple[LinearFit, float]:
        kept = read_linear_fit(self.path)
        if kept is not None:
            return kept
        start = time.perf_counter()
        table = self.table
        with self.progress.task("fitting the linear model", None, "fits"):
            fit = fit_linear(
                table.train.texts,
                table.gold,
                len(table.task.labels),
                unlabelled=table.unlabelled,
                seed=self.config.runtime.seed,
                seconds=self._linear_seconds(),
                check=self.stop.check,
            )
        seconds = time.perf_counter() - start
        write_linear_fit(self.path, fit, table.task, seconds)
        accuracy = float((fit.oof_logits.argmax(axis=1) == table.gold).mean())
        rows = fit.setting.get("rows")
        sampled = f"; fitted on {rows:,} of {len(table.train):,} rows to save time" if rows else ""
        self.progress.say(
            f"linear model: cross-validation accuracy {100 * accuracy:.1f} % "
            f"({pluralize(max(1, round(seconds)), 'second')}){sampled}"
        )
        return fit, seconds

    def _linear_seconds(self) -> float:
        """Return the time for the linear model: a part of what is left if a network follows."""
        fraction = TIME_FRACTION if self.request.backbone == NO_NETWORK else LINEAR_FRACTION
        return fraction * (self.deadline() - time.monotonic())

    def _build_network(self) -> Network | None:
        backbone = str(self.request.backbone)
        if backbone == NO_NETWORK:
            return None
        plan = self._read_plan()
        if backbone == STARTER_AUTO:
            if "starter" not in plan:
                plan["starter"], speed = self._choose_starter()
                plan["speed"] = speed._asdict()
                self.folder.write_json(PLAN, plan, checksummed=True)
            backbone = plan["starter"]
        if "pretraining_minutes" not in plan:
            plan["pretraining_minutes"] = self._pretraining_minutes(backbone)
            self.folder.write_json(PLAN, plan, checksummed=True)
        minutes = plan["pretraining_minutes"]
        source = backbone
        if minutes:
            start = None if backbone == OWN_TEXT else backbone
            source = str(own_backbone(self.path, self.table, start, minutes, self.config.runtime, self.progress))
        return self._network(
            source, backbone if not minutes else f"{source} (pretrained on the text of {self.request.table})"
        )

    def _network(self, source: str, name: str) -> Network:
        bundle, config = load_model_source(source, head_type="language"), self.config
        sized_later = self.request.backbone in (OWN_TEXT, STARTER_AUTO)
        if sized_later and "optim.lr" not in flatten_settings(FinetuneConfig, self.request.settings):
            # the size of the network was not known when the settings were resolved
            optim = preset_values(preset_for_width(bundle.config.width), "finetune")["optim"]
            config = config.model_copy(update={"optim": config.optim.model_copy(update={"lr": optim["lr"]})})
        return Network(self.path, config, self.table, bundle, name, self.runtime, self.stop, self.progress)

    def _choose_starter(self) -> tuple[str, Speed]:
        """Choose among the starters that fit by a linear probe, and by the measured time of fine-tuning."""
        names, loop = _fitting_starters(self.table, self.config).names, self.config.loop
        rows, folds = len(self.table.train), min(FULL_PLAN_FOLDS, self._max_folds)
        full_plan = NetworkPlan(folds, most_rows(rows, loop), None, True)

        def seconds_left(row_seconds: float = 0.0) -> float:
            pretraining = 60 * self._pretraining_minutes(names[0])
            return self.deadline(TIME_FRACTION, row_seconds) - pretraining - time.monotonic()

        def fits(speed: Speed) -> bool:
            return full_plan.seconds(speed, loop) <= seconds_left(speed.row)

        def can_train(speed: Speed) -> bool:
            return seconds_for_network(rows, speed, loop) <= seconds_left(speed.row)

        def measure_speed(name: str) -> Speed | None:
            seconds = seconds_left()
            return self._network(name, name).measure_speed(seconds) if seconds > 0 else None

        with self.progress.task("comparing starters", None, "starters"):
            probes = probe_starters(
                names,
                self.table,
                self.config.labelled,
                self.runtime,
                self.config.runtime.seed,
                self.stop.check,
                PROBE_FRACTION * max(0.0, seconds_left()),
            )
            asynchronous = is_asynchronous(self.runtime.device)
            rows_per_step = loop.batch_size * loop.accumulate
            chosen, speed = choose_probe(
                probes.starters, rows_per_step, fits, measure_speed, can_train, asynchronous=asynchronous
            )
        self.progress.say(probes.describe(chosen))
        return chosen.name, speed

    @property
    def _max_folds(self) -> int:
        """The largest number of folds: each needs a text of its own, and copies of a text share a fold."""
        return min(self.request.max_folds or FOLDS[0], len(set(self.table.train.digests)))

    def _pretraining_minutes(self, backbone: str) -> float:
        gpu = is_asynchronous(self.runtime.device)
        if backbone != OWN_TEXT and not is_starter(backbone):
            return 0.0
        starter = backbone != OWN_TEXT
        left = self.request.minutes - (time.monotonic() - self.began) / 60
        return pretraining_minutes(self.table.megabytes, max(0.0, left), gpu=gpu, starter=starter)

    def _cross_validate(self, network: Network) -> CrossValidation | None:
        recorded = self._read_plan()
        plan, deadline = _network_plan(recorded), None
        if "network" not in recorded:
            if "speed" in recorded:  # measured for the choice of the starter
                speed = Speed(**recorded["speed"])
            else:
                speed = network.measure_speed(max(1.0, self.deadline(TIME_FRACTION) - time.monotonic()))
            plan = self._plan(speed, recorded)
            deadline = Deadline(self.deadline(seconds_per_row=speed.row), speed.step, speed.row)
        return cross_validate(network, plan, deadline) if plan else None

    def _plan(self, speed: Speed, recorded: dict[str, Any]) -> NetworkPlan | None:
        """Record the plan that fits into the remaining minutes."""
        rows, loop = len(self.table.train), self.config.loop
        seconds = self.deadline(TIME_FRACTION, speed.row) - time.monotonic()
        plan = plan_network(rows, seconds, speed, loop, self._max_folds)
        facts = {"network": plan.as_dict() if plan else None, "speed": speed._asdict()}
        self.folder.write_json(PLAN, recorded | facts, checksummed=True)
        if plan is None:
            missing = (seconds_for_network(rows, speed, loop) - seconds) / 60 / TIME_FRACTION
            enough = math.ceil(self.request.minutes + max(0.0, missing))
            verb = "is" if self.request.minutes == 1 else "are"
            self.progress.say(
                f"no network: {pluralize(self.request.minutes, 'minute')} {verb} not enough to train one; --minutes "
                f"{max(enough, math.floor(self.request.minutes) + 1)} would be enough"
            )
        else:
            self.progress.say(plan.describe(speed, loop))
        return plan

    def _read_plan(self) -> dict[str, Any]:
        path = self.path / PLAN
        return read_checksummed(path) if path.is_file() else {}


def _network_plan(recorded: Mapping[str, Any]) -> NetworkPlan | None:
    facts = recorded.get("network")
    return NetworkPlan(**facts) if facts else None
