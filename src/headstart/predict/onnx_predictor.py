"""Answers from a folder that `headstart export --to onnx` wrote: onnxruntime, no torch, in full precision or in int8."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from headstart.errors import StoreError, UsageError
from headstart.files import MANIFEST, read_json, read_manifest
from headstart.predict.predictions import AnyPrediction, make_prediction
from headstart.runtime import free_cores
from headstart.tasks import task_from

FULL, INT8 = "model.onnx", "model.int8.onnx"
BATCH_TOKENS = 1024
"""Padded tokens a batch, as `train.evaluate` has them on a CPU."""


def is_onnx_export(folder: Path) -> bool:
    """Whether a folder looks like an export for onnxruntime."""
    return (folder / MANIFEST).is_file() and (folder / FULL).is_file() and (folder / "headstart.json").is_file()


class OnnxPredictor:
    """A classifier in onnxruntime, loaded once and asked often."""

    def __init__(self, folder: Path, *, int8: bool = False, threads: int | None = None) -> None:
        if find_spec("onnxruntime") is None:
            raise UsageError(f"{folder} is for onnxruntime, which is not installed: pip install 'headstart[onnx]'")
        import onnxruntime

        read_manifest(folder, kind="export")
        facts = read_json(folder / "headstart.json")
        name = INT8 if int8 else FULL
        try:
            self.task = task_from(facts.get("task"), tuple(facts["labels"]))
            self._row = next(row for row in facts["files"] if row["name"] == name)
            self._engine = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._compared = str(facts["compared_on"])
            self._context, self._int8 = int(facts["context"]), int8
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise StoreError(f"{folder / 'headstart.json'} is damaged: {error}") from None
        if self.task.kind != "classes" or self.task.pair:
            raise UsageError(
                f"{folder} does not give one class a text, and predict reads no other exports; "
                "examples/onnx_predict.py does, or give the model it was made from"
            )
        self._engine.encode_special_tokens = True  # what a text says of special tokens is text
        self._engine.no_padding()
        self._engine.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or free_cores()
        # threads that wait for work by turning in circles take the core from whoever has some
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            str(folder / name), options, providers=["CPUExecutionProvider"]
        )

    @property
    def agreement(self) -> str | None:
        """What int8 was found to change when it was exported."""
        if not self._int8:
            return None
        row = self._row
        return f"int8: {row['same_answers']:,} of {row['texts']:,} answers as in full precision, on {self._compared}"

    def predict(self, texts: Sequence[str], *, abstain: float | None = None) -> list[AnyPrediction]:
        """Answer every text, in order; texts of like length are read together."""
        assert abstain is None, "an export has no table of thresholds"
        ids = [np.asarray(row.ids, dtype=np.int64) for row in self._engine.encode_batch(list(texts))]
        shares = np.empty((len(ids), self.task.outputs))
        for batch in self._batches(ids):
            longest = min(self._context, len(ids[batch[-1]]))
            rows = np.zeros((len(batch), longest), dtype=np.int64)
            mask = np.zeros_like(rows)
            for place, index in enumerate(batch):
                row = ids[index][:longest]
                rows[place, : len(row)], mask[place, : len(row)] = row, 1
            feed = {"input_ids": rows, "attention_mask": mask}
            shares[batch] = self._session.run(["probabilities"], feed)[0]
        return [
            make_prediction(self.task, share, len(own) > self._context) for share, own in zip(shares, ids, strict=True)
        ]

    def _batches(self, ids: Sequence[NDArray[np.int64]]) -> list[list[int]]:
        batches: list[list[int]] = []
        for index in np.argsort([len(row) for row in ids], kind="stable"):
            length = min(self._context, len(ids[index]))
            if not batches or (len(batches[-1]) + 1) * length > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(int(index))
        return batches
