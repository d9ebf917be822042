"""A server under load: it sheds what it cannot take, and leaves nobody whom it let in without an answer."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from fixtures.serving import Server
from fixtures.tiny import FILLING
from headstart.config.schema import RuntimeConfig
from headstart.predict.predictor import Predictor


@pytest.fixture(scope="module")
def texts():
    return [" ".join(FILLING[: 1 + number % 14]) + " superb" for number in range(40)]


@pytest.fixture(scope="module")
def probabilities(served, texts):
    answers = Predictor.load(served / "clf", RuntimeConfig(threads=1, device="cpu")).predict(texts)
    return [answer.probability for answer in answers]


def test_more_than_it_can_take_is_shed_and_the_rest_is_answered_rightly(crowded, texts, shares):
    """Twelve clients with forty texts each, room for eighty."""
    seen = []

    def one(_number):
        with httpx2.Client(base_url=crowded.url, timeout=60) as client:
            for _ in range(4):
                reply = client.post("/predict", json={"texts": texts}, headers={"X-Deadline-Ms": "20000"})
                seen.append(reply.status_code)
                if reply.status_code == 200:
                    found = [answer["probability"] for answer in reply.json()["predictions"]]
                    assert found == pytest.approx(shares, abs=1e-6)
                else:
                    assert reply.json()["error"] == "busy"
                    assert int(reply.headers["retry-after"]) >= 1

    with ThreadPoolExecutor(12) as crowd:
        list(crowd.map(one, range(12)))
    assert set(seen) == {200, 503}
    # and afterwards it is as before
    assert httpx2.post(f"{crowded.url}/predict", json={"texts": texts}).status_code == 200
    waiting = httpx2.get(f"{crowded.url}/metrics").text
    assert "headstart_waiting_texts 0\n" in waiting
    assert "headstart_requests_in_hand 0\n" in waiting


def test_sigterm_under_load_drops_nobody_who_was_let_in(crowded, texts, shares):
    """Runs last on this server: clients ask without pause until they are told to go, and each gets whole answers only."""
    answered, told, broken = [], [], []
    going = threading.Event()

    def one(number):
        with httpx2.Client(base_url=crowded.url, timeout=60) as client:
            while True:
                try:
                    reply = client.post("/predict", json={"texts": texts[:3]})
                except httpx2.ConnectError:
                    return  # nobody listens any more: this one was never let in
                except httpx2.HTTPError as error:
                    broken.append(repr(error))
                    return
                if reply.status_code == 200:
                    found = [answer["probability"] for answer in reply.json()["predictions"]]
                    assert found == pytest.approx(shares[:3], abs=1e-6)
                    answered.append(number)
                    if len(answered) > 60:
                        going.set()
                elif reply.json()["detail"] == "the server is stopping; ask another, or try again later":
                    assert reply.headers["connection"] == "close"
                    assert reply.headers["retry-after"] == "5"
                    told.append(number)
                    return

    with ThreadPoolExecutor(12) as crowd:
        asked = [crowd.submit(one, number) for number in range(12)]
        assert going.wait(60)
        assert crowded.stop(signal.SIGTERM) == 0
        for each in asked:
            each.result()
    assert broken == []
    assert len(told) >= 1
    assert len(answered) > 60  # control: there was load
    assert crowded.said.splitlines()[-1].startswith("stopped: ")


def test_ctrl_c_ends_a_stream_at_its_end_and_the_exit_code_is_0(served):
    with Server(served / "base", "--serve.tokens", 2000) as server:
        with (
            httpx2.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/generate", json={"prompt": "the film", "tokens": 400, "temperature": 1.0}) as reply,
        ):
            lines = reply.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert first.startswith('data: {"text"')
        assert rest[-1] in ('data: {"done": "length"}', 'data: {"done": "end"}')
        assert server.process.wait(timeout=60) == 0


def test_nothing_that_was_asked_stands_in_the_log(classifier):
    """Runs in whichever order: this server logs a line a request."""
    secret = "xylophonically"
    with httpx2.Client(base_url=classifier.url) as client:
        client.post("/predict", json={"text": secret})
        client.post("/explain", json={"text": secret, "label": secret})
        client.get(f"/{secret}")
    said = classifier.said
    assert "POST /explain 422" in said
    assert "POST /predict 200" in said
    assert secret not in said
