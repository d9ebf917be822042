"""Tensors on disk: safetensors, loaded by name, all of them and no others."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headstart.errors import StoreError
from headstart.files import is_pickled, pickled_weights


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors from wherever they are."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except (SafetensorError, OSError) as error:
        words = str(error).partition(" (os error")[0]  # the system's words alone
        raise StoreError(f"cannot write {path}: {words}") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors; a file that is not whole safetensors is refused."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        if is_pickled(path):
            raise StoreError(pickled_weights(path)) from None
        raise StoreError(f"{path} cannot be read as safetensors: {error}") from None


def load_into(module: nn.Module, saved: Mapping[str, Tensor], name: str) -> None:
    """Put tensors into a module by name: every one it has, in its shape, and none besides."""
    own = module.state_dict()
    missing, extra = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    wrong = [
        f"{key} is {tuple(saved[key].shape)} for {tuple(own[key].shape)}"
        for key in sorted(own.keys() & saved.keys())
        if own[key].shape != saved[key].shape
    ]
    faults = [
        *(f"{key} is missing" for key in missing),
        *(f"{key} is not part of the model" for key in extra),
        *wrong,
    ]
    if faults:
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise StoreError(f"{name} does not fit the model: {faults[0]}{more}")
    module.load_state_dict(dict(saved))


def tensor_sha256(tensor: Tensor) -> str:
    """The sha256 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
