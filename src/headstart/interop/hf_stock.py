"""BERT, DistilBERT, RoBERTa and its kin, ModernBERT, GPT-2 and OPT: their settings and tensors as those of our `stock` kind.

What can be folded is folded, which changes a number by rounding at most: the row of the first token type goes into the
positions, and position tables lose the rows that stand before the first place.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headstart.config import ModelConfig
from headstart.errors import ConfigError, TransferError
from headstart.interop.hf_families import FAMILIES, Family
from headstart.interop.hf_folder import LONGEST, Brought, Found
from headstart.layering import layered

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_OPT_OFFSET = 2


def read_stock(found: Found, weights: Mapping[str, Tensor]) -> Brought:
    """The network of a stock architecture; a setting or tensor that is none of ours is refused by name."""
    family = FAMILIES[found.kind]
    found.check(family.fixed, f"our {found.kind}")
    tensors = _bare(family, weights, found.classifies)
    read = {"distilbert": _distilbert, "modernbert": _modernbert, "gpt2": _gpt2, "opt": _opt}.get(found.kind, _bert)
    try:
        shape, stock, offset = read(found)
        stock |= {"family": found.kind} | _head(family, tensors)
        decoder = tensors.get(f"{family.decoder}.weight")
        embedding = tensors.get(f"{family.embedding}.weight")
        tied = decoder is None or (embedding is not None and torch.equal(decoder, embedding))
        config = layered(ModelConfig, {"block": "stock", "tied": tied, **shape, "stock": stock})
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TransferError):
            raise
        raise found.refused(f"has a config.json that says too little: {error}") from None
    except ConfigError as error:
        raise found.refused(f"has a shape that is none of ours: {error}") from None
    ours = _renamed(family, tensors, config, offset, found.classifies)
    return Brought(config, ours, family.reads, "masked" if family.reads == "both" else "causal")


def _bare(family: Family, weights: Mapping[str, Tensor], classifies: bool) -> dict[str, Tensor]:
    """Tensors by their names within the backbone, old names as they are spelt today; what is let go is gone."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith(family.let_go) or (
            name.endswith(("pooler.dense.weight", "pooler.dense.bias")) and not classifies
        ):
            continue
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if family.stem == "OPT":  # its bare model keeps half of the prefix
            name = name.removeprefix("decoder.")
        found[name.removeprefix(family.inside)] = tensor
    return found


