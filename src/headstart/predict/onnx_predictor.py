"""OnnxPredictor: a classifier that `headstart export --to onnx` wrote, in onnxruntime and without torch."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import tokenizers
from numpy.typing import NDArray

from headstart.errors import StoreError, UsageError
from headstart.files import MANIFEST, read_json, read_manifest
from headstart.linear.vocabulary import SEPARATOR, Kind, Vocabulary
from headstart.predict.outputs import AnyPrediction, make_prediction, predict_readable, single_texts
from headstart.runtime import free_cores
from headstart.tasks import TextInput, task_from
from headstart.tokenization.base import library_panics

FULL, INT8, VOCABULARY = "model.onnx", "model.int8.onnx", "vocabulary.json"
BATCH_TOKENS = 1024
"""Padded tokens per batch, as in `train.scoring` on a CPU."""
DENSE_TEXTS = 8
"""Texts per batch of a linear classifier, whose n-gram counts are dense in a graph."""


def is_onnx_export(folder: Path) -> bool:
    """Whether a folder looks like an export for onnxruntime."""
    return (folder / MANIFEST).is_file() and (folder / FULL).is_file() and (folder / "headstart.json").is_file()


class OnnxPredictor:
    """A single-label classifier of any kind in onnxruntime, in fp32 or int8."""

    def __init__(self, folder: Path, *, int8: bool = False, threads: int | None = None) -> None:
        if find_spec("onnxruntime") is None:
            raise UsageError(f"{folder} is for onnxruntime, which is not installed: pip install 'headstart[onnx]'")
        import onnxruntime

        read_manifest(folder, kind="export")
        facts = read_json(folder / "headstart.json")
        name = INT8 if int8 else FULL
        try:
            self.task = task_from(facts.get("task"), tuple(facts["labels"]))
            self._file_facts = next(file for file in facts["files"] if file["name"] == name)
            self._compared_on, self._int8 = str(facts["compared_on"]), int8
            self._vocabularies = read_vocabularies(folder)
            self._tokenizer = None if facts["context"] is None else _Tokenizer(folder, int(facts["context"]))
        except StopIteration:
            raise UsageError(f"{folder} has no {name}: a linear classifier is exported in fp32 only") from None
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{folder / 'headstart.json'} is damaged: {error}") from None
        if self.task.kind != "classes" or self.task.pair:
            raise UsageError(
                f"predict supports ONNX exports for one class per text only, got {folder}; use "
                "examples/onnx_predict.py, or the model that was exported"
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or free_cores()
        # spinning threads would take the cores from other work
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            str(folder / name), options, providers=["CPUExecutionProvider"]
        )

    @property
    def agreement(self) -> str | None:
        """The agreement of int8 with fp32 at the time of the export; None in fp32."""
        if not self._int8:
            return None
        same, texts = self._file_facts["same_answers"], self._file_facts["texts"]
        return f"int8: {same:,} of {texts:,} predictions are the same as in full precision, on {self._compared_on}"

    def predict(self, texts: Sequence[TextInput], *, abstain: float | None = None) -> list[AnyPrediction | None]:
        """Predict every text, in order, a blank one as None; texts of similar length are batched together.

        It cannot abstain.
        """
        assert abstain is None, "abstain does not support ONNX exports, which have no table of thresholds"
        return predict_readable(texts, self._predict_texts)

    def _predict_texts(self, texts: Sequence[TextInput]) -> list[AnyPrediction]:
        singles = single_texts(texts)
        ids = self._tokenizer.encode(singles) if self._tokenizer else [np.zeros(0, dtype=np.int64)] * len(singles)
        context = self._tokenizer.context if self._tokenizer else sys.maxsize
        probabilities = np.empty((len(ids), self.task.outputs))
        for batch in _batches([min(context, len(row)) for row in ids], DENSE_TEXTS if self._vocabularies else None):
            feed = linear_feed(self._vocabularies, [singles[index] for index in batch])
            if self._tokenizer:
                feed |= _padded([ids[index][:context] for index in batch])
            probabilities[batch] = self._session.run(["probabilities"], feed)[0]
        return [
            make_prediction(self.task, row, len(text) > context) for row, text in zip(probabilities, ids, strict=True)
        ]


class _Tokenizer:
    """The tokenizer of an exported network."""

    def __init__(self, folder: Path, context: int) -> None:
        self.context = context
        self._engine = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._engine.encode_special_tokens = True  # the name of a special token in a text is plain text
        self._engine.no_padding()
        self._engine.no_truncation()

    def encode(self, texts: list[str]) -> list[NDArray[np.int64]]:
        """Return the token ids of each text, without truncation."""
        with library_panics():
            encodings = self._engine.encode_batch(texts)
        return [np.asarray(row.ids, dtype=np.int64) for row in encodings]


def _batches(lengths: Sequence[int], max_texts: int | None) -> list[list[int]]:
    """Indices of the texts in batches of similar length, of at most BATCH_TOKENS padded tokens or one text."""
    batches: list[list[int]] = []
    for index in np.argsort(lengths, kind="stable"):
        is_full = not batches or (len(batches[-1]) + 1) * lengths[index] > BATCH_TOKENS
        if is_full or (max_texts is not None and len(batches[-1]) == max_texts):
            batches.append([])
        batches[-1].append(int(index))
    return batches


def _padded(ids: Sequence[NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Return the inputs of the network's part of a graph."""
    rows = np.zeros((len(ids), max(map(len, ids))), dtype=np.int64)
    mask = np.zeros_like(rows)
    for row, text in enumerate(ids):
        rows[row, : len(text)], mask[row, : len(text)] = text, 1
    return {"input_ids": rows, "attention_mask": mask}


def read_vocabularies(folder: Path) -> list[Vocabulary]:
    """Read vocabulary.json; empty for a network, which has none. A ValueError says what is wrong with it."""
    if not (folder / VOCABULARY).is_file():
        return []
    facts = read_json(folder / VOCABULARY)
    kinds: list[Kind] = [kind for kind in get_args(Kind) if kind in facts]
    for kind in kinds:
        if not all(isinstance(token, str) for token in facts[kind]["tokens"]):
            raise ValueError(f"a token of {kind} in {VOCABULARY} is not a string")
    return [Vocabulary(kind, facts[kind]["tokens"]) for kind in kinds]


def linear_feed(vocabularies: Sequence[Vocabulary], texts: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Return the inputs of the linear part of a graph: the token ids of each view, padded with -1."""
    feed: dict[str, NDArray[np.int64]] = {}
    for vocabulary in vocabularies:
        ids = [
            vocabulary.tokenize([text]).ids_T for text in texts
        ]  # they end with a separator, which is the padding too
        feed[vocabulary.kind] = np.full((len(ids), max(map(len, ids))), SEPARATOR, dtype=np.int64)
        for row, text_ids in enumerate(ids):
            feed[vocabulary.kind][row, : len(text_ids)] = text_ids
    return feed
