"""A trained model as a folder: all that predicting, generating, evaluating and transferring take.

README.md  bundle.json  tokenizer/  backbone.safetensors  head.safetensors  [membership.bin]  manifest.json
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from headstart.config.merge import describe_validation_error
from headstart.config.schema import AttentionDirection, ModelConfig
from headstart.errors import StoreError, UsageError
from headstart.files import atomic_folder, read_json, read_manifest, write_json
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.parameter_count import count_parameters
from headstart.model.transformer import Backbone
from headstart.store.locate import display_name, find_bundle
from headstart.store.model_card import CARD_FILE, model_card, redact_paths
from headstart.store.tensors import Storage, load_into, load_packed, pack_tensors, save_tensors
from headstart.tasks import SingleLabel, Task, task_from
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

HeadType = Literal["language", "classify"]
NO_ANSWERS: Task = SingleLabel(())
"""The target of a language model."""


@dataclass(frozen=True)
class Bundle:
    """A model, its tokenizer, and what its outputs mean: what `save_bundle` writes and `load_bundle` returns."""

    model: Model[Any]
    tokenizer: Tokenizer
    task: Task = NO_ANSWERS
    """What its answers are: classes, labels or a rating; a language model has none."""
    windows: bool = False
    """Whether a classifier reads texts beyond its context in windows."""
    attention: AttentionDirection = "causal"
    """How a classifier reads, or how one made from this language model should."""
    objective: str = "classify"
    """What it learnt by: causal, masked, hybrid, or classify."""
    about: dict[str, Any] = field(default_factory=dict)
    """Figures and origins worth keeping with the model (result, receipt, data); plain values."""
    folder: Path | None = None
    """Where it was loaded from; None for a model that was not."""

    def __post_init__(self) -> None:
        wanted = self.model.head.linear.out_features if self.head_type == "classify" else 0
        if self.task.outputs != wanted:
            raise ValueError(f"the head has {wanted} outputs, its target ({self.task.kind}) {self.task.outputs}")

    @property
    def head_type(self) -> HeadType:
        """What the head is for."""
        return "language" if isinstance(self.model.head, LanguageHead) else "classify"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the outputs in order; empty for a rating and for a language model."""
        return self.task.labels

    @property
    def path(self) -> Path:
        """The folder it was loaded from."""
        if self.folder is None:
            raise ValueError("this model was not loaded from a folder")
        return self.folder

    @property
    def name(self) -> str:
        """Where it comes from, as a person knows it: its folder, a starter's name, or what it was imported from."""
        return str(self.about.get("imported_from", display_name(self.path)))

    @property
    def config(self) -> ModelConfig:
        """The shape of the backbone."""
        config: ModelConfig = self.model.backbone.config
        return config


def save_bundle(
    folder: Path, bundle: Bundle, *, storage: Storage = "fp32", extra: Mapping[str, bytes] | None = None
) -> None:
    """Write a bundle whole. Files in its `about` are kept by their names, without their folders.

    Args:
        storage: what the weights are kept in; they are computed in fp32 in any case.
        extra: further files, by name.
    """
    head_type, model, labels = bundle.head_type, bundle.model, list(bundle.labels)
    with atomic_folder(folder, kind="bundle", about={"head_type": head_type, "labels": labels}) as draft:
        (draft / "tokenizer").mkdir()
        bundle.tokenizer.save(draft / "tokenizer")
        save_tensors(draft / "backbone.safetensors", pack_tensors(model.backbone.state_dict(), storage))
        save_tensors(draft / "head.safetensors", pack_tensors(model.head.state_dict(), storage))
        facts = {
            "head_type": head_type,
            "model": bundle.config.model_dump(mode="json"),
            "vocab_size": model.backbone.vocab_size,
            "tokenizer": bundle.tokenizer.digest,
            "labels": labels,
            "task": bundle.task.facts() if head_type == "classify" else None,
            "windows": bundle.windows,
            "attention": bundle.attention,
            "objective": bundle.objective,
            "about": redact_paths(bundle.about),
        }
        if storage != "fp32":
            facts["weights"] = storage
        write_json(draft / "bundle.json", facts)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        (draft / CARD_FILE).write_text(model_card(facts, parameters), encoding="utf-8", newline="\n")
        for name, content in (extra or {}).items():
            (draft / name).write_bytes(content)


