"""Checkpoints of a run, and the weights of its best epoch.

The state of a run at a step, written whole; the newest good one is found when the newest is damaged.

checkpoints/step-00000200/  backbone.safetensors  head.safetensors  optimizer.safetensors  state.json  manifest.json

The weights of the best epoch so far, beside the checkpoints that speak of it.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headstart.errors import StoreError
from headstart.files import atomic_folder, read_json, read_manifest, write_json
from headstart.model.heads import Model
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_into, load_tensors, save_tensors


def save_checkpoint(
    run: RunFolder, step: int, model: Model[Any], optimizer: Mapping[str, Tensor], state: Mapping[str, Any], keep: int
) -> Path:
    """Write the state of a run, then let go of the oldest checkpoints beyond `keep`."""
    run.check_present()
    folder = run.path / "checkpoints" / f"step-{step:08d}"
    if not folder.exists():
        with atomic_folder(folder, kind="checkpoint", about={"step": step}) as draft:
            save_tensors(draft / "backbone.safetensors", model.backbone.state_dict())
            save_tensors(draft / "head.safetensors", model.head.state_dict())
            save_tensors(draft / "optimizer.safetensors", optimizer)
            write_json(draft / "state.json", {**state, "step": step, "metrics": run.metrics.size()})
    for old in checkpoint_steps(run)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def checkpoint_steps(run: RunFolder) -> list[Path]:
    """The checkpoints of a run, oldest first. Drafts that a crash left behind are not among them."""
    return sorted((run.path / "checkpoints").glob("step-*"))


CheckpointCheck = Callable[[dict[str, Any]], None]
"""Raises StoreError where something that a state speaks of is damaged."""


def newest_valid(run: RunFolder, say: Callable[[str], None], check: CheckpointCheck | None = None) -> Path | None:
    """The newest checkpoint whose every file is as written; damaged ones are named and passed over."""
    for folder in reversed(checkpoint_steps(run)):
        try:
            read_manifest(folder, kind="checkpoint")
            if check:
                check(read_json(folder / "state.json"))
        except StoreError as error:
            say(f"{error}; trying the checkpoint before it")
            continue
        return folder
    return None


def load_checkpoint(folder: Path, model: Model[Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Put a checkpoint's weights into the model; returns what the optimizer remembered and the state."""
    load_into(model.backbone, load_tensors(folder / "backbone.safetensors"), str(folder))
    load_into(model.head, load_tensors(folder / "head.safetensors"), str(folder))
    state = read_json(folder / "state.json")
    if not isinstance(state, dict) or not all(isinstance(state.get(name), int) for name in ("step", "metrics")):
        raise StoreError(f"{folder / 'state.json'} is damaged: it names no step")
    return load_tensors(folder / "optimizer.safetensors"), state


def resume_from(
    run: RunFolder,
    model: Model[Any],
    say: Callable[[str], None],
    check: CheckpointCheck | None = None,
    warn: Callable[[str], None] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the newest good checkpoint and rewind the metrics to it; without one, say so and start from step 0.

    Args:
        check: what else must be whole for a checkpoint to be good.
        warn: where damage is told, if not where the rest is.
    """
    folder = newest_valid(run, warn or say, check)
    damaged = [path for path in checkpoint_steps(run) if folder is None or path > folder]
    for path in damaged:
        aside = path.with_name(f"damaged-{path.name}")  # out of the way of the one to be written again
        shutil.rmtree(aside, ignore_errors=True)  # it was damaged before
        path.rename(aside)
    if folder is None:
        found = "no whole checkpoint is left in" if damaged else "there is no checkpoint yet in"
        say(f"{found} {run.path}: starting from step 0")
        run.metrics.rewind(0)
        return {}, {"step": 0}
    moments, state = load_checkpoint(folder, model)
    run.metrics.rewind(int(state["metrics"]))
    say(f"resuming {run.path} from step {state['step']}")
    return moments, state


ModelWeights = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Of backbone and head."""


def best_folder(run: RunFolder, epoch: int) -> Path:
    """Where the weights of an epoch lie."""
    return run.path / f"best-epoch-{epoch:04d}"


def check_best(run: RunFolder, state: dict[str, Any]) -> None:
    """A checkpoint is worth no more than the best epoch's weights that it speaks of."""
    if state["best"][0]:
        folder = best_folder(run, state["best"][0])
        try:
            read_manifest(folder, kind="best")
        except StoreError:
            shutil.rmtree(folder, ignore_errors=True)  # out of the way of the one to be written again
            raise


def save_best(run: RunFolder, epoch: int, weights: ModelWeights | None) -> None:
    """Write the weights, unless they are there or came from there."""
    folder = best_folder(run, epoch)
    if weights and not folder.exists():
        with atomic_folder(folder, kind="best") as draft:
            save_tensors(draft / "backbone.safetensors", weights[0])
            save_tensors(draft / "head.safetensors", weights[1])


def load_best(run: RunFolder, epoch: int) -> ModelWeights:
    """The weights that an interrupted run found best."""
    folder = best_folder(run, epoch)
    read_manifest(folder, kind="best")
    return load_tensors(folder / "backbone.safetensors"), load_tensors(folder / "head.safetensors")


def remove_best(run: RunFolder) -> None:
    """Of best epochs that no checkpoint speaks of any more."""
    spoken_of = {best_folder(run, read_json(step / "state.json")["best"][0]) for step in checkpoint_steps(run)}
    for old in run.path.glob("best-epoch-*"):
        if old not in spoken_of:
            shutil.rmtree(old, ignore_errors=True)


def copy_weights(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a module, away from the device and safe from what comes next."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}
