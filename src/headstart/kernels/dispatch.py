"""Which implementation runs on which device.

What runs through a pre-norm network: hidden states as two summands, which are added where the next norm reads them.

Torch adds, then norms; on a GPU that learns with compiled layers one kernel does both, and one more all of the way back.
The same holds for what else is bounded by reading and writing: rows that are looked up, and queries, keys and values whose
slopes are laid side by side. The mathematics is that of plain torch, which does it wherever there is no triton.

N rows, D width.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

MAX_COLUMNS = 4096
"""Of a row that a kernel holds at once."""


_AMPERE = 8


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether triton is there, for a GPU that reads ahead and has products in bf16."""
    return (
        device.type == "cuda"
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device)[0] >= _AMPERE
    )


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The precision of products."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