def bundle_block(folder: Path) -> str:
    """The kind of network in a bundle, without loading it; what else is in it is checked when it is loaded."""
    model = _facts(folder).get("model")
    return str(model.get("block")) if isinstance(model, dict) else "classic"


def bundle_objective(folder: Path) -> str:
    """What the network of a bundle was trained to do, in the same way."""
    return str(_facts(folder).get("objective", "classify"))


def _facts(folder: Path) -> dict[str, Any]:
    facts = read_json(find_bundle(folder) / "bundle.json")
    return facts if isinstance(facts, dict) else {}


def load_bundle(folder: Path, *, head_type: HeadType | None = None) -> Bundle:
    """Read a bundle, every file checked; `task` names what the caller needs it for."""
    path = find_bundle(folder)
    read_manifest(path, kind="bundle")
    facts = read_json(path / "bundle.json")
    try:
        config = ModelConfig.model_validate(facts["model"])
        found, vocab_size, labels = facts["head_type"], int(facts["vocab_size"]), tuple(facts["labels"])
        windows, about = bool(facts["windows"]), dict(facts["about"])
        attention: AttentionDirection = "bidirectional" if facts["attention"] == "bidirectional" else "causal"
        objective = str(facts["objective"])
        if found not in get_args(HeadType) or not all(isinstance(label, str) for label in facts["labels"]):
            raise ValueError(f"it holds a model for {found!r}, with labels {facts['labels']!r}"[:200])
        task = task_from(facts.get("task"), labels)
        if found == "language" and task.outputs:
            raise ValueError(f"it holds a language model whose answers are {task.kind}")
    except ValidationError as error:
        raise StoreError(
            f"{path / 'bundle.json'} is damaged: {describe_validation_error(error, ModelConfig)}"
        ) from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # JSON of Python's has an Infinity
        raise StoreError(f"{path / 'bundle.json'} is damaged: {error}") from None
    if head_type is not None and found != head_type:
        wanted = {
            "language": "a language model (from headstart pretrain)",
            "classify": "a classifier (from headstart finetune)",
        }
        raise UsageError(f"{folder} holds {wanted.get(found, found)}; this needs {wanted[head_type]}")
    tokenizer = load_tokenizer(path / "tokenizer")
    if tokenizer.digest != facts.get("tokenizer") or tokenizer.vocab_size > vocab_size:
        raise StoreError(f"{path / 'tokenizer'} is not the tokenizer this model was trained with")
    head: LanguageHead | ClassifierHead
    classes, bias = task.outputs, task.kind == "rating"
    weights = {part: load_packed(path / f"{part}.safetensors") for part in ("backbone", "head")}
    # before anything is built: a shape that asks for all the memory there is must have the weights to show for it
    told = count_parameters(
        config, vocab_size, None if found == "language" else classes, attention=attention, bias=bias
    ).total
    saved = sum(tensor.numel() for part in weights.values() for tensor in part.values())
    if told != saved:
        raise StoreError(
            f"{path / 'bundle.json'} is damaged: it speaks of {told:,} parameters, the files hold {saved:,}"
        )
    backbone = Backbone(config, vocab_size)
    head = (
        LanguageHead(config, vocab_size)
        if found == "language"
        else ClassifierHead(config, classes, attention, bias=bias)
    )
    load_into(backbone, weights["backbone"], str(path / "backbone.safetensors"))
    load_into(head, weights["head"], str(path / "head.safetensors"))
    return Bundle(Model(backbone, head), tokenizer, task, windows, attention, objective, about, path)
