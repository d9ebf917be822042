"""A classifier for onnxruntime: two graphs with their weights inside, and all that reading and naming take.

model.onnx  model.int8.onnx  tokenizer.json (cuts, pads and adds the start token)  headstart.json  manifest.json

B texts, T tokens.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.config.schema import PADDING_SEGMENT, CorpusConfig, RuntimeConfig
from headstart.data.corpus import read_documents
from headstart.data.labelled import TextInput
from headstart.errors import StoreError, UsageError
from headstart.files import atomic_folder, write_json
from headstart.interop.hf_export import check_export_folder, check_expressible
from headstart.interop.hf_tokenizers import standalone
from headstart.model.attention import build_attention_mask
from headstart.model.heads import ClassifierHead, Model
from headstart.predict.predictions import MultiLabelPrediction, RegressionPrediction, make_prediction
from headstart.predict.predictor import Predictor
from headstart.runtime import setup_runtime
from headstart.store.bundle import Bundle
from headstart.tasks import Regression, Task
from headstart.version import __version__

OPSET = 18
TOLERANCE = 1e-5
"""The fp32 graph may differ in no probability by more."""
NUM_RANDOM_TEXTS = 64
MAX_CHECKED = 1000
_FILES = {"model.onnx": "fp32", "model.int8.onnx": "int8"}
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


class _Graph(nn.Module):
    """What is exported: ids and what of them is real, to scores and probabilities, or to a number within bounds."""

    def __init__(self, model: Model[ClassifierHead], task: Task) -> None:
        super().__init__()
        self.backbone, self.head, self.task = model.backbone, model.head, task

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """A row is one text, padded on the right."""
        positions_T = torch.arange(input_ids.shape[1])
        seen = None
        if self.head.attention == "bidirectional":
            seen = build_attention_mask(torch.where(attention_mask > 0, 0, PADDING_SEGMENT), "bidirectional")
        scores_BC = self.head(self.backbone.through(input_ids, positions_T, seen), attention_mask.sum(dim=1))
        if isinstance(self.task, Regression):
            return scores_BC, scores_BC[:, 0].clamp(self.task.lowest, self.task.highest)
        return scores_BC, scores_BC.sigmoid() if self.task.kind == "labels" else scores_BC.softmax(dim=-1)


def export_onnx(bundle: Bundle, out: Path, check: str | None = None) -> list[str]:
    """Write the folder; returns a table of sizes and of how well the graphs agree with `headstart predict`.

    Args:
        check: a file of texts to compare the answers on; without it, texts are made up from the vocabulary.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"--to onnx needs {', '.join(missing)}: pip install 'headstart[onnx]'")
    check_export_folder(out)
    check_expressible(bundle)
    predictor = Predictor(bundle, setup_runtime(RuntimeConfig(device="cpu")))
    texts = _random_texts(bundle) if check is None else _read(check, bundle.task)
    with atomic_folder(out, kind="export", about={"to": "onnx", "opset": OPSET}) as draft:
        engine = standalone(bundle.tokenizer, pair=bundle.task.pair)
        special = bundle.tokenizer.special
        engine.enable_truncation(bundle.config.context)
        engine.enable_padding(pad_id=special.pad, pad_token=engine.id_to_token(special.pad))
        (draft / "tokenizer.json").write_text(engine.to_str(pretty=True), encoding="utf-8")
        with _silenced():
            _write_graphs(bundle.model, bundle.task, draft)
        rows = _compared(predictor, texts, draft)
        what = "pairs" if bundle.task.pair else "texts"
        facts = {
            "headstart": __version__,
            "labels": list(bundle.labels),
            "task": bundle.task.facts(),
            "context": bundle.config.context,
            "opset": OPSET,
            "inputs": ["input_ids", "attention_mask"],
            "outputs": ["logits", answer_name(bundle.task)],
            "compared_on": f"{len(texts)} {what} {'made up from the vocabulary' if check is None else f'of {check}'}",
            "files": rows,
        }
        write_json(draft / "headstart.json", facts)
    return _table(rows, str(facts["compared_on"]), out, bundle.task)


def answer_name(task: Task) -> str:
    """What the second output is called."""
    return "value" if task.kind == "rating" else "probabilities"


