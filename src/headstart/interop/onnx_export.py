"""Export a classifier for onnxruntime: graphs with their weights, a tokenizer, and the labels.

network  model.onnx  model.int8.onnx  tokenizer.json (truncates, pads, adds the start token)  headstart.json  manifest.json
linear   model.onnx  vocabulary.json  headstart.json  manifest.json
blend    the files of both; each graph computes the network, the linear classifier and their blend

B texts, T tokens, C labels.
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

from headstart.config.merge import merge_config
from headstart.config.schema import PADDING_SEGMENT, CorpusConfig, RuntimeConfig
from headstart.data.corpus import read_documents
from headstart.errors import StoreError, UsageError
from headstart.files import atomic_folder, write_json
from headstart.interop.hf_export import check_export_folder, check_expressible
from headstart.interop.hf_tokenizers import to_hf_tokenizer
from headstart.interop.linear_graph import add_linear, linear_model, vocabulary_facts
from headstart.linear.classifier import LinearClassifier
from headstart.model.attention import build_attention_mask
from headstart.model.heads import ClassifierHead, Model
from headstart.predict.blend_predictor import BlendPredictor
from headstart.predict.bundle_predictor import AnyPredictor
from headstart.predict.linear_predictor import LinearPredictor
from headstart.predict.onnx_predictor import linear_feed, read_vocabularies
from headstart.predict.outputs import MultiLabelPrediction, RegressionPrediction, make_prediction, single_texts
from headstart.predict.predictor import Predictor
from headstart.runtime import setup_runtime
from headstart.store.bundle import AnyClassifierBundle, BlendBundle, Bundle
from headstart.store.linear_bundle import LinearBundle, LinearPart
from headstart.tasks import Regression, Task, TextInput
from headstart.version import __version__

OPSET = 18
TOLERANCE = 1e-5
"""The largest difference in a probability that the fp32 graph may have."""
NUM_RANDOM_TEXTS = 64
MAX_CHECKED_TEXTS = 1000
_FILES = {"model.onnx": "fp32", "model.int8.onnx": "int8"}
_REQUIRED_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class _Graph(nn.Module):
    """The exported module: ids and attention mask to logits, and to probabilities or a rating."""

    def __init__(self, model: Model[ClassifierHead], task: Task) -> None:
        super().__init__()
        self.backbone, self.head, self.task = model.backbone, model.head, task

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the outputs of texts that are padded on the right."""
        positions_T = torch.arange(input_ids.shape[1])
        attn_mask = None
        if self.head.attention == "bidirectional":
            attn_mask = build_attention_mask(torch.where(attention_mask > 0, 0, PADDING_SEGMENT), "bidirectional")
        logits_BC = self.head(self.backbone.through(input_ids, positions_T, attn_mask), attention_mask.sum(dim=1))
        if isinstance(self.task, Regression):
            return logits_BC, logits_BC[:, 0].clamp(self.task.lowest, self.task.highest)
        return logits_BC, logits_BC.sigmoid() if self.task.kind == "labels" else logits_BC.softmax(dim=-1)


def export_onnx(
    bundle: AnyClassifierBundle, out: Path, check: str | None = None, encoding: str | None = None
) -> list[str]:
    """Write the folder; return a table of the sizes of the graphs and their agreement with `headstart predict`.

    Args:
        check: a file of texts to compare the predictions on; without it, random texts are used.
        encoding: the encoding of that file, if it is not UTF-8.
    """
    missing = [name for name in _REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"--to onnx needs {', '.join(missing)}: pip install 'headstart[onnx]'")
    check_export_folder(out)
    network, linear = _parts(bundle)
    if network is not None:
        check_expressible(network)
    texts = _random_texts(network, linear) if check is None else _read_texts(check, bundle.task, encoding)
    with atomic_folder(out, kind="export", about={"to": "onnx", "opset": OPSET}) as draft:
        inputs = []
        if network is not None:
            inputs += ["input_ids", "attention_mask"]
            _write_tokenizer(network, draft)
            with _silenced():
                _write_graphs(network.model, bundle.task, bundle if isinstance(bundle, BlendBundle) else None, draft)
        elif linear is not None:
            _write_model(linear_model(linear, OPSET), draft / "model.onnx")
        if linear is not None:
            vocabulary = vocabulary_facts(linear)
            inputs += list(vocabulary)
            write_json(draft / "vocabulary.json", vocabulary)
        files = _compare_files(_predictor(bundle), texts, draft)
        noun = "pairs" if bundle.task.pair else "texts"
        facts = {
            "headstart": __version__,
            "labels": list(bundle.labels),
            "task": bundle.task.facts(),
            "context": network.config.context if network else None,
            "opset": OPSET,
            "inputs": inputs,
            "outputs": ["logits", _output_name(bundle.task)],
            "compared_on": f"{len(texts)} {noun} {'generated from the vocabulary' if check is None else f'of {check}'}",
            "files": files,
        }
        write_json(draft / "headstart.json", facts)
    return _table(files, str(facts["compared_on"]), out, bundle.task)


