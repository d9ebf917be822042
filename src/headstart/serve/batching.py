"""Texts of several requests read together: the oldest request's next text, and those of like length, under a token budget.

All of this runs on the event loop, so nothing is locked; the arithmetic runs on one thread, a batch at a time. Requests
take turns in choosing what a batch is built around, so that a long one holds nobody up for longer than a batch.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headstart.data.labelled import TextInput
from headstart.serve.middleware import HTTPError, ServerMetrics, deadline_error

Ids = NDArray[np.int64]
ProbabilityRows = NDArray[np.float64]
_INLINE = 4000
"""Characters that are turned into tokens at once, without asking another thread."""


_WASTE = 0.1
"""The share of a batch that may be padding, beyond what costs less than one more batch."""


@dataclass(frozen=True)
class PaddedShape:
    """What a text costs to read."""

    rows: int
    width: int


@dataclass(eq=False)
class _PendingRequest:
    """The texts of one request: those still to be read, and what is known so far."""

    ids: list[Ids]
    shapes: list[PaddedShape]
    deadline: float
    answer: "asyncio.Future[ProbabilityRows]"
    found: dict[int, ProbabilityRows] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)


class Batcher:
    """A queue of texts in front of a model.

    Args:
        encode: texts to tokens.
        score: the tokens of some texts to probabilities, a row a text.
        shape: what a text costs, by its number of tokens.
        wait: milliseconds that a batch waits for company, where the batch before it had some.
        padding: padded tokens that cost less than one more batch would.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[TextInput]], list[Ids]],
        score: Callable[[Sequence[Ids]], ProbabilityRows],
        shape: Callable[[int], PaddedShape],
        *,
        model: Executor,
        encoder: Executor,
        metrics: ServerMetrics,
        queue: int,
        tokens: int,
        wait: float,
        padding: int,
    ) -> None:
        self._encode, self._score, self._shape = encode, score, shape
        self._model, self._encoder, self._metrics = model, encoder, metrics
        self._room, self._tokens, self._wait, self._padding = queue, tokens, wait / 1000, padding
        self._requests: deque[_PendingRequest] = deque()
        self._arrived = asyncio.Event()
        self._seconds_per_token = 0.0
        self._in_company = False
        self.waiting = 0
        """Texts accepted and not yet read."""
        self._load = 0
        """The padded tokens of those, and of the batch in hand."""

    async def ask(self, texts: Sequence[TextInput], deadline: float) -> tuple[list[Ids], ProbabilityRows]:
        """The tokens of each text and the probabilities of each label; refused when there is no room or no time."""
        self._admit(len(texts), deadline)
        self.waiting += len(texts)
        asked = None
        try:
            if sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts) <= _INLINE:
                ids = self._encode(texts)
            else:
                ids = await asyncio.get_running_loop().run_in_executor(self._encoder, self._encode, texts)
            asked = self._enqueue(ids, deadline)
            async with asyncio.timeout(deadline - time.monotonic()):
                return ids, await asked.answer
        except TimeoutError:
            self._metrics.events["expired"] += len(texts)
            raise deadline_error() from None
        finally:
            if asked is None:
                self.waiting -= len(texts)
            elif asked.left:  # given up: what was not read yet is not read any more
                self._forget(asked)

    async def run(self) -> None:
        """Read what arrives, for as long as the server lives."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._in_company and self._load < self._tokens:
                await asyncio.sleep(self._wait)
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            self._in_company = len({id(asked) for asked, _ in batch}) > 1
            started = time.monotonic()
            work = loop.run_in_executor(self._model, self._score, [asked.ids[place] for asked, place in batch])
            await asyncio.wait([work])
            self._hand_out(batch, work, time.monotonic() - started)

    def seconds_of_waiting(self) -> float:
        """How long a text would wait now, by how fast the last batches were."""
        return self._load * self._seconds_per_token

    def _admit(self, texts: int, deadline: float) -> None:
        wait = self.seconds_of_waiting()
        if self.waiting + texts > self._room:
            detail = f"{self.waiting} texts are waiting and {texts} more do not fit into a queue of {self._room}"
            raise HTTPError(503, f"{detail}; try again later", max(1, math.ceil(wait)))
        left = deadline - time.monotonic()
        if left <= 0:
            self._metrics.events["expired"] += texts
            raise deadline_error()
        if wait > left:
            detail = f"what waits takes about {wait:.1f} seconds, and this request has {left:.1f}"
            raise HTTPError(503, f"{detail}; try again later", math.ceil(wait))

    def _enqueue(self, ids: list[Ids], deadline: float) -> _PendingRequest:
        shapes = [self._shape(len(text)) for text in ids]
        answer: asyncio.Future[ProbabilityRows] = asyncio.get_running_loop().create_future()
        asked = _PendingRequest(ids, shapes, deadline, answer, left=list(range(len(ids))))
        self._load += sum(shape.rows * shape.width for shape in shapes)
        self._requests.append(asked)
        self._arrived.set()
        return asked

    def _forget(self, asked: _PendingRequest) -> None:
        self._load -= sum(asked.shapes[place].rows * asked.shapes[place].width for place in asked.left)
        self.waiting -= len(asked.left)
        asked.left.clear()

    def _next_batch(self) -> list[tuple[_PendingRequest, int]]:
        """A text of the request whose turn it is, and of all that wait those nearest to it in length."""
        now = time.monotonic()
        for asked in self._requests:
            if asked.left and (asked.answer.done() or asked.deadline <= now):
                self._forget(asked)
        self._requests = deque(asked for asked in self._requests if asked.left)
        if not self._requests:
            return []
        first = self._requests[0]
        self._requests.rotate(-1)
        middle = first.shapes[first.left[0]].width
        places = [(asked, place) for asked in (first, *self._requests) for place in asked.left]
        places = list(dict.fromkeys(places))  # the first one's stand twice
        places.sort(key=lambda one: abs(one[0].shapes[one[1]].width - middle))
        batch: list[tuple[_PendingRequest, int]] = []
        rows = width = real = 0
        for asked, place in places:
            shape = asked.shapes[place]
            padded = (rows + shape.rows) * max(width, shape.width)
            wanted = real + shape.rows * shape.width
            if batch and (padded > self._tokens or padded - wanted > self._padding + _WASTE * wanted):
                continue
            batch.append((asked, place))
            rows, width, real = rows + shape.rows, max(width, shape.width), wanted
        for asked, place in batch:
            asked.left.remove(place)
        self.waiting -= len(batch)
        return batch

    def _hand_out(
        self, batch: list[tuple[_PendingRequest, int]], work: "asyncio.Future[ProbabilityRows]", seconds: float
    ) -> None:
        tokens = sum(asked.shapes[place].rows * asked.shapes[place].width for asked, place in batch)
        self._load -= tokens
        error = work.exception()
        if error is not None:
            for asked, _ in batch:
                if not asked.answer.done():
                    asked.answer.set_exception(error)
            return
        pace = seconds / tokens
        self._seconds_per_token = 0.8 * self._seconds_per_token + 0.2 * pace if self._seconds_per_token else pace
        events = self._metrics.events
        events["batches"], events["texts"] = events["batches"] + 1, events["texts"] + len(batch)
        events["tokens"] += tokens
        self._metrics.batch_texts.add(len(batch))
        for (asked, place), share in zip(batch, work.result(), strict=True):
            asked.found[place] = share
            if len(asked.found) == len(asked.ids) and not asked.answer.done():
                asked.answer.set_result(np.stack([asked.found[place] for place in range(len(asked.ids))]))
