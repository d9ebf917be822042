"""Checkpoints of a run, and its best weights so far.

checkpoints/step-00000200/  backbone.safetensors  head.safetensors  optimizer.safetensors  state.json  manifest.json
best-0003/                  backbone.safetensors  head.safetensors  manifest.json      (epoch 3, or step 3 in pretraining)

Both are written atomically. Resuming uses the newest checkpoint that is undamaged.
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
    """Write a checkpoint, then delete all but the newest `keep`."""
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
    """The checkpoint folders of a run, oldest first; drafts left by a crash are not among them."""
    return sorted((run.path / "checkpoints").glob("step-*"))


CheckpointCheck = Callable[[dict[str, Any]], None]
"""Raises StoreError if a file that the state of a checkpoint refers to is damaged."""


def newest_valid(run: RunFolder, say: Callable[[str], None], check: CheckpointCheck | None = None) -> Path | None:
    """Return the newest undamaged checkpoint, reporting each damaged one; None if there is none."""
    for folder in reversed(checkpoint_steps(run)):
        try:
            read_manifest(folder, kind="checkpoint")
            if check:
                check(read_json(folder / "state.json"))
        except StoreError as error:
            say(f"{error}; trying the previous checkpoint")
            continue
        return folder
    return None


def load_checkpoint(folder: Path, model: Model[Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the weights of a checkpoint into the model; return the optimizer's tensors and the state."""
    load_into(model.backbone, load_tensors(folder / "backbone.safetensors"), str(folder))
    load_into(model.head, load_tensors(folder / "head.safetensors"), str(folder))
    state = read_json(folder / "state.json")
    if not isinstance(state, dict) or not all(isinstance(state.get(name), int) for name in ("step", "metrics")):
        raise StoreError(f"{folder / 'state.json'} is damaged: it contains no step")
    return load_tensors(folder / "optimizer.safetensors"), state


def resume_from(
    run: RunFolder,
    model: Model[Any],
    say: Callable[[str], None],
    check: CheckpointCheck | None = None,
    warn: Callable[[str], None] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the newest undamaged checkpoint and rewind the metrics to it; without one, start from step 0.

    Args:
        check: a further condition for a checkpoint to be used.
        warn: reports damaged checkpoints; `say` by default.
    """
    folder = newest_valid(run, warn or say, check)
    damaged = [path for path in checkpoint_steps(run) if folder is None or path > folder]
    for path in damaged:
        aside = path.with_name(f"damaged-{path.name}")  # this step will be written again
        shutil.rmtree(aside, ignore_errors=True)  # from an earlier resume
        path.rename(aside)
    if folder is None:
        reason = "no complete checkpoint is left in" if damaged else "there is no checkpoint yet in"
        say(f"{reason} {run.path}: starting from step 0")
        run.metrics.rewind(0)
        return {}, {"step": 0}
    optimizer_state, state = load_checkpoint(folder, model)
    run.metrics.rewind(int(state["metrics"]))
    say(f"resuming {run.path} from step {state['step']}")
    return optimizer_state, state


ModelWeights = tuple[dict[str, Tensor], dict[str, Tensor]]
"""The state dicts of backbone and head."""


def best_folder(run: RunFolder, number: int) -> Path:
    """The folder of the weights of an epoch; in pretraining, of a step."""
    return run.path / f"best-{number:04d}"


def check_best(run: RunFolder, state: dict[str, Any]) -> None:
    """Raise StoreError if the best weights that a checkpoint refers to are damaged."""
    if state["best"][0]:
        folder = best_folder(run, state["best"][0])
        try:
            read_manifest(folder, kind="best")
        except StoreError:
            shutil.rmtree(folder, ignore_errors=True)  # so that they can be written again
            raise


def save_best(run: RunFolder, number: int, weights: ModelWeights | None) -> None:
    """Write the best weights, unless they are None or already saved."""
    folder = best_folder(run, number)
    if weights and not folder.exists():
        with atomic_folder(folder, kind="best") as draft:
            save_tensors(draft / "backbone.safetensors", weights[0])
            save_tensors(draft / "head.safetensors", weights[1])


def load_best(run: RunFolder, number: int) -> ModelWeights:
    """Load the best weights of an interrupted run."""
    folder = best_folder(run, number)
    read_manifest(folder, kind="best")
    return load_tensors(folder / "backbone.safetensors"), load_tensors(folder / "head.safetensors")


def remove_best(run: RunFolder) -> None:
    """Delete the best weights that no checkpoint refers to any more."""
    referenced = {best_folder(run, read_json(step / "state.json")["best"][0]) for step in checkpoint_steps(run)}
    for old in run.path.glob("best-[0-9]*"):
        if old not in referenced:
            shutil.rmtree(old, ignore_errors=True)


def copy_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a module's weights on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}
