"""Export a bundle as a folder for transformers.

Our tensors under the names and in the shapes of stock architectures, computing the same numbers.

modern, read causally     Llama
modern, read both ways    EuroBERT
classic, read causally    OPT, post-norm as its 350M size, with two changes of dress (see `opt`)

A model that came from a stock architecture, as that architecture again: `hf_stock` the other way round.

A model of ours as a folder that plain transformers loads, without code from us: safetensors and JSON are all it takes.

config.json  model.safetensors  tokenizer.json  tokenizer_config.json  special_tokens_map.json  README.md  manifest.json
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.config.schema import GenericConfig, ModelConfig
from headstart.errors import StoreError, UsageError
from headstart.files import atomic_folder, write_json
from headstart.interop.hf_architectures import ARCHITECTURES, Architecture
from headstart.interop.hf_tokenizers import write_tokenizer
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.transformer import Backbone, sinusoids
from headstart.store.bundle import Bundle
from headstart.tasks import MultiLabel, Regression, Task
from headstart.tokenization.sentencepiece import SentencePieceTokenizer
from headstart.version import __version__

Tensors = dict[str, Tensor]

MODERN = {
    "attention.out_proj.weight": "self_attn.o_proj.weight",
    "gate.weight": "mlp.gate_proj.weight",
    "up.weight": "mlp.up_proj.weight",
    "down.weight": "mlp.down_proj.weight",
    "norm1.weight": "input_layernorm.weight",
    "norm2.weight": "post_attention_layernorm.weight",
}
"""One layer: our names and Llama's, which EuroBERT shares; queries, keys and values lie in one matrix here."""


def llama_shape(backbone: Backbone) -> dict[str, Any]:
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


def llama_tensors(model: Model[Any]) -> Tensors:
    """Backbone and head under the names of Llama (read causally) or EuroBERT (both ways)."""
    own = model.backbone.state_dict()
    tensors = {"model.embed_tokens.weight": own["embedding.weight"], "model.norm.weight": own["norm.weight"]}
    for layer in range(model.backbone.config.depth):
        here, there = f"layers.{layer}.", f"model.layers.{layer}."
        tensors |= {there + theirs: own[here + ours] for ours, theirs in MODERN.items()}
        for name, part in zip("qkv", own[f"{here}attention.qkv_proj.weight"].chunk(3), strict=True):
            tensors[f"{there}self_attn.{name}_proj.weight"] = part
    if isinstance(model.head, ClassifierHead):
        names = {"linear": "score"} if model.head.attention == "causal" else {"linear": "classifier", "dense": "dense"}
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


def opt_tensors(model: Model[Any]) -> Tensors:
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
        f"{root}embed_tokens.weight": _add_column(own["embedding.weight"] * math.sqrt(width), torch.zeros(1)),
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
    weights, biases = own["attention.qkv_proj.weight"].chunk(3), own["attention.qkv_proj.bias"].chunk(3)
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        tensors[f"self_attn.{name}_proj.weight"] = _causal_columns(torch.cat((weight, torch.zeros_like(weight))))
        tensors[f"self_attn.{name}_proj.bias"] = torch.cat((bias, torch.zeros_like(bias)))
    tensors["self_attn.out_proj.weight"] = _repeat_halves(_causal_columns(own["attention.out_proj.weight"]))
    tensors["self_attn.out_proj.bias"] = _repeat_halves(own["attention.out_proj.bias"])
    tensors["fc1.weight"], tensors["fc1.bias"] = _causal_columns(own["up.weight"]), own["up.bias"]
    tensors["fc2.weight"], tensors["fc2.bias"] = _repeat_halves(own["down.weight"]), _repeat_halves(own["down.bias"])
    for ours, theirs in (("norm1", "self_attn_layer_norm"), ("norm2", "final_layer_norm")):
        tensors |= {f"{theirs}.{kind}": _repeat_halves(own[f"{ours}.{kind}"]) for kind in ("weight", "bias")}
    return tensors


def _causal_columns(weight: Tensor) -> Tensor:
    return torch.cat((weight, torch.zeros_like(weight)), dim=1)


def _repeat_halves(tensor: Tensor) -> Tensor:
    return torch.cat((tensor, tensor))


