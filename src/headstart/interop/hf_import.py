"""Import a folder that transformers saved.

A model's folder as transformers saves it: where it is, what its config.json says, and its weights.

BERT, DistilBERT, RoBERTa and its kin, ModernBERT, GPT-2 and OPT: their settings and tensors as those of our `stock` kind.

What can be folded is folded, which changes a number by rounding at most: the row of the first token type goes into the
positions, and position tables lose the rows that stand before the first place.

Models of transformers as ours, read from their folder without transformers: Llama and EuroBERT here, others in hf_stock.

Every setting that would change a number is looked at, and one that our block does not have is refused by its name.
Grouped keys and values are repeated, which computes the same. Weights are safetensors only: a pickled file may run code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.config.merge import merge_config
from headstart.config.schema import AttentionDirection, ModelConfig, RuntimeConfig
from headstart.errors import ConfigError, StoreError, TransferError, UsageError
from headstart.files import read_json, write_json
from headstart.interop.hf_architectures import ARCHITECTURES, Architecture
from headstart.interop.hf_export import MODERN
from headstart.interop.hf_tokenizers import read_tokenizer
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.transformer import Backbone
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_into, load_tensors
from headstart.tasks import SingleLabel

MAX_CONTEXT = 1024
"""Where positions have no table, the context is ours to choose: what the model allows, up to this many tokens."""
_FETCHED_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "special_tokens_map.json",
)


@dataclass(frozen=True)
class HFModelFolder:
    """A model's folder, and what its config.json says."""

    name: str
    folder: Path
    facts: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The name of the architecture, as config.json spells it."""
        return str(self.facts.get("model_type"))

    @property
    def architecture(self) -> str:
        """The class that it was saved from."""
        return str((self.facts.get("architectures") or ["model"])[0])

    @property
    def classifies(self) -> bool:
        """Whether it was saved as a classifier of texts."""
        return self.architecture.endswith("ForSequenceClassification")

    def refused(self, what: str) -> TransferError:
        return TransferError(f"{self.name} {what}; nothing was imported")

    def check(self, fixed: Mapping[str, tuple[Any, ...]], block: str) -> None:
        """Refuse settings that would change a number here."""
        for name, allowed in fixed.items():
            if name in self.facts and self.facts[name] not in allowed:
                raise self.refused(f"has {name} {json.dumps(self.facts[name])}, which {block} has not")


@dataclass(frozen=True)
class ImportedModel:
    """A network as ours: its shape, its tensors by our names, and how it reads."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    attention: AttentionDirection
    objective: str


def open_hf_folder(source: str) -> Path:
    """The folder that `hf:FOLDER` or `hf:OWNER/NAME` means; the latter is fetched from the Hub, weights and JSON only."""
    name = source.removeprefix("hf:")
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UsageError(f"{source}: no such folder, and not a name on the Hub, which is OWNER/NAME")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(_FETCHED_FILES)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"{source}: no such folder, and the Hub did not give it: {reason}") from None


def read_hf_config(source: str, folder: Path) -> HFModelFolder:
    """What config.json says."""
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"{source} has no {path.name}; expected a folder that save_pretrained wrote")
    facts = read_json(path)
    if not isinstance(facts, dict):
        raise StoreError(f"{path} is damaged: it is not an object")
    return HFModelFolder(source, folder, facts)


def read_hf_weights(found: HFModelFolder) -> dict[str, Tensor]:
    """All tensors in fp32."""
    files = sorted(found.folder.glob("*.safetensors"))
    if not files:
        pickled = [path.name for path in sorted(found.folder.glob("*.bin"))]
        if pickled:
            raise UsageError(
                f"{found.name} has its weights in {pickled[0]}, a pickled file, which may run code when it is opened; "
                "convert it once where you trust it: AutoModel.from_pretrained(FOLDER, use_safetensors=False)"
                ".save_pretrained(FOLDER), with the Auto class that its config.json names"
            )
        raise UsageError(f"{found.name} has no .safetensors file; expected a folder that save_pretrained wrote")
    tensors: dict[str, Tensor] = {}
    for path in files:
        tensors |= {name: tensor.float() for name, tensor in load_tensors(path).items()}
    return tensors


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


