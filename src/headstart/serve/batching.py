"""Dynamic batching: texts of several requests are scored together, grouped by length under a token budget.

The queue is used on the event loop's thread only, without locks; another thread runs the model. Each batch is
built around a text of the next request in round-robin order, so a long request delays another by one batch at most.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.serve.middleware import HTTPError, ServerMetrics, deadline_error
from headstart.tasks import TextInput

EncodedText = Any
"""An encoded text: token ids, the text itself, or both."""
ProbabilityRows = NDArray[np.float64]
MAX_INLINE_CHARACTERS = 4000
"""Longer requests are tokenized on another thread."""
_MAX_PADDING_FRACTION = 0.1
"""The fraction of a batch that may be padding, beyond the padding that costs less than one more batch."""
_PACE_DECAY = 0.8


@dataclass(frozen=True)
class PaddedShape:
    """The rows and the length of an encoded text."""

    rows: int
    width: int

    @property
    def tokens(self) -> int:
        """The tokens of the text, padding included."""
        return self.rows * self.width


@dataclass(eq=False)
class _PendingRequest:
    """The texts of one request: those that wait to be scored, and the probabilities of the others."""

    encoded: list[EncodedText]
    shapes: list[PaddedShape]
    deadline: float
    min_probability: float
    result: "asyncio.Future[ProbabilityRows]"
    scored: dict[int, ProbabilityRows] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)


_BatchItem = tuple[_PendingRequest, int]
"""A request, and the index of one of its texts."""


class Batcher:
    """A queue of texts in front of a model.

    Args:
        encode: encodes texts for the model.
        score: turns some encoded texts, and for each the probability below which it abstains, into probabilities, a row
            per text.
        shape: returns the padded shape of an encoded text.
        queue: the number of texts that may wait.
        tokens: the padded tokens of a batch.
        wait: milliseconds that a batch waits for more texts, if the previous batch had several requests.
        padding: padded tokens that cost less than one more batch.
        inline: characters of a request up to which it is tokenized on the event loop's thread.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[TextInput]], list[EncodedText]],
        score: Callable[[Sequence[EncodedText], Sequence[float]], ProbabilityRows],
        shape: Callable[[EncodedText], PaddedShape],
        *,
        model: Executor,
        encoder: Executor,
        metrics: ServerMetrics,
        queue: int,
        tokens: int,
        wait: float,
        padding: int,
        inline: int = MAX_INLINE_CHARACTERS,
    ) -> None:
        self._encode, self._score, self._shape = encode, score, shape
        self._model, self._encoder, self._metrics = model, encoder, metrics
        self._capacity, self._max_tokens, self._batch_wait, self._max_padding = queue, tokens, wait / 1000, padding
        self._inline = inline
        self._requests: deque[_PendingRequest] = deque()
        self._arrived = asyncio.Event()
        self._seconds_per_token = 0.0
        self._last_batch_shared = False
        """True if the last batch had texts of several requests."""
        self.waiting = 0
        """The number of texts that were accepted and are not scored yet."""
        self._pending_tokens = 0
        """The padded tokens of the waiting texts and of the batch that is being scored."""

    async def predict(
        self, texts: Sequence[TextInput], deadline: float, min_probability: float = 0.0
    ) -> tuple[list[EncodedText], ProbabilityRows]:
        """Return each encoded text and its probabilities; raises if the queue is full or the deadline is too close.

        Args:
            min_probability: the probability below which predictions abstain.
        """
        self._admit(len(texts), deadline)
        self.waiting += len(texts)
        request = None
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                if sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts) <= self._inline:
                    encoded = self._encode(texts)
                else:
                    encoded = await asyncio.get_running_loop().run_in_executor(self._encoder, self._encode, texts)
                request = self._enqueue(encoded, deadline, min_probability)
                return encoded, await request.result
        except TimeoutError:
            self._metrics.events["expired"] += len(texts)
            raise deadline_error() from None
        finally:
            if request is None:
                self.waiting -= len(texts)
            elif request.waiting:  # cancelled or expired: its other texts are not scored
                self._drop(request)

    async def run(self) -> None:
        """Score the texts that arrive, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._last_batch_shared and self._pending_tokens < self._max_tokens:
                await asyncio.sleep(self._batch_wait)
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            self._last_batch_shared = len({id(request) for request, _ in batch}) > 1
            started = time.monotonic()
            encoded = [request.encoded[index] for request, index in batch]
            min_probabilities = [request.min_probability for request, _ in batch]
            work = loop.run_in_executor(self._model, self._score, encoded, min_probabilities)
            await asyncio.wait([work])
            self._dispatch(batch, work, time.monotonic() - started)

    def expected_wait(self) -> float:
        """Return the seconds that a new text would wait, estimated from the speed of recent batches."""
        return self._pending_tokens * self._seconds_per_token

    def _admit(self, num_texts: int, deadline: float) -> None:
        wait = self.expected_wait()
        if self.waiting + num_texts > self._capacity:
            detail = f"{self.waiting} texts are queued and {num_texts} more exceed the capacity of {self._capacity}"
            raise HTTPError(503, f"{detail}; try again later", max(1, math.ceil(wait)))
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            self._metrics.events["expired"] += num_texts
            raise deadline_error()
        if wait > remaining:
            detail = f"the estimated wait is {wait:.1f} seconds, but the deadline of this request is in {remaining:.1f}"
            raise HTTPError(503, f"{detail}; try again later", math.ceil(wait))

    def _enqueue(self, encoded: list[EncodedText], deadline: float, min_probability: float) -> _PendingRequest:
        shapes = [self._shape(text) for text in encoded]
        result: asyncio.Future[ProbabilityRows] = asyncio.get_running_loop().create_future()
        request = _PendingRequest(encoded, shapes, deadline, min_probability, result, waiting=list(range(len(encoded))))
        self._pending_tokens += sum(shape.tokens for shape in shapes)
        self._requests.append(request)
        self._arrived.set()
        return request

    def _drop(self, request: _PendingRequest) -> None:
        self._pending_tokens -= sum(request.shapes[index].tokens for index in request.waiting)
        self.waiting -= len(request.waiting)
        request.waiting.clear()

    def _next_batch(self) -> list[_BatchItem]:
        """Take a text of the next request, and the waiting texts that are nearest to it in length."""
        now = time.monotonic()
        for request in self._requests:
            if request.waiting and (request.result.done() or request.deadline <= now):
                self._drop(request)
        self._requests = deque(request for request in self._requests if request.waiting)
        if not self._requests:
            return []
        first = self._requests[0]
        self._requests.rotate(-1)
        target_width = first.shapes[first.waiting[0]].width
        candidates = [(request, index) for request in (first, *self._requests) for index in request.waiting]
        candidates = list(dict.fromkeys(candidates))  # those of the first request are listed twice
        candidates.sort(key=lambda item: abs(item[0].shapes[item[1]].width - target_width))
        batch = self._fill(candidates)
        for request, index in batch:
            request.waiting.remove(index)
        self.waiting -= len(batch)
        return batch

    def _fill(self, candidates: list[_BatchItem]) -> list[_BatchItem]:
        """Select candidates in order, as many as the budgets of tokens and of padding allow; at least one."""
        batch: list[_BatchItem] = []
        rows = width = unpadded_tokens = 0
        for request, index in candidates:
            shape = request.shapes[index]
            padded_tokens = (rows + shape.rows) * max(width, shape.width)
            total = unpadded_tokens + shape.tokens
            max_padding = self._max_padding + _MAX_PADDING_FRACTION * total
            if batch and (padded_tokens > self._max_tokens or padded_tokens - total > max_padding):
                continue
            batch.append((request, index))
            rows, width, unpadded_tokens = rows + shape.rows, max(width, shape.width), total
        return batch

    def _dispatch(self, batch: list[_BatchItem], work: "asyncio.Future[ProbabilityRows]", seconds: float) -> None:
        """Pass the results of a batch, or its error, to the requests."""
        tokens = sum(request.shapes[index].tokens for request, index in batch)
        self._pending_tokens -= tokens
        error = work.exception()
        if error is not None:
            for request, _ in batch:
                if not request.result.done():
                    request.result.set_exception(error)
            return
        pace, average = seconds / tokens, self._seconds_per_token
        self._seconds_per_token = _PACE_DECAY * average + (1 - _PACE_DECAY) * pace if average else pace
        events = self._metrics.events
        events["batches"], events["texts"] = events["batches"] + 1, events["texts"] + len(batch)
        events["tokens"] += tokens
        self._metrics.batch_texts.add(len(batch))
        for (request, index), probabilities in zip(batch, work.result(), strict=True):
            request.scored[index] = probabilities
            if len(request.scored) == len(request.encoded) and not request.result.done():
                request.result.set_result(
                    np.stack([request.scored[position] for position in range(len(request.encoded))])
                )