def _write_graphs(model: Model[ClassifierHead], task: Task, folder: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    free = torch.export.Dim.DYNAMIC
    ids_BT, mask_BT = torch.full((2, 7), 4), torch.ones(2, 7, dtype=torch.int64)
    torch.onnx.export(
        _Graph(model, task).eval(),
        (ids_BT, mask_BT),
        folder / "model.onnx",
        input_names=["input_ids", "attention_mask"],
        output_names=["logits", answer_name(task)],
        dynamo=True,
        dynamic_shapes={name: {0: free, 1: free} for name in ("input_ids", "attention_mask")},
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )
    graph = onnx.load(folder / "model.onnx")
    _simplify(graph)
    onnx.save(graph, folder / "model.onnx")
    quantize_dynamic(graph, folder / "model.int8.onnx", weight_type=QuantType.QInt8)


def _simplify(model: Any) -> None:
    """Name what is free, and leave out where in whose folders each node was written."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        for axis, name in zip(value.type.tensor_type.shape.dim, ("batch", "length"), strict=False):
            if not axis.HasField("dim_value"):
                axis.dim_param = name
    del graph.value_info[:]  # some of it is of before the weights were turned, and would be taken at its word
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for node in graph.node:
        node.name = ""


@contextmanager
def _silenced() -> Iterator[None]:
    """The exporters speak of libraries that are not there and of steps that are not needed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _compared(predictor: Predictor, texts: Sequence[TextInput], folder: Path) -> list[dict[str, Any]]:
    """What onnxruntime answers with the files as they are, beside what we answer."""
    task = predictor.task
    ours = predictor.probabilities(predictor.encode(texts))
    # a number is compared in units of its spread: what it is counted in is the person's choice
    unit = task.spread if isinstance(task, Regression) else 1.0
    rows = []
    for name, kind in _FILES.items():
        theirs = _answers(folder, name, texts, answer_name(task)).reshape(ours.shape)
        row: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "bytes": (folder / name).stat().st_size,
            "largest_difference": float(np.abs(ours - theirs).max()) / unit,
            "same_answers": sum(_same(task, *pair, unit) for pair in zip(ours, theirs, strict=True)),
            "texts": len(texts),
        }
        if kind == "fp32" and row["largest_difference"] > TOLERANCE:
            raise StoreError(
                f"the exported graph differs by {row['largest_difference']:.1e} in a probability, more than {TOLERANCE:g}"
            )
        rows.append(row)
    return rows


def _same(task: Task, ours: NDArray[np.float64], theirs: NDArray[np.float64], unit: float) -> bool:
    """Whether two answers are one to a person: the label, the labels, or a number to a hundredth of its spread."""
    mine, other = make_prediction(task, ours, False), make_prediction(task, theirs, False)
    if isinstance(mine, RegressionPrediction) and isinstance(other, RegressionPrediction):
        return abs(mine.value - other.value) < 0.01 * unit
    if isinstance(mine, MultiLabelPrediction) and isinstance(other, MultiLabelPrediction):
        return mine.labels == other.labels
    return bool(ours.argmax() == theirs.argmax())


def _answers(
    folder: Path, name: str, texts: Sequence[TextInput], output: str = "probabilities", bite: int = 32
) -> NDArray[np.float64]:
    import onnxruntime
    import tokenizers

    engine = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    engine.encode_special_tokens = True
    session = onnxruntime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
    parts = []
    for first in range(0, len(texts), bite):
        rows = engine.encode_batch(list(texts[first : first + bite]))
        feed = {
            "input_ids": np.array([row.ids for row in rows]),
            "attention_mask": np.array([row.attention_mask for row in rows]),
        }
        parts.append(session.run([output], feed)[0])
    return cast(NDArray[np.float64], np.concatenate(parts))


def _random_texts(bundle: Bundle) -> list[TextInput]:
    """Texts of random pieces and all lengths up to the context; in pairs, shorter ones beside longer ones and both cut."""
    chance, tokenizer = np.random.default_rng(0), bundle.tokenizer
    lengths = np.geomspace(1, bundle.config.context - tokenizer.special.num_special_tokens, NUM_RANDOM_TEXTS).astype(
        int
    )
    texts = [tokenizer.decode(chance.integers(4, tokenizer.vocab_size, length).tolist()) for length in lengths]
    texts = [text if text.strip() else "a" for text in texts]
    return list(zip(texts, texts[::-1], strict=True)) if bundle.task.pair else list(texts)


def _read(path: str, task: Task) -> list[TextInput]:
    found: list[TextInput] = []
    if task.pair:
        raise UsageError("--check takes one text a row, and this model reads pairs; leave it out: pairs are made up")
    for document in read_documents([path], CorpusConfig()):
        found.append(document.text)
        if len(found) == MAX_CHECKED:
            break
    return found


def _table(rows: Sequence[dict[str, Any]], compared: str, out: Path, task: Task) -> list[str]:
    unit = "standard deviations of the training ratings" if task.kind == "rating" else "probability"
    lines = [f"{'file':<16}{'size':>10}  {'largest difference':>18}  {'same answers':>14}"]
    for row in rows:
        same = f"{row['same_answers']:,} of {row['texts']:,}"
        size = f"{row['bytes'] / 1e6:.2f} MB"
        lines.append(f"{row['name']:<16}{size:>10}  {row['largest_difference']:>18.1e}  {same:>14}")
    return [*lines, f"in {unit}, on {compared}; opset {OPSET}; in {out}"]
