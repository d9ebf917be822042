"""Models of transformers as ours, read from their folder without transformers: Llama and EuroBERT here, others in hf_stock.

Every setting that would change a number is looked at, and one that our block does not have is refused by its name.
Grouped keys and values are repeated, which computes the same. Weights are safetensors only: a pickled file may run code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.config import ModelConfig, RuntimeConfig, Visibility
from headstart.errors import ConfigError, StoreError, TransferError
from headstart.files import write_json
from headstart.interop.hf_families import FAMILIES
from headstart.interop.hf_folder import LONGEST, Brought, Found, find_model, read_facts, read_weights
from headstart.interop.hf_stock import read_stock
from headstart.interop.hf_tokens import read_tokenizer
from headstart.interop.hf_weights import MODERN
from headstart.kinds import Classes
from headstart.layering import layered
from headstart.model.backbone import Backbone
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.rundir import RunFolder
from headstart.store.tensors import load_into

_READS: dict[str, tuple[Visibility, str]] = {"llama": ("causal", "causal"), "eurobert": ("both", "masked")}
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}


def import_hf(source: str, out: Path, *, command: str = "") -> str:
    """Turn a model of transformers into a run folder of ours; returns what was done, in words."""
    folder = find_model(source)
    run = RunFolder.create(out, kind="import", command=command, config=RuntimeConfig(), inputs={"source": source})
    with run.discarded_on_error(new=True):
        about = bring_in(source, folder, out / "bundle")
        write_json(out / "result.json", about)
    return f"{source}, a {about['architecture']}: {about['parameters']:,} parameters; model in {out}"


def bring_in(source: str, folder: Path, out: Path) -> dict[str, Any]:
    """Write the bundle of a model of transformers; returns what is known of it."""
    found = read_facts(source, folder)
    if found.kind not in _READS and found.kind not in FAMILIES:
        known = ", ".join([*_READS, *FAMILIES])
        raise found.refused(f"is a {found.kind}, whose layers are not those of Headstart ({known} are)")
    if found.kind in _READS:
        _check_kind(found)
    weights = read_weights(found)
    brought = _modern(found, weights) if found.kind in _READS else read_stock(found, weights)
    tokenizer = read_tokenizer(source, folder, found.facts, exact=found.classifies)
    config, vocab_size = brought.config, int(found.facts["vocab_size"])
    if tokenizer.vocab_size > vocab_size:
        raise found.refused(f"has a vocabulary of {vocab_size:,}, its tokenizer one of {tokenizer.vocab_size:,}")
    labels, objective = _labels(found) if found.classifies else (), brought.objective
    head: LanguageHead | ClassifierHead = LanguageHead(config, vocab_size)
    if found.classifies:
        head, objective = ClassifierHead(config, len(labels), brought.visibility), "classify"
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
    bundle = Bundle(model, tokenizer, Classes(labels), visibility=brought.visibility, objective=objective, about=about)
    save_bundle(out, bundle)
    return about


def _modern(found: Found, weights: Mapping[str, Tensor]) -> Brought:
    """A Llama or a EuroBERT, whose block is our modern one."""
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    head_weight = bare.get("lm_head.weight")
    # by the weights, not by config.json, which need not say what is usual
    tied = head_weight is None or torch.equal(head_weight, bare.get("embed_tokens.weight", head_weight))
    config = _shape(found, tied)
    return Brought(config, _renamed(bare, config, found.classifies), *_READS[found.kind])


def _shape(found: Found, tied: bool) -> ModelConfig:
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
            "context": min(int(facts["max_position_embeddings"]), LONGEST),
            "rotary_base": float(rope.get("rope_theta") or facts.get("rope_theta") or 10000.0),
            "norm_epsilon": float(facts.get("rms_norm_eps", 1e-6 if facts["model_type"] == "llama" else 1e-5)),
            "tied": tied,
        }
        return layered(ModelConfig, shape)
    except (KeyError, TypeError, ValueError) as error:
        raise found.refused(f"has a config.json that says too little: {error}") from None
    except ConfigError as error:
        raise found.refused(f"has a shape that is none of ours: {error}") from None


def _check_kind(found: Found) -> None:
    """Refuse what our block does not compute."""
    facts = found.facts
    found.check(_FIXED, "the modern block")
    rope = facts.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise found.refused(f"has rope_type {rope['rope_type']}, which the modern block has not")


def _labels(found: Found) -> tuple[str, ...]:
    if found.facts.get("problem_type") not in (None, "single_label_classification"):
        raise found.refused(f"has problem_type {found.facts['problem_type']}, where a text has one label here")
    pooling = found.facts.get("classifier_pooling", "late")
    if found.facts["model_type"] == "eurobert" and pooling != "mean":
        raise found.refused(f"has classifier_pooling {pooling}, where both-way classifiers take the mean here")
    named = found.facts.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # what transformers leaves out
    return tuple(str(named[str(place)]) for place in range(len(named)))


def _renamed(theirs: Mapping[str, Tensor], config: ModelConfig, classifies: bool) -> dict[str, Tensor]:
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
            ours[f"backbone.layers.{layer}.attention.inward.weight"] = whole
    return ours | {names.get(name, name): tensor for name, tensor in left.items()}


def _repeated(weight: Tensor, config: ModelConfig) -> Tensor:
    """Keys or values that several heads share, once for each of them; queries come through as they are."""
    head = config.width // config.heads
    groups = weight.shape[0] // head
    if groups == 0 or config.heads % groups:
        return weight
    return weight.view(groups, head, -1).repeat_interleave(config.heads // groups, dim=0).reshape(config.width, -1)
