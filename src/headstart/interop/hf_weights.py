"""Our tensors under the names and in the shapes of stock architectures, computing the same numbers.

modern, read causally     Llama
modern, read both ways    EuroBERT
classic, read causally    OPT, post-norm as its 350M size, with two changes of dress (see `opt`)
"""

import math
from typing import Any

import torch
from torch import Tensor

from headstart.model.backbone import Backbone
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.positions import sinusoids

Tensors = dict[str, Tensor]

MODERN = {
    "attention.outward.weight": "self_attn.o_proj.weight",
    "gate.weight": "mlp.gate_proj.weight",
    "up.weight": "mlp.up_proj.weight",
    "down.weight": "mlp.down_proj.weight",
    "norm1.weight": "input_layernorm.weight",
    "norm2.weight": "post_attention_layernorm.weight",
}
"""One layer: our names and Llama's, which EuroBERT shares; queries, keys and values lie in one matrix here."""


def shape_of(backbone: Backbone) -> dict[str, Any]:
    """The part of config.json that a Llama and a EuroBERT share."""
    config = backbone.config
    return {
        "vocab_size": backbone.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.feedforward,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": config.tied,
    }


def modern(model: Model[Any]) -> Tensors:
    """Backbone and head under the names of Llama (read causally) or EuroBERT (both ways)."""
    own = model.backbone.state_dict()
    tensors = {"model.embed_tokens.weight": own["embedding.weight"], "model.norm.weight": own["norm.weight"]}
    for layer in range(model.backbone.config.depth):
        here, there = f"layers.{layer}.", f"model.layers.{layer}."
        tensors |= {there + theirs: own[here + ours] for ours, theirs in MODERN.items()}
        for name, part in zip("qkv", own[f"{here}attention.inward.weight"].chunk(3), strict=True):
            tensors[f"{there}self_attn.{name}_proj.weight"] = part
    if isinstance(model.head, ClassifierHead):
        names = {"linear": "score"} if model.head.visibility == "causal" else {"linear": "classifier", "dense": "dense"}
        for name, tensor in model.head.state_dict().items():
            part, _, kind = name.partition(".")
            tensors[f"{names[part]}.{kind}"] = tensor
    elif model.head.linear is not None:
        tensors["lm_head.weight"] = model.head.linear.weight
    return tensors


def opt_shape(backbone: Backbone) -> dict[str, Any]:
    """config.json of the OPT that `opt` fills."""
    config = backbone.config
    return {
        "vocab_size": backbone.vocab_size,
        "hidden_size": 2 * config.width,
        "word_embed_proj_dim": config.width + 1,
        "ffn_dim": config.feedforward,
        "num_hidden_layers": config.depth,
        "num_attention_heads": 2 * config.heads,
        "max_position_embeddings": config.context,
        "do_layer_norm_before": False,
        "activation_function": "relu",
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "dropout": config.dropout,
        "attention_dropout": config.dropout,
        "layerdrop": 0.0,
        "tie_word_embeddings": False,
    }


def opt(model: Model[Any]) -> Tensors:
    """The classic network as a stock OPT.

    OPT's heads have no bias and ours have, so one hidden channel must be 1 at the end. A channel more would change every
    norm; every channel twice changes none, since mean and variance stay. So the width is doubled, both halves equal, and
    in the last norm, which is free to scale each channel, the second half makes a 1 in place of a copy. There are twice
    as many heads of the same width; the second half of them attends evenly and is read by nobody.
    """
    config, own = model.backbone.config, model.backbone.state_dict()
    width, float_type = config.width, own["embedding.weight"].dtype
    places = sinusoids(torch.arange(config.context), width).to(float_type)
    once, zeros = torch.eye(width + 1, width, dtype=float_type), torch.zeros(2, 2 * width, dtype=float_type)
    out = torch.zeros(width + 1, 2 * width, dtype=float_type)
    out[:width, :width], out[width, width] = torch.eye(width, dtype=float_type), 1.0
    root = "model.decoder."
    tensors = {
        f"{root}embed_tokens.weight": _wider(own["embedding.weight"] * math.sqrt(width), torch.zeros(1)),
        f"{root}project_in.weight": torch.cat((once.T, once.T)),
        f"{root}embed_positions.weight": torch.cat((zeros, torch.cat((places, places), dim=1))),
        f"{root}project_out.weight": out,
    }
    for layer in range(config.depth):
        part = {name.removeprefix(f"layers.{layer}."): tensor for name, tensor in own.items()}
        tensors |= {f"{root}layers.{layer}.{name}": tensor for name, tensor in _opt_layer(part).items()}
    last = f"{root}layers.{config.depth - 1}.final_layer_norm."
    tensors[f"{last}weight"][width:], tensors[f"{last}bias"][width:] = 0.0, 0.0
    tensors[f"{last}bias"][width] = 1.0
    head = "lm_head" if isinstance(model.head, LanguageHead) else "score"
    linear = model.head.linear
    assert linear is not None
    tensors[f"{head}.weight"] = torch.cat((linear.weight, linear.bias[:, None]), dim=1).detach()
    return tensors


def _opt_layer(own: Tensors) -> Tensors:
    """One layer over doubled channels: what reads them reads the first half, what writes them writes both."""
    tensors: Tensors = {}
    weights, biases = own["attention.inward.weight"].chunk(3), own["attention.inward.bias"].chunk(3)
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        tensors[f"self_attn.{name}_proj.weight"] = _reading(torch.cat((weight, torch.zeros_like(weight))))
        tensors[f"self_attn.{name}_proj.bias"] = torch.cat((bias, torch.zeros_like(bias)))
    tensors["self_attn.out_proj.weight"] = _twice(_reading(own["attention.outward.weight"]))
    tensors["self_attn.out_proj.bias"] = _twice(own["attention.outward.bias"])
    tensors["fc1.weight"], tensors["fc1.bias"] = _reading(own["up.weight"]), own["up.bias"]
    tensors["fc2.weight"], tensors["fc2.bias"] = _twice(own["down.weight"]), _twice(own["down.bias"])
    for ours, theirs in (("norm1", "self_attn_layer_norm"), ("norm2", "final_layer_norm")):
        tensors |= {f"{theirs}.{kind}": _twice(own[f"{ours}.{kind}"]) for kind in ("weight", "bias")}
    return tensors


def _reading(weight: Tensor) -> Tensor:
    return torch.cat((weight, torch.zeros_like(weight)), dim=1)


def _twice(tensor: Tensor) -> Tensor:
    return torch.cat((tensor, tensor))


def _wider(table: Tensor, column: Tensor) -> Tensor:
    return torch.cat((table, column.to(table.dtype).expand(len(table), 1)), dim=1)
