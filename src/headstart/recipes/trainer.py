"""The base class of both trainers, and the common parts of their recipes: starting a run, processes, checkpoints.

When torchrun starts several processes, the main process opens, writes and reports; all of them train. The run folder and
the text or token files must be readable by every process.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig, PretrainConfig, RuntimeConfig
from headstart.data.batch import Batch
from headstart.data.shards import Shards
from headstart.errors import ConfigError, Interrupted, PeerLostError, StoreError
from headstart.files import read_checksummed, read_json, read_manifest
from headstart.interrupts import StopRequested, StopSignal, step_context
from headstart.model.heads import Model
from headstart.progress import Progress
from headstart.recipes.run_request import ConfigT, RequestT, begin_or_resume
from headstart.runtime import Runtime, rank_info
from headstart.store.checkpoint import CheckpointCheck, checkpoint_steps, load_checkpoint, resume_from, save_checkpoint
from headstart.store.run_folder import ReadOnlyRunFolder, RunFolder
from headstart.train.cuda_graphs import GraphCache
from headstart.train.distributed import ProcessGroup, init_distributed, launch_id, restarted
from headstart.train.ema import EMA
from headstart.train.loop import StepReport, TrainState, fit, seconds_per_step
from headstart.train.objectives import LossSum
from headstart.train.optimizers import build_optimizer, optimizer_tensors, restore_optimizer
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.plan import Pace, Plan

PLAN_FILE = "plan.json"
NO_LIMIT = 2**31
"""Maximum steps of a run that is limited by its minutes only."""
_BYTES_PER_SECOND = 2e8
"""A conservative estimate of the write speed, until a checkpoint was written."""


@dataclass(frozen=True)
class StartedRun(Generic[RequestT, ConfigT]):
    """A run that is about to train, the same in every process."""

    run: RunFolder
    request: RequestT
    config: ConfigT


def start_run(
    request: RequestT,
    group: ProcessGroup,
    progress: Progress,
    *,
    kind: str,
    config_class: type[ConfigT],
    resolve: Callable[[], tuple[RequestT, ConfigT]],
) -> StartedRun[RequestT, ConfigT] | None:
    """Begin or resume a run in the main process and share it with the others; None if the run is finished."""
    resume = group.broadcast(lambda: request.resume or is_restarted_run(request.out, request.command))
    request = replace(request, resume=resume)

    def start() -> dict[str, Any] | None:
        out = request.out
        if resume and RunFolder.open(out, kind=kind).finished:
            progress.say(f"{out} is already finished; its result is in {out / 'result.json'}")
            return None
        _, started, config = begin_or_resume(request, kind=kind, config_class=config_class, resolve=resolve)
        if resume:
            check_fsdp(config)
        return {"config": config.model_dump(mode="json"), "inputs": started.inputs()}

    facts = group.broadcast(start)
    if facts is None:
        return None
    return StartedRun(
        open_run(request.out, group), request.with_inputs(facts["inputs"]), merge_config(config_class, facts["config"])
    )


def open_run(out: Path, group: ProcessGroup) -> RunFolder:
    """Return the run folder as this process may use it: only the main process writes."""
    return RunFolder(out) if group.is_main else ReadOnlyRunFolder(out)


@contextmanager
def distributed_run(out: Path) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started; if one is lost, report the checkpoint from which the run can continue."""
    try:
        with init_distributed() as group:
            yield group
    except PeerLostError as error:
        steps = [folder.name.removeprefix("step-").lstrip("0") for folder in checkpoint_steps(RunFolder(out))]
        saved = f"the checkpoint of step {steps[-1]} is complete" if steps else "there was no checkpoint yet"
        raise PeerLostError(
            f"{error}; {saved}. Continue with the same command and only the options --resume and --out {out}"
        ) from error


