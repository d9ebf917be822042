"""scikit-learn estimators over texts in memory: TextClassifier and TextRegressor.

Texts and labels in memory as the recipes take them: what a scikit-learn estimator is given, checked.

The classifier, and its like for numbers, as scikit-learn estimators: texts in memory, the recipes as they are.

    TextClassifier(backbone="runs/base", epochs=4).fit(texts, labels).predict(["a text you wonder about"])

It holds its model as the files of a bundle, so that `save` and `load`, the command line and joblib's copies between
processes all speak of the same bytes; nothing is pickled here.
"""

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from headstart.api import finetune_settings, pretrain
from headstart.config.merge import Settings
from headstart.config.schema import FinetuneConfig, RuntimeConfig
from headstart.data.labelled import LabelledTexts, TextInput, infer_task, split_validation
from headstart.errors import ConfigError, DataError, UsageError
from headstart.interrupts import StopSignal
from headstart.predict.predictor import Predictor
from headstart.progress import SilentProgress
from headstart.recipes.finetune.dataset import (
    LabelledData,
    build_classifier,
    class_weights,
    encode_split,
    resolve_attention,
)
from headstart.recipes.finetune.run import SCRATCH, backbone_preset, load_source, resolve_config
from headstart.recipes.finetune.trainer import FinetuneTrainer
from headstart.runtime import setup_runtime
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.locate import find_bundle
from headstart.store.run_folder import RunFolder
from headstart.tasks import Label, MultiLabel, SingleLabel, Task, TaskName
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.bpe import train_tokenizer


class InputError(DataError, ValueError):
    """Texts or labels that cannot be learnt from; scikit-learn's own tools expect a ValueError here."""


def check_texts(X: Iterable[Any], name: str) -> list[TextInput]:
    """Texts from whatever holds them in a row (a list, a tuple, an array or a column of a table), or pairs of them."""
    if isinstance(X, (str, bytes)) or not isinstance(X, Iterable):
        raise InputError(f"{name} must be a sequence of texts, got {X!r:.40}")
    if getattr(X, "ndim", 1) != 1:
        raise InputError(f"{name} must be a sequence of texts, got an array of {X.ndim} dimensions; give one column")  # type: ignore[attr-defined]
    texts = list(X)
    pair = bool(texts) and isinstance(texts[0], tuple)
    found: list[TextInput] = []
    for place, text in enumerate(texts):
        if pair and not (isinstance(text, tuple) and len(text) == 2):
            raise InputError(f"{name}[{place}] is {text!r:.40}, expected a pair of texts as in {name}[0]")
        for part in text if pair else (text,):
            if not isinstance(part, str):
                raise InputError(f"{name}[{place}] is {text!r:.40}, expected a text")
            if not part.strip():
                raise InputError(f"{name}[{place}] is empty; there is nothing to read")
        found.append((str(text[0]), str(text[1])) if pair else str(text))  # numpy's strings are not quite Python's
    if not texts:
        raise InputError(f"{name} holds no texts")
    return found


def check_labels(y: Iterable[Any] | None, rows: int, who: str) -> tuple[TaskName, np.ndarray, list[Label]]:
    """The kind of answer, the different labels in order, and what each row is labelled with, by names."""
    if y is None:
        raise InputError(f"{who} requires y to be passed, but the target y is None")
    if getattr(y, "ndim", 1) == 2 and y.shape[1] > 1:  # type: ignore[attr-defined]
        return _indicators(np.asarray(y), rows)
    if isinstance(y, (list, tuple)) and y and isinstance(y[0], (list, tuple, set, frozenset)):
        return _check_multi_label(y, rows)
    labels = column_or_1d(y, warn=True)
    _check_count(len(labels), rows)
    for place, label in enumerate(labels.tolist()):
        if label is None or (isinstance(label, float) and not math.isfinite(label)):
            raise InputError(f"y[{place}] is {label!r}, expected a label")
    check_classification_targets(labels)
    classes, gold = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y has one class only, {classes.tolist()[0]!r}; a classifier needs at least two labels")
    names = class_names("classes", classes)
    return "classes", classes, [names[index] for index in gold]


def _indicators(y: np.ndarray, rows: int) -> tuple[TaskName, np.ndarray, list[Label]]:
    """A column a label, as scikit-learn has it: 1 where a row has it."""
    _check_count(len(y), rows)
    if not np.isin(y, (0, 1)).all():
        raise InputError("y has a column a label and must hold 0 and 1 alone")
    classes = np.arange(y.shape[1])
    names = class_names("labels", classes)
    return "labels", classes, [tuple(names[place] for place in np.flatnonzero(row)) for row in y]


