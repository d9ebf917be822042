"""Names of modules and tensors in the architectures of transformers and in Headstart, for import and export.

A name stands for a module, that is, for its weight and its bias. Here queries, keys and values are one matrix, qkv_proj.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.config.schema import AttentionDirection

LLAMA_LAYER = {
    "attention.out_proj.weight": "self_attn.o_proj.weight",
    "gate.weight": "mlp.gate_proj.weight",
    "up.weight": "mlp.up_proj.weight",
    "down.weight": "mlp.down_proj.weight",
    "norm1.weight": "input_layernorm.weight",
    "norm2.weight": "post_attention_layernorm.weight",
}
"""The tensors of a modern layer but qkv_proj: our names to those of Llama, which EuroBERT shares."""


@dataclass(frozen=True)
class Architecture:
    """One architecture of transformers that the generic block can compute."""

    class_prefix: str
    """The beginning of its class names, such as "Bert"."""
    backbone_prefix: str
    """The prefix of the backbone's tensors in a model with a head."""
    attention: AttentionDirection
    lm_class_suffix: str
    """The end of the name of its class with a language head."""
    layers: str
    """The module that holds its layers."""
    embedding: str
    positions: str | None
    layer_modules: Mapping[str, str]
    """The modules of a layer: our names to theirs."""
    backbone_modules: Mapping[str, str]
    """The modules of the backbone besides layers and embeddings: our names to theirs."""
    lm_head: str
    """The output matrix of the language head; absent from a file if it is tied to the embedding."""
    lm_head_bias: tuple[str, ...] = ()
    """The bias of the vocabulary: the first name counts if the language head is tied, the last if it is not."""
    lm_head_modules: Mapping[str, str] = field(default_factory=dict)
    """The other modules of the language head: our names to theirs."""
    classifier_modules: Mapping[str, str] = field(default_factory=dict)
    """The modules of the classifier head: our names to theirs."""
    separate_qkv: tuple[str, ...] = ()
    """Their query, key and value modules, if these are separate."""
    fused_gate_up: str | None = None
    """Their module that is our gate and up, in a gated feed-forward layer."""
    token_types: str | None = None
    """The table of token types. Every token of a single text gets its first row."""
    transposed: bool = False
    """Whether the matrices of a layer are stored transposed (GPT-2's Conv1D)."""
    supported_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values of settings in config.json that the generic block supports."""
    ignored_tensors: tuple[str, ...] = ()
    """Suffixes of tensors that are not imported."""


_SUPPORTED: dict[str, tuple[Any, ...]] = {
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


def _bert(class_prefix: str, backbone_prefix: str, **fields: Any) -> Architecture:
    return Architecture(
        class_prefix=class_prefix,
        backbone_prefix=backbone_prefix,
        attention="bidirectional",
        lm_class_suffix="ForMaskedLM",
        layers="encoder.layer",
        embedding="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        token_types="embeddings.token_type_embeddings",
        layer_modules=_BERT_LAYER,
        backbone_modules={"embedding_norm": "embeddings.LayerNorm"},
        separate_qkv=tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
        supported_values=_SUPPORTED | {"is_decoder": (False, None), "position_embedding_type": ("absolute", None)},
        **fields,
    )


def _roberta(class_prefix: str) -> Architecture:
    return _bert(
        class_prefix,
        "roberta.",
        lm_head="lm_head.decoder",
        lm_head_bias=("lm_head.bias", "lm_head.decoder.bias"),
        lm_head_modules={"transform.dense": "lm_head.dense", "transform.norm": "lm_head.layer_norm"},
        classifier_modules={"dense": "classifier.dense", "linear": "classifier.out_proj"},
        ignored_tensors=("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"),
    )


ARCHITECTURES = {
    "bert": _bert(
        "Bert",
        "bert.",
        lm_head="cls.predictions.decoder",
        lm_head_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
        lm_head_modules={
            "transform.dense": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
        },
        classifier_modules={"dense": "bert.pooler.dense", "linear": "classifier"},
        # the next-sentence head is not imported
        ignored_tensors=("embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
    ),
    "distilbert": Architecture(
        class_prefix="DistilBert",
        backbone_prefix="distilbert.",
        attention="bidirectional",
        lm_class_suffix="ForMaskedLM",
        layers="transformer.layer",
        embedding="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        layer_modules={
            "attention.out_proj": "attention.out_lin",
            "norm1": "sa_layer_norm",
            "up": "ffn.lin1",
            "down": "ffn.lin2",
            "norm2": "output_layer_norm",
        },
        backbone_modules={"embedding_norm": "embeddings.LayerNorm"},
        separate_qkv=tuple(f"attention.{name}_lin" for name in "qkv"),
        lm_head="vocab_projector",
        lm_head_bias=("vocab_projector.bias",),
        lm_head_modules={"transform.dense": "vocab_transform", "transform.norm": "vocab_layer_norm"},
        classifier_modules={"dense": "pre_classifier", "linear": "classifier"},
        supported_values=_SUPPORTED,
    ),
    "roberta": _roberta("Roberta"),
    "camembert": _roberta("Camembert"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "modernbert": Architecture(
        class_prefix="ModernBert",
        backbone_prefix="model.",
        attention="bidirectional",
        lm_class_suffix="ForMaskedLM",
        layers="layers",
        embedding="embeddings.tok_embeddings",
        positions=None,
        layer_modules={
            "norm1": "attn_norm",
            "attention.qkv_proj": "attn.Wqkv",
            "attention.out_proj": "attn.Wo",
            "norm2": "mlp_norm",
            "down": "mlp.Wo",
        },
        backbone_modules={"embedding_norm": "embeddings.norm", "norm": "final_norm"},
        fused_gate_up="mlp.Wi",
        lm_head="decoder",
        lm_head_bias=("decoder.bias",),
        lm_head_modules={"transform.dense": "head.dense", "transform.norm": "head.norm"},
        classifier_modules={"transform.dense": "head.dense", "transform.norm": "head.norm", "linear": "classifier"},
        supported_values=_SUPPORTED | {"classifier_pooling": ("cls", "mean")},
    ),
    "gpt2": Architecture(
        class_prefix="GPT2",
        backbone_prefix="transformer.",
        attention="causal",
        lm_class_suffix="LMHeadModel",
        layers="h",
        embedding="wte",
        positions="wpe",
        layer_modules={
            "norm1": "ln_1",
            "attention.qkv_proj": "attn.c_attn",
            "attention.out_proj": "attn.c_proj",
            "norm2": "ln_2",
            "up": "mlp.c_fc",
            "down": "mlp.c_proj",
        },
        backbone_modules={"norm": "ln_f"},
        transposed=True,
        lm_head="lm_head",
        classifier_modules={"linear": "score"},
        supported_values=_SUPPORTED
        | {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False,),
        },
        ignored_tensors=(".attn.bias", ".attn.masked_bias"),  # the causal mask, in old files
    ),
    "opt": Architecture(
        class_prefix="OPT",
        backbone_prefix="model.decoder.",
        attention="causal",
        lm_class_suffix="ForCausalLM",
        layers="layers",
        embedding="embed_tokens",
        positions="embed_positions",
        layer_modules={
            "attention.out_proj": "self_attn.out_proj",
            "norm1": "self_attn_layer_norm",
            "up": "fc1",
            "down": "fc2",
            "norm2": "final_layer_norm",
        },
        backbone_modules={"norm": "final_layer_norm"},
        separate_qkv=tuple(f"self_attn.{name}_proj" for name in "qkv"),
        lm_head="lm_head",
        classifier_modules={"linear": "score"},
        supported_values=_SUPPORTED | {"layer_norm_elementwise_affine": (True,)},
    ),
}