def read_generic(found: HFModelFolder, weights: Mapping[str, Tensor]) -> ImportedModel:
    """The network of a stock architecture; a setting or tensor that is none of ours is refused by name."""
    family = ARCHITECTURES[found.kind]
    found.check(family.fixed, f"our {found.kind}")
    tensors = _strip_prefix(family, weights, found.classifies)
    read = {"distilbert": _distilbert, "modernbert": _modernbert, "gpt2": _gpt2, "opt": _opt}.get(found.kind, _bert)
    try:
        shape, generic, offset = read(found)
        generic |= {"family": found.kind} | _head(family, tensors)
        decoder = tensors.get(f"{family.decoder}.weight")
        embedding = tensors.get(f"{family.embedding}.weight")
        tied = decoder is None or (embedding is not None and torch.equal(decoder, embedding))
        config = merge_config(ModelConfig, {"block": "generic", "tied": tied, **shape, "generic": generic})
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TransferError):
            raise
        raise found.refused(f"has a config.json that says too little: {error}") from None
    except ConfigError as error:
        raise found.refused(f"has a shape that is none of ours: {error}") from None
    ours = _rename_generic(family, tensors, config, offset, found.classifies)
    return ImportedModel(config, ours, family.reads, "masked" if family.reads == "bidirectional" else "causal")


def _strip_prefix(family: Architecture, weights: Mapping[str, Tensor], classifies: bool) -> dict[str, Tensor]:
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


