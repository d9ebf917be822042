"""Chooses the implementation of every operation of a forward pass.

`plan` looks at the configuration, the device, autocast and the mode of training once per forward pass. The network hands
the resulting `KernelPlan` on to the functions of this package and never asks for a device itself. What training and scoring
do differently from one device to another is decided here as well, by one small function each.
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from headstart.config.schema import ModelConfig

MAX_COLUMNS = 4096
"""Longest row that the fused kernels hold at once."""
CUDNN_ATTENTION = True
"""Whether cuDNN's attention may be chosen; benchmarks turn it off."""
HEAD_MULTIPLE = 8
"""cuDNN and the varlen kernels require heads whose width is a multiple of this."""
_MAX_CUDNN_HEAD = 128
_MLP_MULTIPLE = 8
"""Rows of the fused MLP must be a multiple of 16 bytes long, which the unit that loads tiles requires."""
_AMPERE, _HOPPER = 8, 9

GPU_SCORING_TOKENS = 32768
"""Tokens per batch on a GPU where attention needs no mask; texts are batched by length, so there is little padding."""
MASKED_SCORING_TOKENS = 8192
"""Tokens per batch where it needs one: a mask grows with the square of the row length."""
CPU_SCORING_TOKENS = 1024
"""Tokens per batch on a CPU, where activations should stay in the cache: 1.3 to 1.8 times as fast (measured)."""

PAD_TO_MULTIPLE_OF = 32
"""Documents end to end are padded to a multiple of this many tokens on a CPU: oneDNN compiles a kernel for every shape of a
product in bf16 and keeps up to 1,024 of them."""

AttentionKernel = Literal["sdpa", "cudnn", "varlen", "by_text", "grouped"]
"""`sdpa`: torch's choice, with or without a mask. `cudnn`: full rows in bf16. `varlen`: documents end to end, separated by
`cu_seqlens`. `by_text`: documents end to end, one call of `sdpa` per document. `grouped`: documents end to end, in groups
of similar length, in bf16 on a CPU."""


@dataclass(frozen=True)
class KernelPlan:
    """The implementation of every operation of one forward pass. The default is plain torch."""

    attention: AttentionKernel = "sdpa"
    segment_mask: bool = False
    """Whether attention needs a mask built from the segments."""
    fused_residual: bool = False
    """Whether residual addition and norm are one kernel, with hand-written backward passes for MLP and projections too."""
    fused_mlp: bool = False
    """Whether the fused MLP computes its activation inside the matrix product."""
    fused_embedding: bool = False
    """Whether embedding gradients are added atomically, in any order; torch sorts them first."""
    defer_bias: bool = False
    """Whether the last bias of a layer's MLP is added by the `add_norm` of the next layer."""
    uniform_layers: bool = False
    """Whether the first layer gets a separate residual, so that all layers share one compiled graph."""
    cast_weights: bool = False
    """Whether layers compute in bf16 from copies of the weights that are made once per update, on a CPU."""
    packed: bool = False
    """Whether layers compute in bf16 from packed weights, without gradients, on a CPU."""
    padding_tokens: int = 0
    """The padding tokens behind documents end to end, for which dropout draws no random numbers."""
    short_dropout: bool = False
    """Whether dropout draws 16 random bits for each number, on a CPU: faster than torch's, and the same in fp32 and bf16."""


PLAIN = KernelPlan()
"""Plain torch everywhere."""


