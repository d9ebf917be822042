"""scikit-learn estimators for texts in memory: TextClassifier and TextRegressor, and the checks of their input.

    TextClassifier(backbone="runs/base", epochs=4).fit(texts, labels).predict(["a text to classify"])

A fitted estimator holds its model as the files of a bundle, so that `save` and `load`, the command line and joblib's
copies between processes all read the same bytes. Nothing is pickled here.
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
from headstart.data.labelled import LabelledTexts, infer_task, split_validation
from headstart.errors import ConfigError, DataError, UsageError
from headstart.interrupts import StopSignal
from headstart.predict.bundle_predictor import AnyPredictor, load_predictor
from headstart.progress import SilentProgress
from headstart.recipes.finetune.backbone_preset import SCRATCH
from headstart.recipes.finetune.dataset import (
    LabelledData,
    build_classifier,
    check_training_memory,
    class_weights,
    encode_split,
    resolve_attention,
)
from headstart.recipes.finetune.run import (
    backbone_preset,
    classifier_bundle,
    load_backbone,
    resolve_config,
)
from headstart.recipes.finetune.trainer import INTERIM_FRACTION, FinetuneTrainer
from headstart.recipes.starter_choice import resolve_starter
from headstart.runtime import setup_runtime
from headstart.store.bundle import Bundle, load_classifier, save_bundle
from headstart.store.locate import STARTER_AUTO, find_bundle
from headstart.store.run_folder import RunFolder
from headstart.tasks import Label, MultiLabel, SingleLabel, Task, TaskName, TextInput
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.bpe import train_tokenizer


class InputError(DataError, ValueError):
    """Texts or labels that cannot be learnt from; scikit-learn's own tools expect a ValueError here."""


def check_texts(X: Iterable[Any], name: str) -> list[TextInput]:
    """Return the texts, or pairs of texts, of a list, a tuple, a one-dimensional array or a column of a table."""
    if isinstance(X, (str, bytes)) or not isinstance(X, Iterable):
        raise InputError(f"{name} must be a sequence of texts, got {X!r:.40}")
    if getattr(X, "ndim", 1) != 1:
        raise InputError(f"{name} must be a sequence of texts, got an array of {X.ndim} dimensions; give one column")  # type: ignore[attr-defined]
    items = list(X)
    pair = bool(items) and isinstance(items[0], tuple)
    texts: list[TextInput] = []
    for index, item in enumerate(items):
        if pair and not (isinstance(item, tuple) and len(item) == 2):
            raise InputError(f"{name}[{index}] is {item!r:.40}, expected a pair of texts as in {name}[0]")
        for text in item if pair else (item,):
            if not isinstance(text, str):
                raise InputError(f"{name}[{index}] is {item!r:.40}, expected a text")
            if not text.strip():
                raise InputError(f"{name}[{index}] is empty")
        texts.append((str(item[0]), str(item[1])) if pair else str(item))  # numpy.str_ is a subclass of str
    if not texts:
        raise InputError(f"{name} contains no texts")
    return texts


def check_labels(y: Iterable[Any] | None, rows: int, estimator: str) -> tuple[TaskName, np.ndarray, list[Label]]:
    """Return the task, the distinct labels in order, and the label of each row by name."""
    if y is None:
        raise InputError(f"{estimator} requires y to be passed, but the target y is None")
    if getattr(y, "ndim", 1) == 2 and y.shape[1] > 1:  # type: ignore[attr-defined]
        return _check_indicators(np.asarray(y), rows)
    if isinstance(y, (list, tuple)) and y and isinstance(y[0], (list, tuple, set, frozenset)):
        return _check_label_lists(y, rows)
    labels = column_or_1d(y, warn=True)
    _check_count(len(labels), rows)
    for index, label in enumerate(labels.tolist()):
        if label is None or (isinstance(label, float) and not math.isfinite(label)):
            raise InputError(f"y[{index}] is {label!r}, expected a label")
    check_classification_targets(labels)
    classes, gold = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y has one class only, {classes.tolist()[0]!r}; a classifier needs at least two labels")
    names = class_names("classes", classes)
    return "classes", classes, [names[index] for index in gold]


def _check_indicators(y: np.ndarray, rows: int) -> tuple[TaskName, np.ndarray, list[Label]]:
    """Check a label indicator matrix, as scikit-learn has it: a column per label, 1 where a row has the label."""
    _check_count(len(y), rows)
    if not np.isin(y, (0, 1)).all():
        raise InputError("y has one column per label and must contain 0 and 1 only")
    classes = np.arange(y.shape[1])
    names = class_names("labels", classes)
    return "labels", classes, [tuple(names[column] for column in np.flatnonzero(row)) for row in y]


