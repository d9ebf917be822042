"""The first answer soon: a few short texts in numpy, while torch would still be importing.

Whatever is not the usual case (a folder with something unexpected in it, much text, a network too large to be quick) is
left to `Predictor`, which also has the words for what is wrong.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from headstart.config import ModelConfig, Visibility
from headstart.errors import HeadstartError
from headstart.files import read_json, read_manifest
from headstart.kinds import Classes
from headstart.model.ledger import ledger
from headstart.model.plain import Floats, class_scores, shapes
from headstart.predict.answers import AnyPrediction, answer
from headstart.store.finding import find_bundle
from headstart.text.tokenizer import Tokenizer, load_tokenizer
from headstart.train.shares import probabilities

MOST_WORK = 1e10
"""Multiplications, a quarter of a second of one core: more is done sooner by torch, its import included."""
_FACTS = {"task", "model", "vocab_size", "tokenizer", "labels", "target", "windows", "visibility", "objective", "about"}
_SHAPE = {
    *("block", "width", "depth", "heads", "feedforward", "dropout", "context"),
    *("rotary_base", "norm_epsilon", "tied", "stock"),
}
"""What a bundle may say of its network here: one that says more is not known well enough."""
_ONE_CLASS = {"kind": "classes", "pair": False}


class QuickPredictor:
    """A classifier bundle whose answers need no torch."""

    def __init__(self, facts: dict[str, Any], config: ModelConfig, weights: dict[str, Floats], tokenizer: Tokenizer):
        self.target = Classes(tuple(facts["labels"]))
        self.windows = bool(facts["windows"])
        self._visibility: Visibility = "both" if facts["visibility"] == "both" else "causal"
        self._config, self._weights, self._tokenizer = config, weights, tokenizer

    @classmethod
    def load(cls, folder: Path, texts: Sequence[str]) -> "QuickPredictor | None":
        """The classifier of a folder, every file checked; None when these texts are better answered by `Predictor`."""
        try:
            path = find_bundle(folder)
            facts = read_json(path / "bundle.json")
            if set(facts) != _FACTS or set(facts["model"]) != _SHAPE or facts["task"] != "classify":
                return None
            if facts["target"] != _ONE_CLASS or facts["model"]["stock"] is not None:
                return None
            config, vocab_size = ModelConfig.model_validate(facts["model"]), int(facts["vocab_size"])
            # before anything is counted out: a shape must have the weights to show for it
            told = ledger(config, vocab_size, len(facts["labels"]), reading=facts["visibility"]).total
            if 4 * told > sum((path / f"{part}.safetensors").stat().st_size for part in ("backbone", "head")):
                return None
            wanted = shapes(config, vocab_size, len(facts["labels"]), facts["visibility"])
            inner = sum(np.prod(shape) for name, shape in wanted.items() if name.startswith("layers."))
            # a byte is a token at most
            if inner * (len(texts) + sum(len(text.encode("utf-8", "replace")) for text in texts)) > MOST_WORK:
                return None
            read_manifest(path, kind="bundle")
            tokenizer = load_tokenizer(path / "tokenizer")
            weights = dict(load_file(path / "backbone.safetensors"))
            weights |= {f"head.{name}": tensor for name, tensor in load_file(path / "head.safetensors").items()}
            found = {name: tensor.shape for name, tensor in weights.items()}
            plain = all(tensor.dtype == np.float32 for tensor in weights.values())
            known = tokenizer.digest == facts["tokenizer"] and tokenizer.vocab_size <= vocab_size
            known = known and tokenizer.special.close is None
            return cls(facts, config, weights, tokenizer) if found == wanted and plain and known else None
        except (HeadstartError, SafetensorError, OSError, KeyError, TypeError, ValueError):
            return None

    def predict(self, texts: Sequence[str], *, abstain: float | None = None) -> list[AnyPrediction]:
        """Answer every text, in order, each read by itself; withholding an answer is `Predictor`'s business."""
        assert abstain is None
        return [self._answer(np.asarray(ids, dtype=np.int64)) for ids in self._tokenizer.encode_batch(list(texts))]

    def _answer(self, ids: NDArray[np.int64]) -> AnyPrediction:
        room = self._config.context - 1  # the start token takes a place
        starts = range(0, max(len(ids), 1), room) if self.windows else range(1)
        scores = [
            class_scores(self._weights, self._config, self._visibility, self._row(ids[start : start + room]))
            for start in starts
        ]
        share = probabilities(np.stack(scores).mean(axis=0, keepdims=True, dtype=np.float64))[0]
        return answer(self.target, share, truncated=len(ids) > room and not self.windows)

    def _row(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate(([self._tokenizer.special.sos], ids))