def _add_column(table: Tensor, column: Tensor) -> Tensor:
    return torch.cat((table, column.to(table.dtype).expand(len(table), 1)), dim=1)


_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def generic_class(bundle: Bundle) -> tuple[str, str]:
    """The stock class that computes the same, and what it is for."""
    generic, _ = _known(bundle)
    family = ARCHITECTURES[generic.family]
    if bundle.attention != family.reads:
        ways = {"causal": "left to right", "bidirectional": "both ways"}
        raise UsageError(
            f"{bundle.name} is a {generic.family} that reads {ways[bundle.attention]}, which no stock architecture can express"
        )
    if not isinstance(bundle.model.head, LanguageHead):
        return f"{family.stem}ForSequenceClassification", "SequenceClassification"
    if family.head and not generic.transform:
        raise UsageError(
            f"{bundle.name} came without its language head, and {family.stem}{family.language} has one; "
            "a classifier made from it can be exported"
        )
    return f"{family.stem}{family.language}", "MaskedLM" if family.reads == "bidirectional" else "CausalLM"


def generic_hf_config(bundle: Bundle) -> dict[str, Any]:
    """Its part of config.json."""
    generic, config = _known(bundle)
    facts: dict[str, Any] = {"model_type": generic.family, "vocab_size": bundle.model.backbone.vocab_size}
    facts |= {"tie_word_embeddings": config.tied} if isinstance(bundle.model.head, LanguageHead) else {}
    rows = generic.positions + _offset(bundle)
    if generic.family == "gpt2":
        facts |= {"n_embd": config.width, "n_layer": config.depth, "n_head": config.heads, "n_positions": rows}
        facts |= {"n_inner": config.feedforward, "activation_function": _NAMES[generic.activation]}
        return facts | {"layer_norm_epsilon": config.norm_epsilon}
    if generic.family == "distilbert":
        facts |= {
            "dim": config.width,
            "n_layers": config.depth,
            "n_heads": config.heads,
            "hidden_dim": config.feedforward,
        }
        return facts | {"activation": _NAMES[generic.activation], "max_position_embeddings": rows}
    facts |= {"hidden_size": config.width, "num_hidden_layers": config.depth, "num_attention_heads": config.heads}
    if generic.family == "opt":
        facts |= {"ffn_dim": config.feedforward, "max_position_embeddings": generic.positions}
        facts |= {"activation_function": _NAMES[generic.activation], "enable_bias": generic.bias}
        facts |= {"do_layer_norm_before": generic.norm_first, "word_embed_proj_dim": config.width}
        return facts | {"_remove_final_layer_norm": generic.norm_first and not generic.final_norm}
    facts["intermediate_size"] = config.feedforward
    if generic.family == "modernbert":
        return facts | _modernbert(generic, config)
    facts |= {"hidden_act": _NAMES[generic.activation], "layer_norm_eps": config.norm_epsilon}
    return facts | {"max_position_embeddings": rows, "type_vocab_size": 2 if generic.family == "bert" else 1}


def _modernbert(generic: GenericConfig, config: ModelConfig) -> dict[str, Any]:
    angles = {"full_attention": config.rotary_base, "sliding_attention": generic.local_base}
    return {
        "max_position_embeddings": config.context,
        "norm_eps": config.norm_epsilon,
        "norm_bias": generic.norm_bias,
        "attention_bias": generic.bias,
        "mlp_bias": generic.bias,
        "hidden_activation": _NAMES[generic.activation],
        "local_attention": 2 * generic.window,
        "layer_types": [
            "sliding_attention" if place in generic.local_layers else "full_attention" for place in range(config.depth)
        ],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in angles.items()},
        "classifier_activation": _NAMES[generic.transform_activation],
        "classifier_bias": generic.transform_bias,
        "classifier_pooling": "cls" if generic.pooling == "first" else "mean",
        "decoder_bias": generic.head_bias,
    }


