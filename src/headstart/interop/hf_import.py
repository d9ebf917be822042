"""Import a model folder of transformers as a bundle, without transformers itself.

Llama and EuroBERT become the modern block; BERT, DistilBERT, RoBERTa and its variants, ModernBERT, GPT-2 and OPT become
the generic block; an OPT that Headstart exported from a classic network becomes that network again. Every setting that
would change the output is checked, and an unsupported one raises TransferError.
Some tensors are combined, which changes the output by rounding at most: keys and values shared by several heads are
repeated, the first token type is added to the positions, and unused rows of a position table are dropped.
Only safetensors are read: a pickled file may run code.
"""

import json
import re
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
from headstart.interop.hf_architectures import ARCHITECTURES, LLAMA_LAYER, Architecture
from headstart.interop.hf_classic import is_doubled_opt, is_exported_classic, read_doubled_opt
from headstart.interop.hf_tasks import read_task
from headstart.interop.hf_tokenizers import read_tokenizer
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.transformer import Backbone
from headstart.progress import pluralize
from headstart.store.bundle import NO_TASK, Bundle, save_bundle
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import check_tensors, load_into, load_tensors
from headstart.tasks import Task

MAX_CONTEXT = 1024
"""The context of an imported model is at most this, and at most what the model allows."""
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Names of activations in config.json, to ours."""
_DOWNLOADED_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "special_tokens_map.json",
)
_LLAMA_TYPES: dict[str, tuple[AttentionDirection, str]] = {
    "llama": ("causal", "causal"),
    "eurobert": ("bidirectional", "masked"),
}
"""The architectures whose block is our modern one, with their attention and objective."""
_LLAMA_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}
_OPT_POSITION_OFFSET = 2
_MAX_VOCABULARY = 2**31
_DEPTH_SETTINGS = {"distilbert": "n_layers", "gpt2": "n_layer"}
"""The setting of config.json with the number of layers, where it is not num_hidden_layers."""


@dataclass(frozen=True)
class HFModelFolder:
    """A model folder of transformers and the content of its config.json."""

    name: str
    folder: Path
    facts: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The architecture's name in config.json, such as "bert"."""
        return str(self.facts.get("model_type"))

    @property
    def architecture(self) -> str:
        """The class that the model was saved from, such as "BertForMaskedLM"."""
        return str((self.facts.get("architectures") or ["model"])[0])

    @property
    def is_classifier(self) -> bool:
        """Whether the model was saved as a sequence classifier."""
        return self.architecture.endswith("ForSequenceClassification")

    def error(self, reason: str) -> TransferError:
        """The error that refuses this model."""
        return TransferError(f"{self.name} {reason}; nothing was imported")

    def check_supported(self, supported_values: Mapping[str, tuple[Any, ...]], block: str) -> None:
        """Raise TransferError if config.json has a value that a block does not support."""
        for name, values in supported_values.items():
            if name in self.facts and self.facts[name] not in values:
                raise self.error(f"has {name} {json.dumps(self.facts[name])}, which {block} does not support")