def is_restarted_run(out: Path, command: str) -> bool:
    """Return True if the launcher restarts this command after it created a run in `out`, which is then resumed."""
    paths = [out / name for name in ("run.json", "environment.json")]
    if not all(path.is_file() for path in paths):
        return restarted() and paths[0].is_file()
    try:
        facts, environment = (read_json(path) for path in paths)
    except StoreError:
        return restarted()  # opening the run reports the damage
    # a script has no command line that would distinguish its runs
    same_launch = bool(command) and launch_id() is not None and environment.get("launch") == launch_id()
    return (restarted() or same_launch) and bool(facts.get("command") == command)


def process_facts(config: RuntimeConfig, group: ProcessGroup) -> dict[str, Any]:
    """Return the entries of environment.json about processes; empty for one process."""
    if group.world_size == 1:
        return {}
    return {"processes": group.world_size, "parallel": config.parallel, "launch": launch_id()}


def describe_processes(config: RuntimeConfig, group: ProcessGroup) -> str:
    """Format the number of processes for the end of a sentence; empty for one process."""
    return f" in each of {group.world_size} processes ({config.parallel})" if group.world_size > 1 else ""


def check_fsdp(config: PretrainConfig | FinetuneConfig) -> None:
    """Raise an error for settings with which a sharded weight would have a gradient in some processes only."""
    if rank_info().world_size == 1 or config.runtime.parallel != "fsdp":
        return
    if isinstance(config, PretrainConfig) and config.objective == "hybrid" and config.next_sentence.weight:
        raise ConfigError("next_sentence.weight with objective hybrid needs runtime.parallel ddp, got fsdp")
    if isinstance(config, FinetuneConfig) and config.transfer.unfreeze_every:
        raise ConfigError("transfer.unfreeze_every needs runtime.parallel ddp, got fsdp")


def interrupted_error(command: str, out: Path, stop: StopSignal, step: int, steps: int) -> Interrupted:
    """Return the error of a run that was stopped and saved, with the command that resumes it."""
    return Interrupted(
        f"{stop.why} at step {step} of {steps}; saved. Continue with: headstart {command} --resume --out {out}",
        stop.reason or "",
    )


def share_shards(group: ProcessGroup, prepare: Callable[[], list[Shards]]) -> list[Shards]:
    """Prepare shards in the main process, which may take hours, and open them in the others."""
    prepared: list[Shards] = []

    def folders() -> list[str]:
        prepared.extend(prepare())
        return [str(shards.folder) for shards in prepared]

    names = group.broadcast(folders)
    opened = prepared or [Shards.open(Path(name), deep=False) for name in names]
    group.any(False)  # a barrier: a process that fails next may remove the folder
    return opened


def save_state(run: RunFolder, state: TrainState, extra: Mapping[str, Any], keep: int) -> None:
    """Write a checkpoint; sharded tensors are gathered, and the main process writes."""
    tensors = state.strategy.gather(optimizer_tensors(state.optimizer, state.model, state.ema))
    with state.strategy.full_model(state.model) as model:

        def write() -> None:
            save_checkpoint(run, state.step, model, tensors, extra, keep)

        state.strategy.ranks.broadcast(write)


