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

from headstart.config import PADDING, CorpusConfig, RuntimeConfig
from headstart.data.corpus import read_documents
from headstart.data.labelled import Question
from headstart.errors import StoreError, UsageError
from headstart.files import whole_folder, write_json
from headstart.interop.hf_export import check_expressible, check_out
from headstart.interop.hf_tokenizer import standalone
from headstart.kinds import Rating, Target
from headstart.model.attention import visible
from headstart.model.heads import ClassifierHead, Model
from headstart.predict.answers import LabelsPrediction, RatingPrediction, answer
from headstart.predict.predictor import Predictor
from headstart.runtime import start
from headstart.store.bundle import Bundle
from headstart.version import __version__

OPSET = 18
EXACT = 1e-5
"""The fp32 graph may differ in no probability by more."""
MADE_UP = 64
MOST = 1000
_FILES = {"model.onnx": "fp32", "model.int8.onnx": "int8"}
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


class _Graph(nn.Module):
    """What is exported: ids and what of them is real, to scores and probabilities, or to a number within bounds."""

    def __init__(self, model: Model[ClassifierHead], target: Target) -> None:
        super().__init__()
        self.backbone, self.head, self.target = model.backbone, model.head, target

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """A row is one text, padded on the right."""
        positions_T = torch.arange(input_ids.shape[1])
        seen = None
        if self.head.visibility == "both":
            seen = visible(torch.where(attention_mask > 0, 0, PADDING), "both")
        scores_BC = self.head(self.backbone.through(input_ids, positions_T, seen), attention_mask.sum(dim=1))
        if isinstance(self.target, Rating):
            return scores_BC, scores_BC[:, 0].clamp(self.target.lowest, self.target.highest)
        return scores_BC, scores_BC.sigmoid() if self.target.kind == "labels" else scores_BC.softmax(dim=-1)


def export_onnx(bundle: Bundle, out: Path, check: str | None = None) -> list[str]:
    """Write the folder; returns a table of sizes and of how well the graphs agree with `headstart predict`.

    Args:
        check: a file of texts to compare the answers on; without it, texts are made up from the vocabulary.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"--to onnx needs {', '.join(missing)}: pip install 'headstart[onnx]'")
    check_out(out)
    check_expressible(bundle)
    predictor = Predictor(bundle, start(RuntimeConfig(device="cpu")))
    texts = _made_up(bundle) if check is None else _read(check, bundle.target)
    with whole_folder(out, kind="export", about={"to": "onnx", "opset": OPSET}) as draft:
        engine = standalone(bundle.tokenizer, pair=bundle.target.pair)
        special = bundle.tokenizer.special
        engine.enable_truncation(bundle.config.context)
        engine.enable_padding(pad_id=special.pad, pad_token=engine.id_to_token(special.pad))
        (draft / "tokenizer.json").write_text(engine.to_str(pretty=True), encoding="utf-8")
        with _quiet():
            _write_graphs(bundle.model, bundle.target, draft)
        rows = _compared(predictor, texts, draft)
        what = "pairs" if bundle.target.pair else "texts"
        facts = {
            "headstart": __version__,
            "labels": list(bundle.labels),
            "target": bundle.target.facts(),
            "context": bundle.config.context,
            "opset": OPSET,
            "inputs": ["input_ids", "attention_mask"],
            "outputs": ["logits", answer_name(bundle.target)],
            "compared_on": f"{len(texts)} {what} {'made up from the vocabulary' if check is None else f'of {check}'}",
            "files": rows,
        }
        write_json(draft / "headstart.json", facts)
    return _table(rows, str(facts["compared_on"]), out, bundle.target)


def answer_name(target: Target) -> str:
    """What the second output is called."""
    return "value" if target.kind == "rating" else "probabilities"


def _write_graphs(model: Model[ClassifierHead], target: Target, folder: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    free = torch.export.Dim.DYNAMIC
    ids_BT, mask_BT = torch.full((2, 7), 4), torch.ones(2, 7, dtype=torch.int64)
    torch.onnx.export(
        _Graph(model, target).eval(),
        (ids_BT, mask_BT),
        folder / "model.onnx",
        input_names=["input_ids", "attention_mask"],
        output_names=["logits", answer_name(target)],
        dynamo=True,
        dynamic_shapes={name: {0: free, 1: free} for name in ("input_ids", "attention_mask")},
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )
    graph = onnx.load(folder / "model.onnx")
    _tidy(graph)
    onnx.save(graph, folder / "model.onnx")
    quantize_dynamic(graph, folder / "model.int8.onnx", weight_type=QuantType.QInt8)


def _tidy(model: Any) -> None:
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
def _quiet() -> Iterator[None]:
    """The exporters speak of libraries that are not there and of steps that are not needed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _compared(predictor: Predictor, texts: Sequence[Question], folder: Path) -> list[dict[str, Any]]:
    """What onnxruntime answers with the files as they are, beside what we answer."""
    target = predictor.target
    ours = predictor.shares(predictor.encode(texts))
    # a number is compared in units of its spread: what it is counted in is the person's choice
    unit = target.spread if isinstance(target, Rating) else 1.0
    rows = []
    for name, kind in _FILES.items():
        theirs = _answers(folder, name, texts, answer_name(target)).reshape(ours.shape)
        row: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "bytes": (folder / name).stat().st_size,
            "largest_difference": float(np.abs(ours - theirs).max()) / unit,
            "same_answers": sum(_same(target, *pair, unit) for pair in zip(ours, theirs, strict=True)),
            "texts": len(texts),
        }
        if kind == "fp32" and row["largest_difference"] > EXACT:
            raise StoreError(
                f"the exported graph differs by {row['largest_difference']:.1e} in a probability, more than {EXACT:g}"
            )
        rows.append(row)
    return rows