@dataclass(frozen=True)
class ImportedModel:
    """An imported network: its configuration, and its tensors by our names."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    attention: AttentionDirection
    objective: str


def import_hf(source: str, out: Path, *, command: str = "") -> str:
    """Import a model of transformers into a run folder; return a summary line."""
    folder = open_hf_folder(source)
    run = RunFolder.create(out, kind="import", command=command, config=RuntimeConfig(), inputs={"source": source})
    with run.remove_on_error(new=True):
        about = import_model(source, folder, out / "bundle")
        write_json(out / "result.json", about)
    return f"{source}, a {about['architecture']}: {about['parameters']:,} parameters; model in {out}"


def import_model(source: str, folder: Path, out: Path) -> dict[str, Any]:
    """Write the bundle of a model of transformers; return its `about`."""
    hf = read_hf_config(source, folder)
    is_llama = hf.model_type in _LLAMA_TYPES
    if not is_llama and hf.model_type not in ARCHITECTURES:
        supported = ", ".join([*_LLAMA_TYPES, *ARCHITECTURES])
        raise hf.error(f"is a {hf.model_type}, which Headstart does not support; supported: {supported}")
    if is_llama:
        _check_llama(hf)
    weights = read_hf_weights(hf)
    _check_depth(hf, weights)
    imported = _read_network(hf, weights)
    tokenizer = read_tokenizer(source, folder, hf.facts, exact=hf.is_classifier)
    config, vocab_size = imported.config, _read_vocab_size(hf)
    if tokenizer.vocab_size > vocab_size:
        raise hf.error(f"has a vocabulary of {vocab_size:,}, its tokenizer one of {tokenizer.vocab_size:,}")
    task, objective = _read_task(hf) if hf.is_classifier else NO_TASK, imported.objective
    objective = "classify" if hf.is_classifier else objective
    is_rating = task.kind == "rating"  # whose head has a bias here, and in some architectures none there
    tensors = ({"head.linear.bias": torch.zeros(1)} if is_rating else {}) | dict(imported.tensors)

    def build() -> Model[Any]:
        head: LanguageHead | ClassifierHead = LanguageHead(config, vocab_size)
        if hf.is_classifier:
            head = ClassifierHead(config, task.outputs, imported.attention, bias=is_rating)
        return Model(Backbone(config, vocab_size), head)

    try:
        with torch.device("meta"):  # a wrong config.json must not take the memory of what it describes
            check_tensors(build().state_dict(), tensors, source)
    except StoreError as error:
        raise TransferError(f"{error}; nothing was imported") from None
    model = build()
    load_into(model, tensors, source)
    if config.block == "classic" and not is_exported_classic(model, weights):
        raise _other_width_error(hf)
    about = {
        "imported_from": source,
        "architecture": hf.architecture,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    save_bundle(out, Bundle(model, tokenizer, task, attention=imported.attention, objective=objective, about=about))
    return about


def _read_network(hf: HFModelFolder, weights: Mapping[str, Tensor]) -> ImportedModel:
    if hf.model_type in _LLAMA_TYPES:
        return _read_llama(hf, weights)
    return _read_classic(hf, weights) if is_doubled_opt(hf.facts) else read_generic(hf, weights)


# reading the folder


def open_hf_folder(source: str) -> Path:
    """Return the folder of `hf:FOLDER` or `hf:OWNER/NAME`; the latter is downloaded, weights and JSON files only."""
    name = source.removeprefix("hf:")
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UsageError(f"{source}: no such folder, and not a name on the Hub, which is OWNER/NAME")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(_DOWNLOADED_FILES)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"{source}: no such folder, and the Hub did not provide it: {reason}") from None


def read_hf_config(source: str, folder: Path) -> HFModelFolder:
    """Read config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"{source} has no {path.name}; expected a folder that save_pretrained wrote")
    facts = read_json(path)
    if not isinstance(facts, dict):
        raise StoreError(f"{path} is damaged: it is not an object")
    return HFModelFolder(source, folder, facts)


def read_hf_weights(hf: HFModelFolder) -> dict[str, Tensor]:
    """Read all tensors as fp32."""
    files = sorted(hf.folder.glob("*.safetensors"))
    if not files:
        pickled = [path.name for path in sorted(hf.folder.glob("*.bin"))]
        if pickled:
            raise UsageError(
                f"{hf.name} has its weights in {pickled[0]}, a pickled file, which may run code when it is opened; "
                "if you trust it, convert it once: AutoModel.from_pretrained(FOLDER, use_safetensors=False)"
                ".save_pretrained(FOLDER), with the Auto class that its config.json names"
            )
        raise UsageError(f"{hf.name} has no .safetensors file; expected a folder that save_pretrained wrote")
    tensors: dict[str, Tensor] = {}
    for path in files:
        tensors |= {name: tensor.float() for name, tensor in load_tensors(path).items()}
    return tensors


