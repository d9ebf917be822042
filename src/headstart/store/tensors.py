"""Save and load safetensors, strictly by name, with weights stored as fp32, bf16 or int8.

fp32   as trained
bf16   half the size: each weight rounded to 8 bits of precision
int8   a quarter of the size: each row of a matrix as integers from -127 to 127, with `NAME@scale`, one fp32 scale per
       row; tensors that are not matrices are stored as bf16

Loading always gives fp32.
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
_INT8_MAX = 127


def pack_tensors(tensors: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """Convert tensors to a storage type."""
    if storage not in STORAGES:
        raise UsageError(f"--weights must be one of {', '.join(STORAGES)}, got {storage!r}")
    if storage == "fp32":
        return dict(tensors)
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if storage == "bf16" or tensor.dim() != 2:
            packed[name] = tensor.to(torch.bfloat16)
            continue
        # clamped, so that a row of zeros is not divided by zero
        scale = tensor.detach().float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / _INT8_MAX
        packed[name] = (tensor / scale[:, None]).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8)
        packed[name + _SCALE] = scale
    return packed


def load_packed(path: Path) -> dict[str, Tensor]:
    """Load tensors of any storage type as fp32."""
    saved = load_tensors(path)
    unpacked: dict[str, Tensor] = {}
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
            unpacked[name] = tensor.float()
        elif scale.shape == tensor.shape[:1] and tensor.dim() == 2 and scale.dtype == torch.float32:
            unpacked[name] = tensor.float() * scale[:, None]
        else:
            raise StoreError(f"{path} is damaged: {name}{_SCALE} is not one number per row of {name}")
    lone = [name for name in saved if name.endswith(_SCALE) and name.removesuffix(_SCALE) not in saved]
    if lone:
        raise StoreError(f"{path} is damaged: {lone[0]} belongs to no tensor")
    return unpacked


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, from any device, as safetensors."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except (SafetensorError, OSError) as error:
        reason = str(error).partition(" (os error")[0]
        raise StoreError(f"cannot write {path}: {reason}") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; any other file raises StoreError."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        if is_pickled(path):
            raise StoreError(pickled_weights(path)) from None
        raise StoreError(f"{path} cannot be read as safetensors: {error}") from None


def load_into(module: nn.Module, saved: Mapping[str, Tensor], name: str) -> None:
    """Load tensors into a module strictly: names and shapes must match its state dict.

    Args:
        name: the source of the tensors, for the error message.
    """
    check_tensors(module.state_dict(), saved, name)
    module.load_state_dict(dict(saved))


def check_tensors(expected: Mapping[str, Tensor], saved: Mapping[str, Tensor], name: str) -> None:
    """Refuse tensors whose names or shapes are not the expected ones; those may be without data, on torch's meta device.

    Args:
        name: the source of the tensors, for the error message.
    """
    missing, extra = sorted(expected.keys() - saved.keys()), sorted(saved.keys() - expected.keys())
    misshapen = [
        f"{key} is {tuple(saved[key].shape)} for {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & saved.keys())
        if expected[key].shape != saved[key].shape
    ]
    faults = [
        *(f"{key} is missing" for key in missing),
        *(f"{key} is not part of the model" for key in extra),
        *misshapen,
    ]
    if faults:
        others = f" (and {len(faults) - 1} more errors)" if len(faults) > 1 else ""
        raise StoreError(f"{name} does not match the model: {faults[0]}{others}")


def tensor_sha256(tensor: Tensor) -> str:
    """The sha256 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
