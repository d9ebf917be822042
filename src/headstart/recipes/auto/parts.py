"""The finished parts of an unfinished `headstart auto`: small folders with checksums, from which a resumed run goes on.

parts/linear/     the linear classifier as a bundle, and oof.safetensors: its out-of-fold logits
parts/fold-0/     logits.safetensors: the logits of the rows that the fold held out
parts/fold-network/  the network of the first fold, which is used if there is no time for another training
parts/network/    the final network as a bundle
parts/folds.json  how many folds there are, where the time did not allow all
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from headstart.errors import StoreError
from headstart.files import (
    MANIFEST,
    atomic_folder,
    read_checksummed,
    read_json,
    read_manifest,
    write_checksummed,
    write_json,
)
from headstart.linear.classifier import LinearFit
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.linear_bundle import LinearBundle, load_linear_bundle, save_linear_bundle
from headstart.tasks import Task

Floats = NDArray[np.float64]
PARTS = "parts"
_REMEDY = "delete the folder and use --resume to create it again"


@dataclass(frozen=True)
class FoldResult:
    """What a fold of a network left: the logits of its held-out rows, not calibrated, and the metrics of its epochs."""

    logits: Floats
    epochs: tuple[dict[str, Any], ...]
    seconds: float


def write_linear_fit(folder: Path, fit: LinearFit, task: Task, seconds: float) -> None:
    """Keep a fitted linear classifier with what cross-validation found."""
    about = {"setting": fit.setting, "tried": list(fit.tried), "seconds": seconds}
    extra = {"oof.safetensors": save({"oof": np.ascontiguousarray(fit.oof_logits)})}
    save_linear_bundle(folder / PARTS / "linear", LinearBundle(fit.classifier, task, about), extra=extra)


def read_linear_fit(folder: Path) -> tuple[LinearFit, float] | None:
    """Read the linear classifier back with the seconds that it took; None if it has not been fitted."""
    path = folder / PARTS / "linear"
    if not (path / MANIFEST).is_file():
        return None
    try:
        bundle = load_linear_bundle(path)
        oof = _array(path / "oof.safetensors", "oof")
    except StoreError as error:
        raise StoreError(f"{error}; {_REMEDY}") from None
    about = bundle.about
    return LinearFit(bundle.classifier, oof, about["setting"], tuple(about["tried"])), float(about["seconds"])


def write_fold(folder: Path, fold: int, result: FoldResult) -> None:
    """Keep the result of a fold."""
    with atomic_folder(folder / PARTS / f"fold-{fold}", kind="part") as draft:
        (draft / "logits.safetensors").write_bytes(save({"logits": np.ascontiguousarray(result.logits)}))
        write_json(draft / "fold.json", {"epochs": list(result.epochs), "seconds": result.seconds})


def read_fold(folder: Path, fold: int) -> FoldResult | None:
    """Read the result of a fold; None if it has not been finished."""
    path = folder / PARTS / f"fold-{fold}"
    if not (path / MANIFEST).is_file():
        return None
    try:
        read_manifest(path, kind="part")
        logits = _array(path / "logits.safetensors", "logits")
    except StoreError as error:
        raise StoreError(f"{error}; {_REMEDY}") from None
    facts = read_json(path / "fold.json")
    return FoldResult(logits, tuple(facts["epochs"]), float(facts["seconds"]))


def write_network(folder: Path, bundle: Bundle, *, of_fold: bool = False) -> None:
    """Keep the final network, or that of the first fold."""
    save_bundle(folder / PARTS / ("fold-network" if of_fold else "network"), bundle)


def use_fold_network(folder: Path) -> None:
    """Make the network of the first fold the final one."""
    (folder / PARTS / "fold-network").rename(folder / PARTS / "network")


def read_network(folder: Path) -> Bundle | None:
    """Read the final network; None if it has not been finished."""
    path = folder / PARTS / "network"
    if not (path / MANIFEST).is_file():
        return None
    try:
        return load_bundle(path, head_type="classify")
    except StoreError as error:
        raise StoreError(f"{error}; {_REMEDY}") from None


def write_fold_count(folder: Path, folds: int) -> None:
    """Record that there are no more folds than so many, which a resumed run keeps to."""
    write_checksummed(folder / PARTS / "folds.json", {"folds": folds})


def read_fold_count(folder: Path) -> int | None:
    """Read the number of folds that the time allowed; None if nothing was left out."""
    path = folder / PARTS / "folds.json"
    return int(read_checksummed(path)["folds"]) if path.is_file() else None


def _array(path: Path, name: str) -> Floats:
    try:
        array: Floats = load(path.read_bytes())[name].astype(np.float64)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    return array