def _check_depth(hf: HFModelFolder, weights: Mapping[str, Tensor]) -> None:
    """Raise TransferError if config.json has another number of layers than the weights."""
    layers = "layers" if hf.model_type in _LLAMA_TYPES else ARCHITECTURES[hf.model_type].layers
    pattern = re.compile(rf"(?:^|\.){re.escape(layers)}\.(\d{{1,9}})\.")
    depth = max((1 + int(match[1]) for name in weights if (match := pattern.search(name))), default=0)
    setting = _DEPTH_SETTINGS.get(hf.model_type, "num_hidden_layers")
    if setting in hf.facts and hf.facts[setting] != depth:
        raise hf.error(
            f"has {setting} {json.dumps(hf.facts[setting])[:40]}, but weights of {pluralize(depth, 'layer')}"
        )


def _read_vocab_size(hf: HFModelFolder) -> int:
    size = hf.facts.get("vocab_size")
    if not isinstance(size, int) or not 1 <= size <= _MAX_VOCABULARY:
        raise hf.error(f"has vocab_size {json.dumps(size)[:40]}, expected a whole number up to {_MAX_VOCABULARY}")
    return size


def _read_task(hf: HFModelFolder) -> Task:
    pooling = hf.facts.get("classifier_pooling", "late")
    if hf.model_type == "eurobert" and pooling != "mean":
        raise hf.error(f"has classifier_pooling {pooling}, but Headstart uses the mean for bidirectional classifiers")
    try:
        return read_task(hf.facts)
    except ValueError as error:
        raise hf.error(f"has a config.json that does not describe a supported task: {error}") from None


# Llama and EuroBERT


def _check_llama(hf: HFModelFolder) -> None:
    """Raise TransferError for settings that the modern block does not support."""
    hf.check_supported(_LLAMA_SUPPORTED, "the modern block")
    rope = hf.facts.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise hf.error(f"has rope_type {rope['rope_type']}, which the modern block does not support")


def _read_llama(hf: HFModelFolder, weights: Mapping[str, Tensor]) -> ImportedModel:
    """Read a Llama or a EuroBERT as the modern block."""
    tensors = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    lm_head = tensors.get("lm_head.weight")
    # by the weights and not by config.json, which omits defaults
    tied = lm_head is None or torch.equal(lm_head, tensors.get("embed_tokens.weight", lm_head))
    config = _llama_config(hf, tied)
    attention, objective = _LLAMA_TYPES[hf.model_type]
    return ImportedModel(config, _rename_llama(tensors, config, hf.is_classifier), attention, objective)


def _llama_config(hf: HFModelFolder, tied: bool) -> ModelConfig:
    facts, rope = hf.facts, hf.facts.get("rope_parameters") or {}
    try:
        width, heads = int(facts["hidden_size"]), int(facts["num_attention_heads"])
        if (facts.get("head_dim") or width // heads) * heads != width:
            raise hf.error(f"has head_dim {facts['head_dim']}, not hidden_size / num_attention_heads")
        sizes = {
            "block": "modern",
            "width": width,
            "depth": int(facts["num_hidden_layers"]),
            "heads": heads,
            "feedforward": int(facts["intermediate_size"]),
            "dropout": 0.1,
            "context": min(int(facts["max_position_embeddings"]), MAX_CONTEXT),
            "rotary_base": float(rope.get("rope_theta") or facts.get("rope_theta") or 10000.0),
            "norm_epsilon": float(facts.get("rms_norm_eps", 1e-6 if hf.model_type == "llama" else 1e-5)),
            "tied": tied,
        }
        return merge_config(ModelConfig, sizes)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise hf.error(f"has an incomplete config.json: {error}") from None
    except ConfigError as error:
        raise hf.error(f"has an unsupported shape: {error}") from None


def _rename_llama(tensors: Mapping[str, Tensor], config: ModelConfig, is_classifier: bool) -> dict[str, Tensor]:
    """Rename tensors to ours; unexpected ones keep their names, and loading refuses them."""
    names = {"embed_tokens.weight": "backbone.embedding.weight", "norm.weight": "backbone.norm.weight"}
    for layer in range(config.depth):
        names |= {f"layers.{layer}.{hf}": f"backbone.layers.{layer}.{ours}" for ours, hf in LLAMA_LAYER.items()}
    for suffix in ("weight", "bias"):
        linear = f"head.linear.{suffix}"
        names |= {f"score.{suffix}": linear, f"classifier.{suffix}": linear, f"dense.{suffix}": f"head.dense.{suffix}"}
    remaining = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    if not is_classifier:
        names["lm_head.weight"] = "head.linear.weight"
        if config.tied:
            remaining.pop("lm_head.weight", None)
    renamed: dict[str, Tensor] = {}
    for layer in range(config.depth):
        qkv_names = [f"layers.{layer}.self_attn.{name}_proj.weight" for name in "qkv"]
        if remaining.keys() >= set(qkv_names):
            qkv_proj = torch.cat([_repeat_heads(remaining.pop(name), config) for name in qkv_names])
            renamed[f"backbone.layers.{layer}.attention.qkv_proj.weight"] = qkv_proj
    return renamed | {names.get(name, name): tensor for name, tensor in remaining.items()}


def _repeat_heads(weight: Tensor, config: ModelConfig) -> Tensor:
    """Repeat keys or values that several heads share (grouped-query attention); others are returned as they are."""
    head_width = config.width // config.heads
    groups = weight.shape[0] // head_width
    if groups == 0 or config.heads % groups:
        return weight
    repeats = config.heads // groups
    return weight.view(groups, head_width, -1).repeat_interleave(repeats, dim=0).reshape(config.width, -1)


# the classic block


def _read_classic(hf: HFModelFolder, weights: Mapping[str, Tensor]) -> ImportedModel:
    """Read a classic network that Headstart exported as an OPT."""
    try:
        config, tensors = read_doubled_opt(hf.facts, weights)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, ConfigError):
        raise _other_width_error(hf) from None
    return ImportedModel(config, tensors, "causal", "causal")