def plan(
    config: ModelConfig,
    ids: Tensor,
    *,
    causal: bool = True,
    training: bool = False,
    compiled: bool = False,
    recorded: bool = False,
    packed: bool = False,
    defer_bias: bool = True,
    has_segments: bool = False,
    has_cu_seqlens: bool = False,
    by_text: bool = False,
) -> KernelPlan:
    """Choose the kernels of a forward pass over `ids` (B, T).

    Args:
        compiled: the layers are compiled.
        recorded: steps are captured as CUDA graphs; attention is then torch's choice, whatever the shape of the rows.
        packed: the layers were packed in bf16, for passes without gradients.
        defer_bias: a layer may read a bias of the layer before it, and the weights stay where they are: not those of sharded
            layers, which are gathered for each pass.
        has_segments: the rows hold several documents, or padding that must be masked.
        has_cu_seqlens: the documents are also described by cumulative lengths.
        by_text: the caller asks for one document at a time.
    """
    fused = _can_fuse_training(config, ids, training=training, compiled=compiled)
    fused_embedding = fused and not torch.are_deterministic_algorithms_enabled()
    pre_norm = config.block == "modern" or (config.generic is not None and config.generic.norm_first)
    segment_mask = False
    attention: AttentionKernel = "sdpa"
    if has_cu_seqlens and _can_use_varlen(config, ids, training=training):
        attention = "varlen"
    elif by_text:
        attention = "by_text"
    elif has_segments or not (causal or _can_skip_mask(config, ids)):
        segment_mask = True
    elif _can_use_cudnn(config, ids, training=training, recorded=recorded):
        attention = "cudnn"
    fused_residual = fused and pre_norm and attention != "by_text"
    cast_weights = defer_bias and _can_cast_weights(ids, compiled=compiled)
    if cast_weights and not (config.block == "classic" and config.dropout):  # the classic block drops attention weights
        attention, segment_mask = "grouped", False
    return KernelPlan(
        attention=attention,
        segment_mask=segment_mask,
        fused_residual=fused_residual,
        fused_mlp=fused_residual and supports_fused_mlp(ids.device, config.width, config.feedforward),
        fused_embedding=fused_embedding,
        defer_bias=fused_residual and defer_bias and _has_deferrable_bias(config),
        uniform_layers=pre_norm and (compiled or fused_residual),
        cast_weights=cast_weights,
        packed=packed and not torch.is_grad_enabled(),
        short_dropout=_can_shorten_dropout(config, ids, training=training, compiled=compiled),
    )


def prefers_by_text(ids: Tensor, *, compiled: bool) -> bool:
    """Return whether texts of different lengths are faster one at a time than padded: on a CPU, without compilation."""
    return ids.device.type == "cpu" and not compiled


def num_padding_tokens(num_tokens: int, plan: KernelPlan) -> int:
    """Return how many padding tokens follow documents end to end; training in fp32, one text at a time, needs none."""
    if plan.attention == "by_text" and torch.is_grad_enabled():
        return 0
    return -num_tokens % PAD_TO_MULTIPLE_OF


def is_asynchronous(device: torch.device) -> bool:
    """Return whether operations and copies from pinned memory are queued (CUDA), so that the host may work ahead."""
    return device.type == "cuda"


def is_on_device(x: Tensor, device: torch.device) -> bool:
    """Return whether a tensor is on this type of device already, with any index."""
    return device.type == x.device.type


def caches_embedding_grads(device: torch.device) -> bool:
    """Return whether the gradient tensors of embeddings are reused from step to step: on a CPU."""
    return device.type == "cpu"


def divides_long_batches(device: torch.device) -> bool:
    """Return whether batches of long texts are divided into micro-batches: on a CPU, where these take about as long."""
    return device.type == "cpu"


def supports_compiled_training(device: torch.device) -> bool:
    """Return whether the layers of a long run are compiled unless the settings say otherwise: on CUDA."""
    return device.type == "cuda"


def supports_fused_adam(device: torch.device) -> bool:
    """Return whether torch's fused Adam is used: everywhere but on Apple's GPUs."""
    return device.type != "mps"


def newton_schulz_dtype(x: Tensor, *, bf16: bool) -> torch.dtype:
    """Return the precision of the matrix products that orthogonalize `x`: bf16 on CUDA, and where a CPU trains in bf16."""
    return torch.bfloat16 if x.is_cuda or (bf16 and x.device.type == "cpu") else x.dtype


def needs_full_batches(device: torch.device) -> bool:
    """Return whether steps are timed with full batches: a few rows would not fill a GPU. Elsewhere they suffice."""
    return device.type == "cuda"


def max_scoring_tokens(device: torch.device, *, bf16: bool, deterministic: bool) -> int:
    """Return the number of padded tokens per batch for inference."""
    if device.type == "cpu":
        return CPU_SCORING_TOKENS
    unmasked = device.type == "cuda" and bf16 and not deterministic
    return GPU_SCORING_TOKENS if unmasked else MASKED_SCORING_TOKENS


