"""Read back a classic network that Headstart exported as an OPT with doubled channels (`hf_export.opt_tensors`)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headstart.config.merge import merge_config
from headstart.config.schema import ModelConfig
from headstart.interop.hf_export import opt_tensors
from headstart.model.heads import Model

_TOLERANCE = 1e-5
"""Relative: the export multiplies the embedding by a root, and the import divides by it."""


def is_doubled_opt(facts: Mapping[str, Any]) -> bool:
    """Whether a config.json has the shape of such an export; whether it is one, `is_exported_classic` decides."""
    hidden, width = facts.get("hidden_size"), facts.get("word_embed_proj_dim")
    return (
        facts.get("model_type") == "opt"
        and isinstance(hidden, int)
        and isinstance(width, int)
        and hidden == 2 * (width - 1)
        and facts.get("do_layer_norm_before") is False
    )


def read_doubled_opt(facts: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration and the tensors of the classic network; the inverse of `opt_tensors`."""
    width = int(facts["hidden_size"]) // 2
    sizes = {
        "block": "classic",
        "width": width,
        "depth": int(facts["num_hidden_layers"]),
        "heads": int(facts["num_attention_heads"]) // 2,
        "feedforward": int(facts["ffn_dim"]),
        "dropout": float(facts.get("dropout", 0.1)),
        "context": int(facts["max_position_embeddings"]),
    }
    config = merge_config(ModelConfig, sizes)
    prefix = "model.decoder."
    head = weights["score.weight" if "score.weight" in weights else "lm_head.weight"]
    tensors = {
        "backbone.embedding.weight": weights[f"{prefix}embed_tokens.weight"][:, :width] / math.sqrt(width),
        "head.linear.weight": head[:, :width].contiguous(),
        "head.linear.bias": head[:, width].contiguous(),
    }
    for layer in range(config.depth):
        theirs = {
            name.removeprefix(f"{prefix}layers.{layer}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"{prefix}layers.{layer}.")
        }
        tensors |= {f"backbone.layers.{layer}.{name}": tensor for name, tensor in _read_layer(theirs, width).items()}
    return config, tensors


def _read_layer(theirs: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Return the first half of every channel of a layer, by our names."""
    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    tensors = {
        "attention.qkv_proj.weight": torch.cat([theirs[f"{name}.weight"][:width, :width] for name in qkv]),
        "attention.qkv_proj.bias": torch.cat([theirs[f"{name}.bias"][:width] for name in qkv]),
        "attention.out_proj.weight": theirs["self_attn.out_proj.weight"][:width, :width],
        "attention.out_proj.bias": theirs["self_attn.out_proj.bias"][:width],
        "up.weight": theirs["fc1.weight"][:, :width],
        "up.bias": theirs["fc1.bias"],
        "down.weight": theirs["fc2.weight"][:width],
        "down.bias": theirs["fc2.bias"][:width],
    }
    for ours, hf in (("norm1", "self_attn_layer_norm"), ("norm2", "final_layer_norm")):
        tensors |= {f"{ours}.{suffix}": theirs[f"{hf}.{suffix}"][:width] for suffix in ("weight", "bias")}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def is_exported_classic(model: Model[Any], weights: Mapping[str, Tensor]) -> bool:
    """Whether a classic network, exported again, gives the tensors that it was read from."""
    expected = opt_tensors(model)
    return expected.keys() == weights.keys() and all(
        tensor.shape == weights[name].shape and torch.allclose(tensor, weights[name], rtol=_TOLERANCE, atol=_TOLERANCE)
        for name, tensor in expected.items()
    )