def _other_width_error(hf: HFModelFolder) -> TransferError:
    return hf.error(
        f"has word_embed_proj_dim {hf.facts['word_embed_proj_dim']}, not hidden_size: embeddings of another width"
    )


# the generic block


@dataclass(frozen=True)
class _GenericSettings:
    """Settings of a generic model, read from config.json."""

    model: dict[str, Any]
    """Fields of ModelConfig."""
    generic: dict[str, Any]
    """Fields of GenericConfig."""
    position_offset: int = 0
    """The number of unused rows at the beginning of the position table."""


def read_generic(hf: HFModelFolder, weights: Mapping[str, Tensor]) -> ImportedModel:
    """Read one of ARCHITECTURES as the generic block."""
    architecture = ARCHITECTURES[hf.model_type]
    hf.check_supported(architecture.supported_values, f"our {hf.model_type}")
    tensors = _strip_prefix(architecture, weights, hf.is_classifier)
    readers = {"distilbert": _read_distilbert, "modernbert": _read_modernbert, "gpt2": _read_gpt2, "opt": _read_opt}
    try:
        settings = readers.get(hf.model_type, _read_bert)(hf)
        generic = settings.generic | {"family": hf.model_type} | _lm_head_settings(architecture, tensors)
        lm_head = tensors.get(f"{architecture.lm_head}.weight")
        embedding = tensors.get(f"{architecture.embedding}.weight")
        tied = lm_head is None or (embedding is not None and torch.equal(lm_head, embedding))
        config = merge_config(ModelConfig, {"block": "generic", "tied": tied, **settings.model, "generic": generic})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise hf.error(f"has an incomplete config.json: {error}") from None
    except ConfigError as error:
        raise hf.error(f"has an unsupported shape: {error}") from None
    renamed = _rename_generic(architecture, tensors, config, settings.position_offset, hf.is_classifier)
    objective = "masked" if architecture.attention == "bidirectional" else "causal"
    return ImportedModel(config, renamed, architecture.attention, objective)


def _strip_prefix(architecture: Architecture, weights: Mapping[str, Tensor], is_classifier: bool) -> dict[str, Tensor]:
    """Name tensors without the backbone's prefix and by their current names; drop those that are not imported."""
    ignored = architecture.ignored_tensors
    if not is_classifier:
        ignored += ("pooler.dense.weight", "pooler.dense.bias")
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith(ignored):
            continue
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if architecture.class_prefix == "OPT":  # a model without a head has only the second half of the prefix
            name = name.removeprefix("decoder.")
        tensors[name.removeprefix(architecture.backbone_prefix)] = tensor
    return tensors