def resume_state(
    run: RunFolder,
    state: TrainState,
    say: Callable[[str], None],
    check: CheckpointCheck | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Load the newest valid checkpoint, written by any number of processes; returns its extra values."""
    with state.strategy.full_model(state.model) as model:
        loaded: list[Any] = []

        def load() -> str | None:
            loaded.extend(resume_from(run, model, say, check, warn))
            return f"step-{loaded[1]['step']:08d}" if loaded[1]["step"] else None

        name = state.strategy.ranks.broadcast(load)
        if not loaded:
            folder = run.path / "checkpoints" / str(name)
            loaded.extend(_load_verified(folder, model) if name else ({}, {"step": 0}))
        state.strategy.load_full(state.model, model)
    tensors, values = loaded
    restore_optimizer(state.optimizer, state.model, tensors, state.ema)
    state.step = values["step"]
    return dict(values)


def _load_verified(folder: Path, model: Any) -> tuple[Any, dict[str, Any]]:
    read_manifest(folder, kind="checkpoint", deep=False)  # the main process has verified every byte
    return load_checkpoint(folder, model)


class Trainer(ABC, Generic[ConfigT]):
    """The skeleton of a training run in a run folder: state, plan, steps, checkpoints, resuming and stopping.

    Subclasses provide the batches, the objective and what happens between steps.
    """

    def __init__(
        self,
        run: RunFolder,
        config: ConfigT,
        model: Model[Any],
        runtime: Runtime,
        stop: StopSignal,
        progress: Progress,
        *,
        compile_layers: bool,
        quiet: bool = False,
        began: float | None = None,
        strategy: ParallelStrategy = SINGLE,
    ) -> None:
        """Move the model to the device, compile or shard it if requested, and build its optimizer.

        Args:
            quiet: report progress bars only.
            began: when the clock of `loop.minutes` started (`time.monotonic`); now if None.
        """
        self.run, self.config, self.runtime, self.strategy = run, config, runtime, strategy
        self.stop, self.progress, self.quiet = stop, progress, quiet
        self.began = time.monotonic() if began is None else began
        self.model = model.to(runtime.device)
        self.model.backbone.recompute = config.runtime.recompute
        if compile_layers:
            self.model.backbone.compile_layers()
        if strategy.sharded:
            self._prepare_sharding()
            strategy.shard(self.model, runtime)
        self.state = self._new_state()
        self.saved_step = 0
        self._graphs = self._build_graphs()
        self.plan = Plan(self._configured_steps())
        """The steps of the run; `train` replaces them by those that fit into `loop.minutes`."""
        self.pace: Pace | None = None
        """The speed of a run that is planned again while it trains."""
        self._measuring = 0.0, 0.0
        """The seconds of measuring (an evaluation, or a token), and the seconds per step when that was timed."""
        self._save_seconds = sum(p.numel() for p in self.model.parameters()) * 4 / _BYTES_PER_SECOND

    @property
    def steps(self) -> int:
        """The steps of the run as planned now."""
        return self.plan.steps

    @property
    def group(self) -> ProcessGroup:
        """The processes that train together."""
        return self.strategy.ranks

    def _prepare_sharding(self) -> None:
        """Make the changes that must precede the sharding of the weights."""

    @abstractmethod
    def _build_graphs(self) -> GraphCache | None:
        """Return the CUDA graphs of the training step; None where steps run eagerly."""

    @abstractmethod
    def _configured_steps(self) -> int:
        """Return the number of steps that follows from the settings without `loop.minutes`."""

    @abstractmethod
    def _fetch(self, step: int) -> list[Batch]:
        """Return the batches of a step."""

    @abstractmethod
    def _objective(self, batch: Batch) -> LossSum:
        """Return the loss of a batch."""

    @abstractmethod
    def _checkpoint_extra(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint stores in addition to the tensors."""

    @abstractmethod
    def _restore_extra(self, values: Mapping[str, Any]) -> None:
        """Restore the values that `_checkpoint_extra` returned."""

    def _new_state(self) -> TrainState:
        optim = self.config.optim
        optimizer = build_optimizer(self.model, optim, *self._lr_multipliers, bf16=self.runtime.bf16)
        ema = EMA(self.model, optim.ema_decay) if optim.ema_decay else None
        return TrainState(self.model, optimizer, self.config.runtime.seed, ema=ema, strategy=self.strategy)

    @property
    def _lr_multipliers(self) -> tuple[float, float]:
        """The decay of the learning rate per layer, and the multiple of it for the head."""
        return 1.0, 1.0

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.progress.say(line)

    def _fit(
        self, state: TrainState, fetch: Callable[[int], list[Batch]], steps: int | Plan
    ) -> Generator[StepReport, None, None]:
        context = step_context(self.stop, compiled=self.model.backbone.compiled)
        return fit(state, fetch, self._objective, self.config.optim, steps, self.runtime, context, self._graphs)

    @contextmanager
    def _discarded_steps(self) -> Iterator[None]:
        """Restore the weights after the steps that were timed."""
        self._say("timing a few steps")
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        yield
        self.model.load_state_dict(weights)

    def _seconds_per_step(
        self, state: TrainState, fetch: Callable[[int], list[Batch]], steps: int, budget: float
    ) -> float:
        with closing(self._fit(state, fetch, steps)) as reports:
            return seconds_per_step(reports, budget, self.group, compiled=self.model.backbone.compiled)

    def _read_plan(self) -> dict[str, Any]:
        """Return the plan that this run recorded; empty if it recorded none."""
        path = self.run.path / PLAN_FILE
        return self.group.broadcast(lambda: read_checksummed(path) if path.is_file() else {})

    @property
    def _elapsed(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self.began

    def _set_plan(self, plan: Plan) -> None:
        """Adopt a plan that is already recorded, or needs no record."""
        self.plan = plan

    def _record_plan(self, plan: Plan) -> None:
        """Adopt a plan and write it before the next step, so that a resumed run repeats it."""
        self._set_plan(plan)
        self.run.write_json(PLAN_FILE, plan.as_dict() | self._plan_facts(), checksummed=True)

    def _plan_facts(self) -> dict[str, Any]:
        """Return further entries of plan.json."""
        return {"seconds_per_step": self.pace.seconds_per_step} if self.pace else {}

    def _max_steps(self) -> int:
        """Return the maximum number of steps of the run."""
        return NO_LIMIT

    def _min_steps_left(self) -> int:
        """Return the minimum number of remaining steps, if there are any."""
        return 1

    def _other_seconds(self, steps: int) -> float:
        """Return the remaining seconds of a run of `steps` steps, apart from the steps themselves."""
        saves = (steps - self.state.step) // self.config.loop.save_every
        return (saves + 1) * self._save_seconds

    def _begin_pace(self, budget: float, seconds_per_step: float) -> Pace:
        """Start to revise the plan by the clock."""
        self.pace = Pace(budget, seconds_per_step, self._elapsed)
        self._measuring = self._measuring[0], seconds_per_step
        return self.pace

    def _note_measuring(self, seconds: float) -> None:
        """Store the duration of an evaluation."""
        self._measuring = seconds, self.pace.seconds_per_step if self.pace else 0.0

    @property
    def _measuring_seconds(self) -> float:
        """The estimated seconds of an evaluation, which scale with the current seconds per step."""
        seconds, seconds_per_step = self._measuring
        return seconds * self.pace.seconds_per_step / seconds_per_step if self.pace and seconds_per_step else seconds

    def _replan(self, seconds: float) -> bool:
        """Plan the remaining steps again if the minutes require it; True if their number has changed.

        The main process decides. The change is on disk before the next step.

        Args:
            seconds: the duration of the last step.
        """
        step = self.state.step
        if self.pace is None:
            return False
        self.pace.add(seconds)
        if not self.plan.is_check(step):
            return False
        limits = {"minimum": self._min_steps_left(), "limit": self._max_steps()}
        new_steps = self.pace.new_steps(self.plan, step, self._elapsed, self._other_seconds, **limits)
        steps = int(self.group.sum([float(new_steps or 0) if self.group.is_main else 0.0])[0])
        if not steps:
            return False
        self._record_plan(self.plan.replanned(step, steps))
        return True

    def _save(self) -> None:
        """Write a checkpoint unless the last one is of this step."""
        if self.state.step == self.saved_step:
            return
        started = time.monotonic()
        save_state(self.run, self.state, self._checkpoint_extra(), self.config.loop.keep)
        self.saved_step = self.state.step
        self._save_seconds = time.monotonic() - started

    def _resume(self, check: CheckpointCheck | None = None) -> None:
        values = resume_state(self.run, self.state, self._say, check, self.progress.say)
        self.saved_step = self.state.step
        if self.state.step:
            self._restore_extra(values)

    @contextmanager
    def _saved_on_stop(self) -> Iterator[None]:
        """Save the state if a stop is requested, and re-raise StopRequested."""
        try:
            yield
        except StopRequested:
            self._save()
            raise

    def _release_graphs(self) -> None:
        """Free the memory of CUDA graphs, which evaluation may need."""
        if self._graphs:
            self._graphs.reset()