def generic_tensors(bundle: Bundle) -> dict[str, Tensor]:
    """Its tensors by their names."""
    generic, config = _known(bundle)
    family, own = ARCHITECTURES[generic.family], bundle.model.state_dict()
    theirs: dict[str, Tensor] = {f"{family.inside}{family.embedding}.weight": own["backbone.embedding.weight"]}
    if family.positions:
        table = own["backbone.positions.weight"]
        before = table.new_zeros(_offset(bundle), config.width)
        theirs[f"{family.inside}{family.positions}.weight"] = torch.cat((before, table))
    if family.types:  # folded into the positions
        rows = 2 if generic.family == "bert" else 1
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
    if language and generic.head_bias:
        theirs |= dict.fromkeys(family.head_bias, own["head.bias"])
    return theirs


def _layer(family: Architecture, own: dict[str, Tensor], here: str) -> dict[str, Tensor]:
    theirs: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        qkv_proj = own.get(f"{here}attention.qkv_proj.{kind}")
        if family.joined and qkv_proj is not None:
            parts = qkv_proj.chunk(3)
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


def _known(bundle: Bundle) -> tuple[GenericConfig, ModelConfig]:
    assert bundle.config.generic is not None
    return bundle.config.generic, bundle.config


_AUTO = {
    "CausalLM": "AutoModelForCausalLM",
    "MaskedLM": "AutoModelForMaskedLM",
    "SequenceClassification": "AutoModelForSequenceClassification",
}


def export_hf(bundle: Bundle, out: Path) -> str:
    """Write the folder, and return the name of the stock class that its config.json asks for."""
    check_export_folder(out)
    check_expressible(bundle)
    if bundle.config.generic:
        architecture, purpose = generic_class(bundle)
        config, tensors = _config(bundle, architecture, architecture), generic_tensors(bundle)
    else:
        family, purpose = _architecture(bundle)
        architecture = f"{family}For{purpose}"
        config = _config(bundle, family, architecture)
        tensors = opt_tensors(bundle.model) if family == "OPT" else llama_tensors(bundle.model)
    with atomic_folder(out, kind="export", about={"to": "hf", "architecture": architecture}) as draft:
        write_json(draft / "config.json", config)
        _save(draft / "model.safetensors", tensors)
        typed_mask, pair = purpose == "MaskedLM", bundle.task.pair
        write_tokenizer(bundle.tokenizer, draft, bundle.config.context, typed_mask=typed_mask, pair=pair)
        (draft / "README.md").write_text(_readme(bundle, architecture, purpose), encoding="utf-8")
    return architecture


