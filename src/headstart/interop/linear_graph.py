"""The linear classifier as ONNX operations: token ids to n-gram counts, TF-IDF and logits; alone, or blended with a network.

Each view (`words`, `characters`) is an input of token ids, (batch, tokens), with -1 for padding and for tokens that are not
in vocabulary.json. vocabulary.json says how texts become tokens; `examples/onnx_predict.py` does it without Headstart.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.linear.classifier import LinearClassifier
from headstart.linear.views import View
from headstart.linear.vocabulary import SEPARATOR, word_pattern
from headstart.store.linear_bundle import LinearPart

IR_VERSION = 9
OUTPUTS = ("logits", "probabilities")
_NETWORK_LOGITS = "network_logits"


def vocabulary_facts(classifier: LinearClassifier) -> dict[str, Any]:
    """Return the content of vocabulary.json: the tokens of each view in the order of their ids, and the pattern of a word."""
    facts: dict[str, Any] = {view.kind: {"tokens": list(view.tokens)} for view in _used(classifier)}
    if "words" in facts:
        facts["words"]["pattern"] = word_pattern().pattern
    return facts


def linear_model(classifier: LinearClassifier, opset: int) -> Any:
    """Return a model from token ids to logits and probabilities."""
    from onnx import TensorProto, helper

    graph = helper.make_graph([], "linear", [], [])
    logits = _add_logits(graph, classifier)
    graph.node.extend(
        [
            helper.make_node("Identity", [logits], [OUTPUTS[0]]),
            helper.make_node("Softmax", [OUTPUTS[0]], [OUTPUTS[1]], axis=1),
        ]
    )
    shape: list[str | int | None] = ["batch", len(classifier.bias)]
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in OUTPUTS)
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", opset)])


def add_linear(model: Any, part: LinearPart) -> None:
    """Blend the outputs of a network's model with those of a linear classifier, in the model itself."""
    from onnx import helper

    graph = model.graph
    for node in graph.node:  # the network's own logits get another name, and its probabilities are not needed
        for names in (node.input, node.output):
            names[:] = [_NETWORK_LOGITS if name == OUTPUTS[0] else name for name in names]
    softmax = [node for node in graph.node if OUTPUTS[1] in node.output]
    for node in softmax:
        graph.node.remove(node)
    linear = _add_logits(graph, part.classifier)
    weights = {
        "network_weight": part.weight / part.temperature,
        "linear_weight": (1 - part.weight) / part.temperature,
    }
    _add_constants(graph, {name: np.float32(value) for name, value in weights.items()})
    for name, logits in (("network", _NETWORK_LOGITS), ("linear", linear)):
        graph.node.extend(
            [
                helper.make_node("LogSoftmax", [logits], [f"{name}_log_probabilities"], axis=1),
                helper.make_node("Mul", [f"{name}_log_probabilities", f"{name}_weight"], [f"{name}_part"]),
            ]
        )
    graph.node.extend(
        [
            helper.make_node("Add", ["network_part", "linear_part"], [OUTPUTS[0]]),
            helper.make_node("Softmax", [OUTPUTS[0]], [OUTPUTS[1]], axis=1),
        ]
    )


def _add_logits(graph: Any, classifier: LinearClassifier) -> str:
    """Add the inputs and the operations of a linear classifier; return the name of its logits."""
    from onnx import TensorProto, helper

    _add_constants(graph, {"linear_bias": classifier.bias[None], "one": np.float32(1), "smallest": np.float32(1e-12)})
    _add_constants(graph, {"label_axis": np.array([1], dtype=np.int64)})
    logits = "linear_bias"
    for view in _used(classifier):
        ids = helper.make_tensor_value_info(view.kind, TensorProto.INT64, ["batch", f"num_{view.kind}"])
        graph.input.append(ids)
        graph.node.extend(_view_nodes(graph, view))
        graph.node.append(helper.make_node("Add", [logits, f"{view.kind}_logits"], [f"{view.kind}_sum"]))
        logits = f"{view.kind}_sum"
    return logits


def _view_nodes(graph: Any, view: View) -> list[Any]:
    """Return the operations of a view: counts c, (log c + 1) x idf where c is above 0, divided by the norm, times weights."""
    from onnx import TensorProto, helper

    kind = view.kind
    weight = view.weight.astype(np.float16)  # as it is stored; every value fits
    _add_constants(graph, {f"{kind}_idf": view.idf[None], f"{kind}_weight_fp16": weight})
    steps = [
        ("Max", [f"{kind}_counts", "one"], "at_least_one"),
        ("Log", [f"{kind}_at_least_one"], "log"),
        ("Min", [f"{kind}_counts", "one"], "occurs"),
        ("Add", [f"{kind}_log", f"{kind}_occurs"], "sublinear"),
        ("Mul", [f"{kind}_sublinear", f"{kind}_idf"], "tfidf"),
        ("ReduceL2", [f"{kind}_tfidf", "label_axis"], "norm"),
        ("Max", [f"{kind}_norm", "smallest"], "positive_norm"),
        ("MatMul", [f"{kind}_tfidf", f"{kind}_weight"], "product"),
        ("Div", [f"{kind}_product", f"{kind}_positive_norm"], "logits"),
    ]
    return [
        helper.make_node("Cast", [f"{kind}_weight_fp16"], [f"{kind}_weight"], to=TensorProto.FLOAT),
        helper.make_node("TfIdfVectorizer", [kind], [f"{kind}_counts"], **_ngram_attributes(view.ngrams)),
        *(helper.make_node(operation, inputs, [f"{kind}_{output}"]) for operation, inputs, output in steps),
    ]


def _ngram_attributes(ngrams: NDArray[np.int32]) -> dict[str, Any]:
    """Return the attributes of TfIdfVectorizer that count these n-grams, given as rows of ids with padding at the end."""
    sizes = (ngrams != SEPARATOR).sum(axis=1)
    longest = int(sizes.max())
    pool: list[int] = []
    starts, columns = [], []
    for size in range(1, longest + 1):
        of_size = np.flatnonzero(sizes == size)
        starts.append(len(pool))
        pool += ngrams[of_size, :size].ravel().tolist()
        columns += of_size.tolist()
    return {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": longest,
        "max_skip_count": 0,
        "ngram_counts": starts,
        "ngram_indexes": columns,
        "pool_int64s": pool,
    }


def _add_constants(graph: Any, constants: dict[str, Any]) -> None:
    from onnx import numpy_helper

    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())


def _used(classifier: LinearClassifier) -> Sequence[View]:
    return [view for view in classifier.views if len(view.ngrams)]
