"""Tensors of which each process holds a part (`torch.distributed.tensor`), and plain ones, treated alike.

A plain tensor goes through these functions as it is, and nothing of torch.distributed is imported for it.
"""

from typing import Any, cast

from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """The part that this process holds, as a plain tensor that shares its memory; a plain tensor itself."""
    return cast(Any, tensor).to_local() if is_part(tensor) else tensor


def is_part(tensor: Tensor) -> bool:
    """Whether other processes hold the rest of a tensor."""
    return hasattr(tensor, "to_local")


def full(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered from the processes that hold its parts; all of them call this."""
    return cast(Any, tensor).full_tensor() if is_part(tensor) else tensor


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor that every process has, cut as a parameter is cut."""
    if not is_part(parameter) or not tensor.ndim:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    whole = cast(Any, parameter)
    return distribute_tensor(tensor, whole.device_mesh, whole.placements, src_data_rank=None)


def joined_like(part: Tensor, parameter: Tensor) -> Tensor:
    """All of a tensor of which `part` is what this process holds, cut as a parameter is cut; all processes call this."""
    if not is_part(parameter):
        return part
    from torch.distributed.tensor import DTensor

    whole = cast(Any, parameter)
    mesh, placements = whole.device_mesh, whole.placements
    return DTensor.from_local(part, mesh, placements, shape=whole.shape, stride=whole.stride()).full_tensor()