def check_export_folder(out: Path) -> None:
    """Nothing that is there already is written over."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already and not empty; choose another --out")


def check_expressible(bundle: Bundle) -> None:
    """Refuse what lies outside of the network itself."""
    if bundle.windows:
        raise UsageError(
            f"{bundle.path} reads long texts in windows (labelled.long_texts), which no stock architecture can express; "
            "fine-tune with truncate to export"
        )


def _architecture(bundle: Bundle) -> tuple[str, str]:
    """The stock architecture that computes the same, and what it is for."""
    language = isinstance(bundle.model.head, LanguageHead)
    both = bundle.attention == "bidirectional"
    if bundle.config.block == "modern":
        if bundle.task.kind == "rating" and not both:
            raise UsageError(
                f"{bundle.path} gives a rating by a head with a bias, which the head of a stock Llama lacks; "
                "fine-tune with --transfer.attention both to export, or use --to onnx"
            )
        if language:
            return ("EuroBert", "MaskedLM") if both else ("Llama", "CausalLM")
        return ("EuroBert" if both else "Llama"), "SequenceClassification"
    if both:
        raise UsageError(
            f"{bundle.path} is a classic network that reads both ways, which no stock architecture can express; "
            "modern presets can be exported, and classic ones that read causally"
        )
    return "OPT", "CausalLM" if language else "SequenceClassification"


def _config(bundle: Bundle, family: str, architecture: str) -> dict[str, Any]:
    special, backbone = bundle.tokenizer.special, bundle.model.backbone
    shape = generic_hf_config(bundle) if bundle.config.generic else {"model_type": family.lower()}
    if not bundle.config.generic:
        shape |= opt_shape(backbone) if family == "OPT" else llama_shape(backbone)
    config: dict[str, Any] = {
        "architectures": [architecture],
        **shape,
        "bos_token_id": special.sos,
        "pad_token_id": special.pad,
        "eos_token_id": special.eos,
        "dtype": "float32",
        "use_cache": True,
    }
    if family == "EuroBert":
        config |= {"classifier_pooling": "mean", "mask_token_id": special.mask if special.mask is not None else 3}
    if bundle.head_type == "classify":
        names = bundle.labels or ("rating",)
        config["id2label"] = {str(index): label for index, label in enumerate(names)}
        config["label2id"] = {label: index for index, label in enumerate(names)}
        config["problem_type"] = _PROBLEMS[bundle.task.kind]
        if bundle.task.kind != "classes" or bundle.task.pair:
            config["headstart"] = bundle.task.facts()  # thresholds or bounds, for whoever wants them
    return config


_PROBLEMS = {"classes": "single_label_classification", "labels": "multi_label_classification", "rating": "regression"}


def _save(path: Path, tensors: Tensors) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        # a copy each: parts of one matrix share their memory, which the format refuses
        whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        save_file(whole, path, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        raise StoreError(f"cannot write {path}: {error}") from error


_TASK_PHRASES = {
    "classes": "",
    "labels": ', top_k=None, function_to_apply="sigmoid"',
    "rating": ', function_to_apply="none"',
}


def _problem_type(task: Task) -> str:
    """What the numbers of an exported classifier mean."""
    if isinstance(task, Regression):
        return (
            f"Its one output is the rating; the scale stands in the last layer. `headstart predict` answers nothing below "
            f"{task.lowest:g} or above {task.highest:g}: cut the output there to do the same."
        )
    if isinstance(task, MultiLabel):
        least = ", ".join(f"{label} {share:.6g}" for label, share in task.facts()["thresholds"].items())
        return (
            "Probabilities are calibrated, each label by itself: the temperature stands in the last layer. A label is given "
            f"from its threshold on (`headstart.thresholds` in config.json): {least}."
        )
    return (
        "Probabilities are calibrated: the temperature stands in the last layer. Answers withheld below a threshold "
        "(`headstart predict --abstain`) are not part of it."
    )


def _readme(bundle: Bundle, architecture: str, purpose: str) -> str:
    answers = bundle.head_type == "classify"
    lines = [
        f"Exported by Headstart {__version__} as a stock {architecture}: weights, shape and tokenizer, no code.",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {_AUTO[purpose]}{', pipeline' if answers else ''}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("THIS FOLDER")',
        f'model = {_AUTO[purpose]}.from_pretrained("THIS FOLDER")',
    ]
    if answers:
        text = (
            '{"text": "the first text", "text_pair": "the second"}' if bundle.task.pair else '"a text you wonder about"'
        )
        lines += [
            'classify = pipeline("text-classification", model=model, tokenizer=tokenizer, truncation=True)',
            f"print(classify({text}{_TASK_PHRASES[bundle.task.kind]}))",
        ]
    lines += [
        "```",
        "",
        f"It reads {bundle.config.context} tokens, the start token included; longer texts are cut there with "
        "`truncation=True`, as `headstart predict` cuts them.",
    ]
    if answers:
        lines.append(_problem_type(bundle.task))
    if purpose == "MaskedLM":
        lines.append("`<mask>` in a text is the mask; write no other special token into one.")
    if bundle.objective == "hybrid":
        lines.append(
            "It learnt by the hybrid objective: **the scores at a place are for the token after it**, so a masked token "
            "is read off the place before the mask (`logits[:, i - 1]`), and `pipeline('fill-mask')`, which reads the "
            "mask's own place, does not apply. With `model_type` `llama` and architecture `LlamaForCausalLM` in "
            "config.json the same weights read left to right and continue text."
        )
    if isinstance(bundle.tokenizer, SentencePieceTokenizer):
        lines.append(
            "Its tokenizer was converted from SentencePiece and reads every piece of the vocabulary as the original does; "
            "only letters that carry several combining marks in an unusual order may be split otherwise."
        )
    if architecture.startswith("OPT") and not bundle.config.generic:
        lines.append(
            "OPT has no bias in its head and no sinusoids: every channel stands twice, which leaves the norms as they "
            "were, one channel is 1 for the bias, and the position table holds the sinusoids. It computes the same "
            "numbers, at twice the width."
        )
    return "\n".join(lines) + "\n"