def _check_label_lists(y: Sequence[Any], rows: int) -> tuple[TaskName, np.ndarray, list[Label]]:
    """Check a list of label names per row."""
    _check_count(len(y), rows)
    for index, names in enumerate(y):
        if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
            raise InputError(f"y[{index}] is {names!r:.40}, expected a list of label names")
    labels = [tuple(sorted(set(map(str, names)))) for names in y]
    return "labels", np.array(sorted({name for names in labels for name in names})), list(labels)


def class_names(task_name: TaskName, classes: np.ndarray) -> tuple[str, ...]:
    """Return the names of the classes in order; column numbers are padded with zeros, so that names sort alike."""
    names = list(map(str, classes.tolist()))
    width = max(map(len, names), default=0) if task_name == "labels" and classes.dtype.kind == "i" else 0
    return tuple(name.zfill(width) for name in names)


def check_numbers(y: Iterable[Any] | None, rows: int, estimator: str) -> list[Label]:
    """Return a finite number per row."""
    if y is None:
        raise InputError(f"{estimator} requires y to be passed, but the target y is None")
    try:
        numbers = np.asarray(column_or_1d(y, warn=True), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("y must be a number for each text") from None
    _check_count(len(numbers), rows)
    for index, number in enumerate(numbers.tolist()):
        if not math.isfinite(number):
            raise InputError(f"y[{index}] is {number!r}, expected a finite number")
    return list(map(float, numbers))


def _check_count(labels: int, rows: int) -> None:
    if labels != rows:
        raise InputError(f"X has {rows:,} texts and y {labels:,} labels; expected one each")


def build_dataset(
    text_inputs: list[TextInput],
    labels: list[Label],
    task_name: TaskName,
    names: tuple[str, ...],
    config: FinetuneConfig,
    backbone: Bundle | None,
) -> LabelledData:
    """Encode the rows for fine-tuning, a fraction held out for validation."""
    where = tuple(f"X[{index}]" for index in range(len(text_inputs)))
    pairs = tuple(text for text in text_inputs if not isinstance(text, str)) or None
    texts = tuple(text if isinstance(text, str) else "\n".join(text) for text in text_inputs)
    rows = LabelledTexts("X", texts, tuple(labels), where, task_name, pairs)
    task = _build_task(rows, names, config)
    try:
        splits = split_validation(rows, config.labelled.valid_fraction, config.runtime.seed)
    except DataError:
        raise InputError(
            f"{len(texts)} texts are too few to hold out {config.labelled.valid_fraction:g} of each label for validation"
        ) from None
    tokenizer: Tokenizer = backbone.tokenizer if backbone else train_tokenizer(rows.texts, config.tokenizer)
    train, valid = (encode_split(split, task, tokenizer, SilentProgress()) for split in splits)
    return LabelledData(task, tokenizer, train, valid, None, ())


def _build_task(rows: LabelledTexts, names: tuple[str, ...], config: FinetuneConfig) -> Task:
    pair = rows.pairs is not None
    if rows.task_name == "classes":
        return SingleLabel(names, pair)
    if rows.task_name == "labels":
        if not names:
            raise InputError("y has no label in any row; a classifier needs at least two labels")
        return MultiLabel(names, pair)
    if len(set(rows.labels)) < 2:
        raise InputError(f"y has one number only, {rows.labels[0]:g}; a model cannot be trained on it")
    return infer_task(rows, config.labelled)


_NETWORK_SETTINGS = ("model.", "tokenizer.")
_ARGUMENTS = """    Args:
        backbone: a pretrained folder, a starter ("starter:en"), `hf:` and a folder of transformers, or "scratch" for random
            weights. "starter:auto" selects the starter for the language of the texts; `backbone_` has its name.
        unlabelled: texts to pretrain on first, starting from `backbone`. Pretraining is repeated in every `fit`, so a search
            over many settings is faster with a folder that `headstart.pretrain` wrote once.
        preset: named settings; by default, those that fit the backbone, as in `headstart finetune`.
        epochs: number of passes over the labelled texts; None means the value of the preset, also for `lr` and `batch_size`.
        valid_fraction: the fraction of the texts that selects the best epoch and calibrates the probabilities.
        settings: any other setting of fine-tuning by its dotted name, and those of the network (`model.`, `tokenizer.`).
        pretraining: settings of the pretraining on `unlabelled`.
        seed: the random seed.
        device: auto, cpu, cuda, cuda:N or mps.
    """
_OUTPUTS = {"classes": "classes", "labels": "labels", "rating": "a rating"}
_COUNTERPART = {"TextClassifier": "TextRegressor", "TextRegressor": "TextClassifier"}


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """The base class of both estimators: fine-tunes a Transformer on texts in memory."""

    _TASK_NAMES: ClassVar[tuple[TaskName, ...]] = ()

    def __init__(
        self,
        backbone: str | Path = STARTER_AUTO,
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

    def _fit(
        self, texts: list[TextInput], labels: list[Label], task_name: TaskName, classes: np.ndarray | None = None
    ) -> None:
        """Fine-tune on checked texts and labels, and keep the bundle."""
        with tempfile.TemporaryDirectory(prefix="headstart-") as name:
            work = Path(name)
            joined = (text if isinstance(text, str) else "\n".join(text) for text in texts)
            self.backbone_ = resolve_starter(str(self.backbone), lambda: joined, SilentProgress())
            backbone = load_backbone(self._pretrain(work))
            config = resolve_config(self._config(backbone), backbone)
            names = () if classes is None else class_names(task_name, classes)
            data = build_dataset(texts, labels, task_name, names, config, backbone)
            class_weights(config, data.task, data.train)  # raises if a name is wrong
            attention = resolve_attention(config, backbone)
            check_training_memory(config, data, backbone)
            model, _ = build_classifier(config.model, data, backbone, self.backbone_, self.seed, attention)
            run = RunFolder.create(work / "run", kind="cell", command="", config=config, inputs={})
            trainer = FinetuneTrainer(
                run,
                config,
                data,
                model,
                setup_runtime(config.runtime),
                StopSignal(),
                SilentProgress(),
                quiet=True,
                interim_fraction=INTERIM_FRACTION,
            )
            outcome = trainer.train(resume=False)
            calibration = outcome.calibrated.calibration
            about = {
                "classes": None if classes is None else classes.tolist(),
                "parameters": self._json_params(),
                "best_epoch": outcome.best_epoch,
                "select": config.loop.select,
                "calibration": calibration.as_dict() if calibration else None,
                "valid": outcome.valid.as_dict(),
            }
            save_bundle(work / "bundle", classifier_bundle(outcome, data, config, about))
            self._load_files(work / "bundle", classes)

    def _probabilities(self, X: Iterable[Any]) -> np.ndarray:
        check_is_fitted(self)
        predictor = self._predictor()
        return predictor.probabilities(predictor.encode(self._check_inputs(X)))

    def _check_inputs(self, X: Iterable[Any]) -> list[TextInput]:
        """Return the texts, or pairs if the estimator was fitted on pairs."""
        texts, pair = check_texts(X, "X"), self._predictor().task.pair
        if isinstance(texts[0], str) == pair:
            kind, fitted = ("texts", "pairs") if pair else ("pairs", "texts")
            raise InputError(f"X contains {kind}, but the model was fitted on {fitted}")
        return texts

    def save(self, folder: str | Path) -> Path:
        """Write the model as a bundle, which `load`, `headstart predict` and `headstart.load` read."""
        check_is_fitted(self)
        path = Path(folder)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} already exists and is not empty; choose another folder")
        _write_files(self.files_, path)
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return a fitted estimator from a folder that `save` or `headstart finetune` wrote."""
        bundle = load_classifier(Path(folder))
        task_name = bundle.task.kind
        if task_name not in cls._TASK_NAMES:
            raise UsageError(f"{folder} predicts {_OUTPUTS[task_name]}; load it with {_COUNTERPART[cls.__name__]}")
        estimator = cls(**bundle.about.get("parameters", {}))
        classes = bundle.about.get("classes") or bundle.labels
        estimator._load_files(find_bundle(Path(folder)), np.array(classes) if classes else None)
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs: parameters, classes and the bytes of the files."""
        return {name: value for name, value in super().__getstate__().items() if name != "_loaded"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags

    def _load_files(self, bundle: Path, classes: np.ndarray | None) -> None:
        files = (path for path in sorted(bundle.rglob("*")) if path.is_file())
        self.files_ = {path.relative_to(bundle).as_posix(): path.read_bytes() for path in files}
        if classes is not None:
            self.classes_ = classes
        self.__dict__.pop("_loaded", None)
        self._predictor()

    def _predictor(self) -> AnyPredictor:
        """Return the loaded model; a copy in another process loads its own when it is first used."""
        if "_loaded" not in self.__dict__:
            with tempfile.TemporaryDirectory(prefix="headstart-") as name:
                _write_files(self.files_, Path(name))
                runtime = RuntimeConfig(device=self.device, threads=self._threads())
                self._loaded: AnyPredictor = load_predictor(Path(name), runtime)
        return self._loaded

    def _threads(self) -> int | None:
        return finetune_settings(self.preset or backbone_preset(None), self.settings).runtime.threads

    def _pretrain(self, work: Path) -> str:
        """Return the folder to start from, pretrained on the unlabelled texts if there are any."""
        if self.unlabelled is None:
            return self.backbone_
        lines = [json.dumps({"text": text}) for text in check_texts(self.unlabelled, "unlabelled")]
        (work / "unlabelled.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        scratch = self.backbone_ == SCRATCH
        network = self._network_settings() if scratch else {}
        runtime = {"runtime.seed": self.seed, "runtime.device": self.device, "runtime.threads": self._threads()}
        pretrain(
            work / "unlabelled.jsonl",
            out=work / "base",
            backbone=None if scratch else self.backbone_,
            preset=self.preset or backbone_preset(None),
            settings={**network, **runtime, **(self.pretraining or {})},
        )
        return str(work / "base")

    def _network_settings(self) -> dict[str, Any]:
        return {name: value for name, value in (self.settings or {}).items() if name.startswith(_NETWORK_SETTINGS)}

    def _config(self, backbone: Bundle | None) -> FinetuneConfig:
        params = {
            "loop.epochs": self.epochs,
            "optim.lr": self.lr,
            "loop.batch_size": self.batch_size,
            "labelled.valid_fraction": self.valid_fraction,
            "runtime.seed": self.seed,
            "runtime.device": self.device,
        }
        settings = dict(self.settings or {})
        for name in params:
            if name in settings:
                raise ConfigError(f"settings has {name}, which is a separate parameter: {name.split('.')[-1]}")
        if backbone and self.unlabelled is not None and str(self.backbone) == SCRATCH:
            # pretraining has used them
            settings = {name: value for name, value in settings.items() if name not in self._network_settings()}
        params = {name: value for name, value in params.items() if value is not None}
        return finetune_settings(
            self.preset or backbone_preset(backbone), params | settings, self.backbone if backbone else None
        )

    def _json_params(self) -> dict[str, Any]:
        """Return the parameters as JSON values; the unlabelled texts are not kept."""
        values = self.get_params(deep=False) | {"backbone": str(self.backbone), "unlabelled": None}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    __doc__ = f"""A Transformer that classifies texts: one class each, or any number of labels.

    Several labels per text are lists of names, or an indicator matrix of 0 and 1 with a column per label; `predict` then
    returns such a matrix, by the thresholds that were chosen on validation. A text may be a pair of texts.

{_ARGUMENTS}"""
    _TASK_NAMES = ("classes", "labels")

    def fit(self, X: Iterable[Any], y: Iterable[Any] | None = None) -> Self:
        """Fine-tune on texts and their labels; a fraction of them is held out to select the epoch."""
        texts = check_texts(X, "X")
        task_name, classes, labels = check_labels(y, len(texts), "TextClassifier")
        self._fit(texts, labels, task_name, classes)
        return self

    def predict(self, X: Iterable[Any]) -> np.ndarray:
        """Return the most likely label of each text; with several labels, rows of 0 and 1 in the order of `classes_`."""
        probabilities = self.predict_proba(X)
        task = self._predictor().task
        if isinstance(task, MultiLabel):
            return (probabilities >= task.threshold_array).astype(np.int64)
        labels: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Iterable[Any]) -> np.ndarray:
        """Return the probability of every label, in the order of `classes_`."""
        return self._probabilities(X)


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    __doc__ = f"""A Transformer that predicts a number for a text, within the range of the numbers it was fitted on.

{_ARGUMENTS}"""
    _TASK_NAMES = ("rating",)

    def fit(self, X: Iterable[Any], y: Iterable[Any] | None = None) -> Self:
        """Fine-tune on texts and their numbers; a fraction of them is held out to select the epoch."""
        texts = check_texts(X, "X")
        self._fit(texts, check_numbers(y, len(texts), "TextRegressor"), "rating")
        return self

    def predict(self, X: Iterable[Any]) -> np.ndarray:
        """Return the number of each text."""
        numbers: np.ndarray = self._probabilities(X)[:, 0]
        return numbers


def _write_files(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
