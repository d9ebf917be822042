"""Overload and drain: at twice its rate a server refuses requests, keeps its deadline, and answers all it admitted.

Times come from the log of the server and are compared with its deadline, so nothing depends on the speed of the machine.
"""

import asyncio
import json
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from fixtures.serving import Server
from fixtures.tiny import FILLING
from fixtures.waiting import PATIENCE
from headstart.config.schema import RuntimeConfig
from headstart.predict.predictor import Predictor

DEADLINE = 120.0
HEAD = (
    "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Connection: close\r\nContent-Length: {}\r\n\r\n"
)
STOPPING = "the server is shutting down; try again later"


@pytest.fixture(scope="module")
def texts():
    return [" ".join(FILLING[: 1 + number % 14]) + " superb" for number in range(20)]


@pytest.fixture(scope="module")
def probabilities(served, texts):
    answers = Predictor.load(served / "clf", RuntimeConfig(threads=1, device="cpu")).predict(texts)
    return [answer.probability for answer in answers]


@dataclass
class LoadGenerator:
    """Sends the same texts again and again, each time on a new connection, and counts the responses."""

    port: int
    body: bytes
    expected: list[float]
    responses: Counter = field(default_factory=Counter)
    """The number of complete responses by status, or `stopping`."""
    wrong: list[object] = field(default_factory=list)

    async def send(self) -> None:
        """Send one request; no response is counted after the server stopped."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(HEAD.format(len(self.body)).encode() + self.body)
            response = await reader.read()
            writer.close()
        except OSError:
            return
        if response:
            self._count(*response.split(b"\r\n\r\n", 1))

    def _count(self, head: bytes, body: bytes) -> None:
        status, answer = int(head.split()[1]), json.loads(body)  # an incomplete response is not JSON
        if status == 200:
            received = [prediction["probability"] for prediction in answer["predictions"]]
            self.wrong += [] if received == pytest.approx(self.expected, abs=1e-6) else [received]
        elif status in (429, 503):
            assert int(re.search(rb"(?i)retry-after: (\d+)", head)[1]) >= 1
        self.responses["stopping" if answer.get("detail") == STOPPING else status] += 1

    async def closed_loop(self, clients: int, requests: int) -> float:
        """Let each client send its next request after a response; return the requests per second."""

        async def client() -> None:
            for _ in range(requests // clients):
                await self.send()

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return requests / (time.perf_counter() - started)

    async def open_loop(self, rate: float, requests: int) -> None:
        """Send requests at a rate, without waiting for responses."""
        started, tasks = time.perf_counter(), []
        while len(tasks) < requests:
            due = min(requests, int((time.perf_counter() - started) * rate) + 1)
            tasks += [asyncio.create_task(self.send()) for _ in range(due - len(tasks))]
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)


async def overload(load: LoadGenerator, server: Server, rate: float, requests: int) -> int:
    """Send at a rate, stop the server after three quarters of the responses, and return its exit code."""
    sending = asyncio.create_task(load.open_loop(rate, requests))
    before = load.responses.total()
    while load.responses.total() - before < 3 * requests // 4:
        await asyncio.sleep(0.002)
    server.process.send_signal(signal.SIGTERM)
    await sending
    return await asyncio.to_thread(server.process.wait, PATIENCE)


def test_above_the_sustainable_rate_requests_are_refused_and_a_drain_drops_no_admitted_one(
    served, texts, probabilities
):
    body = json.dumps({"texts": texts}).encode()
    options = ["--serve.concurrency", 16, "--serve.deadline", DEADLINE, "--serve.log"]
    with Server(served / "clf", *options) as server:
        load = LoadGenerator(int(server.url.rsplit(":", 1)[1]), body, probabilities)
        rate = asyncio.run(load.closed_loop(clients=8, requests=160))
        assert load.responses == {200: 160}
        # four times the rate: more than the machine can do even if other work on it has ended since it was measured
        assert asyncio.run(overload(load, server, 4 * rate, int(8 * rate))) == 0
        log = server.log
    assert load.wrong == []
    assert set(load.responses) <= {200, 429, 503, 504, "stopping"}
    assert load.responses[429] + load.responses[503] > 0
    assert load.responses[200] > 160  # control: it answered under load too
    assert load.responses["stopping"] > 0  # control: it got requests while it stopped
    # every admitted request was answered: as many complete responses as the server counts
    num_answered = int(re.search(r"stopped: ([\d,]+) requests answered", log)[1].replace(",", ""))
    assert load.responses.total() == num_answered
    assert len(re.findall(r"POST /predict 200 [\d.]+ ms", log)) == load.responses[200]
