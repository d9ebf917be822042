"""What runs through a pre-norm network: hidden states as two summands, which are added where the next norm reads them.

Torch adds, then norms; on a GPU that learns with compiled layers one kernel does both, and one more all of the way back.
The same holds for what else is bounded by reading and writing: rows that are looked up, and queries, keys and values whose
slopes are laid side by side. The mathematics is that of plain torch, which does it wherever there is no triton.

N rows, D width.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Summands = tuple[Tensor, Tensor, Tensor | None]
"""Two tensors whose sum hidden states are, and what is owed to every token besides: a bias that was not added yet."""
Hidden = Tensor | Summands


MOST_COLUMNS = 4096
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


def kind_of(x: Tensor) -> torch.dtype:
    """The precision of products."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def split(hidden: Tensor, *, owed: bool) -> Summands:
    """Hidden states as summands, of which all but the first are nothing: all layers then look alike to a compiler."""
    nothing = torch.zeros_like(hidden, dtype=kind_of(hidden)).requires_grad_(hidden.requires_grad)
    debt = nn.Parameter(hidden.new_zeros(hidden.shape[-1]), requires_grad=hidden.requires_grad) if owed else None
    return hidden, nothing, debt


def joined(hidden: Hidden) -> Tensor:
    """Hidden states as one tensor."""
    if isinstance(hidden, Tensor):
        return hidden
    x, more, owed = hidden
    return x + more if owed is None else x + more + owed


