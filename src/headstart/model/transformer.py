"""The Transformer: absolute positions, three types of blocks, and the backbone that embeds ids and runs the blocks.

B batch, T tokens, N tokens of all documents end to end, D width.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headstart.config.schema import AttentionDirection, GenericConfig, ModelConfig
from headstart.kernels.attention import AttentionContext, KeyValueCache, sliding_window_mask
from headstart.kernels.cast import dropout
from headstart.kernels.dispatch import PLAIN, KernelPlan, num_padding_tokens, plan
from headstart.kernels.embedding import CachedGradEmbedding, embed
from headstart.kernels.grouped_attention import group_documents
from headstart.kernels.mlp import ACTIVATIONS, mlp
from headstart.kernels.residual_norm import add_norm, start_residual
from headstart.model.attention import KeyValues, SelfAttention, build_attention_mask, rotary_cos_sin

HiddenResidual = tuple[Tensor, Tensor | None]
"""The output of a block. The residual is None where a block has added it itself, which post-norm blocks do."""


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos of the same; one row per position.

    This is a formula, not a table: positions that training never reached have their vectors too.

    >>> sinusoids(torch.tensor([0]), 4)
    tensor([[0., 1., 0., 1.]])
    """
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-math.log(10000.0) / width))
    angles = positions.to(torch.float32)[..., None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def positions_in_segments(segments_BT: Tensor) -> Tensor:
    """Return the position of each token within its segment, counted from 0, for segments that lie end to end in a row.

    >>> positions_in_segments(torch.tensor([[0, 0, 1, 1, 1, -1]]))
    tensor([[0, 1, 0, 1, 2, 0]])
    """
    index_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    starts_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    starts_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    return index_T - (index_T * starts_BT).cummax(dim=1).values


class ClassicBlock(nn.Module):
    """Post-norm: attention, add, norm; two linear layers with a ReLU between, add, norm. Biases everywhere."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.dropout, bias=True)
        self.norm1 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.feedforward)
        self.down = nn.Linear(config.feedforward, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.dropout = config.dropout

    def forward(
        self,
        hidden: Tensor,
        residual: Tensor | None,  # noqa: ARG002
        context: AttentionContext,
        bias: Tensor | None = None,  # noqa: ARG002
    ) -> HiddenResidual:
        """Attend to the tokens that the context allows, then transform each token; all (B, T, D)."""
        plan = context.plan
        attended = self._drop(self.attention(hidden, context), plan)
        hidden, _ = add_norm(attended, hidden, self.norm1, plan)
        dropout_p = self.dropout if self.training else 0.0
        narrowed = mlp(hidden, self.up, self.down, plan, activation="relu", dropout_p=dropout_p)
        hidden, _ = add_norm(self._drop(narrowed, plan), hidden, self.norm2, plan)
        return hidden, None

    def reset_parameters(self) -> None:
        """Initialize attention like torch.nn.MultiheadAttention; other layers start as torch.nn.Linear does."""
        nn.init.xavier_uniform_(self.attention.qkv_proj.weight)
        nn.init.zeros_(self.attention.qkv_proj.bias)
        nn.init.zeros_(self.attention.out_proj.bias)

    def _drop(self, x: Tensor, plan: KernelPlan) -> Tensor:
        return dropout(x, self.dropout, plan, training=self.training)


class RMSNorm(nn.RMSNorm):
    """RMSNorm in fp32 whatever the dtype of its weights: sharded layers gather in bf16, hidden states stay in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale each token to a mean square of 1."""
        return F.rms_norm(x, self.normalized_shape, self.weight.float(), self.eps)


class ModernBlock(nn.Module):
    """Llama's block: norm, attention, add; norm, gated MLP, add. No biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.width, eps=config.norm_epsilon)
        # attention weights are not dropped: Llama does not, and the fast kernels cannot
        self.attention = SelfAttention(config.width, config.heads, 0.0, bias=False)
        self.norm2 = RMSNorm(config.width, eps=config.norm_epsilon)
        self.gate = nn.Linear(config.width, config.feedforward, bias=False)
        self.up = nn.Linear(config.width, config.feedforward, bias=False)
        self.down = nn.Linear(config.feedforward, config.width, bias=False)
        self.dropout = config.dropout

    def forward(
        self, hidden: Tensor, residual: Tensor | None, context: AttentionContext, bias: Tensor | None = None
    ) -> HiddenResidual:
        """Attend to the tokens that the context allows, then transform each token; all (B, T, D)."""
        plan = context.plan
        hidden, residual = add_norm(hidden, residual, self.norm1, plan, bias=bias)
        hidden = self._drop(self.attention(hidden, context), plan)
        hidden, residual = add_norm(hidden, residual, self.norm2, plan)
        return self._drop(mlp(hidden, self.up, self.down, plan, activation="silu", gate=self.gate), plan), residual

    def reset_parameters(self) -> None:
        """Initialize every weight with small normal numbers, as Llama does."""
        for linear in (self.attention.qkv_proj, self.attention.out_proj, self.gate, self.up, self.down):
            nn.init.normal_(linear.weight, std=0.02)

    def _drop(self, x: Tensor, plan: KernelPlan) -> Tensor:
        return dropout(x, self.dropout, plan, training=self.training)


def generic_config(config: ModelConfig) -> GenericConfig:
    """Return the settings that only imported architectures have."""
    assert config.generic is not None
    return config.generic


def generic_norm(config: ModelConfig) -> nn.LayerNorm:
    """Build a norm of an imported architecture."""
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=generic_config(config).norm_bias)


