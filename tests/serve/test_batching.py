"""The queue: each text is read once and gets its own answer, within the budget, in turns, and not when it is too late."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.serve.batching import Batcher, PaddedShape
from headstart.serve.middleware import HTTPError, ServerMetrics


class Reader:
    """A model that scores a text by its length, remembers its batches, and may be held up."""

    def __init__(self):
        self.batches, self.free, self.begun = [], threading.Event(), threading.Event()
        self.free.set()

    def score(self, texts):
        self.begun.set()
        self.free.wait(10)
        self.batches.append([len(text) for text in texts])
        return np.array([[len(text), -len(text)] for text in texts], dtype=float)


def batcher(reader, model, **settings):
    return Batcher(
        lambda texts: [np.zeros(len(text), dtype=np.int64) for text in texts],
        reader.score,
        lambda tokens: PaddedShape(1, tokens),
        model=model,
        encoder=model,
        metrics=ServerMetrics(),
        **{"queue": 100, "tokens": 20, "wait": 0.0, "padding": 1000} | settings,
    )


def run(work, reader=None, **settings):
    reader = reader or Reader()

    async def whole():
        with ThreadPoolExecutor(1) as model:
            queue = batcher(reader, model, **settings)
            reading = asyncio.create_task(queue.run())
            try:
                return await work(queue, reader)
            finally:
                reader.free.set()
                reading.cancel()

    return asyncio.run(whole())


def soon(seconds=60.0):
    return time.monotonic() + seconds


requests = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=40)
@given(requests)
def test_each_text_is_read_once_and_gets_its_own_answer(lengths):
    async def work(queue, reader):
        asked = [queue.ask(["x" * length for length in own], soon()) for own in lengths]
        answers = await asyncio.gather(*asked)
        for own, (ids, shares) in zip(lengths, answers, strict=True):
            assert [len(text) for text in ids] == own
            assert shares[:, 0].tolist() == own
        assert sorted(chain(*reader.batches)) == sorted(chain(*lengths))
        for batch in reader.batches:
            assert len(batch) == 1 or len(batch) * max(batch) <= 20
        assert queue.waiting == 0
        assert queue.seconds_of_waiting() == 0

    run(work)


def test_texts_of_like_length_are_read_together():
    async def work(queue, reader):
        reader.free.clear()
        first = asyncio.create_task(queue.ask(["x"], soon()))
        await asyncio.to_thread(reader.begun.wait)
        rest = [asyncio.create_task(queue.ask(["x" * length], soon())) for length in (2, 9, 3, 10, 2)]
        await asyncio.sleep(0)
        reader.free.set()
        await asyncio.gather(first, *rest)
        assert reader.batches == [[1], [2, 2, 3], [9, 10]]

    run(work)


@pytest.mark.parametrize(("padding", "batches"), [(1000, [[2, 3, 9]]), (1, [[2, 3], [9]]), (0, [[2], [3], [9]])])
def test_texts_are_not_padded_further_than_it_is_worth(padding, batches):
    async def work(queue, reader):
        reader.free.clear()
        first = asyncio.create_task(queue.ask(["x"], soon()))
        await asyncio.to_thread(reader.begun.wait)
        rest = [asyncio.create_task(queue.ask(["x" * length], soon())) for length in (2, 3, 9)]
        await asyncio.sleep(0)
        reader.free.set()
        await asyncio.gather(first, *rest)
        assert reader.batches == [[1], *batches]

    run(work, padding=padding, tokens=50)


def test_a_long_request_does_not_hold_up_a_short_one():
    async def work(queue, reader):
        reader.free.clear()
        first = asyncio.create_task(queue.ask(["x"], soon()))
        await asyncio.to_thread(reader.begun.wait)
        long = asyncio.create_task(queue.ask(["x" * 20] * 9, soon()))
        short = asyncio.create_task(queue.ask(["x" * 5], soon()))
        await asyncio.sleep(0)
        reader.free.set()
        await short
        assert reader.batches[1:3] == [[20], [5]]
        await asyncio.gather(first, long)
        assert len(reader.batches) == 11  # control: the long one was read to its end

    run(work)


def test_what_does_not_fit_into_the_queue_is_refused():
    async def work(queue, reader):
        reader.free.clear()
        first = asyncio.create_task(queue.ask(["x"], soon()))
        await asyncio.to_thread(reader.begun.wait)
        second = asyncio.create_task(queue.ask(["x"] * 3, soon()))
        await asyncio.sleep(0)
        with pytest.raises(HTTPError) as refused:
            await queue.ask(["x"] * 2, soon())
        assert refused.value.status == 503
        assert refused.value.detail == ("3 texts are waiting and 2 more do not fit into a queue of 4; try again later")
        assert refused.value.headers() == {"Retry-After": "1"}
        third = asyncio.create_task(queue.ask(["x"], soon()))  # control: one more fits
        await asyncio.sleep(0)
        reader.free.set()
        await asyncio.gather(first, second, third)

    run(work, queue=4)


def test_what_is_late_or_given_up_is_never_read():
    async def work(queue, reader):
        reader.free.clear()
        first = asyncio.create_task(queue.ask(["x"], soon()))
        await asyncio.to_thread(reader.begun.wait)
        late = asyncio.create_task(queue.ask(["xx"], soon(0.05)))
        left = asyncio.create_task(queue.ask(["xxx"], soon()))
        stays = asyncio.create_task(queue.ask(["xxxx"], soon()))
        with pytest.raises(HTTPError) as refused:
            await late
        assert refused.value.status == 504
        left.cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 1
        reader.free.set()
        await asyncio.gather(first, stays)
        assert reader.batches == [[1], [4]]

    run(work)


def test_a_request_that_would_wait_too_long_is_refused_at_once():
    async def work(queue, reader):
        await queue.ask(["x" * 10], soon())
        reader.free.clear()
        reader.begun.clear()
        first = asyncio.create_task(queue.ask(["x" * 20], soon()))
        await asyncio.to_thread(reader.begun.wait)
        queue._seconds_per_token = 0.5  # as if the batches before had been slow
        with pytest.raises(HTTPError) as refused:
            await queue.ask(["x"], soon(2.0))
        assert refused.value.detail == (
            "what waits takes about 10.0 seconds, and this request has 2.0; try again later"
        )
        assert refused.value.retry_after == 10
        more = asyncio.create_task(queue.ask(["x"], soon(60.0)))  # control: one with more time waits
        await asyncio.sleep(0)
        reader.free.set()
        await asyncio.gather(first, more)

    run(work)


def test_a_batch_that_fails_fails_its_own_requests_only():
    class Odd(Reader):
        def score(self, texts):
            if any(len(text) == 13 for text in texts):
                raise RuntimeError("the model broke")
            return super().score(texts)

    async def work(queue, reader):
        with pytest.raises(RuntimeError, match="the model broke"):
            await queue.ask(["x" * 13, "x" * 20], soon())
        _, shares = await queue.ask(["xx"], soon())
        assert shares[0, 0] == 2
        assert queue.waiting == 0

    run(work, Odd())