def normed(hidden: Hidden, norm: nn.Module, *, fused: bool, kind: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Hidden states as one tensor, and their norm.

    Args:
        fused: by one kernel.
        kind: of the norm then, if not what products take.
    """
    if fused and isinstance(hidden, tuple) and isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        x, more, owed = hidden
        centred = isinstance(norm, nn.LayerNorm)
        bias = norm.bias.float() if centred and norm.bias is not None else None
        given = x, more, owed, norm.weight.float(), bias, norm.eps, centred, kind or kind_of(x)
        total, after = _AddNorm.apply(*given)  # type: ignore[no-untyped-call]
        return total, after
    total = joined(hidden)
    return total, norm(total)


def looked_up(ids: Tensor, table: Tensor, at: Tensor | None = None, places: Tensor | None = None) -> Tensor:
    """Rows of a table, and those of a table of places added if there is one.

    Slopes are added to their rows as they come, in whatever order: torch sorts them first.

    Args:
        at: which places, for all rows of ids or each.
    """
    found: Tensor = _LookedUp.apply(ids, table, at, places)  # type: ignore[no-untyped-call]
    return found


class _LookedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, at: Tensor | None, places: Tensor | None) -> Tensor:
        ctx.save_for_backward(ids, at)
        ctx.entries, ctx.places = len(table), 0 if places is None else len(places)
        if ids.is_cuda:
            from headstart.model import stream_kernel

            each = None if at is None else at.expand_as(ids).contiguous()
            return stream_kernel.look_up(ids.contiguous(), table, each, places)
        found = F.embedding(ids, table)
        return found if at is None or places is None else found + F.embedding(at, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (ids, at), (slopes,) = ctx.saved_tensors, grads
        by_places = None
        if at is not None:
            # rows that stand at the same places are added up before they are told apart
            shared, each = (slopes.flatten(0, -3).sum(dim=0), at) if at.ndim == 1 else (slopes, at.expand_as(ids))
            by_places = _looked_back(shared, each, ctx.places)
        return None, _looked_back(slopes, ids, ctx.entries), None, by_places


def _looked_back(slopes: Tensor, ids: Tensor, entries: int) -> Tensor:
    slopes, ids = slopes.flatten(0, -2), ids.flatten()
    if slopes.is_cuda:
        from headstart.model import stream_kernel

        return stream_kernel.look_back(slopes.contiguous(), ids, entries)
    return slopes.new_zeros(entries, slopes.shape[-1]).index_add_(0, ids, slopes)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        more: Tensor,
        owed: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        centred: bool,
        kind: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        total, after, means, scales = _add_norm(x, more, owed, weight, bias, epsilon, centred, kind)
        ctx.save_for_backward(total, means, scales, weight)
        ctx.kind, ctx.centred, ctx.biased, ctx.owed = more.dtype, centred, bias is not None, owed is not None
        if not torch.compiler.is_compiling():  # inside compiled layers both have slopes
            ctx.set_materialize_grads(False)
        return total, after

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_total, by_normed = grads
        given = by_total, by_normed, *ctx.saved_tensors, ctx.centred, ctx.owed, ctx.kind
        by_x, by_more, learnt = _add_norm_back(*given)
        by_weight, by_bias, by_owed = learnt.unbind()
        learnt_too = by_owed if ctx.owed else None, by_weight, by_bias if ctx.biased else None
        return by_x, by_more, *learnt_too, None, None, None


# operations that a compiler does not look into


@torch.library.custom_op("headstart::add_norm", mutates_args=())
def _add_norm(
    x: Tensor,
    more: Tensor,
    owed: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    centred: bool,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.is_cuda:
        from headstart.model import norm_kernel

        given = x.contiguous(), more.contiguous(), owed, weight, bias, epsilon, kind
        return norm_kernel.add_norm(*given, centred=centred)
    total = joined((x, more, owed))
    means = total.mean(dim=-1, keepdim=True) if centred else total.new_zeros(*total.shape[:-1], 1)
    scales = (total - means).square().mean(dim=-1, keepdim=True).add(epsilon).rsqrt()
    after = (total - means) * scales * weight
    return total, (after if bias is None else after + bias).to(kind), means.flatten(), scales.flatten()


@_add_norm.register_fake
def _(
    x: Tensor,
    more: Tensor,  # noqa: ARG001
    owed: Tensor | None,  # noqa: ARG001
    weight: Tensor,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    centred: bool,  # noqa: ARG001
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    whole, each = x.contiguous(), x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)
    return torch.empty_like(whole), torch.empty_like(whole, dtype=kind), each, torch.empty_like(each)


@torch.library.custom_op("headstart::add_norm_back", mutates_args=())
def _add_norm_back(
    by_total: Tensor | None,
    by_normed: Tensor,
    total: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    centred: bool,
    owed: bool,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    if total.is_cuda:
        from headstart.model import norm_kernel

        by_total = None if by_total is None else by_total.contiguous()
        given = by_total, by_normed.contiguous(), total, means, scales, weight, kind
        return norm_kernel.add_norm_back(*given, centred=centred, owed=owed)
    width = total.shape[-1]
    flat, slopes = total.view(-1, width), by_normed.reshape(-1, width).float()
    a = (flat - means[:, None] if centred else flat) * scales[:, None]
    learnt = [(slopes * a).sum(dim=0), slopes.sum(dim=0)]
    slopes = slopes * weight
    inner = slopes - a * (slopes * a).mean(dim=1, keepdim=True)
    inner = (inner - slopes.mean(dim=1, keepdim=True) if centred else inner) * scales[:, None]
    by_x = inner.view_as(total) if by_total is None else inner.view_as(total) + by_total
    return by_x, by_x.to(kind, copy=True), torch.stack([*learnt, by_x.reshape(-1, width).sum(dim=0)])


@_add_norm_back.register_fake
def _(
    by_total: Tensor | None,  # noqa: ARG001
    by_normed: Tensor,  # noqa: ARG001
    total: Tensor,
    means: Tensor,  # noqa: ARG001
    scales: Tensor,  # noqa: ARG001
    weight: Tensor,
    centred: bool,  # noqa: ARG001
    owed: bool,  # noqa: ARG001
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(total), torch.empty_like(total, dtype=kind), weight.new_empty(3, len(weight))


@torch.library.custom_op("headstart::join", mutates_args=())
def side_by_side(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Three tensors side by side, and what they add up to in each column."""
    if query.is_cuda:
        from headstart.model import stream_kernel

        return stream_kernel.join(query, key, value)
    out = torch.cat((query, key, value), dim=-1)
    return out, out.float().flatten(0, -2).sum(dim=0)


@side_by_side.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    width = 3 * query.shape[-1]
    return query.new_empty(*query.shape[:-1], width), query.new_empty(width, dtype=torch.float32)
