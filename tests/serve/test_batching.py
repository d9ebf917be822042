"""Dynamic batching: every text is scored once, within the token budget, in round-robin order, and before its deadline."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.waiting import PATIENCE
from headstart.serve.batching import Batcher, PaddedShape
from headstart.serve.middleware import HTTPError, ServerMetrics


class FakeModel:
    """A model that scores a text by its length, records its batches, and can be blocked."""

    def __init__(self):
        self.batches, self.min_probabilities = [], []
        self.unblocked, self.started = threading.Event(), threading.Event()
        self.unblocked.set()

    def score(self, texts, min_probabilities):
        self.started.set()
        self.unblocked.wait(PATIENCE)
        self.batches.append([len(text) for text in texts])
        self.min_probabilities.append(list(min_probabilities))
        return np.array([[len(text), -len(text)] for text in texts], dtype=float)


def make_batcher(model, executor, **options):
    return Batcher(
        lambda texts: [np.zeros(len(text), dtype=np.int64) for text in texts],
        model.score,
        lambda ids: PaddedShape(1, len(ids)),
        model=executor,
        encoder=executor,
        metrics=ServerMetrics(),
        **{"queue": 100, "tokens": 20, "wait": 0.0, "padding": 1000} | options,
    )


def run(work, model=None, **options):
    model = model or FakeModel()

    async def main():
        with ThreadPoolExecutor(1) as executor:
            queue = make_batcher(model, executor, **options)
            batching = asyncio.create_task(queue.run())
            try:
                return await work(queue, model)
            finally:
                model.unblocked.set()
                batching.cancel()

    return asyncio.run(main())


def in_seconds(seconds=PATIENCE):
    return time.monotonic() + seconds


requests = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=40)
@given(requests)
def test_each_text_is_scored_once_and_gets_its_own_result(lengths):
    async def work(queue, model):
        work = [queue.predict(["x" * length for length in text_lengths], in_seconds()) for text_lengths in lengths]
        answers = await asyncio.gather(*work)
        for text_lengths, (ids, probabilities) in zip(lengths, answers, strict=True):
            assert [len(text) for text in ids] == text_lengths
            assert probabilities[:, 0].tolist() == text_lengths
        assert sorted(chain(*model.batches)) == sorted(chain(*lengths))
        for batch in model.batches:
            assert len(batch) == 1 or len(batch) * max(batch) <= 20
        assert queue.waiting == 0
        assert queue.expected_wait() == 0

    run(work)


def test_texts_of_similar_length_are_batched_together():
    async def work(queue, model):
        model.unblocked.clear()
        first = asyncio.create_task(queue.predict(["x"], in_seconds()))
        await asyncio.to_thread(model.started.wait)
        others = [asyncio.create_task(queue.predict(["x" * length], in_seconds())) for length in (2, 9, 3, 10, 2)]
        await asyncio.sleep(0)
        model.unblocked.set()
        await asyncio.gather(first, *others)
        assert model.batches == [[1], [2, 2, 3], [9, 10]]

    run(work)


@pytest.mark.parametrize(("padding", "batches"), [(1000, [[2, 3, 9]]), (1, [[2, 3], [9]]), (0, [[2], [3], [9]])])
def test_a_batch_has_no_more_padding_than_allowed(padding, batches):
    async def work(queue, model):
        model.unblocked.clear()
        first = asyncio.create_task(queue.predict(["x"], in_seconds()))
        await asyncio.to_thread(model.started.wait)
        others = [asyncio.create_task(queue.predict(["x" * length], in_seconds())) for length in (2, 3, 9)]
        await asyncio.sleep(0)
        model.unblocked.set()
        await asyncio.gather(first, *others)
        assert model.batches == [[1], *batches]

    run(work, padding=padding, tokens=50)


def test_a_long_request_does_not_block_a_short_one():
    async def work(queue, model):
        model.unblocked.clear()
        first = asyncio.create_task(queue.predict(["x"], in_seconds()))
        await asyncio.to_thread(model.started.wait)
        long = asyncio.create_task(queue.predict(["x" * 20] * 9, in_seconds()))
        short = asyncio.create_task(queue.predict(["x" * 5], in_seconds()))
        await asyncio.sleep(0)
        model.unblocked.set()
        await short
        assert model.batches[1:3] == [[20], [5]]
        await asyncio.gather(first, long)
        assert len(model.batches) == 11  # control: the long request was finished

    run(work)


def test_a_request_that_does_not_fit_into_the_queue_is_refused():
    async def work(queue, model):
        model.unblocked.clear()
        first = asyncio.create_task(queue.predict(["x"], in_seconds()))
        await asyncio.to_thread(model.started.wait)
        second = asyncio.create_task(queue.predict(["x"] * 3, in_seconds()))
        await asyncio.sleep(0)
        with pytest.raises(HTTPError) as refused:
            await queue.predict(["x"] * 2, in_seconds())
        assert refused.value.status == 503
        assert refused.value.detail == ("3 texts are queued and 2 more exceed the capacity of 4; try again later")
        assert refused.value.headers() == {"Retry-After": "1"}
        third = asyncio.create_task(queue.predict(["x"], in_seconds()))  # control: one more fits
        await asyncio.sleep(0)
        model.unblocked.set()
        await asyncio.gather(first, second, third)

    run(work, queue=4)


def test_expired_and_cancelled_requests_are_never_scored():
    async def work(queue, model):
        model.unblocked.clear()
        first = asyncio.create_task(queue.predict(["x"], in_seconds()))
        await asyncio.to_thread(model.started.wait)
        late = asyncio.create_task(queue.predict(["xx"], in_seconds(0.05)))
        cancelled = asyncio.create_task(queue.predict(["xxx"], in_seconds()))
        patient = asyncio.create_task(queue.predict(["xxxx"], in_seconds()))
        with pytest.raises(HTTPError) as refused:
            await late
        assert refused.value.status == 504
        cancelled.cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 1
        model.unblocked.set()
        await asyncio.gather(first, patient)
        assert model.batches == [[1], [4]]

    run(work)


def test_a_request_that_would_wait_too_long_is_refused_at_once():
    async def work(queue, model):
        await queue.predict(["x" * 10], in_seconds())
        model.unblocked.clear()
        model.started.clear()
        first = asyncio.create_task(queue.predict(["x" * 20], in_seconds()))
        await asyncio.to_thread(model.started.wait)
        queue._seconds_per_token = 0.5  # as if the batches before had been slow
        with pytest.raises(HTTPError) as refused:
            await queue.predict(["x"], in_seconds(2.0))
        assert refused.value.detail == (
            "the estimated wait is 10.0 seconds, but the deadline of this request is in 2.0; try again later"
        )
        assert refused.value.retry_after == 10
        patient = asyncio.create_task(queue.predict(["x"], in_seconds()))  # control: one with more time waits
        await asyncio.sleep(0)
        model.unblocked.set()
        await asyncio.gather(first, patient)

    run(work)


def test_an_error_in_a_batch_fails_only_its_own_requests():
    class FailingModel(FakeModel):
        def score(self, texts, min_probabilities):
            if any(len(text) == 13 for text in texts):
                raise RuntimeError("the model broke")
            return super().score(texts, min_probabilities)

    async def work(queue, model):
        with pytest.raises(RuntimeError, match="the model broke"):
            await queue.predict(["x" * 13, "x" * 20], in_seconds())
        _, probabilities = await queue.predict(["xx"], in_seconds())
        assert probabilities[0, 0] == 2
        assert queue.waiting == 0

    run(work, FailingModel())


def test_a_text_is_scored_with_the_threshold_of_its_request():
    async def work(queue, model):
        await asyncio.gather(queue.predict(["xx", "xxx"], in_seconds(), 0.9), queue.predict(["x"], in_seconds()))
        scored = dict(zip(chain(*model.batches), chain(*model.min_probabilities), strict=True))
        assert scored == {2: 0.9, 3: 0.9, 1: 0.0}

    run(work)
