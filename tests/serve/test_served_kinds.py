"""Servers of linear classifiers and of blends give the answers of `headstart predict`."""

import httpx2
import pytest

from fixtures.serving import Server
from fixtures.small_models import LABELS, ODD, TEXTS, blend, linear
from fixtures.waiting import PATIENCE
from headstart.config.schema import RuntimeConfig
from headstart.predict.bundle_predictor import load_predictor
from headstart.predict.explain import explain_prediction

ONE_THREAD = RuntimeConfig(threads=1, device="cpu")
LONG = "wonderful " * 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    linear(folder / "linear")
    blend(folder / "blend")
    return folder


@pytest.fixture(scope="module")
def servers(folder):
    with Server(folder / "linear") as by_words, Server(folder / "blend") as both:
        yield {"linear": by_words, "blend": both}


def ask(server, path, body):
    reply = httpx2.post(f"{server.url}/{path}", json=body, timeout=PATIENCE)
    return reply.status_code, reply.json()


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_served_answers_are_those_of_predict(folder, servers, kind):
    texts = [*TEXTS[:5], *ODD, LONG]
    status, received = ask(servers[kind], "predict", {"texts": texts})
    assert (status, received["labels"]) == (200, list(LABELS))
    for prediction, answer in zip(
        received["predictions"], load_predictor(folder / kind, ONE_THREAD).predict(texts), strict=True
    ):
        assert (prediction["label"], prediction["truncated"]) == (answer.label, answer.truncated)
        assert prediction["probabilities"] == pytest.approx(answer.probabilities, abs=1e-6)


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_served_explanations_are_those_of_explain_prediction(folder, servers, kind):
    status, received = ask(servers[kind], "explain", {"text": LONG, "label": "good"})
    expected = explain_prediction(load_predictor(folder / kind, ONE_THREAD), LONG, "good")
    assert status == 200
    assert [word["text"] for word in received["words"]] == LONG.split()
    assert [word["weight"] for word in received["words"]] == pytest.approx(
        [word.weight for word in expected.words], abs=1e-5
    )
    assert received["truncated"] is (kind == "blend")


@pytest.mark.parametrize(("kind", "context"), [("linear", None), ("blend", 64)])
def test_a_server_says_what_it_holds(servers, kind, context):
    about = httpx2.get(f"{servers[kind].url}/about", timeout=PATIENCE).json()
    assert (about["head_type"], about["classifier"], about["context"]) == ("classify", kind, context)
    assert about["labels"] == list(LABELS)
    assert httpx2.get(f"{servers[kind].url}/health", timeout=PATIENCE).status_code == 200
    assert "headstart_texts_total" in httpx2.get(f"{servers[kind].url}/metrics", timeout=PATIENCE).text
    status, error = ask(servers[kind], "predict", {"text": "a", "abstain": 0.9})
    assert status == 422
    assert error["detail"].startswith("the model has no table of thresholds")
    status, error = ask(servers[kind], "generate", {"prompt": "a"})
    assert (status, error["detail"]) == (404, "/generate needs a language model, but this server has a classifier")
