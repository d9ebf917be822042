"""Tensors on disk: safetensors, strict loading, bf16 and int8 storage.

Weights in fewer bytes than they are computed in. Whatever a file holds, the network gets fp32, and always the same.

fp32   as trained
bf16   half of it: each weight rounded to 8 bits of precision
int8   a quarter: each row of a matrix as whole numbers from -127 to 127, and beside it `NAME@scale`, one fp32 a row, by
       which they are multiplied; what is not a matrix is bf16

Tensors on disk: safetensors, loaded by name, all of them and no others.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headstart.errors import StoreError, UsageError
from headstart.files import is_pickled, pickled_weights

Storage = Literal["fp32", "bf16", "int8"]
STORAGES: tuple[str, ...] = get_args(Storage)
_SCALE = "@scale"
_STEPS = 127


def pack_tensors(tensors: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """The tensors as a file of that kind holds them."""
    if storage not in STORAGES:
        raise UsageError(f"--weights must be one of {', '.join(STORAGES)}, got {storage!r}")
    if storage == "fp32":
        return dict(tensors)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if storage == "bf16" or tensor.dim() != 2:
            found[name] = tensor.to(torch.bfloat16)
            continue
        # a row of nothing has no largest weight to measure by
        scale = tensor.detach().float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / _STEPS
        found[name] = (tensor / scale[:, None]).round().clamp(-_STEPS, _STEPS).to(torch.int8)
        found[name + _SCALE] = scale
    return found


def load_packed(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of any kind, in fp32."""
    saved = load_tensors(path)
    found: dict[str, Tensor] = {}
    for name, tensor in saved.items():
        if name.endswith(_SCALE):
            continue
        scale = saved.get(name + _SCALE)
        if (scale is not None) != (tensor.dtype == torch.int8) or not (
            tensor.is_floating_point() or tensor.dtype == torch.int8
        ):
            raise StoreError(
                f"{path} is damaged: {name} is {tensor.dtype}, {'with' if scale is not None else 'without'} a scale"
            )
        if scale is None:
            found[name] = tensor.float()
        elif scale.shape == tensor.shape[:1] and tensor.dim() == 2 and scale.dtype == torch.float32:
            found[name] = tensor.float() * scale[:, None]
        else:
            raise StoreError(f"{path} is damaged: {name}{_SCALE} is not one number a row of {name}")
    lone = [name for name in saved if name.endswith(_SCALE) and name.removesuffix(_SCALE) not in saved]
    if lone:
        raise StoreError(f"{path} is damaged: {lone[0]} belongs to no tensor")
    return found


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
