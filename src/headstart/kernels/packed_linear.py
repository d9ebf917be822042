"""Linear layers of a finished network on a CPU, with weights in the layout that oneDNN's products read.

torch leaves products in fp32 to MKL, which does not use AVX-512 on every processor that has it. oneDNN does, and it reads
packed weights fastest. In bf16, inputs and weights are rounded, products are added in fp32, and the result is in fp32.

A row of the result does not depend on the other rows, bit for bit (tested): each is added in the same order, whatever the
number of rows. Texts that lie end to end thus get the same hidden states in any batch, in bf16 too.
"""

import platform
from functools import cache

import torch
from torch import Tensor, nn

ROWS = 1024
"""The number of rows for which the layout is chosen; others are computed as well."""


class PackedLinear(nn.Linear):
    """A linear layer that shares the parameters of another; without gradients it computes with a packed copy of them.

    The parameters may not change afterwards. With gradients it is an ordinary linear layer in fp32.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        weight = linear.weight.detach().to(dtype).contiguous()
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self._packed_bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self._dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias in the precision of `x`."""
        if torch.is_grad_enabled():
            return super().forward(x)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._packed, self._packed_bias, "none", [], ""
        )
        return out.to(x.dtype)


def pack_linears(network: nn.Module, device: torch.device, *, bf16: bool) -> bool:
    """Replace the linear layers of a network where this is faster: on an x86 processor. Return whether they were.

    Args:
        bf16: compute in bf16, on a processor that has instructions for it; elsewhere in fp32.
    """
    if device.type != "cpu" or not has_packed_products():
        return False
    dtype = torch.bfloat16 if bf16 and has_bf16_products() else torch.float32
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.float32:
                setattr(module, name, PackedLinear(child, dtype))
    return True


@cache
def has_packed_products() -> bool:
    """Return whether this is an x86 processor, and torch was built with oneDNN."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_x86 and has_onednn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def has_bf16_products() -> bool:
    """Return whether this processor multiplies in bf16."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