def _parts(bundle: AnyClassifierBundle) -> tuple[Bundle | None, LinearClassifier | None]:
    """The network and the linear classifier that a bundle has."""
    if isinstance(bundle, LinearBundle):
        if not any(len(view.ngrams) for view in bundle.classifier.views):
            raise UsageError(
                f"{bundle.path} has no n-grams: it predicts the same label for all texts and cannot be exported"
            )
        return None, bundle.classifier
    return (bundle.network, bundle.linear) if isinstance(bundle, BlendBundle) else (bundle, None)


def _predictor(bundle: AnyClassifierBundle) -> AnyPredictor:
    if isinstance(bundle, LinearBundle):
        return LinearPredictor(bundle)
    runtime = setup_runtime(RuntimeConfig(device="cpu", precision="fp32"))
    return BlendPredictor(bundle, runtime) if isinstance(bundle, BlendBundle) else Predictor(bundle, runtime)


def _write_tokenizer(bundle: Bundle, folder: Path) -> None:
    engine = to_hf_tokenizer(bundle.tokenizer, pair=bundle.task.pair)
    special = bundle.tokenizer.special
    engine.enable_truncation(bundle.config.context)
    engine.enable_padding(pad_id=special.pad, pad_token=engine.id_to_token(special.pad))
    (folder / "tokenizer.json").write_text(engine.to_str(pretty=True), encoding="utf-8")


def _output_name(task: Task) -> str:
    """The name of the second output."""
    return "value" if task.kind == "rating" else "probabilities"


def _write_graphs(model: Model[ClassifierHead], task: Task, blend: BlendBundle | None, folder: Path) -> None:
    """Write the graph of a network in fp32 and int8; of a blend, with its linear classifier in either."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    dynamic = torch.export.Dim.DYNAMIC
    ids_BT, mask_BT = torch.full((2, 7), 4), torch.ones(2, 7, dtype=torch.int64)
    torch.onnx.export(
        _Graph(model, task).eval(),
        (ids_BT, mask_BT),
        folder / "model.onnx",
        input_names=["input_ids", "attention_mask"],
        output_names=["logits", _output_name(task)],
        dynamo=True,
        dynamic_shapes={name: {0: dynamic, 1: dynamic} for name in ("input_ids", "attention_mask")},
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )
    graph = onnx.load(folder / "model.onnx")
    _simplify(graph)
    _write_model(graph, folder / "model.onnx", blend)
    quantize_dynamic(graph, folder / "model.int8.onnx", weight_type=QuantType.QInt8)
    if blend is not None:
        _write_model(onnx.load(folder / "model.int8.onnx"), folder / "model.int8.onnx", blend)


def _write_model(model: Any, path: Path, blend: BlendBundle | None = None) -> None:
    """Check a model and write it; with a blend, a copy to which its linear classifier is added."""
    import onnx

    if blend is not None:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        model = copy
        add_linear(model, LinearPart(blend.linear, blend.task, blend.weight, blend.temperature))
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _simplify(model: Any) -> None:
    """Name the dynamic axes, and remove metadata, which contains paths of source files."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        for axis, name in zip(value.type.tensor_type.shape.dim, ("batch", "length"), strict=False):
            if not axis.HasField("dim_value"):
                axis.dim_param = name
    del graph.value_info[:]  # some shapes date from before the weights were transposed, and would be trusted
    for element in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del element.metadata_props[:]
        element.doc_string = ""
    for node in graph.node:
        node.name = ""


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress the exporters' warnings about missing libraries and optional steps."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _compare_files(predictor: AnyPredictor, texts: Sequence[TextInput], folder: Path) -> list[dict[str, Any]]:
    """Compare the outputs of the written graphs in onnxruntime with those of a predictor."""
    task = predictor.task
    ours = predictor.probabilities(predictor.encode(texts))
    # ratings have arbitrary units, so they are compared in standard deviations
    unit = task.spread if isinstance(task, Regression) else 1.0
    files = []
    for name, precision in _FILES.items():
        if not (folder / name).is_file():  # a linear classifier has no int8 graph
            continue
        exported = _run_graph(folder, name, texts, _output_name(task)).reshape(ours.shape)
        difference = float(np.abs(ours - exported).max()) / unit
        if precision == "fp32" and difference > TOLERANCE:
            raise StoreError(
                f"the exported graph differs by {difference:.1e} in a probability, more than {TOLERANCE:g}"
            )
        files.append(
            {
                "name": name,
                "kind": precision,
                "bytes": (folder / name).stat().st_size,
                "largest_difference": difference,
                "same_answers": sum(_same_prediction(task, *pair, unit) for pair in zip(ours, exported, strict=True)),
                "texts": len(texts),
            }
        )
    return files