def _head(family: Architecture, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the language head is made of, by the weights: a bare model was saved without one."""
    dense = family.head.get("transform.dense")
    return {
        "transform": dense is not None and f"{dense}.weight" in tensors,
        "head_bias": any(name in tensors for name in family.head_bias),
    }


def _activation(found: HFModelFolder, name: str, usual: str) -> str:
    value = found.facts.get(name, usual)
    if value not in ACTIVATIONS:
        raise found.refused(f"has {name} {value}, which is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


_Read = tuple[dict[str, Any], dict[str, Any], int]
"""The sizes, the settings of the kind, and how many rows of the position table stand before the first place."""


def _bert(found: HFModelFolder) -> _Read:
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
        "context": min(positions, MAX_CONTEXT),
        "norm_epsilon": float(facts.get("layer_norm_eps", 1e-12)),
    }
    generic = {
        "norm_first": False,
        "activation": activation,
        "positions": positions,
        "embedding_norm": True,
        # RoBERTa's head has this one whatever the layers have
        "transform_activation": activation if found.kind == "bert" else "gelu",
        "pooling": "first",
    }
    return shape, generic, offset


def _distilbert(found: HFModelFolder) -> _Read:
    facts, positions = found.facts, int(found.facts["max_position_embeddings"])
    activation = _activation(found, "activation", "gelu")
    shape = {
        "width": int(facts["dim"]),
        "depth": int(facts["n_layers"]),
        "heads": int(facts["n_heads"]),
        "feedforward": int(facts["hidden_dim"]),
        "dropout": float(facts.get("dropout", 0.1)),
        "context": min(positions, MAX_CONTEXT),
        "norm_epsilon": 1e-12,
    }
    generic = {
        "norm_first": False,
        "activation": activation,
        "positions": positions,
        "embedding_norm": True,
        "transform_activation": activation,
        "pooling": "first",
        "classifier": "relu",
    }
    return shape, generic, 0


def _modernbert(found: HFModelFolder) -> _Read:
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
        "context": min(int(facts["max_position_embeddings"]), MAX_CONTEXT),
        "rotary_base": angles["full_attention"],
        "norm_epsilon": float(facts.get("norm_eps", 1e-5)),
    }
    generic = {
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
    return shape, generic, 0


def _gpt2(found: HFModelFolder) -> _Read:
    facts = found.facts
    width, positions = int(facts["n_embd"]), int(facts["n_positions"])
    shape = {
        "width": width,
        "depth": int(facts["n_layer"]),
        "heads": int(facts["n_head"]),
        "feedforward": int(facts.get("n_inner") or 4 * width),
        "dropout": float(facts.get("resid_pdrop", 0.1)),
        "context": min(positions, MAX_CONTEXT),
        "norm_epsilon": float(facts.get("layer_norm_epsilon", 1e-5)),
    }
    generic = {
        "norm_first": True,
        "activation": _activation(found, "activation_function", "gelu_new"),
        "positions": positions,
        "final_norm": True,
    }
    return shape, generic, 0


def _opt(found: HFModelFolder) -> _Read:
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
        "context": min(positions, MAX_CONTEXT),
        "norm_epsilon": 1e-5,
    }
    generic = {
        "norm_first": before,
        "bias": bool(facts.get("enable_bias", True)),
        "activation": _activation(found, "activation_function", "relu"),
        "positions": positions,
        "final_norm": before and not facts.get("_remove_final_layer_norm", False),
    }
    return shape, generic, _OPT_OFFSET


def _rename_generic(
    family: Architecture, theirs: Mapping[str, Tensor], config: ModelConfig, offset: int, classifies: bool
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


def _layer(family: Architecture, left: dict[str, Tensor], ours: dict[str, Tensor], there: str, here: str) -> None:
    """Move the tensors of one layer."""
    for kind in ("weight", "bias"):
        parts = [f"{there}.{name}.{kind}" for name in family.joined]
        if parts and left.keys() >= set(parts):
            ours[f"{here}.attention.qkv_proj.{kind}"] = torch.cat([left.pop(name) for name in parts])
        if family.gated and (both := left.pop(f"{there}.{family.gated}.{kind}", None)) is not None:
            ours[f"{here}.gate.{kind}"], ours[f"{here}.up.{kind}"] = (part.clone() for part in both.chunk(2))
        for mine, theirs in family.layer.items():
            if (tensor := left.pop(f"{there}.{theirs}.{kind}", None)) is not None:
                turned = family.turned and tensor.ndim == 2
                ours[f"{here}.{mine}.{kind}"] = tensor.T.contiguous() if turned else tensor


_READS: dict[str, tuple[AttentionDirection, str]] = {
    "llama": ("causal", "causal"),
    "eurobert": ("bidirectional", "masked"),
}
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}


def import_hf(source: str, out: Path, *, command: str = "") -> str:
    """Turn a model of transformers into a run folder of ours; returns what was done, in words."""
    folder = open_hf_folder(source)
    run = RunFolder.create(out, kind="import", command=command, config=RuntimeConfig(), inputs={"source": source})
    with run.remove_on_error(new=True):
        about = import_model(source, folder, out / "bundle")
        write_json(out / "result.json", about)
    return f"{source}, a {about['architecture']}: {about['parameters']:,} parameters; model in {out}"


def import_model(source: str, folder: Path, out: Path) -> dict[str, Any]:
    """Write the bundle of a model of transformers; returns what is known of it."""
    found = read_hf_config(source, folder)
    if found.kind not in _READS and found.kind not in ARCHITECTURES:
        known = ", ".join([*_READS, *ARCHITECTURES])
        raise found.refused(f"is a {found.kind}, whose layers are not those of Headstart ({known} are)")
    if found.kind in _READS:
        _check_kind(found)
    weights = read_hf_weights(found)
    brought = _modern(found, weights) if found.kind in _READS else read_generic(found, weights)
    tokenizer = read_tokenizer(source, folder, found.facts, exact=found.classifies)
    config, vocab_size = brought.config, int(found.facts["vocab_size"])
    if tokenizer.vocab_size > vocab_size:
        raise found.refused(f"has a vocabulary of {vocab_size:,}, its tokenizer one of {tokenizer.vocab_size:,}")
    labels, objective = _labels(found) if found.classifies else (), brought.objective
    head: LanguageHead | ClassifierHead = LanguageHead(config, vocab_size)
    if found.classifies:
        head, objective = ClassifierHead(config, len(labels), brought.attention), "classify"
    model: Model[Any] = Model(Backbone(config, vocab_size), head)
    try:
        load_into(model, brought.tensors, source)
    except StoreError as error:
        raise TransferError(f"{error}; nothing was imported") from None
    about = {
        "imported_from": source,
        "architecture": found.architecture,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    bundle = Bundle(
        model, tokenizer, SingleLabel(labels), attention=brought.attention, objective=objective, about=about
    )
    save_bundle(out, bundle)
    return about


def _modern(found: HFModelFolder, weights: Mapping[str, Tensor]) -> ImportedModel:
    """A Llama or a EuroBERT, whose block is our modern one."""
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    head_weight = bare.get("lm_head.weight")
    # by the weights, not by config.json, which need not say what is usual
    tied = head_weight is None or torch.equal(head_weight, bare.get("embed_tokens.weight", head_weight))
    config = _shape(found, tied)
    return ImportedModel(config, _rename_llama(bare, config, found.classifies), *_READS[found.kind])


def _shape(found: HFModelFolder, tied: bool) -> ModelConfig:
    """The shape of the backbone."""
    facts, rope = found.facts, found.facts.get("rope_parameters") or {}
    try:
        width, heads = int(facts["hidden_size"]), int(facts["num_attention_heads"])
        if (facts.get("head_dim") or width // heads) * heads != width:
            raise found.refused(f"has head_dim {facts['head_dim']}, not hidden_size / num_attention_heads")
        shape = {
            "block": "modern",
            "width": width,
            "depth": int(facts["num_hidden_layers"]),
            "heads": heads,
            "feedforward": int(facts["intermediate_size"]),
            "dropout": 0.1,
            "context": min(int(facts["max_position_embeddings"]), MAX_CONTEXT),
            "rotary_base": float(rope.get("rope_theta") or facts.get("rope_theta") or 10000.0),
            "norm_epsilon": float(facts.get("rms_norm_eps", 1e-6 if facts["model_type"] == "llama" else 1e-5)),
            "tied": tied,
        }
        return merge_config(ModelConfig, shape)
    except (KeyError, TypeError, ValueError) as error:
        raise found.refused(f"has a config.json that says too little: {error}") from None
    except ConfigError as error:
        raise found.refused(f"has a shape that is none of ours: {error}") from None


def _check_kind(found: HFModelFolder) -> None:
    """Refuse what our block does not compute."""
    facts = found.facts
    found.check(_FIXED, "the modern block")
    rope = facts.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise found.refused(f"has rope_type {rope['rope_type']}, which the modern block has not")


def _labels(found: HFModelFolder) -> tuple[str, ...]:
    if found.facts.get("problem_type") not in (None, "single_label_classification"):
        raise found.refused(f"has problem_type {found.facts['problem_type']}, where a text has one label here")
    pooling = found.facts.get("classifier_pooling", "late")
    if found.facts["model_type"] == "eurobert" and pooling != "mean":
        raise found.refused(f"has classifier_pooling {pooling}, where both-way classifiers take the mean here")
    named = found.facts.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # what transformers leaves out
    return tuple(str(named[str(place)]) for place in range(len(named)))


def _rename_llama(theirs: Mapping[str, Tensor], config: ModelConfig, classifies: bool) -> dict[str, Tensor]:
    """By our names; whatever is left over keeps its own, and is found out when the model is filled."""
    names = {"embed_tokens.weight": "backbone.embedding.weight", "norm.weight": "backbone.norm.weight"}
    for layer in range(config.depth):
        names |= {f"layers.{layer}.{there}": f"backbone.layers.{layer}.{here}" for here, there in MODERN.items()}
    for kind in ("weight", "bias"):
        ours_of = "head.linear." + kind
        names |= {f"score.{kind}": ours_of, f"classifier.{kind}": ours_of, f"dense.{kind}": f"head.dense.{kind}"}
    left = {name: tensor for name, tensor in theirs.items() if not name.endswith("rotary_emb.inv_freq")}
    if not classifies:
        names["lm_head.weight"] = "head.linear.weight"
        if config.tied:
            left.pop("lm_head.weight", None)
    ours: dict[str, Tensor] = {}
    for layer in range(config.depth):
        parts = [f"layers.{layer}.self_attn.{name}_proj.weight" for name in "qkv"]
        if left.keys() >= set(parts):
            whole = torch.cat([_repeated(left.pop(name), config) for name in parts])
            ours[f"backbone.layers.{layer}.attention.qkv_proj.weight"] = whole
    return ours | {names.get(name, name): tensor for name, tensor in left.items()}


def _repeated(weight: Tensor, config: ModelConfig) -> Tensor:
    """Keys or values that several heads share, once for each of them; queries come through as they are."""
    head = config.width // config.heads
    groups = weight.shape[0] // head
    if groups == 0 or config.heads % groups:
        return weight
    return weight.view(groups, head, -1).repeat_interleave(config.heads // groups, dim=0).reshape(config.width, -1)