def _same(target: Target, ours: NDArray[np.float64], theirs: NDArray[np.float64], unit: float) -> bool:
    """Whether two answers are one to a person: the label, the labels, or a number to a hundredth of its spread."""
    mine, other = answer(target, ours, False), answer(target, theirs, False)
    if isinstance(mine, RatingPrediction) and isinstance(other, RatingPrediction):
        return abs(mine.value - other.value) < 0.01 * unit
    if isinstance(mine, LabelsPrediction) and isinstance(other, LabelsPrediction):
        return mine.labels == other.labels
    return bool(ours.argmax() == theirs.argmax())


def _answers(
    folder: Path, name: str, texts: Sequence[Question], output: str = "probabilities", bite: int = 32
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


def _made_up(bundle: Bundle) -> list[Question]:
    """Texts of random pieces and all lengths up to the context; in pairs, shorter ones beside longer ones and both cut."""
    chance, tokenizer = np.random.default_rng(0), bundle.tokenizer
    lengths = np.geomspace(1, bundle.config.context - tokenizer.special.around, MADE_UP).astype(int)
    texts = [tokenizer.decode(chance.integers(4, tokenizer.vocab_size, length).tolist()) for length in lengths]
    texts = [text if text.strip() else "a" for text in texts]
    return list(zip(texts, texts[::-1], strict=True)) if bundle.target.pair else list(texts)


def _read(path: str, target: Target) -> list[Question]:
    found: list[Question] = []
    if target.pair:
        raise UsageError("--check takes one text a row, and this model reads pairs; leave it out: pairs are made up")
    for document in read_documents([path], CorpusConfig()):
        found.append(document.text)
        if len(found) == MOST:
            break
    return found


def _table(rows: Sequence[dict[str, Any]], compared: str, out: Path, target: Target) -> list[str]:
    unit = "standard deviations of the training ratings" if target.kind == "rating" else "probability"
    lines = [f"{'file':<16}{'size':>10}  {'largest difference':>18}  {'same answers':>14}"]
    for row in rows:
        same = f"{row['same_answers']:,} of {row['texts']:,}"
        size = f"{row['bytes'] / 1e6:.2f} MB"
        lines.append(f"{row['name']:<16}{size:>10}  {row['largest_difference']:>18.1e}  {same:>14}")
    return [*lines, f"in {unit}, on {compared}; opset {OPSET}; in {out}"]