def _lm_head_settings(architecture: Architecture, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The parts of the language head, by the weights: a model may have been saved without it."""
    dense = architecture.lm_head_modules.get("transform.dense")
    return {
        "transform": dense is not None and f"{dense}.weight" in tensors,
        "head_bias": any(name in tensors for name in architecture.lm_head_bias),
    }


def _read_activation(hf: HFModelFolder, name: str, default: str) -> str:
    value = hf.facts.get(name, default)
    if value not in ACTIVATIONS:
        raise hf.error(f"has {name} {value}, expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def _read_bert(hf: HFModelFolder) -> _GenericSettings:
    facts = hf.facts
    offset = 0 if hf.model_type == "bert" else int(facts.get("pad_token_id", 1)) + 1
    positions = int(facts["max_position_embeddings"]) - offset
    activation = _read_activation(hf, "hidden_act", "gelu")
    model = {
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
        # RoBERTa's language head has GELU, whatever the activation of the layers
        "transform_activation": activation if hf.model_type == "bert" else "gelu",
        "pooling": "first",
    }
    return _GenericSettings(model, generic, offset)


def _read_distilbert(hf: HFModelFolder) -> _GenericSettings:
    facts, positions = hf.facts, int(hf.facts["max_position_embeddings"])
    activation = _read_activation(hf, "activation", "gelu")
    model = {
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
    return _GenericSettings(model, generic)


def _read_modernbert(hf: HFModelFolder) -> _GenericSettings:
    facts, depth = hf.facts, int(hf.facts["num_hidden_layers"])
    if facts.get("attention_bias", False) != facts.get("mlp_bias", False):
        raise hf.error("has attention_bias and mlp_bias that differ, and a layer must have all of its biases or none")
    global_every = int(facts.get("global_attn_every_n_layers") or 3)
    layer_types = facts.get("layer_types") or [
        "sliding_attention" if layer % global_every else "full_attention" for layer in range(depth)
    ]
    bases = {}
    for layer_type, old_name, default in (("full_attention", "global", 160000.0), ("sliding_attention", "local", 1e4)):
        rope = (facts.get("rope_parameters") or {}).get(layer_type) or {}
        if rope.get("rope_type", "default") != "default" or facts.get("rope_scaling"):
            raise hf.error(f"has rope_type {rope.get('rope_type')}, which our modernbert does not support")
        bases[layer_type] = float(rope.get("rope_theta") or facts.get(f"{old_name}_rope_theta") or default)
    model = {
        "width": int(facts["hidden_size"]),
        "depth": depth,
        "heads": int(facts["num_attention_heads"]),
        "feedforward": int(facts["intermediate_size"]),
        "dropout": 0.1,
        "context": min(int(facts["max_position_embeddings"]), MAX_CONTEXT),
        "rotary_base": bases["full_attention"],
        "norm_epsilon": float(facts.get("norm_eps", 1e-5)),
    }
    generic = {
        "norm_first": True,
        "norm_bias": bool(facts.get("norm_bias", False)),
        "bias": bool(facts.get("mlp_bias", False)),
        "activation": _read_activation(hf, "hidden_activation", "gelu"),
        "gated": True,
        "embedding_norm": True,
        "final_norm": True,
        "window": int(facts.get("local_attention", 128)) // 2,
        "local_layers": tuple(index for index, type in enumerate(layer_types) if type == "sliding_attention"),
        "local_base": bases["sliding_attention"],
        "transform_activation": _read_activation(hf, "classifier_activation", "gelu"),
        "transform_bias": bool(facts.get("classifier_bias", False)),
        "pooling": "first" if facts.get("classifier_pooling", "cls") == "cls" else "mean",
        "classifier": "transform",
    }
    return _GenericSettings(model, generic)


def _read_gpt2(hf: HFModelFolder) -> _GenericSettings:
    facts = hf.facts
    width, positions = int(facts["n_embd"]), int(facts["n_positions"])
    model = {
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
        "activation": _read_activation(hf, "activation_function", "gelu_new"),
        "positions": positions,
        "final_norm": True,
    }
    return _GenericSettings(model, generic)


def _read_opt(hf: HFModelFolder) -> _GenericSettings:
    facts = hf.facts
    width, positions = int(facts["hidden_size"]), int(facts["max_position_embeddings"])
    if (facts.get("word_embed_proj_dim") or width) != width:
        raise _other_width_error(hf)
    norm_first = bool(facts.get("do_layer_norm_before", True))
    model = {
        "width": width,
        "depth": int(facts["num_hidden_layers"]),
        "heads": int(facts["num_attention_heads"]),
        "feedforward": int(facts["ffn_dim"]),
        "dropout": float(facts.get("dropout", 0.1)),
        "context": min(positions, MAX_CONTEXT),
        "norm_epsilon": 1e-5,
    }
    generic = {
        "norm_first": norm_first,
        "bias": bool(facts.get("enable_bias", True)),
        "activation": _read_activation(hf, "activation_function", "relu"),
        "positions": positions,
        "final_norm": norm_first and not facts.get("_remove_final_layer_norm", False),
    }
    return _GenericSettings(model, generic, _OPT_POSITION_OFFSET)


def _rename_generic(
    architecture: Architecture, tensors: Mapping[str, Tensor], config: ModelConfig, offset: int, is_classifier: bool
) -> dict[str, Tensor]:
    """Rename tensors to ours; unexpected ones keep their names, and loading refuses them."""
    remaining, renamed = dict(tensors), dict[str, Tensor]()
    if architecture.positions and (table := remaining.pop(f"{architecture.positions}.weight", None)) is not None:
        token_types = remaining.pop(f"{architecture.token_types}.weight", None)
        renamed["backbone.positions.weight"] = table[offset:] + (0 if token_types is None else token_types[0])
    for layer in range(config.depth):
        renamed |= _take_layer(architecture, remaining, layer)
    modules = {"backbone.embedding": architecture.embedding}
    modules |= {f"backbone.{ours}": hf for ours, hf in architecture.backbone_modules.items()}
    head = architecture.classifier_modules
    if not is_classifier:
        head = {**architecture.lm_head_modules, "linear": architecture.lm_head}
        biases = [remaining.pop(name) for name in architecture.lm_head_bias if name in remaining]
        renamed |= {"head.bias": biases[0 if config.tied else -1]} if biases else {}
        if config.tied:  # some files hold the tied matrix twice
            remaining.pop(f"{architecture.lm_head}.weight", None)
    modules |= {f"head.{ours}": hf.removeprefix(architecture.backbone_prefix) for ours, hf in head.items()}
    for ours, hf in modules.items():
        for suffix in ("weight", "bias"):
            if f"{hf}.{suffix}" in remaining:
                renamed[f"{ours}.{suffix}"] = remaining.pop(f"{hf}.{suffix}")
    return renamed | remaining


def _take_layer(architecture: Architecture, remaining: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """Remove the tensors of one layer from `remaining`, and return them by our names."""
    hf, ours = f"{architecture.layers}.{layer}", f"backbone.layers.{layer}"
    renamed: dict[str, Tensor] = {}
    for suffix in ("weight", "bias"):
        qkv_names = [f"{hf}.{name}.{suffix}" for name in architecture.separate_qkv]
        if qkv_names and remaining.keys() >= set(qkv_names):
            qkv_proj = torch.cat([remaining.pop(name) for name in qkv_names])
            renamed[f"{ours}.attention.qkv_proj.{suffix}"] = qkv_proj
        gate_up = architecture.fused_gate_up
        if gate_up and (fused := remaining.pop(f"{hf}.{gate_up}.{suffix}", None)) is not None:
            gate, up = (half.clone() for half in fused.chunk(2))
            renamed |= {f"{ours}.gate.{suffix}": gate, f"{ours}.up.{suffix}": up}
        for our_module, hf_module in architecture.layer_modules.items():
            if (tensor := remaining.pop(f"{hf}.{hf_module}.{suffix}", None)) is not None:
                is_transposed = architecture.transposed and tensor.ndim == 2
                renamed[f"{ours}.{our_module}.{suffix}"] = tensor.T.contiguous() if is_transposed else tensor
    return renamed
