"""Transfer of a batch from the CPU to the device of a run."""

from typing import TypeVar

import torch

from headstart.data.batch import Batch

BatchT = TypeVar("BatchT", bound=Batch)


def to_device(batch: BatchT, device: torch.device) -> BatchT:
    """Copy a batch to a device; a batch that is there already is returned as it is.

    For a GPU, everything that determines a shape is computed on the CPU first, and the copy is asynchronous, which
    requires page-locked memory.
    """
    if device.type == batch.ids_BT.device.type:
        return batch
    if device.type == "cuda":
        batch = batch.with_cu_seqlens().without_segments().pin_memory()
    return batch.to(device, non_blocking=True)