def _same_prediction(task: Task, ours: NDArray[np.float64], exported: NDArray[np.float64], unit: float) -> bool:
    """Whether two outputs give the same label or labels, or ratings within 0.01 standard deviations."""
    one, two = make_prediction(task, ours, False), make_prediction(task, exported, False)
    if isinstance(one, RegressionPrediction) and isinstance(two, RegressionPrediction):
        return abs(one.value - two.value) < 0.01 * unit
    if isinstance(one, MultiLabelPrediction) and isinstance(two, MultiLabelPrediction):
        return one.labels == two.labels
    return bool(ours.argmax() == exported.argmax())


def _run_graph(
    folder: Path, name: str, texts: Sequence[TextInput], output: str = "probabilities", batch_size: int = 32
) -> NDArray[np.float64]:
    """Run a graph on texts in onnxruntime."""
    import onnxruntime
    import tokenizers

    session = onnxruntime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
    engine, vocabularies = None, read_vocabularies(folder)
    if (folder / "tokenizer.json").is_file():
        engine = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        engine.encode_special_tokens = True
    outputs = []
    for start in range(0, len(texts), batch_size):
        batch = list(texts[start : start + batch_size])
        feed = linear_feed(vocabularies, single_texts(batch)) if vocabularies else {}
        if engine is not None:
            rows = engine.encode_batch(batch)
            feed["input_ids"] = np.array([row.ids for row in rows])
            feed["attention_mask"] = np.array([row.attention_mask for row in rows])
        outputs.append(session.run([output], feed)[0])
    return cast(NDArray[np.float64], np.concatenate(outputs))


def _random_texts(network: Bundle | None, linear: LinearClassifier | None) -> list[TextInput]:
    """Texts of what the parts of a model know."""
    texts: list[TextInput] = [] if network is None else _random_pieces(network)
    return texts if linear is None else [*texts, *_random_words(linear)]


def _random_words(classifier: LinearClassifier) -> list[TextInput]:
    """Texts of random tokens of each view, of all lengths up to 200 tokens, some of them repeated."""
    rng = np.random.default_rng(0)
    texts: list[TextInput] = []
    for view in classifier.views:
        separator = " " if view.kind == "words" else ""
        for length in np.geomspace(1, 200, NUM_RANDOM_TEXTS // 2).astype(int) if view.tokens else ():
            numbers = rng.integers(0, len(view.tokens), length) * rng.integers(0, 2, length)
            texts.append(separator.join(view.tokens[number] for number in numbers.tolist()))
    return [text if isinstance(text, str) and text.strip() else "a" for text in texts]


def _random_pieces(bundle: Bundle) -> list[TextInput]:
    """Texts of random pieces, of all lengths up to the context; a pair has a short and a long one."""
    rng, tokenizer = np.random.default_rng(0), bundle.tokenizer
    lengths = np.geomspace(1, bundle.config.context - tokenizer.special.num_special_tokens, NUM_RANDOM_TEXTS).astype(
        int
    )
    texts = [tokenizer.decode(rng.integers(4, tokenizer.vocab_size, length).tolist()) for length in lengths]
    texts = [text if text.strip() else "a" for text in texts]
    return list(zip(texts, texts[::-1], strict=True)) if bundle.task.pair else list(texts)


def _read_texts(path: str, task: Task, encoding: str | None) -> list[TextInput]:
    texts: list[TextInput] = []
    if task.pair:
        raise UsageError(
            "--check supports single texts, but this model expects pairs; remove it to check with generated pairs"
        )
    for document in read_documents([path], merge_config(CorpusConfig, {"encoding": encoding})):
        texts.append(document.text)
        if len(texts) == MAX_CHECKED_TEXTS:
            break
    return texts


def _table(files: Sequence[dict[str, Any]], compared_on: str, out: Path, task: Task) -> list[str]:
    unit = "standard deviations of the training ratings" if task.kind == "rating" else "probability"
    lines = [f"{'file':<16}{'size':>10}  {'largest difference':>18}  {'same predictions':>16}"]
    for file in files:
        same = f"{file['same_answers']:,} of {file['texts']:,}"
        size = f"{file['bytes'] / 1e6:.2f} MB"
        lines.append(f"{file['name']:<16}{size:>10}  {file['largest_difference']:>18.1e}  {same:>16}")
    return [*lines, f"in {unit}, on {compared_on}; opset {OPSET}; in {out}"]
