"""The state of a run at a step, written whole; the newest good one is found when the newest is damaged.

checkpoints/step-00000200/  backbone.safetensors  head.safetensors  optimizer.safetensors  state.json  manifest.json
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.errors import StoreError
from headstart.files import read_json, read_manifest, whole_folder, write_json
from headstart.model.heads import Model
from headstart.store.rundir import RunFolder
from headstart.store.tensors import load_into, load_tensors, save_tensors


def save_checkpoint(
    run: RunFolder, step: int, model: Model[Any], optimizer: Mapping[str, Tensor], state: Mapping[str, Any], keep: int
) -> Path:
    """Write the state of a run, then let go of the oldest checkpoints beyond `keep`."""
    run.check_present()
    folder = run.path / "checkpoints" / f"step-{step:08d}"
    if not folder.exists():
        with whole_folder(folder, kind="checkpoint", about={"step": step}) as draft:
            save_tensors(draft / "backbone.safetensors", model.backbone.state_dict())
            save_tensors(draft / "head.safetensors", model.head.state_dict())
            save_tensors(draft / "optimizer.safetensors", optimizer)
            write_json(draft / "state.json", {**state, "step": step, "metrics": run.metrics.size()})
    for old in steps(run)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def steps(run: RunFolder) -> list[Path]:
    """The checkpoints of a run, oldest first. Drafts that a crash left behind are not among them."""
    return sorted((run.path / "checkpoints").glob("step-*"))


Check = Callable[[dict[str, Any]], None]
"""Raises StoreError where something that a state speaks of is damaged."""


def newest_good(run: RunFolder, say: Callable[[str], None], check: Check | None = None) -> Path | None:
    """The newest checkpoint whose every file is as written; damaged ones are named and passed over."""
    for folder in reversed(steps(run)):
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
    check: Check | None = None,
    warn: Callable[[str], None] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the newest good checkpoint and rewind the metrics to it; without one, say so and start from step 0.

    Args:
        check: what else must be whole for a checkpoint to be good.
        warn: where damage is told, if not where the rest is.
    """
    folder = newest_good(run, warn or say, check)
    damaged = [path for path in steps(run) if folder is None or path > folder]
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
