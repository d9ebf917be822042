"""Bundle: a trained model as a folder, with everything needed to predict, generate, evaluate and transfer.

README.md  bundle.json  tokenizer/  backbone.safetensors  head.safetensors  [membership.bin]  manifest.json

A classifier is a network (`Bundle`), a linear classifier (`LinearBundle`, in `store/linear_bundle.py`), or a blend of the
two (`BlendBundle`), whose folder also has linear.json and linear.safetensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from headstart.config.merge import describe_validation_error
from headstart.config.schema import AttentionDirection, ModelConfig
from headstart.errors import StoreError, UsageError
from headstart.files import atomic_folder, read_json, read_manifest, write_json
from headstart.linear.classifier import LinearClassifier
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.parameter_count import count_parameters
from headstart.model.transformer import Backbone
from headstart.store.linear_bundle import (
    InFolder,
    LinearBundle,
    LinearPart,
    classifier_kind,
    linear_summary,
    load_linear_bundle,
    no_network,
    read_linear_part,
    save_linear_bundle,
    write_linear,
)
from headstart.store.locate import find_bundle
from headstart.store.model_card import CARD_FILE, BundleFacts, model_card, redact_paths
from headstart.store.tensors import Storage, load_into, load_packed, pack_tensors, save_tensors
from headstart.tasks import SingleLabel, Task, task_from
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

HeadType = Literal["language", "classify"]
NO_TASK: Task = SingleLabel(())
"""The task of a language model."""


@dataclass(frozen=True)
class Bundle(InFolder):
    """A model, its tokenizer and its task, as `save_bundle` writes and `load_bundle` returns them."""

    model: Model[Any]
    tokenizer: Tokenizer
    task: Task = NO_TASK
    """The task of a classifier or regressor; a language model has none."""
    windows: bool = False
    """Whether a classifier splits texts longer than its context into windows."""
    attention: AttentionDirection = "causal"
    """The attention direction of a classifier, or of one to be made from this language model."""
    objective: str = "classify"
    """The training objective: causal, masked, hybrid, or classify."""
    about: dict[str, Any] = field(default_factory=dict)
    """Metrics and provenance (result, receipt, data) as JSON values."""
    folder: Path | None = None
    """The folder it was loaded from, if any."""

    def __post_init__(self) -> None:
        outputs = self.model.head.linear.out_features if self.head_type == "classify" else 0
        if self.task.outputs != outputs:
            raise ValueError(f"the head has {outputs} outputs, its target ({self.task.kind}) {self.task.outputs}")

    @property
    def head_type(self) -> HeadType:
        """The type of the head: "language", or "classify" for classifiers and regressors."""
        return "language" if isinstance(self.model.head, LanguageHead) else "classify"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the outputs in order; empty for a rating and for a language model."""
        return self.task.labels

    @property
    def config(self) -> ModelConfig:
        """The configuration of the backbone."""
        config: ModelConfig = self.model.backbone.config
        return config