class GenericBlock(nn.Module):
    """The block of an imported architecture: pre-norm or post-norm, gated or not, with any of several activations."""

    def __init__(self, config: ModelConfig, index: int = 0) -> None:
        super().__init__()
        generic = generic_config(config)
        is_normed = index == 0 and generic.norm_first and generic.embedding_norm
        self.norm1 = nn.Identity() if is_normed else generic_norm(config)
        # attention weights are not dropped: the fast kernels cannot
        self.attention = SelfAttention(config.width, config.heads, 0.0, bias=generic.bias)
        self.norm2 = generic_norm(config)
        self.gate = nn.Linear(config.width, config.feedforward, bias=generic.bias) if generic.gated else None
        self.up = nn.Linear(config.width, config.feedforward, bias=generic.bias)
        self.down = nn.Linear(config.feedforward, config.width, bias=generic.bias)
        self.norm_first, self.dropout, self.activation = generic.norm_first, config.dropout, generic.activation

    def forward(
        self, hidden: Tensor, residual: Tensor | None, context: AttentionContext, bias: Tensor | None = None
    ) -> HiddenResidual:
        """Attend to the tokens that the context allows, then transform each token; all (B, T, D).

        Args:
            bias: of the layer before, if the plan defers it.
        """
        if self.norm_first:
            return self._pre_norm(hidden, residual, context, bias)
        attended = self._drop(self.attention(hidden, context), context.plan)
        hidden, _ = add_norm(attended, hidden, self.norm1, context.plan)
        hidden, _ = add_norm(self._mlp(hidden, context.plan), hidden, self.norm2, context.plan)
        return hidden, None

    def _pre_norm(
        self, hidden: Tensor, residual: Tensor | None, context: AttentionContext, bias: Tensor | None
    ) -> HiddenResidual:
        hidden, residual = add_norm(hidden, residual, self.norm1, context.plan, bias=bias)
        hidden = self.attention(hidden, context)
        attention_bias = self.attention.deferred_bias(context.plan)
        if attention_bias is not None and self.dropout:  # dropout applies to the bias as well
            hidden, attention_bias = hidden + attention_bias, None
        hidden, residual = add_norm(
            self._drop(hidden, context.plan), residual, self.norm2, context.plan, bias=attention_bias
        )
        return self._mlp(hidden, context.plan), residual

    def _mlp(self, hidden: Tensor, plan: KernelPlan) -> Tensor:
        return self._drop(mlp(hidden, self.up, self.down, plan, activation=self.activation, gate=self.gate), plan)

    def _drop(self, x: Tensor, plan: KernelPlan) -> Tensor:
        return dropout(x, self.dropout, plan, training=self.training)


class Transform(nn.Module):
    """A linear layer, an activation and a norm, with which the heads of some architectures begin."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        generic = generic_config(config)
        self.dense = nn.Linear(config.width, config.width, bias=generic.transform_bias)
        self.norm = generic_norm(config)
        self.activate = ACTIVATIONS[generic.transform_activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return as many vectors of the same width."""
        transformed: Tensor = self.norm(self.activate(self.dense(hidden)))
        return transformed


def init_normal(module: nn.Module) -> None:
    """Initialize every linear layer and embedding with small normal numbers, and every bias with zeros."""
    for submodule in module.modules():
        if isinstance(submodule, (nn.Linear, nn.Embedding)):
            nn.init.normal_(submodule.weight, std=0.02)
        if isinstance(submodule, nn.Linear) and submodule.bias is not None:
            nn.init.zeros_(submodule.bias)


