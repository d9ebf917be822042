"""A model behind a queue, and what the page shows of its run.

What is known of how a model was trained, for its page: figures, curves, and the report beside it. No torch.

A model that many ask at once: who may ask what, in which order it is read, and when it is too late. Nothing of HTTP.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from headstart.config.schema import RuntimeConfig
from headstart.data.labelled import TextInput
from headstart.errors import HeadstartError, StoreError
from headstart.files import read_json
from headstart.predict.explain import RATING, Explanation, explain_prediction
from headstart.predict.generate import Sampling, generate_pieces, load_language_model, next_token_candidates
from headstart.predict.predictions import AnyPrediction
from headstart.predict.predictor import Predictor
from headstart.progress import pluralize
from headstart.serve.batching import Batcher, PaddedShape
from headstart.serve.config import ServeConfig
from headstart.serve.middleware import HTTPError, ServerMetrics, deadline_error
from headstart.store.bundle import Bundle
from headstart.store.locate import find_bundle
from headstart.store.run_folder import RunFolder

MAX_POINTS = 300
CURVES = {
    "epoch": ("epoch", (("train_loss", "loss on train"), ("valid_loss", "loss on validation"))),
    "evaluation": ("step", (("loss", "loss on held-out text"),)),
}
MEASURE_NAMES = (
    ("Accuracy", "valid_accuracy", "accuracy on validation"),
    ("Micro-F1", "valid_micro_f1", "micro-F1 on validation"),
    ("RMSE", "valid_rmse", "RMSE on validation"),
)
"""Each kind of answer has one of them."""


def run_curves(run: RunFolder | None) -> list[dict[str, Any]]:
    """Lines to draw: `{title, x, lines: [{name, points: [[x, y]]}]}`; none where there is no run or it is damaged."""
    if run is None:
        return []
    try:
        lines = run.metrics.read()
    except (StoreError, OSError):
        return []
    charts = []
    for kind, (x, names) in CURVES.items():
        own = [line for line in lines if line.get("kind") == kind]
        charts += _chart("Loss", x, own, names)
        for title, key, words in MEASURE_NAMES:
            charts += _chart(title, x, own, ((key, words),))
    return charts


def _chart(title: str, x: str, lines: list[dict[str, Any]], names: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    drawn = []
    for key, name in names:
        points = [[line[x], line[key]] for line in lines if _number(line.get(x)) and _number(line.get(key))]
        if len(points) > 1:
            drawn.append({"name": name, "points": points[:: -(-len(points) // MAX_POINTS)]})
    return [{"title": title, "x": x, "lines": drawn}] if drawn else []


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def run_result(run: RunFolder | None) -> dict[str, float]:
    """The figures that a run ended with, by the words a person would use."""
    if run is None or not run.finished:
        return {}
    try:
        result = read_json(run.path / "result.json")
    except StoreError:
        return {}
    wanted = {
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
    found = {}
    for (part, name), words in wanted.items():
        value = (result.get(part) or {}).get(name) if isinstance(result, dict) else None
        if isinstance(value, (int, float)):
            found[words] = float(value)
    return found


def report_path(run: RunFolder | None) -> Path | None:
    """The page that tells about the run, if someone made one."""
    page = None if run is None else run.path / "report.html"
    return page if page is not None and page.is_file() else None


T = TypeVar("T")


class Service:
    """A bundle behind a queue; one thread runs the model, another turns long texts into tokens."""

    def __init__(self, folder: Path, config: ServeConfig, runtime: RuntimeConfig | None = None) -> None:
        self.config, self.metrics = config, ServerMetrics()
        self.bundle, self.runtime, self.predictor = _load(folder, runtime)
        self.run_folder = _run_folder(self.bundle.path)
        self._model = ThreadPoolExecutor(1, "model")
        self._encoder = ThreadPoolExecutor(1, "encoder")
        self._alone = asyncio.Semaphore(1)
        self._batcher: Batcher | None = None
        self._reader: asyncio.Task[None] | None = None
        self.metrics.gauges["waiting_texts"] = lambda: self._batcher.waiting if self._batcher else 0
        self._warm_up()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in order; none for a language model."""
        return self.bundle.labels

    def start(self) -> None:
        """Begin to read; on the event loop."""
        if self.predictor is None:
            return
        context, windows = self.bundle.config.context, self.bundle.windows
        around = self.bundle.tokenizer.special.num_special_tokens
        self._batcher = Batcher(
            self.predictor.encode,
            self.predictor.probabilities,
            lambda tokens: PaddedShape(
                -(-max(tokens, 1) // (context - around)) if windows else 1,
                min(tokens + around, context),
            ),
            model=self._model,
            encoder=self._encoder,
            metrics=self.metrics,
            queue=self.config.queue,
            tokens=self.config.batch_tokens,
            wait=self.config.wait,
            # measured on a CPU core: a batch costs what 24 tokens cost; a GPU is not filled by whole batches
            padding=24 if self.runtime.device.type == "cpu" else self.config.batch_tokens,
        )
        self._reader = asyncio.create_task(self._batcher.run())

    def stop(self) -> None:
        """Read no more."""
        if self._reader is not None:
            self._reader.cancel()
        self._model.shutdown(wait=False, cancel_futures=True)
        self._encoder.shutdown(wait=False, cancel_futures=True)

    @property
    def healthy(self) -> bool:
        """Whether whatever is asked will be read."""
        return self.predictor is None or (self._reader is not None and not self._reader.done())

    async def predict(self, texts: Sequence[TextInput], abstain: float | None, deadline: float) -> list[AnyPrediction]:
        """Labels and probabilities, in the order of the texts."""
        predictor = self._classifier("predict")
        if len(texts) > self.config.texts:
            raise HTTPError(
                422, f"a request may have {pluralize(self.config.texts, 'text')}, this one has {len(texts)}"
            )
        for place, text in enumerate(texts):
            self._check_question(text, f"texts[{place}]", f"pairs[{place}]")
        least = self._asked_rightly(lambda: predictor.min_probability(abstain))
        assert self._batcher is not None
        ids, shares = await self._batcher.ask(texts, deadline)
        answers = predictor.make_predictions(ids, shares, least)
        self.metrics.events["truncated"] += sum(answer.truncated for answer in answers)
        return answers

    async def explain(self, text: TextInput, label: str | None, deadline: float) -> tuple[Explanation, bool]:
        """Words and weights, and whether the end was not read."""
        predictor = self._classifier("explain")
        self._check_question(text, "text", "pair")
        labels = self.labels or (RATING,)
        if label is not None and label not in labels:
            raise HTTPError(422, f"there is no label {label!r:.60}; the labels are {', '.join(labels)}")

        def work() -> tuple[Explanation, bool]:
            longest = self.bundle.config.context - self.bundle.tokenizer.special.num_special_tokens
            cut = len(predictor.encode([text])[0]) > longest and not self.bundle.windows
            return explain_prediction(predictor, text, label), cut

        return await self._one_at_a_time(work, deadline)

    async def generate(self, prompt: str, sampling: Sampling, deadline: float) -> AsyncIterator[tuple[str, str | None]]:
        """Pieces of the continuation, and with the last one why it ended."""
        self._language("generate")
        self._check(prompt, "prompt", may_be_empty=True)
        if sampling.tokens > self.config.tokens:
            raise HTTPError(422, f"tokens may be {self.config.tokens} at most, got {sampling.tokens}")
        pieces = generate_pieces(self.bundle.model, self.bundle.tokenizer, prompt, sampling, self.runtime)
        return self._generated(pieces, sampling.tokens, deadline)

    async def _generated(
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
        """The likeliest ways to go on."""
        self._language("next")
        self._check(prompt, "prompt", may_be_empty=True)
        bundle, runtime = self.bundle, self.runtime
        return await self._one_at_a_time(
            lambda: next_token_candidates(bundle.model, bundle.tokenizer, prompt, count, runtime), deadline
        )

    async def _one_at_a_time(self, work: Callable[[], T], deadline: float) -> T:
        """Work that shares no batch: only one of it stands beside the batches on the model's thread."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._alone:
                if time.monotonic() < deadline:
                    return await asyncio.get_running_loop().run_in_executor(self._model, work)
        except TimeoutError:
            pass
        self.metrics.events["expired"] += 1
        raise deadline_error()

    def _check(self, text: str, name: str, *, may_be_empty: bool = False) -> None:
        if len(text) > self.config.characters:
            raise HTTPError(
                422, f"{name} has {len(text):,} characters; a text may have {self.config.characters:,} at most"
            )
        if not text.strip() and not may_be_empty:
            raise HTTPError(422, f"{name} is empty; there is nothing to read")

    def _check_question(self, text: TextInput, name: str, second: str) -> None:
        """A text for a model that reads one, two for one that reads pairs."""
        if isinstance(text, str) == self.bundle.task.pair:
            pairs = "reads pairs: give pair beside text, or pairs beside texts"
            raise HTTPError(
                422, f"this model {pairs if isinstance(text, str) else 'reads one text; leave out pair and pairs'}"
            )
        for part, called in zip((text,) if isinstance(text, str) else text, (name, second), strict=False):
            self._check(part, called)

    def _classifier(self, verb: str) -> Predictor:
        if self.predictor is None:
            raise HTTPError(404, f"this server holds a language model; /{verb} needs a classifier")
        return self.predictor

    def _language(self, verb: str) -> None:
        if self.predictor is not None:
            raise HTTPError(404, f"this server holds a classifier; /{verb} needs a language model")

    def _asked_rightly(self, work: Callable[[], T]) -> T:
        """What a person can do wrong is their request's fault here; where the bundle lies is not their business."""
        try:
            return work()
        except HeadstartError as error:
            raise HTTPError(422, str(error).replace(str(self.bundle.path), "the model")) from None

    def _warm_up(self) -> None:
        """The first text is slow: let it be ours."""
        if self.predictor is not None:
            text: TextInput = ("a text", "a text") if self.bundle.task.pair else "a text"
            self._model.submit(self.predictor.predict, [text]).result()
        else:
            self._model.submit(
                next_token_candidates, self.bundle.model, self.bundle.tokenizer, "a text", 1, self.runtime
            ).result()


def _load(folder: Path, runtime: RuntimeConfig | None) -> tuple[Bundle, Any, Predictor | None]:
    from headstart.files import read_json

    path = find_bundle(folder)
    facts = read_json(path / "bundle.json") if (path / "bundle.json").is_file() else {}
    if isinstance(facts, dict) and facts.get("head_type") == "language":
        bundle, where = load_language_model(folder, runtime)
        return bundle, where, None
    predictor = Predictor.load(folder, runtime)
    return predictor.bundle, predictor.runtime, predictor


def _run_folder(bundle: Path) -> RunFolder | None:
    """The run that made a bundle, if it lies in one."""
    parent = bundle.resolve().parent
    return RunFolder(parent) if bundle.name == "bundle" and (parent / "run.json").is_file() else None
