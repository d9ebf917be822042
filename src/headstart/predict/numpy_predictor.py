"""The classifier in numpy: a first prediction without importing torch.

The classifier in numpy, for a text or two: torch alone takes longer to import than a short text takes to read.

The same numbers as `Backbone` and `ClassifierHead` within rounding (tested). One text at a time, so there is neither
padding nor a mask beside the causal one.

T tokens, D width, H heads, K width of one head, C labels.

The first answer soon: a few short texts in numpy, while torch would still be importing.

Whatever is not the usual case (a folder with something unexpected in it, much text, a network too large to be quick) is
left to `Predictor`, which also has the words for what is wrong.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from headstart.config.schema import AttentionDirection, ModelConfig
from headstart.errors import HeadstartError
from headstart.files import read_json, read_manifest
from headstart.metrics import softmax
from headstart.model.parameter_count import count_parameters
from headstart.predict.predictions import AnyPrediction, make_prediction
from headstart.store.locate import find_bundle
from headstart.tasks import SingleLabel
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]
_LAYER_NORM_EPSILON = 1e-5


def weight_shapes(
    config: ModelConfig, vocab_size: int, classes: int, attention: AttentionDirection
) -> dict[str, tuple[int, ...]]:
    """What the weights of a classifier are called, and their shapes; those of the head begin with `head.`."""
    width, inner = config.width, config.feedforward
    modern = config.block == "modern"
    found: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab_size, width)}
    linear = {"attention.qkv_proj": (3 * width, width), "attention.out_proj": (width, width)}
    linear |= {"up": (inner, width), "down": (width, inner)} | ({"gate": (inner, width)} if modern else {})
    for layer in range(config.depth):
        for name, shape in linear.items():
            found[f"layers.{layer}.{name}.weight"] = shape
            if not modern:
                found[f"layers.{layer}.{name}.bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            found[f"layers.{layer}.{name}.weight"] = (width,)
            if not modern:
                found[f"layers.{layer}.{name}.bias"] = (width,)
    found["head.linear.weight"] = (classes, width)
    if modern:
        found["norm.weight"] = (width,)
    if modern and attention == "bidirectional":
        found |= {"head.dense.weight": (width, width), "head.dense.bias": (width,)}
    if not modern or attention == "bidirectional":
        found["head.linear.bias"] = (classes,)
    return found


def numpy_logits(
    weights: Weights, config: ModelConfig, attention: AttentionDirection, ids_T: NDArray[np.int64]
) -> Floats:
    """Scores of one text over the labels; `ids_T` begins with the start token."""
    hidden_TD = _hidden(weights, config, attention, ids_T)
    vector_D = hidden_TD[-1] if attention == "causal" else hidden_TD.mean(axis=0)
    if "head.dense.weight" in weights:
        vector_D = _gelu(_linear(weights, "head.dense", vector_D))
    return _linear(weights, "head.linear", vector_D)


def _hidden(weights: Weights, config: ModelConfig, attention: AttentionDirection, ids_T: NDArray[np.int64]) -> Floats:
    x_TD = weights["embedding.weight"][ids_T]
    places = np.arange(len(ids_T), dtype=np.float32)[:, None]
    hidden_from = np.triu(np.ones((len(ids_T),) * 2, dtype=bool), 1) if attention == "causal" else None
    if config.block == "classic":
        rates = np.exp(np.arange(0, config.width, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / config.width))
        waves = np.stack((np.sin(places * rates), np.cos(places * rates)), axis=-1).reshape(len(ids_T), -1)
        x_TD = x_TD * np.float32(math.sqrt(config.width)) + waves
        for layer in range(config.depth):
            x_TD = _classic(weights, f"layers.{layer}.", x_TD, config.heads, hidden_from)
        return x_TD
    head = config.width // config.heads
    rates = np.float32(config.rotary_base) ** (-np.arange(0, head, 2, dtype=np.float32) / np.float32(head))
    turns = np.tile(places * rates, 2)
    angles = (np.cos(turns), np.sin(turns))
    for layer in range(config.depth):
        x_TD = _modern(weights, f"layers.{layer}.", x_TD, config, hidden_from, angles)
    return _rms_norm(x_TD, weights["norm.weight"], config.norm_epsilon)


def _classic(weights: Weights, name: str, x_TD: Floats, heads: int, hidden_from: NDArray[np.bool_] | None) -> Floats:
    x_TD = _layer_norm(weights, f"{name}norm1", x_TD + _attention(weights, name, x_TD, heads, hidden_from, None))
    widened = np.maximum(_linear(weights, f"{name}up", x_TD), 0)
    return _layer_norm(weights, f"{name}norm2", x_TD + _linear(weights, f"{name}down", widened))


def _modern(
    weights: Weights,
    name: str,
    x_TD: Floats,
    config: ModelConfig,
    hidden_from: NDArray[np.bool_] | None,
    angles: tuple[Floats, Floats],
) -> Floats:
    normed = _rms_norm(x_TD, weights[f"{name}norm1.weight"], config.norm_epsilon)
    x_TD = x_TD + _attention(weights, name, normed, config.heads, hidden_from, angles)
    normed = _rms_norm(x_TD, weights[f"{name}norm2.weight"], config.norm_epsilon)
    gate = _linear(weights, f"{name}gate", normed)
    with np.errstate(over="ignore"):  # exp of much, and then a division by it: 0, as it should be
        gate = gate / (1 + np.exp(-gate))
    return x_TD + _linear(weights, f"{name}down", gate * _linear(weights, f"{name}up", normed))


def _attention(
    weights: Weights,
    name: str,
    x_TD: Floats,
    heads: int,
    hidden_from: NDArray[np.bool_] | None,
    angles: tuple[Floats, Floats] | None,
) -> Floats:
    tokens, width = x_TD.shape
    parts = _linear(weights, f"{name}attention.qkv_proj", x_TD).reshape(tokens, 3, heads, -1).transpose(1, 2, 0, 3)
    query_HTK, key_HTK, value_HTK = parts
    if angles is not None:
        query_HTK, key_HTK = _apply_rotary(query_HTK, *angles), _apply_rotary(key_HTK, *angles)
    scores_HTT = query_HTK @ key_HTK.transpose(0, 2, 1) * np.float32(1 / math.sqrt(width // heads))
    if hidden_from is not None:
        scores_HTT[:, hidden_from] = -np.inf
    powers = np.exp(scores_HTT - scores_HTT.max(axis=-1, keepdims=True))
    mixed_HTK = powers / powers.sum(axis=-1, keepdims=True) @ value_HTK
    return _linear(weights, f"{name}attention.out_proj", mixed_HTK.transpose(1, 0, 2).reshape(tokens, width))


def _apply_rotary(x: Floats, cos: Floats, sin: Floats) -> Floats:
    low, high = np.split(x, 2, axis=-1)
    turned: Floats = x * cos + np.concatenate((-high, low), axis=-1) * sin
    return turned


def _linear(weights: Weights, name: str, x: Floats) -> Floats:
    out: Floats = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return out if bias is None else out + bias


def _layer_norm(weights: Weights, name: str, x: Floats) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(_LAYER_NORM_EPSILON))
    normed: Floats = centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return normed


def _rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    normed: Floats = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(epsilon)) * weight
    return normed


def _gelu(x_D: Floats) -> Floats:
    return np.array([value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in x_D.tolist()], dtype=np.float32)


MAX_WORK = 1e10
"""Multiplications, a quarter of a second of one core: more is done sooner by torch, its import included."""
_FACTS = {
    "head_type",
    "model",
    "vocab_size",
    "tokenizer",
    "labels",
    "task",
    "windows",
    "attention",
    "objective",
    "about",
}
_SHAPE = {
    *("block", "width", "depth", "heads", "feedforward", "dropout", "context"),
    *("rotary_base", "norm_epsilon", "tied", "generic"),
}
"""What a bundle may say of its network here: one that says more is not known well enough."""
_SINGLE_LABEL_FACTS = {"kind": "classes", "pair": False}


class NumpyPredictor:
    """A classifier bundle whose answers need no torch."""

    def __init__(self, facts: dict[str, Any], config: ModelConfig, weights: dict[str, Floats], tokenizer: Tokenizer):
        self.task = SingleLabel(tuple(facts["labels"]))
        self.windows = bool(facts["windows"])
        self._visibility: AttentionDirection = "bidirectional" if facts["attention"] == "bidirectional" else "causal"
        self._config, self._weights, self._tokenizer = config, weights, tokenizer

    @classmethod
    def load(cls, folder: Path, texts: Sequence[str]) -> "NumpyPredictor | None":
        """The classifier of a folder, every file checked; None when these texts are better answered by `Predictor`."""
        try:
            path = find_bundle(folder)
            facts = read_json(path / "bundle.json")
            if set(facts) != _FACTS or set(facts["model"]) != _SHAPE or facts["head_type"] != "classify":
                return None
            if facts["task"] != _SINGLE_LABEL_FACTS or facts["model"]["generic"] is not None:
                return None
            config, vocab_size = ModelConfig.model_validate(facts["model"]), int(facts["vocab_size"])
            # before anything is counted out: a shape must have the weights to show for it
            told = count_parameters(config, vocab_size, len(facts["labels"]), attention=facts["attention"]).total
            if 4 * told > sum((path / f"{part}.safetensors").stat().st_size for part in ("backbone", "head")):
                return None
            wanted = weight_shapes(config, vocab_size, len(facts["labels"]), facts["attention"])
            inner = sum(np.prod(shape) for name, shape in wanted.items() if name.startswith("layers."))
            # a byte is a token at most
            if inner * (len(texts) + sum(len(text.encode("utf-8", "replace")) for text in texts)) > MAX_WORK:
                return None
            read_manifest(path, kind="bundle")
            tokenizer = load_tokenizer(path / "tokenizer")
            weights = dict(load_file(path / "backbone.safetensors"))
            weights |= {f"head.{name}": tensor for name, tensor in load_file(path / "head.safetensors").items()}
            found = {name: tensor.shape for name, tensor in weights.items()}
            plain = all(tensor.dtype == np.float32 for tensor in weights.values())
            known = tokenizer.digest == facts["tokenizer"] and tokenizer.vocab_size <= vocab_size
            known = known and tokenizer.special.sep is None
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
            numpy_logits(self._weights, self._config, self._visibility, self._row(ids[start : start + room]))
            for start in starts
        ]
        share = softmax(np.stack(scores).mean(axis=0, keepdims=True, dtype=np.float64))[0]
        return make_prediction(self.task, share, truncated=len(ids) > room and not self.windows)

    def _row(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate(([self._tokenizer.special.sos], ids))
