"""What a recipe does when several processes run it: one opens, writes and speaks, all of them train.

The folder of the run, and the text or the tokens, must be where every process can read them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headstart.config.schema import FinetuneConfig, PretrainConfig, RuntimeConfig
from headstart.data.shards import Shards
from headstart.errors import ConfigError, PeerLostError, StoreError
from headstart.files import read_json, read_manifest
from headstart.runtime import rank_info
from headstart.store.checkpoint import CheckpointCheck, checkpoint_steps, load_checkpoint, resume_from, save_checkpoint
from headstart.store.run_folder import RunFolder
from headstart.train.distributed import ProcessGroup, init_distributed, launch_id, restarted
from headstart.train.loop import TrainState
from headstart.train.optimizers import optimizer_tensors, restore_optimizer


@contextmanager
def distributed_run(out: Path) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this one alone; the end of one ends all, with word of what is left."""
    try:
        with init_distributed() as ranks:
            yield ranks
    except PeerLostError as error:
        saved = [folder.name.removeprefix("step-").lstrip("0") for folder in checkpoint_steps(RunFolder(out))]
        left = f"the checkpoint of step {saved[-1]} is whole" if saved else "there was no checkpoint yet"
        raise PeerLostError(
            f"{error}; {left}. Go on with the same command, --resume and --out {out} in place of the rest of it"
        ) from error


def is_restarted_run(out: Path, command: str) -> bool:
    """Whether the launcher starts this command again, and it had begun a run in `out`: then that run goes on."""
    begun = [out / name for name in ("run.json", "environment.json")]
    if not all(path.is_file() for path in begun):
        return restarted() and begun[0].is_file()
    try:
        facts, before = (read_json(path) for path in begun)
    except StoreError:
        return restarted()  # opening the run says what is wrong with it
    # a script has no command line to tell its runs apart by
    same = bool(command) and launch_id() is not None and before.get("launch") == launch_id()
    return (restarted() or same) and bool(facts.get("command") == command)


def for_several_processes(config: RuntimeConfig, ranks: ProcessGroup) -> dict[str, Any]:
    """For the record; empty for one process."""
    return (
        {"processes": ranks.world_size, "parallel": config.parallel, "launch": launch_id()}
        if ranks.world_size > 1
        else {}
    )


def describe_processes(config: RuntimeConfig, ranks: ProcessGroup) -> str:
    """The end of a sentence about where a run takes place; empty for one process."""
    return f" in each of {ranks.world_size} processes ({config.parallel})" if ranks.world_size > 1 else ""


def refuse_fsdp(config: PretrainConfig | FinetuneConfig) -> None:
    """Refuse what would leave a sharded weight without a gradient in one process and with one in another."""
    if rank_info().world_size == 1 or config.runtime.parallel != "fsdp":
        return
    if isinstance(config, PretrainConfig) and config.objective == "hybrid" and config.next_sentence.weight:
        raise ConfigError("next_sentence.weight with objective hybrid needs runtime.parallel ddp, got fsdp")
    if isinstance(config, FinetuneConfig) and config.transfer.unfreeze_every:
        raise ConfigError("transfer.unfreeze_every needs runtime.parallel ddp, got fsdp")


def shared_shards(ranks: ProcessGroup, prepare: Callable[[], list[Shards]]) -> list[Shards]:
    """The first process prepares the shards, which may take hours; then all of them open what it wrote."""
    ready: list[Shards] = []

    def folders() -> list[str]:
        ready.extend(prepare())
        return [str(part.folder) for part in ready]

    told = ranks.broadcast(folders)
    opened = ready or [Shards.open(Path(folder), deep=False) for folder in told]
    ranks.any(False)  # all have opened them: whoever finds something wrong next may take the folder away
    return opened


def save_state(run: RunFolder, state: TrainState, about: Mapping[str, Any], keep: int) -> None:
    """A checkpoint like any other, whole: what processes hold parts of is gathered, and the first one writes."""
    ranks = state.strategy.ranks
    moments = state.strategy.gather(optimizer_tensors(state.optimizer, state.model, state.ema))
    with state.strategy.full_model(state.model) as model:

        def write() -> None:
            save_checkpoint(run, state.step, model, moments, about, keep)

        ranks.broadcast(write)


def resume_state(
    run: RunFolder,
    state: TrainState,
    say: Callable[[str], None],
    check: CheckpointCheck | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Take up the newest good checkpoint, whoever wrote it and however many they were; returns what else it holds."""
    ranks = state.strategy.ranks
    with state.strategy.full_model(state.model) as model:
        found: list[Any] = []

        def take_up() -> str | None:
            found.extend(resume_from(run, model, say, check, warn))
            return f"step-{found[1]['step']:08d}" if found[1]["step"] else None

        name = ranks.broadcast(take_up)
        if not found:
            folder = run.path / "checkpoints" / str(name)
            found.extend(_loaded(folder, model) if name else ({}, {"step": 0}))
        state.strategy.load_full(state.model, model)
    moments, about = found
    restore_optimizer(state.optimizer, state.model, moments, state.ema)
    state.step = about["step"]
    values: dict[str, Any] = about
    return values


def _loaded(folder: Path, model: Any) -> tuple[Any, dict[str, Any]]:
    read_manifest(folder, kind="checkpoint", deep=False)  # the first process has read every byte
    return load_checkpoint(folder, model)
