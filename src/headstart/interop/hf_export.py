"""Export a bundle as a folder that plain transformers loads, without code of ours.

config.json  model.safetensors  tokenizer.json  tokenizer_config.json  special_tokens_map.json  README.md  manifest.json

The exported model computes the same outputs:

modern, causal attention          Llama
modern, bidirectional attention   EuroBERT
classic, causal attention         OPT, post-norm as in its 350M size, with doubled channels (see `opt_tensors`)
generic                           the architecture that it was imported from
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.config.schema import GenericConfig, ModelConfig
from headstart.errors import StoreError, UsageError
from headstart.files import atomic_folder, write_json
from headstart.interop.hf_architectures import ARCHITECTURES, LLAMA_LAYER, Architecture
from headstart.interop.hf_tasks import task_settings
from headstart.interop.hf_tokenizers import write_tokenizer
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.transformer import Backbone, sinusoids
from headstart.store.bundle import Bundle
from headstart.tasks import UNBOUNDED, MultiLabel, Regression, Task
from headstart.tokenization.sentencepiece import SentencePieceTokenizer
from headstart.version import __version__

Tensors = dict[str, Tensor]

_AUTO_CLASSES = {
    "CausalLM": "AutoModelForCausalLM",
    "MaskedLM": "AutoModelForMaskedLM",
    "SequenceClassification": "AutoModelForSequenceClassification",
}
_PIPELINE_ARGUMENTS = {
    "classes": "",
    "labels": ', top_k=None, function_to_apply="sigmoid"',
    "rating": ', function_to_apply="none"',
}
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def export_hf(bundle: Bundle, out: Path) -> str:
    """Write the folder, and return the name of the transformers class in its config.json."""
    check_export_folder(out)
    check_expressible(bundle)
    if bundle.config.generic:
        architecture, purpose = _generic_class(bundle)
        config = _hf_config(bundle, architecture, _generic_config(bundle))
        tensors = _generic_tensors(bundle)
    else:
        family, purpose = _own_class(bundle)
        architecture = f"{family}For{purpose}"
        config = _hf_config(bundle, architecture, {"model_type": family.lower()} | _own_config(bundle, family))
        tensors = opt_tensors(bundle.model) if family == "OPT" else _llama_tensors(bundle.model)
    with atomic_folder(out, kind="export", about={"to": "hf", "architecture": architecture}) as draft:
        write_json(draft / "config.json", config)
        _save_tensors(draft / "model.safetensors", tensors)
        typed_mask, pair = purpose == "MaskedLM", bundle.task.pair
        write_tokenizer(bundle.tokenizer, draft, bundle.config.context, typed_mask=typed_mask, pair=pair)
        (draft / "README.md").write_text(_readme(bundle, architecture, purpose), encoding="utf-8")
    return architecture


def check_export_folder(out: Path) -> None:
    """Raise UsageError if something would be overwritten."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already exists and is not empty; choose another --out")


def check_expressible(bundle: Bundle) -> None:
    """Raise UsageError for a model that needs more than its network."""
    if bundle.windows:
        raise UsageError(
            f"{bundle.path} reads long texts in windows (labelled.long_texts), which no stock architecture can express; "
            "fine-tune with truncate to export"
        )


def _hf_config(bundle: Bundle, architecture: str, model_settings: dict[str, Any]) -> dict[str, Any]:
    """config.json: the settings of the network, special tokens and labels."""
    special = bundle.tokenizer.special
    config: dict[str, Any] = {
        "architectures": [architecture],
        **model_settings,
        "bos_token_id": special.sos,
        "pad_token_id": special.pad,
        "eos_token_id": special.eos,
        "dtype": "float32",
        "use_cache": True,
    }
    if model_settings["model_type"] == "eurobert":
        config |= {"classifier_pooling": "mean", "mask_token_id": special.mask if special.mask is not None else 3}
    if bundle.head_type == "classify":
        config |= task_settings(bundle.task)
    return config


