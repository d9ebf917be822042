"""The classifier, and its like for numbers, as scikit-learn estimators: texts in memory, the recipes as they are.

    TextClassifier(backbone="runs/base", epochs=4).fit(texts, labels).predict(["a text you wonder about"])

It holds its model as the files of a bundle, so that `save` and `load`, the command line and joblib's copies between
processes all speak of the same bytes; nothing is pickled here.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from headstart.api import finetune_settings, pretrain
from headstart.config import FinetuneConfig, RuntimeConfig
from headstart.data.labelled import Question
from headstart.errors import ConfigError, UsageError
from headstart.estimator_input import InputError as InputError
from headstart.estimator_input import data_of, labels_in, names_of, numbers_in, texts_in
from headstart.kinds import Kind, Label, Labels
from headstart.predict.predictor import Predictor
from headstart.progress import Quiet
from headstart.recipes.classifier import build_classifier, class_weights, reading_of
from headstart.recipes.finetune import SCRATCH, load_source, preset_of, settled
from headstart.recipes.settings import Settings
from headstart.recipes.training import Finetuning
from headstart.runtime import Stop, start
from headstart.store.bundle import Bundle, find_bundle, load_bundle, save_bundle
from headstart.store.rundir import RunFolder

_NETWORK = ("model.", "tokenizer.")


_ARGUMENTS = """    Args:
        backbone: a pretrained folder, a starter ("starter:en"), `hf:` and a folder of transformers, or "scratch" for random
            weights.
        unlabelled: texts to pretrain on before anything else, from `backbone` on; at every `fit`, so a search over many
            settings is quicker with a folder that `headstart.pretrain` made once.
        preset: named settings to start from; None takes those of the backbone's kind, as `headstart finetune` does.
        epochs: passes over the labelled texts; None takes the preset's, as do `lr` and `batch_size` without a value.
        valid_share: the share of the texts that chooses the best epoch and calibrates the probabilities.
        settings: any other setting of fine-tuning by its dotted name, and those of the network (`model.`, `tokenizer.`).
        pretraining: settings of the pretraining on `unlabelled`.
        seed: every random choice follows from it.
        device: auto, cpu, cuda, cuda:N or mps.
    """
_GIVES = {"classes": "classes", "labels": "labels", "rating": "a rating"}
_OTHER = {"TextClassifier": "TextRegressor", "TextRegressor": "TextClassifier"}


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """A Transformer that learns from texts in memory, from a pretrained folder or from random weights."""

    _KINDS: ClassVar[tuple[Kind, ...]] = ()

    def __init__(
        self,
        backbone: str | Path = SCRATCH,
        *,
        unlabelled: Iterable[str] | None = None,
        preset: str | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        valid_share: float = 0.2,
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
        self.valid_share = valid_share
        self.settings = settings
        self.pretraining = pretraining
        self.seed = seed
        self.device = device

    def _learn(self, texts: list[Question], labels: list[Label], kind: Kind, classes: np.ndarray | None = None) -> None:
        """Fine-tune on texts and what they are labelled with, and take the bundle."""
        with tempfile.TemporaryDirectory(prefix="headstart-") as name:
            work = Path(name)
            source = load_source(self._pretrained(work))
            config = settled(self._config(source), source)
            names = () if classes is None else names_of(kind, classes)
            data = data_of(texts, labels, kind, names, config, source)
            class_weights(config, data.target, data.train)
            model, _ = build_classifier(
                config.model, data, source, str(self.backbone), self.seed, reading_of(config, source)
            )
            run = RunFolder.create(work / "run", kind="cell", command="", config=config, inputs={})
            outcome = Finetuning(run, config, data, model, start(config.runtime), Stop(), Quiet(), quiet=True).go(
                resume=False
            )
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
                outcome.settled.target,
                windows=config.labelled.long_texts == "windows",
                visibility=outcome.model.head.visibility,
                about=about,
            )
            save_bundle(work / "bundle", bundle)
            self._take(work / "bundle", classes)

    def _shares(self, X: Iterable[Any]) -> np.ndarray:
        check_is_fitted(self)
        predictor = self._predictor()
        return predictor.shares(predictor.encode(self._questions(X)))

    def _questions(self, X: Iterable[Any]) -> list[Question]:
        """Texts, or pairs where it learnt from pairs."""
        texts, pair = texts_in(X, "X"), self._predictor().target.pair
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
        bundle = load_bundle(Path(folder), task="classify")
        if bundle.target.kind not in cls._KINDS:
            raise UsageError(f"{folder} gives {_GIVES[bundle.target.kind]}; load it with {_OTHER[cls.__name__]}")
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
        return finetune_settings(self.preset or preset_of(None), self.settings).runtime.threads

    def _pretrained(self, work: Path) -> str:
        """The folder to start from, pretrained on the unlabelled texts if there are any."""
        if self.unlabelled is None:
            return str(self.backbone)
        lines = [json.dumps({"text": text}) for text in texts_in(self.unlabelled, "unlabelled")]
        (work / "unlabelled.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        scratch = str(self.backbone) == SCRATCH
        own = self._network() if scratch else {}
        same = {"runtime.seed": self.seed, "runtime.device": self.device, "runtime.threads": self._threads()}
        pretrain(
            work / "unlabelled.jsonl",
            out=work / "base",
            source=None if scratch else self.backbone,
            preset=self.preset or preset_of(None),
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
            "labelled.valid_share": self.valid_share,
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
        return finetune_settings(self.preset or preset_of(source), given | others, self.backbone if source else None)

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
        texts = texts_in(X, "X")
        kind, classes, labels = labels_in(y, len(texts), "TextClassifier")
        self._learn(texts, labels, kind, classes)
        return self

    def predict(self, X: Iterable[Any]) -> np.ndarray:
        """The likeliest label of each text; of several, a row of 0 and 1 in the order of `classes_`."""
        shares = self.predict_proba(X)
        target = self._predictor().target
        if isinstance(target, Labels):
            return (shares >= target.least).astype(np.int64)
        found: np.ndarray = self.classes_[shares.argmax(axis=1)]
        return found

    def predict_proba(self, X: Iterable[Any]) -> np.ndarray:
        """The probability of every label, in the order of `classes_`."""
        return self._shares(X)


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    __doc__ = f"""A Transformer that gives texts a number, within the range of those it learnt from.

{_ARGUMENTS}"""
    _KINDS = ("rating",)

    def fit(self, X: Iterable[Any], y: Iterable[Any] | None = None) -> Self:
        """Learn from texts and their numbers; a share of them is held out to choose the epoch."""
        texts = texts_in(X, "X")
        self._learn(texts, numbers_in(y, len(texts), "TextRegressor"), "rating")
        return self

    def predict(self, X: Iterable[Any]) -> np.ndarray:
        """The number of each text."""
        found: np.ndarray = self._shares(X)[:, 0]
        return found


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
