"""LinearBundle: a linear classifier as a folder, without torch.

README.md  bundle.json  linear.json  linear.safetensors  manifest.json

linear.safetensors has the arrays, the weights as fp16, and linear.json everything else. A blend's bundle
(`store/bundle.py`) holds the same two files beside those of a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from headstart.errors import StoreError, UsageError
from headstart.files import atomic_folder, is_pickled, pickled_weights, read_json, read_manifest, write_json
from headstart.linear.blend import blend_logits
from headstart.linear.classifier import LinearClassifier
from headstart.store.locate import display_name, find_bundle
from headstart.store.model_card import CARD_FILE, BundleFacts, model_card, redact_paths
from headstart.tasks import SingleLabel, Task, is_number, task_from

ClassifierKind = Literal["network", "linear", "blend"]
FACTS_FILE, ARRAYS_FILE = "linear.json", "linear.safetensors"
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.001, 1000
"""Far beyond every temperature that is fitted; a division by a smaller one might overflow."""


class InFolder:
    """Names of a model that may have been loaded from a folder."""

    about: dict[str, Any]
    folder: Path | None

    @property
    def path(self) -> Path:
        """The folder it was loaded from; raises ValueError if there is none."""
        if self.folder is None:
            raise ValueError("this model was not loaded from a folder")
        return self.folder

    @property
    def name(self) -> str:
        """Its name in messages: its folder, `starter:NAME`, or the source of an imported model."""
        return str(self.about.get("imported_from", display_name(self.path)))


@dataclass(frozen=True)
class LinearBundle(InFolder):
    """A linear classifier and its task, as `save_bundle` writes and `load_classifier` returns them."""

    classifier: LinearClassifier
    task: Task
    about: dict[str, Any] = field(default_factory=dict)
    """Metrics and provenance (result, data) as JSON values."""
    folder: Path | None = None
    """The folder it was loaded from, if any."""

    def __post_init__(self) -> None:
        check_linear_task(self.task, self.classifier)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in order."""
        return self.task.labels


def check_linear_task(task: Task, classifier: LinearClassifier) -> None:
    """Raise ValueError if a linear classifier does not fit its task."""
    if not isinstance(task, SingleLabel) or task.pair:
        raise ValueError("a linear classifier predicts one class per text")
    outputs = classifier.logits(["a text"]).shape[1]
    if outputs != len(task.labels):
        raise ValueError(f"the linear classifier has {outputs} outputs for {len(task.labels)} labels")


@dataclass(frozen=True)
class LinearPart:
    """The linear classifier of a blend, and how it is blended with a network of the same task."""

    classifier: LinearClassifier
    task: Task
    weight: float
    """The weight of the network; that of the linear classifier is 1 minus it."""
    temperature: float

    def __post_init__(self) -> None:
        check_linear_task(self.task, self.classifier)
        if not (is_number(self.weight) and 0 <= self.weight <= 1):
            raise ValueError(f"the weight of a blend is between 0 and 1, got {self.weight!r:.40}")
        if not (is_number(self.temperature) and _MIN_TEMPERATURE <= self.temperature <= _MAX_TEMPERATURE):
            raise ValueError(
                f"the temperature of a blend is between {_MIN_TEMPERATURE} and {_MAX_TEMPERATURE:,}, "
                f"got {self.temperature!r:.40}"
            )

    def blend(self, network: NDArray[np.float64], texts: Sequence[str]) -> NDArray[np.float64]:
        """Blend the logits of a network with those of the linear classifier for the same texts."""
        return blend_logits(network, self.classifier.logits(texts), self.weight, self.temperature)


def read_linear_part(folder: Path, facts: Mapping[str, Any]) -> LinearPart:
    """Read the linear classifier of a blend; a KeyError, TypeError or ValueError says what is wrong with bundle.json.

    Args:
        facts: the content of bundle.json.
    """
    blend = facts["blend"]
    return LinearPart(read_linear(folder), single_label_task(facts), blend["weight"], blend["temperature"])


def bundle_facts(folder: Path) -> dict[str, Any]:
    """Read bundle.json without checking the rest; empty if it is no object."""
    facts = read_json(find_bundle(folder) / "bundle.json")
    return facts if isinstance(facts, dict) else {}


def bundle_shape(folder: Path) -> tuple[str, int]:
    """The block type and the width of a bundle, read without loading or checking the rest."""
    model = bundle_facts(folder).get("model")
    if not isinstance(model, dict) or not isinstance(model.get("width"), int) or model["width"] < 1:
        return "classic", 1
    return str(model.get("block")), model["width"]


