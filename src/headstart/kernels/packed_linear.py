"""Linear layers of a finished network on a CPU, with weights in the layout that oneDNN's products read.

torch leaves products in fp32 to MKL, which does not use AVX-512 on every processor that has it. oneDNN does, and it reads
packed weights fastest. In bf16, inputs, weights and results are rounded, and products are added in fp32.

Of two rows or more, a row of the result does not depend on the others, bit for bit (tested): each is added in the same
order. Texts that lie end to end thus get the same hidden states in any batch, in bf16 too.
"""

import platform
from functools import cache

import torch
from torch import Tensor, nn

ROWS = 1024
"""The number of rows for which the layout is chosen; others are computed as well."""
_MIN_BF16_WIDTH = 128
"""The narrowest network for which bf16 is chosen: products of narrower ones take less time than the calls around them."""
_OPERATIONS = {
    None: ("none", ""),
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
}
"""The names of activations in oneDNN, and their algorithms."""


class PackedLinear(nn.Linear):
    """A linear layer that shares the parameters of another; without gradients it computes with a packed copy of them.

    The parameters may not change after its first use. With gradients it is an ordinary linear layer in fp32.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.dtype = dtype
        self._packed: tuple[Tensor, Tensor | None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias in the precision of `x`."""
        if torch.is_grad_enabled():
            return super().forward(x)
        return self.activated(x, None).to(x.dtype)

    def activated(self, x: Tensor, activation: str | None) -> Tensor:
        """Return activation(x @ weight.T + bias) in the precision of the packed weights."""
        operation, algorithm = _OPERATIONS[activation]
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), *self._pack(), operation, [], algorithm)
        return out

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """Return (x @ weight.T + bias) * other in the precision of the packed weights."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x.to(self.dtype), other, *self._pack(), "mul")
        return out

    def _pack(self) -> tuple[Tensor, Tensor | None]:
        """Return the packed weight and the bias, which are made when they are first needed."""
        if self._packed is None:
            weight = self.weight.detach().to(self.dtype).contiguous()
            bias = None if self.bias is None else self.bias.detach().to(self.dtype)
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS), bias
        return self._packed


def packed_mlp(x: Tensor, up: nn.Linear, down: nn.Linear, gate: nn.Linear | None, activation: str) -> Tensor:
    """Return the MLP of packed layers, its activation and the product with the gate computed inside the matrix products."""
    assert isinstance(up, PackedLinear)
    if gate is None:
        activated = up.activated(x, activation)
    else:
        assert isinstance(gate, PackedLinear)
        activated = up.times(x, gate.activated(x, activation))
    narrowed: Tensor = down(activated)
    return narrowed


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
            if isinstance(child, nn.Linear) and _can_pack(child, dtype):
                setattr(module, name, PackedLinear(child, dtype))
    return True


def _can_pack(linear: nn.Linear, dtype: torch.dtype) -> bool:
    """Return whether a layer is an ordinary one in fp32, or is packed in another precision."""
    if isinstance(linear, PackedLinear):
        return linear.dtype != dtype
    return type(linear) is nn.Linear and linear.weight.dtype == torch.float32


def prefers_bf16_inference(device: torch.device, width: int) -> bool:
    """Return whether a network of this width predicts faster in bf16: where a CPU multiplies in bf16 natively."""
    return device.type == "cpu" and width >= _MIN_BF16_WIDTH and has_packed_products() and has_bf16_products()


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
