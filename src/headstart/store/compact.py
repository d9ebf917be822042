"""Weights in fewer bytes than they are computed in. Whatever a file holds, the network gets fp32, and always the same.

fp32   as trained
bf16   half of it: each weight rounded to 8 bits of precision
int8   a quarter: each row of a matrix as whole numbers from -127 to 127, and beside it `NAME@scale`, one fp32 a row, by
       which they are multiplied; what is not a matrix is bf16
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from headstart.errors import StoreError, UsageError
from headstart.store.tensors import load_tensors

Storage = Literal["fp32", "bf16", "int8"]
STORAGES: tuple[str, ...] = get_args(Storage)
_SCALE = "@scale"
_STEPS = 127


def packed(tensors: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
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


def load_weights(path: Path) -> dict[str, Tensor]:
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
