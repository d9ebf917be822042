"""The weights of the best epoch so far, beside the checkpoints that speak of it."""

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headstart.errors import StoreError
from headstart.files import read_json, read_manifest, whole_folder
from headstart.store.checkpoint import steps
from headstart.store.rundir import RunFolder
from headstart.store.tensors import load_tensors, save_tensors

Weights = tuple[dict[str, Tensor], dict[str, Tensor]]
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


def save_best(run: RunFolder, epoch: int, weights: Weights | None) -> None:
    """Write the weights, unless they are there or came from there."""
    folder = best_folder(run, epoch)
    if weights and not folder.exists():
        with whole_folder(folder, kind="best") as draft:
            save_tensors(draft / "backbone.safetensors", weights[0])
            save_tensors(draft / "head.safetensors", weights[1])


def load_best(run: RunFolder, epoch: int) -> Weights:
    """The weights that an interrupted run found best."""
    folder = best_folder(run, epoch)
    read_manifest(folder, kind="best")
    return load_tensors(folder / "backbone.safetensors"), load_tensors(folder / "head.safetensors")


def let_go(run: RunFolder) -> None:
    """Of best epochs that no checkpoint speaks of any more."""
    spoken_of = {best_folder(run, read_json(step / "state.json")["best"][0]) for step in steps(run)}
    for old in run.path.glob("best-epoch-*"):
        if old not in spoken_of:
            shutil.rmtree(old, ignore_errors=True)


def copied(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a module, away from the device and safe from what comes next."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}