def bundle_model(folder: Path) -> dict[str, Any]:
    """The settings of the backbone of a bundle, read without loading or checking the rest."""
    model = bundle_facts(folder).get("model")
    return model if isinstance(model, dict) else {}


def bundle_objective(folder: Path) -> str:
    """The training objective of a bundle, read without loading or checking the rest."""
    return str(bundle_facts(folder).get("objective", "classify"))


def classifier_kind(folder: Path) -> ClassifierKind:
    """The kind of model that a bundle holds, read without checking the rest; a language model is a network, too."""
    kind = bundle_facts(folder).get("classifier", "network")
    if kind not in get_args(ClassifierKind):
        raise StoreError(
            f"{find_bundle(folder) / 'bundle.json'} is damaged: it describes a classifier of kind {kind!r:.40}"
        )
    checked: ClassifierKind = kind
    return checked


def save_linear_bundle(folder: Path, bundle: LinearBundle, *, extra: Mapping[str, bytes] | None = None) -> None:
    """Write a linear classifier atomically. File names in its `about` lose their folders."""
    labels = list(bundle.labels)
    facts: BundleFacts = {
        "classifier": "linear",
        "head_type": "classify",
        "labels": labels,
        "task": bundle.task.facts(),
        "objective": "classify",
        "about": redact_paths(bundle.about),
    }
    linear = linear_summary(bundle.classifier)
    with atomic_folder(folder, kind="bundle", about={"head_type": "classify", "labels": labels}) as draft:
        write_linear(draft, bundle.classifier)
        write_json(draft / "bundle.json", facts)
        (draft / CARD_FILE).write_text(model_card(facts, 0, linear), encoding="utf-8", newline="\n")
        for name, content in (extra or {}).items():
            (draft / name).write_bytes(content)


def load_linear_bundle(folder: Path) -> LinearBundle:
    """Load a linear classifier and check all of its files."""
    path = find_bundle(folder)
    read_manifest(path, kind="bundle")
    facts = read_json(path / "bundle.json")
    try:
        if facts["classifier"] != "linear" or facts["head_type"] != "classify":
            raise ValueError(f"it describes a classifier of kind {facts['classifier']!r:.40}")
        task, about = single_label_task(facts), dict(facts["about"])
        return LinearBundle(read_linear(path), task, about, path)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path / 'bundle.json'} is damaged: {error}") from None


def single_label_task(facts: Mapping[str, Any]) -> Task:
    """The task that bundle.json names; a ValueError says what is wrong with it."""
    labels = facts["labels"]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"its labels are {labels!r:.100}")
    task = task_from(facts["task"], tuple(labels))
    if not isinstance(task, SingleLabel) or task.pair:
        raise ValueError("a linear classifier predicts one class per text")
    return task


def linear_summary(classifier: LinearClassifier) -> dict[str, Any]:
    """Return the values for the model card of a linear classifier: its views and the number of its weights."""
    views = [
        {"kind": view.kind, "ngrams": len(view.ngrams), "longest": view.ngrams.shape[1]} for view in classifier.views
    ]
    return {"views": views, "weights": sum(view.weight.size for view in classifier.views)}


def write_linear(folder: Path, classifier: LinearClassifier) -> None:
    """Write linear.json and linear.safetensors."""
    write_json(folder / FACTS_FILE, classifier.facts())
    path = folder / ARRAYS_FILE
    arrays = {name: np.ascontiguousarray(array) for name, array in classifier.tensors().items()}
    try:
        save_file(arrays, path)
    except (SafetensorError, OSError) as error:
        reason = str(error).partition(" (os error")[0]
        raise StoreError(f"cannot write {path}: {reason}") from error


def read_linear(folder: Path) -> LinearClassifier:
    """Read linear.json and linear.safetensors."""
    path = folder / ARRAYS_FILE
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if is_pickled(path):
            raise StoreError(pickled_weights(path)) from None
        raise StoreError(f"{path} cannot be read as safetensors: {error}") from None
    facts = read_json(folder / FACTS_FILE)
    try:
        return LinearClassifier.from_tensors(facts, arrays)
    except ValueError as error:
        raise StoreError(f"{folder / FACTS_FILE} and {ARRAYS_FILE} do not match: {error}") from None


def no_network(folder: Path | str) -> UsageError:
    """Return the error for a linear classifier where a network is needed."""
    return UsageError(
        f"{folder} contains a linear classifier, which has no network; this command needs one (from headstart pretrain)"
    )
