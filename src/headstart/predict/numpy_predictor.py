"""NumpyPredictor: the classifier in numpy, so that predicting a few short texts does not wait for the import of torch.

It gives the logits of `Backbone` and `ClassifierHead` within rounding (tested). It reads one text at a time, so there is
no padding, and no mask but the causal one. Everything unusual (other blocks and tasks, unexpected files, much text, a
large network) is left to `Predictor`, which also reports errors.

T tokens, D width, H heads, K width of one head, C labels.
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
from headstart.predict.outputs import AnyPrediction, make_prediction, predict_readable, single_texts
from headstart.store.linear_bundle import LinearPart, read_linear_part
from headstart.store.locate import find_bundle
from headstart.tasks import SingleLabel, TextInput
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]
_LAYER_NORM_EPSILON = 1e-5


def weight_shapes(
    config: ModelConfig, vocab_size: int, classes: int, attention: AttentionDirection
) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the weights of a classifier; names of the head begin with `head.`."""
    width, inner = config.width, config.feedforward
    modern = config.block == "modern"
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab_size, width)}
    linear = {"attention.qkv_proj": (3 * width, width), "attention.out_proj": (width, width)}
    linear |= {"up": (inner, width), "down": (width, inner)} | ({"gate": (inner, width)} if modern else {})
    for layer in range(config.depth):
        for name, shape in linear.items():
            shapes[f"layers.{layer}.{name}.weight"] = shape
            if not modern:
                shapes[f"layers.{layer}.{name}.bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            shapes[f"layers.{layer}.{name}.weight"] = (width,)
            if not modern:
                shapes[f"layers.{layer}.{name}.bias"] = (width,)
    shapes["head.linear.weight"] = (classes, width)
    if modern:
        shapes["norm.weight"] = (width,)
    if modern and attention == "bidirectional":
        shapes |= {"head.dense.weight": (width, width), "head.dense.bias": (width,)}
    if not modern or attention == "bidirectional":
        shapes["head.linear.bias"] = (classes,)
    return shapes


def numpy_logits(
    weights: Weights, config: ModelConfig, attention: AttentionDirection, ids_T: NDArray[np.int64]
) -> Floats:
    """Compute the logits of one text; `ids_T` begins with the start token."""
    hidden_TD = _hidden(weights, config, attention, ids_T)
    pooled_D = hidden_TD[-1] if attention == "causal" else hidden_TD.mean(axis=0)
    if "head.dense.weight" in weights:
        pooled_D = _gelu(_linear(weights, "head.dense", pooled_D))
    return _linear(weights, "head.linear", pooled_D)


def _hidden(weights: Weights, config: ModelConfig, attention: AttentionDirection, ids_T: NDArray[np.int64]) -> Floats:
    x_TD = weights["embedding.weight"][ids_T]
    positions = np.arange(len(ids_T), dtype=np.float32)[:, None]
    masked_TT = np.triu(np.ones((len(ids_T),) * 2, dtype=bool), 1) if attention == "causal" else None
    if config.block == "classic":
        rates = np.exp(np.arange(0, config.width, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / config.width))
        angles = positions * rates
        sinusoids = np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(len(ids_T), -1)
        x_TD = x_TD * np.float32(math.sqrt(config.width)) + sinusoids
        for layer in range(config.depth):
            x_TD = _classic_block(weights, f"layers.{layer}.", x_TD, config.heads, masked_TT)
        return x_TD
    head_width = config.width // config.heads
    rates = np.float32(config.rotary_base) ** (-np.arange(0, head_width, 2, dtype=np.float32) / np.float32(head_width))
    angles = np.tile(positions * rates, 2)
    cos_sin = (np.cos(angles), np.sin(angles))
    for layer in range(config.depth):
        x_TD = _modern_block(weights, f"layers.{layer}.", x_TD, config, masked_TT, cos_sin)
    return _rms_norm(x_TD, weights["norm.weight"], config.norm_epsilon)


def _classic_block(
    weights: Weights, name: str, x_TD: Floats, heads: int, masked_TT: NDArray[np.bool_] | None
) -> Floats:
    x_TD = _layer_norm(weights, f"{name}norm1", x_TD + _attention(weights, name, x_TD, heads, masked_TT, None))
    activated = np.maximum(_linear(weights, f"{name}up", x_TD), 0)
    return _layer_norm(weights, f"{name}norm2", x_TD + _linear(weights, f"{name}down", activated))


def _modern_block(
    weights: Weights,
    name: str,
    x_TD: Floats,
    config: ModelConfig,
    masked_TT: NDArray[np.bool_] | None,
    cos_sin: tuple[Floats, Floats],
) -> Floats:
    normed = _rms_norm(x_TD, weights[f"{name}norm1.weight"], config.norm_epsilon)
    x_TD = x_TD + _attention(weights, name, normed, config.heads, masked_TT, cos_sin)
    normed = _rms_norm(x_TD, weights[f"{name}norm2.weight"], config.norm_epsilon)
    gate = _linear(weights, f"{name}gate", normed)
    with np.errstate(over="ignore"):  # exp may overflow to infinity; dividing by it gives the correct 0
        gate = gate / (1 + np.exp(-gate))
    return x_TD + _linear(weights, f"{name}down", gate * _linear(weights, f"{name}up", normed))


def _attention(
    weights: Weights,
    name: str,
    x_TD: Floats,
    heads: int,
    masked_TT: NDArray[np.bool_] | None,
    cos_sin: tuple[Floats, Floats] | None,
) -> Floats:
    tokens, width = x_TD.shape
    qkv = _linear(weights, f"{name}attention.qkv_proj", x_TD).reshape(tokens, 3, heads, -1).transpose(1, 2, 0, 3)
    query_HTK, key_HTK, value_HTK = qkv
    if cos_sin is not None:
        query_HTK, key_HTK = _apply_rotary(query_HTK, *cos_sin), _apply_rotary(key_HTK, *cos_sin)
    scores_HTT = query_HTK @ key_HTK.transpose(0, 2, 1) * np.float32(1 / math.sqrt(width // heads))
    if masked_TT is not None:
        scores_HTT[:, masked_TT] = -np.inf
    exp_HTT = np.exp(scores_HTT - scores_HTT.max(axis=-1, keepdims=True))
    context_HTK = exp_HTT / exp_HTT.sum(axis=-1, keepdims=True) @ value_HTK
    return _linear(weights, f"{name}attention.out_proj", context_HTK.transpose(1, 0, 2).reshape(tokens, width))


def _apply_rotary(x: Floats, cos: Floats, sin: Floats) -> Floats:
    low, high = np.split(x, 2, axis=-1)
    rotated: Floats = x * cos + np.concatenate((-high, low), axis=-1) * sin
    return rotated


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


MAX_MULTIPLICATIONS = 1e10
"""Multiplications, about 0.25 s on one core; beyond that torch is faster, its import included."""
_BUNDLE_KEYS = {
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
_MODEL_KEYS = {
    *("block", "width", "depth", "heads", "feedforward", "dropout", "context"),
    *("rotary_base", "norm_epsilon", "tied", "generic"),
}
"""The keys of bundle.json and of its model; a bundle with others is left to `Predictor`."""
_BLEND_KEYS = {"classifier", "blend", "network_about"}
"""The further keys of a blend."""
_SINGLE_LABEL_FACTS = {"kind": "classes", "pair": False}


class NumpyPredictor:
    """A single-label classifier bundle of the classic or modern block, alone or in a blend, without torch."""

    def __init__(
        self,
        facts: dict[str, Any],
        config: ModelConfig,
        weights: dict[str, Floats],
        tokenizer: Tokenizer,
        linear: LinearPart | None,
    ) -> None:
        self.task = SingleLabel(tuple(facts["labels"]))
        self.windows = bool(facts["windows"])
        self._attention: AttentionDirection = "bidirectional" if facts["attention"] == "bidirectional" else "causal"
        self._config, self._weights, self._tokenizer = config, weights, tokenizer
        self._linear = linear

    @classmethod
    def load(cls, folder: Path, texts: Sequence[str]) -> "NumpyPredictor | None":
        """Load a classifier and check all of its files; None if these texts should be left to `Predictor`."""
        try:
            path = find_bundle(folder)
            facts = read_json(path / "bundle.json")
            is_blend = facts.get("classifier") == "blend"
            if set(facts) != (_BUNDLE_KEYS | _BLEND_KEYS if is_blend else _BUNDLE_KEYS):
                return None
            if set(facts["model"]) != _MODEL_KEYS or facts["head_type"] != "classify":
                return None
            if facts["task"] != _SINGLE_LABEL_FACTS or facts["model"]["generic"] is not None:
                return None
            config, vocab_size = ModelConfig.model_validate(facts["model"]), int(facts["vocab_size"])
            # checked before listing the layers: a damaged shape could have millions of them
            parameters = count_parameters(config, vocab_size, len(facts["labels"]), attention=facts["attention"]).total
            if 4 * parameters > sum((path / f"{name}.safetensors").stat().st_size for name in ("backbone", "head")):
                return None
            expected = weight_shapes(config, vocab_size, len(facts["labels"]), facts["attention"])
            layer_weights = sum(np.prod(shape) for name, shape in expected.items() if name.startswith("layers."))
            # a text has at most one token per byte, and the start token
            if (
                layer_weights * (len(texts) + sum(len(text.encode("utf-8", "replace")) for text in texts))
                > MAX_MULTIPLICATIONS
            ):
                return None
            read_manifest(path, kind="bundle")
            tokenizer = load_tokenizer(path / "tokenizer")
            weights = dict(load_file(path / "backbone.safetensors"))
            weights |= {f"head.{name}": tensor for name, tensor in load_file(path / "head.safetensors").items()}
            weights_fit = {name: tensor.shape for name, tensor in weights.items()} == expected
            weights_fit = weights_fit and all(tensor.dtype == np.float32 for tensor in weights.values())
            tokenizer_fits = tokenizer.digest == facts["tokenizer"] and tokenizer.vocab_size <= vocab_size
            tokenizer_fits = tokenizer_fits and tokenizer.special.sep is None
            if not (weights_fit and tokenizer_fits):
                return None
            return cls(facts, config, weights, tokenizer, read_linear_part(path, facts) if is_blend else None)
        except (HeadstartError, SafetensorError, OSError, KeyError, TypeError, ValueError):
            return None

    def predict(self, texts: Sequence[TextInput], *, abstain: float | None = None) -> list[AnyPrediction | None]:
        """Predict every text by itself, in order, a blank one as None. It cannot abstain."""
        assert abstain is None
        return predict_readable(texts, self._predict_texts)

    def _predict_texts(self, texts: Sequence[TextInput]) -> list[AnyPrediction]:
        singles = single_texts(texts)
        encoded = self._tokenizer.encode_batch(singles)
        return [
            self._predict_one(text, np.asarray(ids, dtype=np.int64)) for text, ids in zip(singles, encoded, strict=True)
        ]

    def _predict_one(self, text: str, ids: NDArray[np.int64]) -> AnyPrediction:
        window = self._config.context - 1  # the start token takes one position
        starts = range(0, max(len(ids), 1), window) if self.windows else range(1)
        logits = [
            numpy_logits(self._weights, self._config, self._attention, self._add_start(ids[start : start + window]))
            for start in starts
        ]
        mean = np.stack(logits).mean(axis=0, keepdims=True, dtype=np.float64)
        if self._linear is not None:
            mean = self._linear.blend(mean, [text])
        return make_prediction(self.task, softmax(mean)[0], truncated=len(ids) > window and not self.windows)

    def _add_start(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate(([self._tokenizer.special.sos], ids))
