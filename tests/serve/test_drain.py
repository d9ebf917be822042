"""A server under load: it refuses what it cannot take, and answers every request that it admitted."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from fixtures.serving import Server
from fixtures.tiny import FILLING
from fixtures.waiting import PATIENCE
from headstart.config.schema import RuntimeConfig
from headstart.predict.predictor import Predictor


@pytest.fixture(scope="module")
def texts():
    return [" ".join(FILLING[: 1 + number % 14]) + " superb" for number in range(40)]


@pytest.fixture(scope="module")
def probabilities(served, texts):
    answers = Predictor.load(served / "clf", RuntimeConfig(threads=1, device="cpu")).predict(texts)
    return [answer.probability for answer in answers]


def test_an_overloaded_server_refuses_some_requests_and_answers_the_others_correctly(crowded, texts, probabilities):
    """Twelve clients send forty texts each to a queue of eighty."""
    statuses = []

    def client_loop(_number):
        with httpx2.Client(base_url=crowded.url, timeout=PATIENCE) as client:
            for _ in range(4):
                reply = client.post("/predict", json={"texts": texts}, headers={"X-Deadline-Ms": "600000"})
                statuses.append(reply.status_code)
                if reply.status_code == 200:
                    received = [answer["probability"] for answer in reply.json()["predictions"]]
                    assert received == pytest.approx(probabilities, abs=1e-6)
                else:
                    assert reply.json()["error"] == "busy"
                    assert int(reply.headers["retry-after"]) >= 1

    with ThreadPoolExecutor(12) as clients:
        list(clients.map(client_loop, range(12)))
    assert set(statuses) == {200, 503}
    # afterwards the server is idle again
    assert httpx2.post(f"{crowded.url}/predict", json={"texts": texts}, timeout=PATIENCE).status_code == 200
    waiting = httpx2.get(f"{crowded.url}/metrics", timeout=PATIENCE).text
    assert "headstart_waiting_texts 0\n" in waiting
    assert "headstart_requests_in_hand 0\n" in waiting


def test_sigterm_under_load_drops_no_admitted_request(crowded, texts, probabilities):
    """Runs last on this server: clients send requests until they are turned away, and get only complete answers."""
    answered, turned_away, broken = [], [], []
    under_load = threading.Event()

    def client_loop(number):
        with httpx2.Client(base_url=crowded.url, timeout=PATIENCE) as client:
            while True:
                try:
                    reply = client.post("/predict", json={"texts": texts[:3]})
                except httpx2.ConnectError:
                    return  # the server has stopped: this request was not admitted
                except httpx2.HTTPError as error:
                    broken.append(repr(error))
                    return
                if reply.status_code == 200:
                    received = [answer["probability"] for answer in reply.json()["predictions"]]
                    assert received == pytest.approx(probabilities[:3], abs=1e-6)
                    answered.append(number)
                    if len(answered) > 60:
                        under_load.set()
                elif reply.json()["detail"] == "the server is shutting down; try again later":
                    assert reply.headers["connection"] == "close"
                    assert reply.headers["retry-after"] == "5"
                    turned_away.append(number)
                    return

    with ThreadPoolExecutor(12) as clients:
        futures = [clients.submit(client_loop, number) for number in range(12)]
        assert under_load.wait(PATIENCE)
        assert crowded.stop(signal.SIGTERM) == 0
        for future in futures:
            future.result()
    assert broken == []
    assert len(turned_away) >= 1
    assert len(answered) > 60  # control: there was load
    assert crowded.log.splitlines()[-1].startswith("stopped: ")


def test_ctrl_c_lets_a_stream_finish_and_exits_with_0(served):
    with Server(served / "base", "--serve.tokens", 2000) as server:
        with (
            httpx2.Client(base_url=server.url, timeout=PATIENCE) as client,
            client.stream("POST", "/generate", json={"prompt": "the film", "tokens": 400, "temperature": 1.0}) as reply,
        ):
            lines = reply.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGINT)
            later_lines = [line for line in lines if line]
        assert first.startswith('data: {"text"')
        assert later_lines[-1] in ('data: {"done": "length"}', 'data: {"done": "end"}')
        assert server.process.wait(timeout=PATIENCE) == 0


def test_the_log_contains_no_text_of_a_request(classifier):
    """This server logs a line per request."""
    secret = "xylophonically"
    with httpx2.Client(base_url=classifier.url, timeout=PATIENCE) as client:
        client.post("/predict", json={"text": secret})
        client.post("/explain", json={"text": secret, "label": secret})
        client.get(f"/{secret}")
    log = classifier.log
    assert "POST /explain 422" in log
    assert "POST /predict 200" in log
    assert secret not in log