def _head(family: Family, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the language head is made of, by the weights: a bare model was saved without one."""
    dense = family.head.get("ready.dense")
    return {
        "transform": dense is not None and f"{dense}.weight" in tensors,
        "head_bias": any(name in tensors for name in family.head_bias),
    }


def _activation(found: Found, name: str, usual: str) -> str:
    value = found.facts.get(name, usual)
    if value not in ACTIVATIONS:
        raise found.refused(f"has {name} {value}, which is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


_Read = tuple[dict[str, Any], dict[str, Any], int]
"""The sizes, the settings of the kind, and how many rows of the position table stand before the first place."""


def _bert(found: Found) -> _Read:
    facts = found.facts
    offset = 0 if found.kind == "bert" else int(facts.get("pad_token_id", 1)) + 1
    positions = int(facts["max_position_embeddings"]) - offset
    activation = _activation(found, "hidden_act", "gelu")
    shape = {
        "width": int(facts["hidden_size"]),
        "depth": int(facts["num_hidden_layers"]),
        "heads": int(facts["num_attention_heads"]),
        "feedforward": int(facts["intermediate_size"]),
        "dropout": float(facts.get("hidden_dropout_prob", 0.1)),
        "context": min(positions, LONGEST),
        "norm_epsilon": float(facts.get("layer_norm_eps", 1e-12)),
    }
    stock = {
        "norm_first": False,
        "activation": activation,
        "positions": positions,
        "embedding_norm": True,
        # RoBERTa's head has this one whatever the layers have
        "transform_activation": activation if found.kind == "bert" else "gelu",
        "pooling": "first",
    }
    return shape, stock, offset


def _distilbert(found: Found) -> _Read:
    facts, positions = found.facts, int(found.facts["max_position_embeddings"])
    activation = _activation(found, "activation", "gelu")
    shape = {
        "width": int(facts["dim"]),
        "depth": int(facts["n_layers"]),
        "heads": int(facts["n_heads"]),
        "feedforward": int(facts["hidden_dim"]),
        "dropout": float(facts.get("dropout", 0.1)),
        "context": min(positions, LONGEST),
        "norm_epsilon": 1e-12,
    }
    stock = {
        "norm_first": False,
        "activation": activation,
        "positions": positions,
        "embedding_norm": True,
        "transform_activation": activation,
        "pooling": "first",
        "classifier": "relu",
    }
    return shape, stock, 0


def _modernbert(found: Found) -> _Read:
    facts, depth = found.facts, int(found.facts["num_hidden_layers"])
    if facts.get("attention_bias", False) != facts.get("mlp_bias", False):
        raise found.refused("has attention_bias and mlp_bias that differ, where a layer has all of its biases or none")
    every = int(facts.get("global_attn_every_n_layers") or 3)
    kinds = facts.get("layer_types") or [
        "sliding_attention" if place % every else "full_attention" for place in range(depth)
    ]
    angles = {}
    for kind, old, usual in (("full_attention", "global", 160000.0), ("sliding_attention", "local", 10000.0)):
        rope = (facts.get("rope_parameters") or {}).get(kind) or {}
        if rope.get("rope_type", "default") != "default" or facts.get("rope_scaling"):
            raise found.refused(f"has rope_type {rope.get('rope_type')}, which our modernbert has not")
        angles[kind] = float(rope.get("rope_theta") or facts.get(f"{old}_rope_theta") or usual)
    shape = {
        "width": int(facts["hidden_size"]),
        "depth": depth,
        "heads": int(facts["num_attention_heads"]),
        "feedforward": int(facts["intermediate_size"]),
        "dropout": 0.1,
        "context": min(int(facts["max_position_embeddings"]), LONGEST),
        "rotary_base": angles["full_attention"],
        "norm_epsilon": float(facts.get("norm_eps", 1e-5)),
    }
    stock = {
        "norm_first": True,
        "norm_bias": bool(facts.get("norm_bias", False)),
        "bias": bool(facts.get("mlp_bias", False)),
        "activation": _activation(found, "hidden_activation", "gelu"),
        "gated": True,
        "embedding_norm": True,
        "final_norm": True,
        "window": int(facts.get("local_attention", 128)) // 2,
        "local_layers": tuple(place for place, kind in enumerate(kinds) if kind == "sliding_attention"),
        "local_base": angles["sliding_attention"],
        "transform_activation": _activation(found, "classifier_activation", "gelu"),
        "transform_bias": bool(facts.get("classifier_bias", False)),
        "pooling": "first" if facts.get("classifier_pooling", "cls") == "cls" else "mean",
        "classifier": "transform",
    }
    return shape, stock, 0


def _gpt2(found: Found) -> _Read:
    facts = found.facts
    width, positions = int(facts["n_embd"]), int(facts["n_positions"])
    shape = {
        "width": width,
        "depth": int(facts["n_layer"]),
        "heads": int(facts["n_head"]),
        "feedforward": int(facts.get("n_inner") or 4 * width),
        "dropout": float(facts.get("resid_pdrop", 0.1)),
        "context": min(positions, LONGEST),
        "norm_epsilon": float(facts.get("layer_norm_epsilon", 1e-5)),
    }
    stock = {
        "norm_first": True,
        "activation": _activation(found, "activation_function", "gelu_new"),
        "positions": positions,
        "final_norm": True,
    }
    return shape, stock, 0


def _opt(found: Found) -> _Read:
    facts = found.facts
    width, positions = int(facts["hidden_size"]), int(facts["max_position_embeddings"])
    if (facts.get("word_embed_proj_dim") or width) != width:
        raise found.refused(
            f"has word_embed_proj_dim {facts['word_embed_proj_dim']}, not hidden_size: embeddings of another width"
        )
    before = bool(facts.get("do_layer_norm_before", True))
    shape = {
        "width": width,
        "depth": int(facts["num_hidden_layers"]),
        "heads": int(facts["num_attention_heads"]),
        "feedforward": int(facts["ffn_dim"]),
        "dropout": float(facts.get("dropout", 0.1)),
        "context": min(positions, LONGEST),
        "norm_epsilon": 1e-5,
    }
    stock = {
        "norm_first": before,
        "bias": bool(facts.get("enable_bias", True)),
        "activation": _activation(found, "activation_function", "relu"),
        "positions": positions,
        "final_norm": before and not facts.get("_remove_final_layer_norm", False),
    }
    return shape, stock, _OPT_OFFSET


def _renamed(
    family: Family, theirs: Mapping[str, Tensor], config: ModelConfig, offset: int, classifies: bool
) -> dict[str, Tensor]:
    """By our names; whatever is left over keeps its own, and is found out when the model is filled."""
    left, ours = dict(theirs), dict[str, Tensor]()
    if family.positions and (table := left.pop(f"{family.positions}.weight", None)) is not None:
        types = left.pop(f"{family.types}.weight", None)
        ours["backbone.positions.weight"] = table[offset:] + (0 if types is None else types[0])
    for layer in range(config.depth):
        _layer(family, left, ours, f"{family.layers}.{layer}", f"backbone.layers.{layer}")
    names = {"backbone.embedding": family.embedding} | {
        f"backbone.{here}": there for here, there in family.whole.items()
    }
    head = family.classifier if classifies else {**family.head, "linear": family.decoder}
    names |= {f"head.{here}": there.removeprefix(family.inside) for here, there in head.items()}
    if not classifies:
        biases = [left.pop(name) for name in family.head_bias if name in left]
        ours |= {"head.bias": biases[0 if config.tied else -1]} if biases else {}
        if config.tied:  # saved all the same by some
            left.pop(f"{family.decoder}.weight", None)
    for here, there in names.items():
        for kind in ("weight", "bias"):
            if f"{there}.{kind}" in left:
                ours[f"{here}.{kind}"] = left.pop(f"{there}.{kind}")
    return ours | left


def _layer(family: Family, left: dict[str, Tensor], ours: dict[str, Tensor], there: str, here: str) -> None:
    """Move the tensors of one layer."""
    for kind in ("weight", "bias"):
        parts = [f"{there}.{name}.{kind}" for name in family.joined]
        if parts and left.keys() >= set(parts):
            ours[f"{here}.attention.inward.{kind}"] = torch.cat([left.pop(name) for name in parts])
        if family.gated and (both := left.pop(f"{there}.{family.gated}.{kind}", None)) is not None:
            ours[f"{here}.gate.{kind}"], ours[f"{here}.up.{kind}"] = (part.clone() for part in both.chunk(2))
        for mine, theirs in family.layer.items():
            if (tensor := left.pop(f"{there}.{theirs}.{kind}", None)) is not None:
                turned = family.turned and tensor.ndim == 2
                ours[f"{here}.{mine}.{kind}"] = tensor.T.contiguous() if turned else tensor