BLOCKS: dict[str, type[ClassicBlock] | type[ModernBlock]] = {"classic": ClassicBlock, "modern": ModernBlock}
_RECOMPILE_LIMIT = 32
"""Versions of a compiled layer: in training and inference, for full rows and documents end to end, and so on."""


class Backbone(nn.Module):
    """Embedding, positions and layers, without a head: ids in, hidden states out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.modern = config.block == "modern"
        self.embedding = CachedGradEmbedding(vocab_size, config.width)
        self.norm: nn.Module = nn.RMSNorm(config.width, eps=config.norm_epsilon) if self.modern else nn.Identity()
        if config.generic is None:
            self.layers = nn.ModuleList(BLOCKS[config.block](config) for _ in range(config.depth))
        else:
            self.positions = nn.Embedding(config.generic.positions, config.width) if config.generic.positions else None
            self.embedding_norm = generic_norm(config) if config.generic.embedding_norm else nn.Identity()
            self.layers = nn.ModuleList(GenericBlock(config, index) for index in range(config.depth))
            self.norm = generic_norm(config) if config.generic.final_norm else self.norm
        self.compiled = False
        self.recompute = False
        """Whether activations inside a layer are recomputed in the backward pass, which saves memory."""
        self.recorded = False
        """Whether training steps are captured as CUDA graphs."""
        self.packed = False
        """Whether the layers were packed in bf16, for passes without gradients."""
        self.defer_bias = True
        """Whether a layer may add a bias of the layer before it; False where the weights of that layer may be gone."""

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        attention: AttentionDirection = "causal",
        cu_seqlens: Tensor | None = None,
        unpadded_indices: Tensor | None = None,
        lengths: tuple[int, ...] = (),
    ) -> Tensor:
        """Return the hidden states (B, T, D) of every position.

        Args:
            segments_BT: the document each token belongs to, documents lying end to end; padding is PADDING_SEGMENT. None
                says that a row is one document, padded on the right if at all: under `causal` no real token sees padding.
            cu_seqlens: the same as cumulative lengths over all rows in turn, used where a kernel for it is available.
            unpadded_indices: with `cu_seqlens`, the flat indices of the tokens that are not padding. Padding then costs
                nothing, and its hidden states are zero.
            lengths: each row is one document of this many tokens; documents are processed one at a time, and padding
                costs nothing either.
        """
        kernels = plan(
            self.config,
            ids_BT,
            causal=attention == "causal",
            training=self.training,
            compiled=self.compiled,
            recorded=self.recorded,
            packed=self.packed,
            defer_bias=self.defer_bias,
            has_segments=segments_BT is not None,
            has_cu_seqlens=cu_seqlens is not None,
            by_text=bool(lengths),
        )
        context = AttentionContext(kernels, causal=attention == "causal")
        if kernels.attention == "varlen":
            assert cu_seqlens is not None
            return self._forward_varlen(ids_BT, context, cu_seqlens, unpadded_indices)
        if kernels.attention == "grouped":
            return self._forward_grouped(ids_BT, segments_BT, context, lengths)
        if kernels.attention == "by_text":
            return self._forward_by_text(ids_BT, replace(context, lengths=lengths))
        if not kernels.segment_mask:
            return self._forward_rows(ids_BT, torch.arange(ids_BT.shape[1], device=ids_BT.device), context)
        segments_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
        positions_BT = positions_in_segments(segments_BT)
        context = replace(context, attn_mask=build_attention_mask(segments_BT, attention))
        return self._forward_rows(ids_BT, positions_BT, context)

    def through(self, ids_BT: Tensor, positions: Tensor, attn_mask: Tensor | None) -> Tensor:
        """Return hidden states for explicit positions (T, or B, T) and an explicit mask; None is causal attention."""
        return self._forward_rows(ids_BT, positions, AttentionContext(PLAIN, attn_mask))

    def extend(self, ids_BT: Tensor, past: list[KeyValues] | None) -> tuple[Tensor, list[KeyValues]]:
        """Return hidden states of new tokens that follow those in `past`, causally, and the extended `past`."""
        start = past[0][0].shape[2] if past else 0
        positions = torch.arange(start, start + ids_BT.shape[1], device=ids_BT.device)
        context = AttentionContext(PLAIN)
        caches = [KeyValueCache(past[index] if past else None) for index in range(len(self.layers))]
        contexts = [
            replace(layer_context, cache=cache)
            for layer_context, cache in zip(self._layer_contexts(context, positions), caches, strict=True)
        ]
        hidden = self._run_layers(self._embed(ids_BT, positions, context.plan), context.plan, contexts)
        return hidden, [cache.key_values for cache in caches if cache.key_values is not None]

    def compile_layers(self) -> None:
        """Compile the layer, once for all of them: this takes seconds, where the full network would take a minute."""
        self.compiled = True
        # a teacher's layers and rows of another layout are further versions of the same code
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _RECOMPILE_LIMIT)
        for layer in self.layers:
            layer.compile()

    def _forward_rows(self, ids_BT: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        embedded = self._embed(ids_BT, positions, context.plan)
        return self._run_layers(embedded, context.plan, self._layer_contexts(context, positions))

    def _forward_by_text(self, ids_BT: Tensor, context: AttentionContext) -> Tensor:
        """Process documents end to end, without padding, and return them in rows."""
        unpadded_indices = _unpadded_indices(ids_BT, context.lengths)
        ids_N, positions_N = ids_BT.flatten()[unpadded_indices], unpadded_indices % ids_BT.shape[1]
        hidden = self._run_end_to_end(ids_N, positions_N, context, context.lengths)
        return _pad_rows(hidden[0], unpadded_indices, ids_BT)

    def _forward_grouped(
        self, ids_BT: Tensor, segments_BT: Tensor | None, context: AttentionContext, lengths: tuple[int, ...]
    ) -> Tensor:
        """Process documents end to end, in groups of similar length, without padding if `lengths` say where it is."""
        ids_N, unpadded_indices = ids_BT.flatten(), None
        if lengths:
            unpadded_indices = _unpadded_indices(ids_BT, lengths)
            ids_N, positions_N = ids_N[unpadded_indices], unpadded_indices % ids_BT.shape[1]
        else:
            segments_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
            positions_N = positions_in_segments(segments_BT).flatten()
            ends_D = torch.cat(((positions_N == 0).nonzero()[1:, 0], torch.tensor([len(ids_N)])))
            lengths = tuple(torch.diff(ends_D, prepend=torch.tensor([0])).tolist())
        hidden = self._run_end_to_end(ids_N, positions_N, context, lengths)
        if unpadded_indices is None:
            return hidden.view(*ids_BT.shape, -1)
        return _pad_rows(hidden[0], unpadded_indices, ids_BT)

    def _run_end_to_end(
        self, ids_N: Tensor, positions_N: Tensor, context: AttentionContext, lengths: tuple[int, ...]
    ) -> Tensor:
        """Return the hidden states (1, N, D) of documents end to end; padding is one more document, which is dropped."""
        num_tokens = len(ids_N)
        padding = num_padding_tokens(num_tokens, context.plan)
        if padding:
            ids_N, positions_N = (F.pad(values_N, (0, padding)) for values_N in (ids_N, positions_N))
            lengths = (*lengths, padding)
        context = replace(context, plan=replace(context.plan, padding_tokens=padding), lengths=lengths)
        if context.plan.attention == "grouped":
            context = replace(context, groups=group_documents(lengths, self.config.heads))
        embedded = self._embed(ids_N[None], positions_N, context.plan)
        hidden = self._run_layers(embedded, context.plan, self._layer_contexts(context, positions_N))
        return hidden[:, :num_tokens]

    def _forward_varlen(
        self, ids_BT: Tensor, context: AttentionContext, cu_seqlens: Tensor, unpadded_indices: Tensor | None
    ) -> Tensor:
        """Process all rows as one, without padding if its indices are known, and return them in rows."""
        ids_N = ids_BT.flatten() if unpadded_indices is None else ids_BT.flatten()[unpadded_indices]
        index_N = torch.arange(len(ids_N), device=ids_N.device)
        starts_N = cu_seqlens[torch.searchsorted(cu_seqlens, index_N, right=True, out_int32=True) - 1]
        positions_N = index_N - starts_N
        # not the longest document: a bound that stays the same is compiled once
        max_seqlen = max(self.config.context, ids_BT.shape[1])
        context = replace(context, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
        contexts = self._layer_contexts(context, positions_N)
        embedded = self._embed(ids_N[None], positions_N, context.plan)
        dynamic = self.compiled and unpadded_indices is not None
        hidden_ND = self._run_layers(embedded, context.plan, contexts, dynamic=dynamic)[0]
        if unpadded_indices is None:
            return hidden_ND.view(*ids_BT.shape, -1)
        return _pad_rows(hidden_ND, unpadded_indices, ids_BT)

    def _embed(self, ids_BT: Tensor, positions: Tensor, plan: KernelPlan) -> Tensor:
        if self.config.generic is not None:
            hidden_BTD = self.embedding_norm(embed(ids_BT, self.embedding, plan, positions, self.positions))
        else:
            hidden_BTD = embed(ids_BT, self.embedding, plan)
            if not self.modern:
                hidden_BTD = hidden_BTD * math.sqrt(self.config.width) + sinusoids(positions, self.config.width)
        return dropout(hidden_BTD, self.config.dropout, plan, training=self.training)

    def _layer_contexts(self, context: AttentionContext, positions: Tensor) -> list[AttentionContext]:
        """Return the context of each layer: the same, unless some layers attend to a sliding window only."""
        generic, flat = self.config.generic, context.cu_seqlens is not None or bool(context.lengths)
        global_context = replace(context, rotary=self._rotary(positions, self.config.rotary_base, flat=flat))
        if generic is None or not generic.local_layers:
            return [global_context] * len(self.layers)
        attn_mask = None
        if not flat:
            window_TT = sliding_window_mask(
                positions.shape[-1], generic.window, positions.device, causal=context.attn_mask is None
            )
            attn_mask = window_TT if context.attn_mask is None else context.attn_mask & window_TT
        rotary = self._rotary(positions, generic.local_base, flat=flat)
        local_context = replace(context, attn_mask=attn_mask, rotary=rotary, window=generic.window)
        is_local = [index in generic.local_layers for index in range(len(self.layers))]
        return [local_context if local else global_context for local in is_local]

    def _rotary(self, positions: Tensor, base: float, *, flat: bool) -> tuple[Tensor, Tensor] | None:
        config = self.config
        if config.block == "classic" or (config.generic is not None and config.generic.positions):
            return None
        cos, sin = rotary_cos_sin(positions, config.width // config.heads, base)
        # (B, T, K) needs a dimension for the heads behind B, (N, K) of documents end to end behind N; (T, K) broadcasts
        return (cos[:, None], sin[:, None]) if positions.ndim == 2 or flat else (cos, sin)

    def _run_layers(
        self, embedded: Tensor, plan: KernelPlan, contexts: Sequence[AttentionContext], *, dynamic: bool = False
    ) -> Tensor:
        """Return the hidden states behind the last layer and the last norm.

        Args:
            dynamic: the number of tokens changes from call to call.
        """
        hidden, residual, bias = start_residual(embedded, plan)
        if dynamic:
            _mark_dynamic(hidden, residual, contexts)
        recompute = self.recompute and torch.is_grad_enabled()
        for layer, context in zip(self.layers, contexts, strict=True):
            arguments = hidden, residual, context, bias
            hidden, residual = checkpoint(layer, *arguments, use_reentrant=False) if recompute else layer(*arguments)
            bias = cast(GenericBlock, layer).down.bias if plan.defer_bias else None
        return add_norm(hidden, residual, self.norm, plan, bias=bias, dtype=embedded.dtype)[0]


def _unpadded_indices(ids_BT: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return the flat indices of the tokens that are not padding, for rows of one document each."""
    width = ids_BT.shape[1]
    spans = (torch.arange(row * width, row * width + length) for row, length in enumerate(lengths))
    return torch.cat(tuple(spans)).to(ids_BT.device)


