"""A model that came from a stock architecture, as that architecture again: `hf_stock` the other way round."""

from typing import Any

import torch
from torch import Tensor

from headstart.config import ModelConfig
from headstart.errors import UsageError
from headstart.interop.hf_families import FAMILIES, Family
from headstart.model.heads import LanguageHead
from headstart.shape import StockConfig
from headstart.store.bundle import Bundle

_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def stock_class(bundle: Bundle) -> tuple[str, str]:
    """The stock class that computes the same, and what it is for."""
    stock, _ = _known(bundle)
    family = FAMILIES[stock.family]
    if bundle.visibility != family.reads:
        ways = {"causal": "left to right", "both": "both ways"}
        raise UsageError(
            f"{bundle.name} is a {stock.family} that reads {ways[bundle.visibility]}, which no stock architecture can express"
        )
    if not isinstance(bundle.model.head, LanguageHead):
        return f"{family.stem}ForSequenceClassification", "SequenceClassification"
    if family.head and not stock.transform:
        raise UsageError(
            f"{bundle.name} came without its language head, and {family.stem}{family.language} has one; "
            "a classifier made from it can be exported"
        )
    return f"{family.stem}{family.language}", "MaskedLM" if family.reads == "both" else "CausalLM"


def stock_config(bundle: Bundle) -> dict[str, Any]:
    """Its part of config.json."""
    stock, config = _known(bundle)
    facts: dict[str, Any] = {"model_type": stock.family, "vocab_size": bundle.model.backbone.vocab_size}
    facts |= {"tie_word_embeddings": config.tied} if isinstance(bundle.model.head, LanguageHead) else {}
    rows = stock.positions + _offset(bundle)
    if stock.family == "gpt2":
        facts |= {"n_embd": config.width, "n_layer": config.depth, "n_head": config.heads, "n_positions": rows}
        facts |= {"n_inner": config.feedforward, "activation_function": _NAMES[stock.activation]}
        return facts | {"layer_norm_epsilon": config.norm_epsilon}
    if stock.family == "distilbert":
        facts |= {
            "dim": config.width,
            "n_layers": config.depth,
            "n_heads": config.heads,
            "hidden_dim": config.feedforward,
        }
        return facts | {"activation": _NAMES[stock.activation], "max_position_embeddings": rows}
    facts |= {"hidden_size": config.width, "num_hidden_layers": config.depth, "num_attention_heads": config.heads}
    if stock.family == "opt":
        facts |= {"ffn_dim": config.feedforward, "max_position_embeddings": stock.positions}
        facts |= {"activation_function": _NAMES[stock.activation], "enable_bias": stock.bias}
        facts |= {"do_layer_norm_before": stock.norm_first, "word_embed_proj_dim": config.width}
        return facts | {"_remove_final_layer_norm": stock.norm_first and not stock.final_norm}
    facts["intermediate_size"] = config.feedforward
    if stock.family == "modernbert":
        return facts | _modernbert(stock, config)
    facts |= {"hidden_act": _NAMES[stock.activation], "layer_norm_eps": config.norm_epsilon}
    return facts | {"max_position_embeddings": rows, "type_vocab_size": 2 if stock.family == "bert" else 1}


def _modernbert(stock: StockConfig, config: ModelConfig) -> dict[str, Any]:
    angles = {"full_attention": config.rotary_base, "sliding_attention": stock.local_base}
    return {
        "max_position_embeddings": config.context,
        "norm_eps": config.norm_epsilon,
        "norm_bias": stock.norm_bias,
        "attention_bias": stock.bias,
        "mlp_bias": stock.bias,
        "hidden_activation": _NAMES[stock.activation],
        "local_attention": 2 * stock.window,
        "layer_types": [
            "sliding_attention" if place in stock.local_layers else "full_attention" for place in range(config.depth)
        ],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in angles.items()},
        "classifier_activation": _NAMES[stock.transform_activation],
        "classifier_bias": stock.transform_bias,
        "classifier_pooling": "cls" if stock.pooling == "first" else "mean",
        "decoder_bias": stock.head_bias,
    }


def stock_tensors(bundle: Bundle) -> dict[str, Tensor]:
    """Its tensors by their names."""
    stock, config = _known(bundle)
    family, own = FAMILIES[stock.family], bundle.model.state_dict()
    theirs: dict[str, Tensor] = {f"{family.inside}{family.embedding}.weight": own["backbone.embedding.weight"]}
    if family.positions:
        table = own["backbone.positions.weight"]
        before = table.new_zeros(_offset(bundle), config.width)
        theirs[f"{family.inside}{family.positions}.weight"] = torch.cat((before, table))
    if family.types:  # folded into the positions
        rows = 2 if stock.family == "bert" else 1
        theirs[f"{family.inside}{family.types}.weight"] = torch.zeros(rows, config.width)
    for layer in range(config.depth):
        there = f"{family.inside}{family.layers}.{layer}"
        theirs |= {
            f"{there}.{name}": tensor for name, tensor in _layer(family, own, f"backbone.layers.{layer}.").items()
        }
    names = {f"backbone.{here}": f"{family.inside}{there}" for here, there in family.whole.items()}
    language = isinstance(bundle.model.head, LanguageHead)
    head = {**family.head, "linear": family.decoder} if language else family.classifier
    names |= {f"head.{here}": there for here, there in head.items()}
    for name, tensor in own.items():
        module, _, kind = name.rpartition(".")
        if module in names:
            theirs[f"{names[module]}.{kind}"] = tensor
    if language and stock.head_bias:
        theirs |= dict.fromkeys(family.head_bias, own["head.bias"])
    return theirs


def _layer(family: Family, own: dict[str, Tensor], here: str) -> dict[str, Tensor]:
    theirs: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        inward = own.get(f"{here}attention.inward.{kind}")
        if family.joined and inward is not None:
            parts = inward.chunk(3)
            theirs |= {f"{name}.{kind}": part for name, part in zip(family.joined, parts, strict=True)}
        if family.gated and f"{here}gate.{kind}" in own:
            theirs[f"{family.gated}.{kind}"] = torch.cat((own[f"{here}gate.{kind}"], own[f"{here}up.{kind}"]))
        for mine, name in family.layer.items():
            if (tensor := own.get(f"{here}{mine}.{kind}")) is not None:
                theirs[f"{name}.{kind}"] = tensor.T if family.turned and tensor.ndim == 2 else tensor
    return theirs


def _offset(bundle: Bundle) -> int:
    """Rows of the position table that stand before the first place."""
    family = _known(bundle)[0].family
    if family == "opt":
        return 2
    return bundle.tokenizer.special.pad + 1 if family in ("roberta", "camembert", "xlm-roberta") else 0


def _known(bundle: Bundle) -> tuple[StockConfig, ModelConfig]:
    assert bundle.config.stock is not None
    return bundle.config.stock, bundle.config