def _save_tensors(path: Path, tensors: Tensors) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        # cloned, because safetensors refuses tensors that share memory, such as chunks of one matrix
        copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        save_file(copies, path, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        reason = str(error).partition(" (os error")[0]
        raise StoreError(f"cannot write {path}: {reason}") from error


# the modern and classic blocks


def _own_class(bundle: Bundle) -> tuple[str, str]:
    """The architecture that computes the same, and the purpose that its class is named after."""
    is_language = bundle.head_type == "language"
    bidirectional = bundle.attention == "bidirectional"
    if bundle.config.block == "modern":
        if not bidirectional and _has_bias(bundle.model.head):
            raise UsageError(
                f"{bundle.path} predicts a rating with a head that has a bias, which the head of a stock Llama does not have; "
                "fine-tune with --transfer.attention bidirectional to export, or use --to onnx"
            )
        if is_language:
            return ("EuroBert", "MaskedLM") if bidirectional else ("Llama", "CausalLM")
        return ("EuroBert" if bidirectional else "Llama"), "SequenceClassification"
    if bidirectional:
        raise UsageError(
            f"{bundle.path} is a classic network with bidirectional attention, which no stock architecture can "
            "express; modern presets can be exported, and classic ones with causal attention"
        )
    return "OPT", "CausalLM" if is_language else "SequenceClassification"


def _has_bias(head: LanguageHead | ClassifierHead) -> bool:
    """Whether a classifier's last layer adds something; an imported rating may have a bias of zeros."""
    return isinstance(head, ClassifierHead) and head.linear.bias is not None and bool(head.linear.bias.any())


def _own_config(bundle: Bundle, family: str) -> dict[str, Any]:
    """The settings of the network in config.json."""
    backbone = bundle.model.backbone
    return _opt_config(backbone) if family == "OPT" else _llama_config(backbone)


def _llama_config(backbone: Backbone) -> dict[str, Any]:
    """The settings of a Llama or a EuroBERT."""
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


def _llama_tensors(model: Model[Any]) -> Tensors:
    """The tensors of a modern network by the names of Llama, or of EuroBERT if its attention is bidirectional."""
    state = model.backbone.state_dict()
    tensors = {"model.embed_tokens.weight": state["embedding.weight"], "model.norm.weight": state["norm.weight"]}
    for layer in range(model.backbone.config.depth):
        ours, hf = f"layers.{layer}.", f"model.layers.{layer}."
        tensors |= {hf + hf_name: state[ours + our_name] for our_name, hf_name in LLAMA_LAYER.items()}
        for name, weight in zip("qkv", state[f"{ours}attention.qkv_proj.weight"].chunk(3), strict=True):
            tensors[f"{hf}self_attn.{name}_proj.weight"] = weight
    if isinstance(model.head, ClassifierHead):
        modules = (
            {"linear": "score"} if model.head.attention == "causal" else {"linear": "classifier", "dense": "dense"}
        )
        for name, tensor in model.head.state_dict().items():
            module, _, suffix = name.partition(".")
            if model.head.attention == "bidirectional" or suffix != "bias":  # the bias of an imported rating is zero
                tensors[f"{modules[module]}.{suffix}"] = tensor
    elif model.head.linear is not None:
        tensors["lm_head.weight"] = model.head.linear.weight
    return tensors


def _opt_config(backbone: Backbone) -> dict[str, Any]:
    """The settings of the OPT that `opt_tensors` are for."""
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


def opt_tensors(model: Model[Any]) -> Tensors:
    """The tensors of a classic network as those of an OPT with doubled channels.

    OPT's heads have no bias and ours have, so one hidden channel must be 1 at the end. One more channel would change every
    norm; repeating every channel changes none, since mean and variance stay the same. So the width is doubled, with both
    halves equal, and in the last norm, which scales each channel freely, the second half holds a 1 in place of a copy.
    There are twice as many heads of the same width; the second half of them attends uniformly and is not used.
    """
    config, state = model.backbone.config, model.backbone.state_dict()
    width, dtype = config.width, state["embedding.weight"].dtype
    positions = sinusoids(torch.arange(config.context), width).to(dtype)
    identity, zeros = torch.eye(width + 1, width, dtype=dtype), torch.zeros(2, 2 * width, dtype=dtype)
    project_out = torch.zeros(width + 1, 2 * width, dtype=dtype)
    project_out[:width, :width], project_out[width, width] = torch.eye(width, dtype=dtype), 1.0
    prefix = "model.decoder."
    tensors = {
        f"{prefix}embed_tokens.weight": _add_zero_column(state["embedding.weight"] * math.sqrt(width)),
        f"{prefix}project_in.weight": torch.cat((identity.T, identity.T)),
        f"{prefix}embed_positions.weight": torch.cat((zeros, torch.cat((positions, positions), dim=1))),
        f"{prefix}project_out.weight": project_out,
    }
    for layer in range(config.depth):
        layer_state = {name.removeprefix(f"layers.{layer}."): tensor for name, tensor in state.items()}
        tensors |= {f"{prefix}layers.{layer}.{name}": tensor for name, tensor in _opt_layer(layer_state).items()}
    last_norm = f"{prefix}layers.{config.depth - 1}.final_layer_norm."
    tensors[f"{last_norm}weight"][width:], tensors[f"{last_norm}bias"][width:] = 0.0, 0.0
    tensors[f"{last_norm}bias"][width] = 1.0
    head = "lm_head" if isinstance(model.head, LanguageHead) else "score"
    linear = model.head.linear
    assert linear is not None
    tensors[f"{head}.weight"] = torch.cat((linear.weight, linear.bias[:, None]), dim=1).detach()
    return tensors


def _opt_layer(state: Tensors) -> Tensors:
    """One layer over doubled channels: inputs are read from the first half, outputs are written to both halves."""
    tensors: Tensors = {}
    weights, biases = state["attention.qkv_proj.weight"].chunk(3), state["attention.qkv_proj.bias"].chunk(3)
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        tensors[f"self_attn.{name}_proj.weight"] = _read_first_half(torch.cat((weight, torch.zeros_like(weight))))
        tensors[f"self_attn.{name}_proj.bias"] = torch.cat((bias, torch.zeros_like(bias)))
    tensors["self_attn.out_proj.weight"] = _write_both_halves(_read_first_half(state["attention.out_proj.weight"]))
    tensors["self_attn.out_proj.bias"] = _write_both_halves(state["attention.out_proj.bias"])
    tensors["fc1.weight"], tensors["fc1.bias"] = _read_first_half(state["up.weight"]), state["up.bias"]
    tensors["fc2.weight"] = _write_both_halves(state["down.weight"])
    tensors["fc2.bias"] = _write_both_halves(state["down.bias"])
    for ours, hf in (("norm1", "self_attn_layer_norm"), ("norm2", "final_layer_norm")):
        tensors |= {f"{hf}.{suffix}": _write_both_halves(state[f"{ours}.{suffix}"]) for suffix in ("weight", "bias")}
    return tensors


def _read_first_half(weight: Tensor) -> Tensor:
    return torch.cat((weight, torch.zeros_like(weight)), dim=1)


def _write_both_halves(tensor: Tensor) -> Tensor:
    return torch.cat((tensor, tensor))


def _add_zero_column(table: Tensor) -> Tensor:
    return torch.cat((table, table.new_zeros(len(table), 1)), dim=1)


# the generic block


def _generic_class(bundle: Bundle) -> tuple[str, str]:
    """The class that computes the same, and its purpose."""
    generic, _ = _generic_settings(bundle)
    architecture = ARCHITECTURES[generic.family]
    if bundle.attention != architecture.attention:
        raise UsageError(
            f"{bundle.name} is a {generic.family} with {bundle.attention} attention, "
            "which no stock architecture can express"
        )
    if bundle.head_type == "classify":
        class_name = f"{architecture.class_prefix}ForSequenceClassification"
        if bundle.attention == "causal" and _has_bias(bundle.model.head):
            raise UsageError(
                f"{bundle.name} predicts a rating with a head that has a bias, which a stock {class_name} does not have; "
                "use --to onnx"
            )
        return class_name, "SequenceClassification"
    language_class = f"{architecture.class_prefix}{architecture.lm_class_suffix}"
    if architecture.lm_head_modules and not generic.transform:
        raise UsageError(
            f"{bundle.name} was imported without its language-model head, and {language_class} has one; "
            "a classifier made from it can be exported"
        )
    return language_class, "MaskedLM" if architecture.attention == "bidirectional" else "CausalLM"


def _generic_config(bundle: Bundle) -> dict[str, Any]:
    """The settings of the network in config.json."""
    generic, config = _generic_settings(bundle)
    facts: dict[str, Any] = {"model_type": generic.family, "vocab_size": bundle.model.backbone.vocab_size}
    facts |= {"tie_word_embeddings": config.tied} if bundle.head_type == "language" else {}
    position_rows = generic.positions + _position_offset(bundle)
    if generic.family == "gpt2":
        return facts | {
            "n_embd": config.width,
            "n_layer": config.depth,
            "n_head": config.heads,
            "n_positions": position_rows,
            "n_inner": config.feedforward,
            "activation_function": _ACTIVATIONS[generic.activation],
            "layer_norm_epsilon": config.norm_epsilon,
        }
    if generic.family == "distilbert":
        return facts | {
            "dim": config.width,
            "n_layers": config.depth,
            "n_heads": config.heads,
            "hidden_dim": config.feedforward,
            "activation": _ACTIVATIONS[generic.activation],
            "max_position_embeddings": position_rows,
        }
    facts |= {"hidden_size": config.width, "num_hidden_layers": config.depth, "num_attention_heads": config.heads}
    if generic.family == "opt":
        return facts | {
            "ffn_dim": config.feedforward,
            "max_position_embeddings": generic.positions,
            "activation_function": _ACTIVATIONS[generic.activation],
            "enable_bias": generic.bias,
            "do_layer_norm_before": generic.norm_first,
            "word_embed_proj_dim": config.width,
            "_remove_final_layer_norm": generic.norm_first and not generic.final_norm,
        }
    facts["intermediate_size"] = config.feedforward
    if generic.family == "modernbert":
        return facts | _modernbert_config(generic, config)
    return facts | {
        "hidden_act": _ACTIVATIONS[generic.activation],
        "layer_norm_eps": config.norm_epsilon,
        "max_position_embeddings": position_rows,
        "type_vocab_size": _num_token_types(generic),
    }


def _modernbert_config(generic: GenericConfig, config: ModelConfig) -> dict[str, Any]:
    rotary_bases = {"full_attention": config.rotary_base, "sliding_attention": generic.local_base}
    return {
        "max_position_embeddings": config.context,
        "norm_eps": config.norm_epsilon,
        "norm_bias": generic.norm_bias,
        "attention_bias": generic.bias,
        "mlp_bias": generic.bias,
        "hidden_activation": _ACTIVATIONS[generic.activation],
        "local_attention": 2 * generic.window,
        "layer_types": [
            "sliding_attention" if layer in generic.local_layers else "full_attention" for layer in range(config.depth)
        ],
        "rope_parameters": {
            layer_type: {"rope_type": "default", "rope_theta": base} for layer_type, base in rotary_bases.items()
        },
        "classifier_activation": _ACTIVATIONS[generic.transform_activation],
        "classifier_bias": generic.transform_bias,
        "classifier_pooling": "cls" if generic.pooling == "first" else "mean",
        "decoder_bias": generic.head_bias,
    }


def _generic_tensors(bundle: Bundle) -> Tensors:
    """The tensors of a generic network by the names of its architecture; the inverse of `hf_import.read_generic`."""
    generic, config = _generic_settings(bundle)
    architecture, state = ARCHITECTURES[generic.family], bundle.model.state_dict()
    prefix = architecture.backbone_prefix
    tensors: Tensors = {f"{prefix}{architecture.embedding}.weight": state["backbone.embedding.weight"]}
    if architecture.positions:
        table = state["backbone.positions.weight"]
        unused = table.new_zeros(_position_offset(bundle), config.width)
        tensors[f"{prefix}{architecture.positions}.weight"] = torch.cat((unused, table))
    if architecture.token_types:  # the import added them to the positions
        zeros = torch.zeros(_num_token_types(generic), config.width)
        tensors[f"{prefix}{architecture.token_types}.weight"] = zeros
    for layer in range(config.depth):
        layer_tensors = _generic_layer(architecture, state, f"backbone.layers.{layer}.")
        tensors |= {f"{prefix}{architecture.layers}.{layer}.{name}": tensor for name, tensor in layer_tensors.items()}
    modules = {f"backbone.{ours}": f"{prefix}{hf}" for ours, hf in architecture.backbone_modules.items()}
    is_language = bundle.head_type == "language"
    head = {**architecture.lm_head_modules, "linear": architecture.lm_head}
    modules |= {f"head.{ours}": hf for ours, hf in (head if is_language else architecture.classifier_modules).items()}
    for name, tensor in state.items():
        module, _, suffix = name.rpartition(".")
        # a causal classifier there has no bias; the one of an imported rating is zero
        if module in modules and not (name == "head.linear.bias" and bundle.attention == "causal"):
            tensors[f"{modules[module]}.{suffix}"] = tensor
    if is_language and generic.head_bias:
        tensors |= dict.fromkeys(architecture.lm_head_bias, state["head.bias"])
    return tensors


def _generic_layer(architecture: Architecture, state: Tensors, layer: str) -> Tensors:
    tensors: Tensors = {}
    for suffix in ("weight", "bias"):
        qkv_proj = state.get(f"{layer}attention.qkv_proj.{suffix}")
        if architecture.separate_qkv and qkv_proj is not None:
            for name, tensor in zip(architecture.separate_qkv, qkv_proj.chunk(3), strict=True):
                tensors[f"{name}.{suffix}"] = tensor
        if architecture.fused_gate_up and f"{layer}gate.{suffix}" in state:
            gate_up = torch.cat((state[f"{layer}gate.{suffix}"], state[f"{layer}up.{suffix}"]))
            tensors[f"{architecture.fused_gate_up}.{suffix}"] = gate_up
        for ours, hf in architecture.layer_modules.items():
            if (weight := state.get(f"{layer}{ours}.{suffix}")) is not None:
                tensors[f"{hf}.{suffix}"] = weight.T if architecture.transposed and weight.ndim == 2 else weight
    return tensors


def _num_token_types(generic: GenericConfig) -> int:
    return 2 if generic.family == "bert" else 1


def _position_offset(bundle: Bundle) -> int:
    """The number of unused rows at the beginning of the position table."""
    family = _generic_settings(bundle)[0].family
    if family == "opt":
        return 2
    return bundle.tokenizer.special.pad + 1 if family in ("roberta", "camembert", "xlm-roberta") else 0


def _generic_settings(bundle: Bundle) -> tuple[GenericConfig, ModelConfig]:
    assert bundle.config.generic is not None
    return bundle.config.generic, bundle.config


# README.md


def _readme(bundle: Bundle, architecture: str, purpose: str) -> str:
    is_classifier = bundle.head_type == "classify"
    auto_class = _AUTO_CLASSES[purpose]
    lines = [
        f"Exported by Headstart {__version__} as a stock {architecture}: weights, shape and tokenizer, no code.",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {auto_class}{', pipeline' if is_classifier else ''}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("THIS FOLDER")',
        f'model = {auto_class}.from_pretrained("THIS FOLDER")',
    ]
    if is_classifier:
        text = '{"text": "the first text", "text_pair": "the second"}' if bundle.task.pair else '"a text to classify"'
        lines += [
            'classify = pipeline("text-classification", model=model, tokenizer=tokenizer, truncation=True)',
            f"print(classify({text}{_PIPELINE_ARGUMENTS[bundle.task.kind]}))",
        ]
    lines += [
        "```",
        "",
        f"Its context is {bundle.config.context} tokens, including the start token; longer texts are truncated with "
        "`truncation=True`, as `headstart predict` truncates them.",
    ]
    if is_classifier:
        lines.append(_describe_outputs(bundle.task))
    if purpose == "MaskedLM":
        lines.append("`<mask>` in a text is the mask token; texts must not contain other special tokens.")
    if bundle.objective == "hybrid":
        lines.append(
            "It was trained with the hybrid objective: **the logits at a position are for the next token**, so a "
            "masked token is predicted at the position before the mask (`logits[:, i - 1]`), and "
            "`pipeline('fill-mask')`, which uses the position of the mask itself, cannot be used. With `model_type` "
            "`llama` and architecture `LlamaForCausalLM` in config.json, the same weights use causal attention and "
            "generate text."
        )
    if isinstance(bundle.tokenizer, SentencePieceTokenizer):
        lines.append(
            "Its tokenizer was converted from SentencePiece and encodes every piece of the vocabulary like the original; "
            "only letters with several combining marks in an unusual order may be split differently."
        )
    if architecture.startswith("OPT") and not bundle.config.generic:
        lines.append(
            "OPT has no bias in its head and no sinusoids: every channel is duplicated, which leaves the norms "
            "unchanged, one channel is 1 for the bias, and the position table holds the sinusoids. It computes the same "
            "numbers, at twice the width."
        )
    return "\n".join(lines) + "\n"


def _describe_outputs(task: Task) -> str:
    """A sentence about the meaning of the outputs."""
    if isinstance(task, Regression):
        if task.highest >= UNBOUNDED:
            return "Its single output is the rating, which has no bounds."
        return (
            f"Its single output is the rating; the scale is part of the last layer. `headstart predict` never "
            f"predicts a number below "
            f"{task.lowest:g} or above {task.highest:g}: clip the output to do the same."
        )
    if isinstance(task, MultiLabel):
        thresholds = ", ".join(f"{label} {threshold:.6g}" for label, threshold in task.facts()["thresholds"].items())
        return (
            "Probabilities are calibrated per label; the temperature is part of the last layer. A label is "
            f"predicted at or above its threshold (`headstart.thresholds` in config.json): {thresholds}."
        )
    return (
        "Probabilities are calibrated; the temperature is part of the last layer. Withholding predictions below a threshold "
        "(`headstart predict --abstain`) is not part of this export."
    )
