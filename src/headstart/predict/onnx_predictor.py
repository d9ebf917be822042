"""OnnxPredictor: a classifier that `headstart export --to onnx` wrote, in onnxruntime and without torch."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from headstart.errors import StoreError, UsageError
from headstart.files import MANIFEST, read_json, read_manifest
from headstart.predict.outputs import AnyPrediction, make_prediction, single_texts
from headstart.runtime import free_cores
from headstart.tasks import TextInput, task_from

FULL, INT8 = "model.onnx", "model.int8.onnx"
BATCH_TOKENS = 1024
"""Padded tokens per batch, as in `train.scoring` on a CPU."""


def is_onnx_export(folder: Path) -> bool:
    """Whether a folder looks like an export for onnxruntime."""
    return (folder / MANIFEST).is_file() and (folder / FULL).is_file() and (folder / "headstart.json").is_file()


class OnnxPredictor:
    """A single-label classifier in onnxruntime, in fp32 or int8."""

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
            self._engine = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._compared_on = str(facts["compared_on"])
            self._context, self._int8 = int(facts["context"]), int8
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise StoreError(f"{folder / 'headstart.json'} is damaged: {error}") from None
        if self.task.kind != "classes" or self.task.pair:
            raise UsageError(
                f"{folder} does not give one class a text, and predict reads no other exports; "
                "examples/onnx_predict.py does, or give the model it was made from"
            )
        self._engine.encode_special_tokens = True  # the name of a special token in a text is plain text
        self._engine.no_padding()
        self._engine.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or free_cores()
        # spinning threads would take the cores from other work
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            str(folder / name), options, providers=["CPUExecutionProvider"]
        )

    @property
    def agreement(self) -> str | None:
        """How far int8 agreed with fp32 when it was exported; None in fp32."""
        if not self._int8:
            return None
        same, texts = self._file_facts["same_answers"], self._file_facts["texts"]
        return f"int8: {same:,} of {texts:,} answers as in full precision, on {self._compared_on}"

    def predict(self, texts: Sequence[TextInput], *, abstain: float | None = None) -> list[AnyPrediction]:
        """Predict every text, in order; texts of similar length are batched together. It cannot abstain."""
        assert abstain is None, "an export has no table of thresholds"
        ids = [np.asarray(row.ids, dtype=np.int64) for row in self._engine.encode_batch(single_texts(texts))]
        probabilities = np.empty((len(ids), self.task.outputs))
        for batch in self._batches(ids):
            max_length = min(self._context, len(ids[batch[-1]]))
            rows = np.zeros((len(batch), max_length), dtype=np.int64)
            mask = np.zeros_like(rows)
            for row, index in enumerate(batch):
                text = ids[index][:max_length]
                rows[row, : len(text)], mask[row, : len(text)] = text, 1
            feed = {"input_ids": rows, "attention_mask": mask}
            probabilities[batch] = self._session.run(["probabilities"], feed)[0]
        return [
            make_prediction(self.task, row, len(text) > self._context)
            for row, text in zip(probabilities, ids, strict=True)
        ]

    def _batches(self, ids: Sequence[NDArray[np.int64]]) -> list[list[int]]:
        """Indices of the texts in batches of similar length, of at most BATCH_TOKENS padded tokens or one text."""
        batches: list[list[int]] = []
        for index in np.argsort([len(row) for row in ids], kind="stable"):
            length = min(self._context, len(ids[index]))
            if not batches or (len(batches[-1]) + 1) * length > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(int(index))
        return batches