@dataclass(frozen=True)
class BlendBundle(InFolder):
    """A network and a linear classifier of the same labels, blended by `linear.blend.blend_logits`."""

    network: Bundle
    linear: LinearClassifier
    weight: float
    """The weight of the network; that of the linear classifier is 1 minus it."""
    temperature: float = 1.0
    about: dict[str, Any] = field(default_factory=dict)
    """Metrics and provenance of the blend as JSON values; those of its network are in `network.about`."""
    folder: Path | None = None
    """The folder it was loaded from, if any."""

    def __post_init__(self) -> None:
        LinearPart(
            self.linear, self.network.task, self.weight, self.temperature
        )  # raises ValueError if they do not fit

    @property
    def task(self) -> Task:
        """The task, which is that of the network."""
        return self.network.task

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in order."""
        return self.network.task.labels


AnyClassifierBundle = Bundle | LinearBundle | BlendBundle


def save_bundle(
    folder: Path, bundle: AnyClassifierBundle, *, storage: Storage = "fp32", extra: Mapping[str, bytes] | None = None
) -> None:
    """Write a bundle atomically. File names in its `about` lose their folders.

    Args:
        storage: the storage type of a network's weights; in memory they are fp32 in any case.
        extra: further files: name to content.
    """
    if isinstance(bundle, LinearBundle):
        save_linear_bundle(folder, bundle, extra=extra)
        return
    network = bundle.network if isinstance(bundle, BlendBundle) else bundle
    head_type, labels = network.head_type, list(network.labels)
    facts = _network_facts(network, storage)
    summary = None
    if isinstance(bundle, BlendBundle):
        summary = linear_summary(bundle.linear)
        facts |= {
            "classifier": "blend",
            "blend": {"weight": float(bundle.weight), "temperature": float(bundle.temperature)},
            "about": redact_paths(bundle.about),
            "network_about": facts["about"],
        }
    with atomic_folder(folder, kind="bundle", about={"head_type": head_type, "labels": labels}) as draft:
        (draft / "tokenizer").mkdir()
        network.tokenizer.save(draft / "tokenizer")
        save_tensors(draft / "backbone.safetensors", pack_tensors(network.model.backbone.state_dict(), storage))
        save_tensors(draft / "head.safetensors", pack_tensors(network.model.head.state_dict(), storage))
        if isinstance(bundle, BlendBundle):
            write_linear(draft, bundle.linear)
        write_json(draft / "bundle.json", facts)
        parameters = sum(parameter.numel() for parameter in network.model.parameters())
        (draft / CARD_FILE).write_text(model_card(facts, parameters, summary), encoding="utf-8", newline="\n")
        for name, content in (extra or {}).items():
            (draft / name).write_bytes(content)


def _network_facts(bundle: Bundle, storage: Storage) -> BundleFacts:
    """The content of bundle.json for a network."""
    facts: BundleFacts = {
        "head_type": bundle.head_type,
        "model": bundle.config.model_dump(mode="json"),
        "vocab_size": bundle.model.backbone.vocab_size,
        "tokenizer": bundle.tokenizer.digest,
        "labels": list(bundle.labels),
        "task": bundle.task.facts() if bundle.head_type == "classify" else None,
        "windows": bundle.windows,
        "attention": bundle.attention,
        "objective": bundle.objective,
        "about": redact_paths(bundle.about),
    }
    if storage != "fp32":
        facts["weights"] = storage
    return facts


@dataclass(frozen=True)
class _ParsedFacts:
    """The validated content of bundle.json."""

    head_type: HeadType
    config: ModelConfig
    vocab_size: int
    task: Task
    windows: bool
    attention: AttentionDirection
    objective: str
    about: dict[str, Any]
    tokenizer_digest: Any

    @property
    def head_bias(self) -> bool:
        """Whether the head has a bias whatever the block type: that of a regressor has."""
        return self.task.kind == "rating"

    def num_parameters(self) -> int:
        """The number of parameters by formula."""
        classes = None if self.head_type == "language" else self.task.outputs
        return count_parameters(
            self.config, self.vocab_size, classes, attention=self.attention, bias=self.head_bias
        ).total

    def build_head(self) -> LanguageHead | ClassifierHead:
        """Build the head with newly initialized weights."""
        if self.head_type == "language":
            return LanguageHead(self.config, self.vocab_size)
        return ClassifierHead(self.config, self.task.outputs, self.attention, bias=self.head_bias)


def load_bundle(folder: Path, *, head_type: HeadType | None = None) -> Bundle:
    """Load a network and check all of its files; the network of a blend serves as a backbone.

    Args:
        head_type: the type of head that the caller needs; a bundle of another type is refused, and so is a blend if a
            classifier is needed, because its predictions are not those of its network alone.
    """
    kind = classifier_kind(folder)
    if kind == "linear":
        raise no_network(folder)
    if kind == "blend" and head_type == "classify":
        raise UsageError(f"{folder} contains a network and a linear classifier; this command needs a network alone")
    return _load_network(folder, head_type)


def _load_network(folder: Path, head_type: HeadType | None) -> Bundle:
    path = find_bundle(folder)
    read_manifest(path, kind="bundle")
    facts = _parse_facts(path / "bundle.json")
    if head_type is not None and facts.head_type != head_type:
        phrases = {
            "language": "a language model (from headstart pretrain)",
            "classify": "a classifier (from headstart finetune)",
        }
        raise UsageError(f"{folder} contains {phrases[facts.head_type]}; this command needs {phrases[head_type]}")
    tokenizer = load_tokenizer(path / "tokenizer")
    if tokenizer.digest != facts.tokenizer_digest or tokenizer.vocab_size > facts.vocab_size:
        raise StoreError(f"{path / 'tokenizer'} is not the tokenizer that this model was trained with")
    weights = {name: load_packed(path / f"{name}.safetensors") for name in ("backbone", "head")}
    # checked before building the model: a damaged shape could allocate all of the memory
    expected = facts.num_parameters()
    saved = sum(tensor.numel() for tensors in weights.values() for tensor in tensors.values())
    if expected != saved:
        raise StoreError(
            f"{path / 'bundle.json'} is damaged: it describes {expected:,} parameters, and the files contain {saved:,}"
        )
    backbone, head = Backbone(facts.config, facts.vocab_size), facts.build_head()
    load_into(backbone, weights["backbone"], str(path / "backbone.safetensors"))
    load_into(head, weights["head"], str(path / "head.safetensors"))
    return Bundle(
        Model(backbone, head),
        tokenizer,
        facts.task,
        facts.windows,
        facts.attention,
        facts.objective,
        facts.about,
        path,
    )


def load_classifier(folder: Path) -> AnyClassifierBundle:
    """Load a classifier of any kind (network, linear or blend) and check all of its files."""
    path = find_bundle(folder)
    kind = classifier_kind(path)
    if kind == "linear":
        return load_linear_bundle(folder)
    network = _load_network(folder, "classify")
    if kind == "network":
        return network
    facts = read_json(path / "bundle.json")
    try:
        part = read_linear_part(path, facts)
        network = replace(network, about=dict(facts["network_about"]))
        return BlendBundle(network, part.classifier, part.weight, part.temperature, dict(facts["about"]), path)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path / 'bundle.json'} is damaged: {error}") from None


def _parse_facts(path: Path) -> _ParsedFacts:
    facts = read_json(path)
    try:
        config = ModelConfig.model_validate(facts["model"])
        head_type, vocab_size, labels = facts["head_type"], int(facts["vocab_size"]), tuple(facts["labels"])
        windows, about = bool(facts["windows"]), dict(facts["about"])
        attention: AttentionDirection = "bidirectional" if facts["attention"] == "bidirectional" else "causal"
        objective = str(facts["objective"])
        if head_type not in get_args(HeadType) or not all(isinstance(label, str) for label in facts["labels"]):
            raise ValueError(f"it describes a model for {head_type!r}, with labels {facts['labels']!r}"[:200])
        task = task_from(facts.get("task"), labels)
        if head_type == "language" and task.outputs:
            raise ValueError(f"it describes a language model whose task is {task.kind}")
        return _ParsedFacts(
            head_type, config, vocab_size, task, windows, attention, objective, about, facts.get("tokenizer")
        )
    except ValidationError as error:
        raise StoreError(f"{path} is damaged: {describe_validation_error(error, ModelConfig)}") from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # int() overflows on JSON's Infinity
        raise StoreError(f"{path} is damaged: {error}") from None
