"""Bundle: a trained model as a folder, with everything needed to predict, generate, evaluate and transfer.

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
from headstart.store.model_card import CARD_FILE, BundleFacts, model_card, redact_paths
from headstart.store.tensors import Storage, load_into, load_packed, pack_tensors, save_tensors
from headstart.tasks import SingleLabel, Task, task_from
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

HeadType = Literal["language", "classify"]
NO_TASK: Task = SingleLabel(())
"""The task of a language model."""


@dataclass(frozen=True)
class Bundle:
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
    def path(self) -> Path:
        """The folder it was loaded from; raises ValueError if there is none."""
        if self.folder is None:
            raise ValueError("this model was not loaded from a folder")
        return self.folder

    @property
    def name(self) -> str:
        """Its name for messages: its folder, `starter:NAME`, or what it was imported from."""
        return str(self.about.get("imported_from", display_name(self.path)))

    @property
    def config(self) -> ModelConfig:
        """The configuration of the backbone."""
        config: ModelConfig = self.model.backbone.config
        return config


def save_bundle(
    folder: Path, bundle: Bundle, *, storage: Storage = "fp32", extra: Mapping[str, bytes] | None = None
) -> None:
    """Write a bundle atomically. File names in its `about` lose their folders.

    Args:
        storage: the storage type of the weights; computation is in fp32 in any case.
        extra: further files: name to content.
    """
    head_type, model, labels = bundle.head_type, bundle.model, list(bundle.labels)
    with atomic_folder(folder, kind="bundle", about={"head_type": head_type, "labels": labels}) as draft:
        (draft / "tokenizer").mkdir()
        bundle.tokenizer.save(draft / "tokenizer")
        save_tensors(draft / "backbone.safetensors", pack_tensors(model.backbone.state_dict(), storage))
        save_tensors(draft / "head.safetensors", pack_tensors(model.head.state_dict(), storage))
        facts: BundleFacts = {
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
    """The block type of a bundle, read without loading or checking the rest."""
    model = _facts(folder).get("model")
    return str(model.get("block")) if isinstance(model, dict) else "classic"


def bundle_objective(folder: Path) -> str:
    """The training objective of a bundle, read without loading or checking the rest."""
    return str(_facts(folder).get("objective", "classify"))


def _facts(folder: Path) -> dict[str, Any]:
    facts = read_json(find_bundle(folder) / "bundle.json")
    return facts if isinstance(facts, dict) else {}


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
    """Load a bundle and check all of its files.

    Args:
        head_type: the type of head that the caller needs; a bundle of another type is refused.
    """
    path = find_bundle(folder)
    read_manifest(path, kind="bundle")
    facts = _parse_facts(path / "bundle.json")
    if head_type is not None and facts.head_type != head_type:
        phrases = {
            "language": "a language model (from headstart pretrain)",
            "classify": "a classifier (from headstart finetune)",
        }
        raise UsageError(f"{folder} holds {phrases[facts.head_type]}; this needs {phrases[head_type]}")
    tokenizer = load_tokenizer(path / "tokenizer")
    if tokenizer.digest != facts.tokenizer_digest or tokenizer.vocab_size > facts.vocab_size:
        raise StoreError(f"{path / 'tokenizer'} is not the tokenizer this model was trained with")
    weights = {name: load_packed(path / f"{name}.safetensors") for name in ("backbone", "head")}
    # checked before building the model: a damaged shape could allocate all of the memory
    expected = facts.num_parameters()
    saved = sum(tensor.numel() for tensors in weights.values() for tensor in tensors.values())
    if expected != saved:
        raise StoreError(
            f"{path / 'bundle.json'} is damaged: it speaks of {expected:,} parameters, the files hold {saved:,}"
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


def _parse_facts(path: Path) -> _ParsedFacts:
    facts = read_json(path)
    try:
        config = ModelConfig.model_validate(facts["model"])
        head_type, vocab_size, labels = facts["head_type"], int(facts["vocab_size"]), tuple(facts["labels"])
        windows, about = bool(facts["windows"]), dict(facts["about"])
        attention: AttentionDirection = "bidirectional" if facts["attention"] == "bidirectional" else "causal"
        objective = str(facts["objective"])
        if head_type not in get_args(HeadType) or not all(isinstance(label, str) for label in facts["labels"]):
            raise ValueError(f"it holds a model for {head_type!r}, with labels {facts['labels']!r}"[:200])
        task = task_from(facts.get("task"), labels)
        if head_type == "language" and task.outputs:
            raise ValueError(f"it holds a language model whose answers are {task.kind}")
        return _ParsedFacts(
            head_type, config, vocab_size, task, windows, attention, objective, about, facts.get("tokenizer")
        )
    except ValidationError as error:
        raise StoreError(f"{path} is damaged: {describe_validation_error(error, ModelConfig)}") from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # int() overflows on JSON's Infinity
        raise StoreError(f"{path} is damaged: {error}") from None