def _pad_rows(hidden_ND: Tensor, unpadded_indices: Tensor, ids_BT: Tensor) -> Tensor:
    """Return hidden states in rows (B, T, D), those of padding zero."""
    rows = hidden_ND.new_zeros(ids_BT.numel(), hidden_ND.shape[1]).index_copy(0, unpadded_indices, hidden_ND)
    return rows.view(*ids_BT.shape, -1)


def _mark_dynamic(hidden: Tensor, residual: Tensor | None, contexts: Sequence[AttentionContext]) -> None:
    """Tell the compiler that the number of tokens changes, before it finds out and compiles a second time."""
    torch._dynamo.mark_dynamic(hidden, 1)
    if residual is not None:
        torch._dynamo.mark_dynamic(residual, 1)
    tables = {id(table): table for context in contexts for table in context.rotary or ()}
    for table_N1K in tables.values():
        torch._dynamo.mark_dynamic(table_N1K, 0)


def build_backbone(config: ModelConfig, vocab_size: int, seed: int) -> Backbone:
    """Build a backbone whose weights depend on the seed only, not on the state of the random number generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(config, vocab_size)
        if config.generic is not None:
            init_normal(backbone)
            return backbone
        if backbone.modern:
            nn.init.normal_(backbone.embedding.weight, std=0.02)
        else:
            nn.init.uniform_(backbone.embedding.weight, -0.1, 0.1)
        for layer in backbone.layers:
            cast(ClassicBlock, layer).reset_parameters()
    return backbone
