"""A model behind a queue, with limits and deadlines, and the facts about its run that the page shows. No HTTP here."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headstart.config.schema import RuntimeConfig
from headstart.errors import HeadstartError, StoreError
from headstart.files import read_json
from headstart.predict.bundle_predictor import AnyPredictor, load_predictor
from headstart.predict.explain import RATING, Explanation, explain_prediction
from headstart.predict.generate import Sampling, generate_pieces, load_language_model, next_token_candidates
from headstart.predict.outputs import AnyPrediction, is_blank, predict_readable
from headstart.progress import pluralize
from headstart.runtime import Runtime
from headstart.serve.batching import MAX_INLINE_CHARACTERS, Batcher, PaddedShape
from headstart.serve.config import ServeConfig
from headstart.serve.middleware import HTTPError, ServerMetrics, deadline_error
from headstart.store.bundle import AnyClassifierBundle, BlendBundle, Bundle
from headstart.store.linear_bundle import ClassifierKind, LinearBundle
from headstart.store.locate import find_bundle
from headstart.store.run_folder import RunFolder
from headstart.tasks import TextInput
from headstart.tokenization.hf import HFTokenizer

T = TypeVar("T")
MAX_POINTS = 300
RESULT_METRICS = {
    ("test", "accuracy"): "accuracy on test",
    ("test", "macro_f1"): "macro-F1 on test",
    ("valid", "accuracy"): "accuracy on validation",
    ("test", "micro_f1"): "micro-F1 on test",
    ("valid", "micro_f1"): "micro-F1 on validation",
    ("test", "mae"): "mean absolute error on test",
    ("valid", "mae"): "mean absolute error on validation",
    ("held_out", "perplexity"): "perplexity of held-out text",
    ("held_out", "bits_per_byte"): "bits per byte of held-out text",
}
"""The split and the name of a metric in `result.json`, and its description."""
CURVES = {
    "epoch": ("epoch", (("train_loss", "loss on train"), ("valid_loss", "loss on validation"))),
    "evaluation": ("step", (("loss", "loss on held-out text"),)),
}
VALIDATION_METRICS = (
    ("Accuracy", "valid_accuracy", "accuracy on validation"),
    ("Micro-F1", "valid_micro_f1", "micro-F1 on validation"),
    ("RMSE", "valid_rmse", "RMSE on validation"),
)
"""One metric per task: its chart title, its key in the metrics, and its description."""


def run_curves(run: RunFolder | None) -> list[dict[str, Any]]:
    """Return the charts of a run, `{title, x, lines: [{name, points: [[x, y]]}]}`; none if it is missing or damaged."""
    if run is None:
        return []
    try:
        lines = run.metrics.read()
    except (StoreError, OSError):
        return []
    charts = []
    for event, (x, names) in CURVES.items():
        rows = [line for line in lines if line.get("kind") == event]
        charts += _chart("Loss", x, rows, names)
        for title, key, description in VALIDATION_METRICS:
            charts += _chart(title, x, rows, ((key, description),))
    return charts


def _chart(title: str, x: str, rows: list[dict[str, Any]], names: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    """Return a list of one chart, or of none where no line has two points."""
    lines = []
    for key, name in names:
        points = [[row[x], row[key]] for row in rows if _is_number(row.get(x)) and _is_number(row.get(key))]
        if len(points) > 1:
            lines.append({"name": name, "points": points[:: -(-len(points) // MAX_POINTS)]})
    return [{"title": title, "x": x, "lines": lines}] if lines else []


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def run_result(run: RunFolder | None) -> dict[str, float]:
    """Return the final metrics of a run by their descriptions."""
    if run is None or not run.finished:
        return {}
    try:
        result = read_json(run.path / "result.json")
    except StoreError:
        return {}
    metrics = {}
    for (split, name), description in RESULT_METRICS.items():
        value = (result.get(split) or {}).get(name) if isinstance(result, dict) else None
        if isinstance(value, (int, float)):
            metrics[description] = float(value)
    return metrics


def training_columns(about: dict[str, Any]) -> dict[str, str]:
    """Return the columns that the training file was read by, where they were named."""
    trained = about.get("labelled")
    columns = trained.items() if isinstance(trained, dict) else ()
    return {name: value for name, value in columns if name.endswith("_column") and isinstance(value, str)}


def report_path(run: RunFolder | None) -> Path | None:
    """Return the path of the report beside the run, if there is one."""
    page = None if run is None else run.path / "report.html"
    return page if page is not None and page.is_file() else None


class Service:
    """A bundle behind a queue; one thread runs the model, another tokenizes long texts."""

    def __init__(self, folder: Path, config: ServeConfig, runtime: RuntimeConfig | None = None) -> None:
        self.config, self.metrics = config, ServerMetrics()
        self.predictor, self.language = _load(folder, runtime)
        self.bundle: AnyClassifierBundle = self.predictor.bundle if self.predictor else self._language_model()[0]
        self.run_folder = _run_folder(self.bundle.path)
        self._model = ThreadPoolExecutor(1, "model")
        self._encoder = ThreadPoolExecutor(1, "encoder")
        self._unbatched = asyncio.Semaphore(1)
        self._batcher: Batcher | None = None
        self._batching: asyncio.Task[None] | None = None
        self.metrics.gauges["waiting_texts"] = lambda: self._batcher.waiting if self._batcher else 0
        self._warm_up()

    @property
    def network(self) -> Bundle | None:
        """The network, alone or in a blend; None for a linear classifier."""
        if isinstance(self.bundle, LinearBundle):
            return None
        return self.bundle.network if isinstance(self.bundle, BlendBundle) else self.bundle

    @property
    def classifier_kind(self) -> ClassifierKind | None:
        """`network`, `linear` or `blend`; None for a language model."""
        if self.predictor is None:
            return None
        if isinstance(self.bundle, LinearBundle):
            return "linear"
        return "blend" if isinstance(self.bundle, BlendBundle) else "network"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in order; empty for a language model."""
        return self.bundle.labels

    def start(self) -> None:
        """Start batching; must be called on the event loop."""
        if self.predictor is None:
            return
        predictor = self.predictor
        tokenizer = self.network.tokenizer if self.network else None
        may_be_slow = isinstance(tokenizer, HFTokenizer) and tokenizer.has_unknown_patterns
        self._batcher = Batcher(
            predictor.encode,
            lambda encoded, minimums: predictor.probabilities(encoded, min_probability=np.array(minimums)),
            lambda text: PaddedShape(*predictor.padded_shape(text)),
            model=self._model,
            encoder=self._encoder,
            metrics=self.metrics,
            queue=self.config.queue,
            tokens=self.config.batch_tokens,
            wait=self.config.wait,
            padding=min(predictor.batch_overhead, self.config.batch_tokens),
            inline=0 if may_be_slow else MAX_INLINE_CHARACTERS,
        )
        self._batching = asyncio.create_task(self._batcher.run())

    def stop(self) -> None:
        """Stop batching and the threads."""
        if self._batching is not None:
            self._batching.cancel()
        self._model.shutdown(wait=False, cancel_futures=True)
        self._encoder.shutdown(wait=False, cancel_futures=True)

    @property
    def healthy(self) -> bool:
        """True if requests will be processed."""
        return self.predictor is None or (self._batching is not None and not self._batching.done())

    async def predict(
        self, texts: Sequence[TextInput], abstain: float | None, deadline: float
    ) -> list[AnyPrediction | None]:
        """Return the predictions in the order of the texts; that of a blank text is None."""
        predictor = self._classifier("predict")
        if len(texts) > self.config.texts:
            raise HTTPError(422, f"a request may have at most {pluralize(self.config.texts, 'text')}, got {len(texts)}")
        for index, text in enumerate(texts):
            self._check_input(text, f"texts[{index}]", f"pairs[{index}]", may_be_empty=True)
        min_probability = self._as_http_error(lambda: predictor.min_probability(abstain))
        predictions: list[AnyPrediction] = []
        if readable := [text for text in texts if not is_blank(text)]:
            assert self._batcher is not None
            ids, probabilities = await self._batcher.predict(readable, deadline, min_probability)
            predictions = predictor.make_predictions(ids, probabilities, min_probability)
        self.metrics.events["truncated"] += sum(prediction.truncated for prediction in predictions)
        return predict_readable(texts, lambda _texts: predictions)

    async def explain(self, text: TextInput, label: str | None, deadline: float) -> tuple[Explanation, bool]:
        """Return the explanation of a prediction, and True if the text was truncated."""
        predictor = self._classifier("explain")
        self._check_input(text, "text", "pair")
        labels = self.labels or (RATING,)
        if label is not None and label not in labels:
            raise HTTPError(422, f"there is no label {label!r:.60}; the labels are {', '.join(labels)}")

        def work() -> tuple[Explanation, bool]:
            return explain_prediction(predictor, text, label), predictor.truncates(predictor.encode([text])[0])

        return await self._run_unbatched(work, deadline)

    async def generate(self, prompt: str, sampling: Sampling, deadline: float) -> AsyncIterator[tuple[str, str | None]]:
        """Return the pieces of the continuation; the last one comes with the reason for the end."""
        bundle, runtime = self._language_model("generate")
        self._check_text(prompt, "prompt", may_be_empty=True)
        if sampling.tokens > self.config.tokens:
            raise HTTPError(422, f"tokens must be at most {self.config.tokens}, got {sampling.tokens}")
        pieces = generate_pieces(bundle.model, bundle.tokenizer, prompt, sampling, runtime)
        return self._stream(pieces, sampling.tokens, deadline)

    async def _stream(
        self, pieces: Iterator[str], tokens: int, deadline: float
    ) -> AsyncIterator[tuple[str, str | None]]:
        loop = asyncio.get_running_loop()
        count = 0
        while time.monotonic() < deadline:
            piece = await loop.run_in_executor(self._model, next, pieces, None)
            if piece is None:
                yield "", "length" if count >= tokens else "end"
                return
            count += 1
            yield piece, None
        self.metrics.events["expired"] += 1
        yield "", "deadline"

    async def next(self, prompt: str, count: int, deadline: float) -> list[tuple[str, float]]:
        """Return the most probable next pieces of text."""
        bundle, runtime = self._language_model("next")
        self._check_text(prompt, "prompt", may_be_empty=True)
        return await self._run_unbatched(
            lambda: next_token_candidates(bundle.model, bundle.tokenizer, prompt, count, runtime), deadline
        )

    async def _run_unbatched(self, work: Callable[[], T], deadline: float) -> T:
        """Run work that cannot be batched, one at a time, on the model's thread between batches."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._unbatched:
                if time.monotonic() < deadline:
                    return await asyncio.get_running_loop().run_in_executor(self._model, work)
        except TimeoutError:
            pass
        self.metrics.events["expired"] += 1
        raise deadline_error()

    def _check_text(self, text: str, name: str, *, may_be_empty: bool = False) -> None:
        if len(text) > self.config.characters:
            raise HTTPError(
                422, f"{name} has {len(text):,} characters; a text may have at most {self.config.characters:,}"
            )
        if not text.strip() and not may_be_empty:
            raise HTTPError(422, f"{name} is empty")

    def _check_input(self, text: TextInput, name: str, pair_name: str, *, may_be_empty: bool = False) -> None:
        """Check that a model of text pairs gets a pair and any other model one text, and check their lengths."""
        if isinstance(text, str) == self.bundle.task.pair:
            pairs = "expects pairs of texts: send pair with text, or pairs with texts"
            raise HTTPError(
                422, f"this model {pairs if isinstance(text, str) else 'expects single texts; remove pair and pairs'}"
            )
        for part, part_name in zip((text,) if isinstance(text, str) else text, (name, pair_name), strict=False):
            self._check_text(part, part_name, may_be_empty=may_be_empty)

    def _classifier(self, verb: str) -> AnyPredictor:
        if self.predictor is None:
            raise HTTPError(404, f"/{verb} needs a classifier, but this server has a language model")
        return self.predictor

    def _language_model(self, verb: str = "") -> tuple[Bundle, Runtime]:
        if self.language is None:
            raise HTTPError(404, f"/{verb} needs a language model, but this server has a classifier")
        return self.language

    def _as_http_error(self, work: Callable[[], T]) -> T:
        """Turn an error of the user into status 422, without the path of the bundle."""
        try:
            return work()
        except HeadstartError as error:
            raise HTTPError(422, str(error).replace(str(self.bundle.path), "the model")) from None

    def _warm_up(self) -> None:
        """Process a text, because the first one is slow."""
        if self.predictor is not None:
            text: TextInput = ("a text", "a text") if self.bundle.task.pair else "a text"
            self._model.submit(self.predictor.predict, [text]).result()
        else:
            bundle, runtime = self._language_model()
            self._model.submit(next_token_candidates, bundle.model, bundle.tokenizer, "a text", 1, runtime).result()


def _load(folder: Path, runtime: RuntimeConfig | None) -> tuple[AnyPredictor | None, tuple[Bundle, Runtime] | None]:
    """Load a classifier, or a language model with its runtime."""
    path = find_bundle(folder)
    facts = read_json(path / "bundle.json") if (path / "bundle.json").is_file() else {}
    if isinstance(facts, dict) and facts.get("head_type") == "language":
        return None, load_language_model(folder, runtime)
    return load_predictor(folder, runtime), None


def _run_folder(bundle: Path) -> RunFolder | None:
    """Return the run folder that contains a bundle, if there is one."""
    parent = bundle.resolve().parent
    return RunFolder(parent) if bundle.name == "bundle" and (parent / "run.json").is_file() else None
