"""Twice what a server can take, then SIGTERM in the middle of it: it sheds, it keeps its deadline, and it forgets nobody.

Times are the server's own, from its log, and are held against the deadline it was started with: nothing here depends on
how fast this machine is.
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
from headstart.config.schema import RuntimeConfig
from headstart.predict.predictor import Predictor

DEADLINE = 2.0
HEAD = (
    "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Connection: close\r\nContent-Length: {}\r\n\r\n"
)
STOPPING = "the server is stopping; ask another, or try again later"


@pytest.fixture(scope="module")
def texts():
    return [" ".join(FILLING[: 1 + number % 14]) + " superb" for number in range(20)]


@pytest.fixture(scope="module")
def probabilities(served, texts):
    answers = Predictor.load(served / "clf", RuntimeConfig(threads=1, device="cpu")).predict(texts)
    return [answer.probability for answer in answers]


@dataclass
class Crowd:
    """Asks for the same texts over and over, each time on a connection of its own, and remembers what it heard."""

    port: int
    body: bytes
    right: list[float]
    heard: Counter = field(default_factory=Counter)
    """How many whole answers of each status, or `stopping`."""
    wrong: list[object] = field(default_factory=list)

    async def ask(self) -> None:
        """One request; nothing is heard where nobody listened any more."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(HEAD.format(len(self.body)).encode() + self.body)
            answer = await reader.read()
            writer.close()
        except OSError:
            return
        if answer:
            self._hear(*answer.split(b"\r\n\r\n", 1))

    def _hear(self, head: bytes, body: bytes) -> None:
        status, said = int(head.split()[1]), json.loads(body)  # a torn answer is no JSON
        if status == 200:
            found = [answer["probability"] for answer in said["predictions"]]
            self.wrong += [] if found == pytest.approx(self.right, abs=1e-6) else [found]
        elif status in (429, 503):
            assert int(re.search(rb"(?i)retry-after: (\d+)", head)[1]) >= 1
        self.heard["stopping" if said.get("detail") == STOPPING else status] += 1

    async def in_turns(self, clients: int, requests: int) -> float:
        """Each client asks again once it has its answer: requests a second, which is what the server can take."""

        async def one() -> None:
            for _ in range(requests // clients):
                await self.ask()

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(clients)))
        return requests / (time.perf_counter() - started)

    async def without_waiting(self, rate: float, requests: int) -> None:
        """Requests come at a rate, whether answers do or not."""
        started, asked = time.perf_counter(), []
        while len(asked) < requests:
            due = min(requests, int((time.perf_counter() - started) * rate) + 1)
            asked += [asyncio.create_task(self.ask()) for _ in range(due - len(asked))]
            await asyncio.sleep(0.002)
        await asyncio.gather(*asked)


async def overload(crowd: Crowd, server: Server, rate: float, requests: int) -> int:
    """Ask at a rate, stop the server when it has heard three quarters of it, and return its exit code."""
    asking = asyncio.create_task(crowd.without_waiting(rate, requests))
    before = crowd.heard.total()
    while crowd.heard.total() - before < 3 * requests // 4:
        await asyncio.sleep(0.002)
    server.process.send_signal(signal.SIGTERM)
    await asking
    return await asyncio.to_thread(server.process.wait, 60)


def test_twice_the_sustainable_rate_is_shed_and_a_drain_in_the_middle_of_it_drops_nobody(served, texts, shares):
    body = json.dumps({"texts": texts}).encode()
    options = ["--serve.concurrency", 16, "--serve.deadline", DEADLINE, "--serve.log"]
    with Server(served / "clf", *options) as server:
        crowd = Crowd(int(server.url.rsplit(":", 1)[1]), body, shares)
        rate = asyncio.run(crowd.in_turns(clients=8, requests=160))
        assert crowd.heard == {200: 160}
        # as many as keep it at work for four deadlines: were all let in, the last would wait for two of them
        assert asyncio.run(overload(crowd, server, 2 * rate, int(4 * rate * DEADLINE))) == 0
        said = server.said
    assert crowd.wrong == []
    assert set(crowd.heard) <= {200, 429, 503, 504, "stopping"}
    assert crowd.heard[429] + crowd.heard[503] > 0
    assert crowd.heard[200] > 160  # control: it worked under the load too
    assert crowd.heard["stopping"] > 0  # control: it was asked while it stopped
    # whoever was let in has heard: as many whole answers as the server counts
    answered = int(re.search(r"stopped: ([\d,]+) requests answered", said)[1].replace(",", ""))
    assert crowd.heard.total() == answered
    took = sorted(float(found) for found in re.findall(r"POST /predict 200 ([\d.]+) ms", said))
    assert len(took) == crowd.heard[200]
    assert took[int(0.99 * len(took))] <= 1000 * DEADLINE