@cache
def has_kernels(device: torch.device) -> bool:
    """Return whether triton is installed and the GPU has asynchronous loads and bf16 products (Ampere or newer)."""
    return (
        device.type == "cuda"
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device)[0] >= _AMPERE
    )


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the precision of matrix products of `x`."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def supports_fused_mlp(device: torch.device, width: int, feedforward: int) -> bool:
    """Return whether a GPU computes an activation inside a matrix product, for rows of these lengths."""
    if width % _MLP_MULTIPLE or feedforward % _MLP_MULTIPLE or not has_kernels(device):
        return False
    from headstart.kernels.triton.mlp import fits

    return fits(device)


def supports_cudnn_attention(device: torch.device, head_width: int) -> bool:
    """Return whether cuDNN's attention works and is the fastest: on Hopper. Elsewhere torch chooses well by itself."""
    return CUDNN_ATTENTION and device.type == "cuda" and _cudnn_accepts(device, head_width)


@cache
def _cudnn_accepts(device: torch.device, head_width: int) -> bool:
    """Try cuDNN's attention once on zeros, forward and backward."""
    if head_width > _MAX_CUDNN_HEAD or torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return False
    from headstart.kernels.attention import cudnn_attention

    query, key, value = (
        torch.zeros(1, 2, 64, head_width, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(3)
    )
    try:
        with torch.enable_grad():
            mixed = cudnn_attention(query, key, value, causal=True)
            mixed.backward(torch.zeros_like(mixed))  # type: ignore[no-untyped-call]
    except RuntimeError:  # cuDNN is too old or missing
        return False
    return True


def _can_fuse_training(config: ModelConfig, ids: Tensor, *, training: bool, compiled: bool) -> bool:
    """Fused kernels serve training of compiled layers on a GPU under autocast."""
    trains = training and torch.is_grad_enabled() and torch.is_autocast_enabled("cuda")
    fits = compiled and ids.is_cuda and config.width <= MAX_COLUMNS
    return fits and trains and has_kernels(ids.device)


def _can_cast_weights(ids: Tensor, *, compiled: bool) -> bool:
    """Hand-written bf16 serves training on a CPU under autocast, which scoring never enters there."""
    return ids.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not compiled


def _can_shorten_dropout(config: ModelConfig, ids: Tensor, *, training: bool, compiled: bool) -> bool:
    """Masks are made from bits in place on a CPU; a compiler generates its own random numbers."""
    return training and config.dropout > 0 and ids.device.type == "cpu" and not compiled


def _can_skip_mask(config: ModelConfig, ids: Tensor) -> bool:
    """Rows of one document need no mask in bidirectional attention: a GPU's kernels are faster without."""
    return ids.is_cuda and not _has_local_layers(config)


def _can_use_cudnn(config: ModelConfig, ids: Tensor, *, training: bool, recorded: bool) -> bool:
    """Use cuDNN for training in bf16 on rows of the full context only: it plans anew for every new shape."""
    drops = config.block == "classic" and config.dropout > 0
    trains = training and torch.is_grad_enabled() and torch.is_autocast_enabled("cuda")
    if recorded or drops or _has_local_layers(config) or not trains or ids.shape[1] != config.context:
        return False
    deterministic = torch.are_deterministic_algorithms_enabled()
    return not deterministic and supports_cudnn_attention(ids.device, config.width // config.heads)


def _can_use_varlen(config: ModelConfig, ids: Tensor, *, training: bool) -> bool:
    """Varlen attention requires CUDA, 16-bit operands, heads of a supported width and no dropout of attention weights.

    Operands are 16-bit under autocast, and in inference where TF32 is allowed (`Runtime.scoring`). The order of its
    gradient additions varies, so that deterministic runs use a mask instead.
    """
    drops = config.block == "classic" and training and config.dropout > 0
    scoring = not torch.is_grad_enabled() and torch.backends.cuda.matmul.allow_tf32
    half = torch.is_autocast_enabled("cuda") or scoring
    fits = ids.is_cuda and half and config.width // config.heads % HEAD_MULTIPLE == 0
    return fits and not drops and not torch.are_deterministic_algorithms_enabled()


def _has_local_layers(config: ModelConfig) -> bool:
    return config.generic is not None and bool(config.generic.local_layers)


def _has_deferrable_bias(config: ModelConfig) -> bool:
    """The fused MLP can leave its last bias out, unless dropout applies to that bias as well."""
    generic = config.generic
    if generic is None or generic.gated or generic.activation not in ("gelu", "gelu_tanh"):
        return False
    return generic.bias and not config.dropout