def class_names(kind: TaskName, classes: np.ndarray) -> tuple[str, ...]:
    """The names of labels in their order; the numbers of columns with zeros in front, so that names sort likewise."""
    names = list(map(str, classes.tolist()))
    width = max(map(len, names), default=0) if kind == "labels" and classes.dtype.kind == "i" else 0
    return tuple(name.zfill(width) for name in names)


def _check_multi_label(y: Sequence[Any], rows: int) -> tuple[TaskName, np.ndarray, list[Label]]:
    _check_count(len(y), rows)
    for place, names in enumerate(y):
        if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
            raise InputError(f"y[{place}] is {names!r:.40}, expected a list of label names")
    found = [tuple(sorted(set(map(str, names)))) for names in y]
    return "labels", np.array(sorted({name for names in found for name in names})), list(found)


def check_numbers(y: Iterable[Any] | None, rows: int, who: str) -> list[Label]:
    """A finite number a row."""
    if y is None:
        raise InputError(f"{who} requires y to be passed, but the target y is None")
    try:
        numbers = np.asarray(column_or_1d(y, warn=True), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("y must be a number for each text") from None
    _check_count(len(numbers), rows)
    for place, number in enumerate(numbers.tolist()):
        if not math.isfinite(number):
            raise InputError(f"y[{place}] is {number!r}, expected a finite number")
    return list(map(float, numbers))


def _check_count(labels: int, rows: int) -> None:
    if labels != rows:
        raise InputError(f"X has {rows:,} texts and y {labels:,} labels; expected one each")


def build_dataset(
    texts: list[TextInput],
    labels: list[Label],
    kind: TaskName,
    names: tuple[str, ...],
    config: FinetuneConfig,
    source: Bundle | None,
) -> LabelledData:
    """The rows as fine-tuning takes them, a share held out for validation."""
    where = tuple(f"X[{place}]" for place in range(len(texts)))
    pairs = tuple(text for text in texts if not isinstance(text, str)) or None
    whole = tuple(text if isinstance(text, str) else "\n".join(text) for text in texts)
    rows = LabelledTexts("X", whole, tuple(labels), where, kind, pairs)
    task = _build_task(rows, names, config)
    try:
        parts = split_validation(rows, config.labelled.valid_fraction, config.runtime.seed)
    except DataError:
        raise InputError(
            f"{len(texts)} texts are too few to hold out {config.labelled.valid_fraction:g} of each label for validation"
        ) from None
    tokenizer: Tokenizer = source.tokenizer if source else train_tokenizer(rows.texts, config.tokenizer)
    train, valid = (encode_split(part, task, tokenizer, SilentProgress()) for part in parts)
    return LabelledData(task, tokenizer, train, valid, None, ())


def _build_task(rows: LabelledTexts, names: tuple[str, ...], config: FinetuneConfig) -> Task:
    pair = rows.pairs is not None
    if rows.task_name == "classes":
        return SingleLabel(names, pair)
    if rows.task_name == "labels":
        if not names:
            raise InputError("y has no label in any row; there is nothing to learn")
        return MultiLabel(names, pair)
    if len(set(rows.labels)) < 2:
        raise InputError(f"y has one number only, {rows.labels[0]:g}; there is nothing to tell apart")
    return infer_task(rows, config.labelled)


_NETWORK = ("model.", "tokenizer.")


_ARGUMENTS = """    Args:
        backbone: a pretrained folder, a starter ("starter:en"), `hf:` and a folder of transformers, or "scratch" for random
            weights.
        unlabelled: texts to pretrain on before anything else, from `backbone` on; at every `fit`, so a search over many
            settings is quicker with a folder that `headstart.pretrain` made once.
        preset: named settings to start from; None takes those of the backbone's kind, as `headstart finetune` does.
        epochs: passes over the labelled texts; None takes the preset's, as do `lr` and `batch_size` without a value.
        valid_fraction: the share of the texts that chooses the best epoch and calibrates the probabilities.
        settings: any other setting of fine-tuning by its dotted name, and those of the network (`model.`, `tokenizer.`).
        pretraining: settings of the pretraining on `unlabelled`.
        seed: every random choice follows from it.
        device: auto, cpu, cuda, cuda:N or mps.
    """
_GIVES = {"classes": "classes", "labels": "labels", "rating": "a rating"}
_OTHER = {"TextClassifier": "TextRegressor", "TextRegressor": "TextClassifier"}


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """A Transformer that learns from texts in memory, from a pretrained folder or from random weights."""

    _KINDS: ClassVar[tuple[TaskName, ...]] = ()

    def __init__(
        self,
        backbone: str | Path = SCRATCH,
        *,
        unlabelled: Iterable[str] | None = None,
        preset: str | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        valid_fraction: float = 0.2,
        settings: Settings | None = None,
        pretraining: Settings | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.backbone = backbone
        self.unlabelled = unlabelled
        self.preset = preset
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.valid_fraction = valid_fraction
        self.settings = settings
        self.pretraining = pretraining
        self.seed = seed
        self.device = device

    def _learn(
        self, texts: list[TextInput], labels: list[Label], kind: TaskName, classes: np.ndarray | None = None
    ) -> None:
        """Fine-tune on texts and what they are labelled with, and take the bundle."""
        with tempfile.TemporaryDirectory(prefix="headstart-") as name:
            work = Path(name)
            source = load_source(self._pretrained(work))
            config = resolve_config(self._config(source), source)
            names = () if classes is None else class_names(kind, classes)
            data = build_dataset(texts, labels, kind, names, config, source)
            class_weights(config, data.task, data.train)
            model, _ = build_classifier(
                config.model, data, source, str(self.backbone), self.seed, resolve_attention(config, source)
            )
            run = RunFolder.create(work / "run", kind="cell", command="", config=config, inputs={})
            outcome = FinetuneTrainer(
                run, config, data, model, setup_runtime(config.runtime), StopSignal(), SilentProgress(), quiet=True
            ).go(resume=False)
            about = {
                "classes": None if classes is None else classes.tolist(),
                "parameters": self._plain(),
                "best_epoch": outcome.best_epoch,
                "calibration": outcome.settled.calibration.as_dict() if outcome.settled.calibration else None,
                "valid": outcome.valid.as_dict(),
            }
            bundle = Bundle(
                outcome.model,
                data.tokenizer,
                outcome.settled.task,
                windows=config.labelled.long_texts == "windows",
                attention=outcome.model.head.attention,
                about=about,
            )
            save_bundle(work / "bundle", bundle)
            self._take(work / "bundle", classes)

    def _probabilities(self, X: Iterable[Any]) -> np.ndarray:
        check_is_fitted(self)
        predictor = self._predictor()
        return predictor.probabilities(predictor.encode(self._questions(X)))

    def _questions(self, X: Iterable[Any]) -> list[TextInput]:
        """Texts, or pairs where it learnt from pairs."""
        texts, pair = check_texts(X, "X"), self._predictor().task.pair
        if isinstance(texts[0], str) == pair:
            raise InputError(f"X holds {'texts, it was fitted on pairs' if pair else 'pairs, it was fitted on texts'}")
        return texts

    def save(self, folder: str | Path) -> Path:
        """Write the model as a bundle, which `load`, `headstart predict` and `headstart.load` read."""
        check_is_fitted(self)
        path = Path(folder)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is there already and not empty; choose another folder")
        _write(self.files_, path)
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A fitted estimator from a folder that `save` or `headstart finetune` wrote."""
        bundle = load_bundle(Path(folder), head_type="classify")
        if bundle.task.kind not in cls._KINDS:
            raise UsageError(f"{folder} gives {_GIVES[bundle.task.kind]}; load it with {_OTHER[cls.__name__]}")
        estimator = cls(**bundle.about.get("parameters", {}))
        classes = bundle.about.get("classes") or bundle.labels
        estimator._take(find_bundle(Path(folder)), np.array(classes) if classes else None)
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        """What a copy for another process takes: settings, labels and the bytes of files."""
        return {name: value for name, value in super().__getstate__().items() if name != "_loaded"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags

    def _take(self, bundle: Path, classes: np.ndarray | None) -> None:
        files = (path for path in sorted(bundle.rglob("*")) if path.is_file())
        self.files_ = {path.relative_to(bundle).as_posix(): path.read_bytes() for path in files}
        if classes is not None:
            self.classes_ = classes
        self.__dict__.pop("_loaded", None)
        self._predictor()

    def _predictor(self) -> Predictor:
        """The model, ready to answer; a copy in another process makes its own when it is first asked."""
        if "_loaded" not in self.__dict__:
            with tempfile.TemporaryDirectory(prefix="headstart-") as name:
                _write(self.files_, Path(name))
                self._loaded = Predictor.load(Path(name), RuntimeConfig(device=self.device, threads=self._threads()))
        return self._loaded

    def _threads(self) -> int | None:
        return finetune_settings(self.preset or backbone_preset(None), self.settings).runtime.threads

    def _pretrained(self, work: Path) -> str:
        """The folder to start from, pretrained on the unlabelled texts if there are any."""
        if self.unlabelled is None:
            return str(self.backbone)
        lines = [json.dumps({"text": text}) for text in check_texts(self.unlabelled, "unlabelled")]
        (work / "unlabelled.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        scratch = str(self.backbone) == SCRATCH
        own = self._network() if scratch else {}
        same = {"runtime.seed": self.seed, "runtime.device": self.device, "runtime.threads": self._threads()}
        pretrain(
            work / "unlabelled.jsonl",
            out=work / "base",
            source=None if scratch else self.backbone,
            preset=self.preset or backbone_preset(None),
            settings={**own, **same, **(self.pretraining or {})},
        )
        return str(work / "base")

    def _network(self) -> dict[str, Any]:
        return {name: value for name, value in (self.settings or {}).items() if name.startswith(_NETWORK)}

    def _config(self, source: Bundle | None) -> FinetuneConfig:
        named = {
            "loop.epochs": self.epochs,
            "optim.lr": self.lr,
            "loop.batch_size": self.batch_size,
            "labelled.valid_fraction": self.valid_fraction,
            "runtime.seed": self.seed,
            "runtime.device": self.device,
        }
        others = dict(self.settings or {})
        for name in named:
            if name in others:
                raise ConfigError(f"settings has {name}, which is a parameter of its own: {name.split('.')[-1]}")
        if source and self.unlabelled is not None and str(self.backbone) == SCRATCH:
            others = {name: value for name, value in others.items() if name not in self._network()}  # used already
        given = {name: value for name, value in named.items() if value is not None}
        return finetune_settings(
            self.preset or backbone_preset(source), given | others, self.backbone if source else None
        )

    def _plain(self) -> dict[str, Any]:
        """The parameters that JSON can hold; texts are not kept."""
        values = self.get_params(deep=False) | {"backbone": str(self.backbone), "unlabelled": None}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    __doc__ = f"""A Transformer that classifies texts: one class each, or any number of labels.

    Several labels are lists of names, or a table of 0 and 1 with a column a label, as scikit-learn has it; `predict`
    then gives such a table, by the thresholds that validation chose. A text may be a pair of texts.

{_ARGUMENTS}"""
    _KINDS = ("classes", "labels")

    def fit(self, X: Iterable[Any], y: Iterable[Any] | None = None) -> Self:
        """Learn from texts and their labels; a share of them is held out to choose the epoch."""
        texts = check_texts(X, "X")
        kind, classes, labels = check_labels(y, len(texts), "TextClassifier")
        self._learn(texts, labels, kind, classes)
        return self

    def predict(self, X: Iterable[Any]) -> np.ndarray:
        """The likeliest label of each text; of several, a row of 0 and 1 in the order of `classes_`."""
        shares = self.predict_proba(X)
        task = self._predictor().task
        if isinstance(task, MultiLabel):
            return (shares >= task.threshold_array).astype(np.int64)
        found: np.ndarray = self.classes_[shares.argmax(axis=1)]
        return found

    def predict_proba(self, X: Iterable[Any]) -> np.ndarray:
        """The probability of every label, in the order of `classes_`."""
        return self._probabilities(X)


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    __doc__ = f"""A Transformer that gives texts a number, within the range of those it learnt from.

{_ARGUMENTS}"""
    _KINDS = ("rating",)

    def fit(self, X: Iterable[Any], y: Iterable[Any] | None = None) -> Self:
        """Learn from texts and their numbers; a share of them is held out to choose the epoch."""
        texts = check_texts(X, "X")
        self._learn(texts, check_numbers(y, len(texts), "TextRegressor"), "rating")
        return self

    def predict(self, X: Iterable[Any]) -> np.ndarray:
        """The number of each text."""
        found: np.ndarray = self._probabilities(X)[:, 0]
        return found


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
