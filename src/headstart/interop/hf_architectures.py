"""What stock architectures call their parts, and ours: one table for the way in and the way out.

A name stands for a module, weight and bias alike. Queries, keys and values lie in one matrix here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.config.schema import AttentionDirection


@dataclass(frozen=True)
class Architecture:
    """One architecture."""

    stem: str
    """What its classes begin with."""
    inside: str
    """Where the backbone lies in a model with a head."""
    reads: AttentionDirection
    language: str
    """What its class with a language head is called after the stem."""
    layers: str
    """Where its layers lie."""
    embedding: str
    positions: str | None
    layer: Mapping[str, str]
    """The modules of a layer: our names, theirs."""
    whole: Mapping[str, str]
    """Those beside the layers."""
    decoder: str
    """The matrix of the language head, where it is not the embedding again."""
    head_bias: tuple[str, ...] = ()
    """The bias of each entry of the vocabulary: the one that counts where the head is tied, and where it is not."""
    head: Mapping[str, str] = field(default_factory=dict)
    """The modules of the language head."""
    classifier: Mapping[str, str] = field(default_factory=dict)
    """The modules of the classifier's head."""
    joined: tuple[str, ...] = ()
    """Their queries, keys and values, where these lie apart."""
    gated: str | None = None
    """Their one matrix for the two that a gated layer reads with."""
    types: str | None = None
    """The table of token types, whose first row every token of a single text gets."""
    turned: bool = False
    """Whether the matrices of a layer stand on their side."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings that must have one of these values, where config.json names them."""
    let_go: tuple[str, ...] = ()
    """Endings of tensors that are no part of the network, or of what it is wanted for."""


_FIXED: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
}
_BERT_LAYER = {
    "attention.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}


def _bert(stem: str, inside: str, **more: Any) -> Architecture:
    return Architecture(
        stem=stem,
        inside=inside,
        reads="bidirectional",
        language="ForMaskedLM",
        layers="encoder.layer",
        embedding="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        types="embeddings.token_type_embeddings",
        layer=_BERT_LAYER,
        whole={"embedding_norm": "embeddings.LayerNorm"},
        joined=tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
        fixed=_FIXED | {"is_decoder": (False, None), "position_embedding_type": ("absolute", None)},
        **more,
    )


def _roberta(stem: str) -> Architecture:
    return _bert(
        stem,
        "roberta.",
        decoder="lm_head.decoder",
        head_bias=("lm_head.bias", "lm_head.decoder.bias"),
        head={"transform.dense": "lm_head.dense", "transform.norm": "lm_head.layer_norm"},
        classifier={"dense": "classifier.dense", "linear": "classifier.out_proj"},
        let_go=("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"),
    )


ARCHITECTURES = {
    "bert": _bert(
        "Bert",
        "bert.",
        decoder="cls.predictions.decoder",
        head_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
        head={
            "transform.dense": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
        },
        classifier={"dense": "bert.pooler.dense", "linear": "classifier"},
        # what gathers a text for the question whether two pieces follow each other: that question is no part of this
        let_go=("embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
    ),
    "distilbert": Architecture(
        stem="DistilBert",
        inside="distilbert.",
        reads="bidirectional",
        language="ForMaskedLM",
        layers="transformer.layer",
        embedding="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        layer={
            "attention.out_proj": "attention.out_lin",
            "norm1": "sa_layer_norm",
            "up": "ffn.lin1",
            "down": "ffn.lin2",
            "norm2": "output_layer_norm",
        },
        whole={"embedding_norm": "embeddings.LayerNorm"},
        joined=tuple(f"attention.{name}_lin" for name in "qkv"),
        decoder="vocab_projector",
        head_bias=("vocab_projector.bias",),
        head={"transform.dense": "vocab_transform", "transform.norm": "vocab_layer_norm"},
        classifier={"dense": "pre_classifier", "linear": "classifier"},
        fixed=_FIXED,
    ),
    "roberta": _roberta("Roberta"),
    "camembert": _roberta("Camembert"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "modernbert": Architecture(
        stem="ModernBert",
        inside="model.",
        reads="bidirectional",
        language="ForMaskedLM",
        layers="layers",
        embedding="embeddings.tok_embeddings",
        positions=None,
        layer={
            "norm1": "attn_norm",
            "attention.qkv_proj": "attn.Wqkv",
            "attention.out_proj": "attn.Wo",
            "norm2": "mlp_norm",
            "down": "mlp.Wo",
        },
        whole={"embedding_norm": "embeddings.norm", "norm": "final_norm"},
        gated="mlp.Wi",
        decoder="decoder",
        head_bias=("decoder.bias",),
        head={"transform.dense": "head.dense", "transform.norm": "head.norm"},
        classifier={"transform.dense": "head.dense", "transform.norm": "head.norm", "linear": "classifier"},
        fixed=_FIXED | {"classifier_pooling": ("cls", "mean")},
    ),
    "gpt2": Architecture(
        stem="GPT2",
        inside="transformer.",
        reads="causal",
        language="LMHeadModel",
        layers="h",
        embedding="wte",
        positions="wpe",
        layer={
            "norm1": "ln_1",
            "attention.qkv_proj": "attn.c_attn",
            "attention.out_proj": "attn.c_proj",
            "norm2": "ln_2",
            "up": "mlp.c_fc",
            "down": "mlp.c_proj",
        },
        whole={"norm": "ln_f"},
        turned=True,
        decoder="lm_head",
        classifier={"linear": "score"},
        fixed=_FIXED
        | {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False,),
        },
        let_go=(".attn.bias", ".attn.masked_bias"),  # the triangle of who sees whom, in old files
    ),
    "opt": Architecture(
        stem="OPT",
        inside="model.decoder.",
        reads="causal",
        language="ForCausalLM",
        layers="layers",
        embedding="embed_tokens",
        positions="embed_positions",
        layer={
            "attention.out_proj": "self_attn.out_proj",
            "norm1": "self_attn_layer_norm",
            "up": "fc1",
            "down": "fc2",
            "norm2": "final_layer_norm",
        },
        whole={"norm": "final_layer_norm"},
        joined=tuple(f"self_attn.{name}_proj" for name in "qkv"),
        decoder="lm_head",
        classifier={"linear": "score"},
        fixed=_FIXED | {"layer_norm_elementwise_affine": (True,)},
    ),
}
