"""Servers of multi-label, regression and text-pair models give the answers of `headstart predict`."""

import httpx2
import pytest

from fixtures.predictions import write_all
from fixtures.recipes import finetune_run
from fixtures.serving import Server
from fixtures.tiny import finetune_config
from fixtures.waiting import PATIENCE
from headstart.config.schema import RuntimeConfig
from headstart.predict.explain import explain_prediction
from headstart.predict.predictor import Predictor

ONE_THREAD = RuntimeConfig(threads=1, device="cpu")
PAIR = {"labelled__text_column": "premise", "labelled__second_column": "hypothesis"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("served"))
    for name, file, settings in (
        ("several", "labels.jsonl", {}),
        ("rating", "ratings.csv", {"labelled__task": "rating"}),
        ("pair", "pairs.csv", PAIR),
    ):
        config = finetune_config(**{"loop__epochs": 1, "model__context": 40, **settings})
        finetune_run(str(folder / file), folder / name, config, backbone="scratch")
    return folder


@pytest.fixture(scope="module")
def servers(folder):
    with Server(folder / "several") as several, Server(folder / "rating") as rating, Server(folder / "pair") as pair:
        yield {"several": several, "rating": rating, "pair": pair}


def ask(server, path, body):
    reply = httpx2.post(f"{server.url}/{path}", json=body, timeout=PATIENCE)
    return reply.status_code, reply.json()


def test_served_answers_of_every_task_are_those_of_predict(folder, servers):
    texts = ["the battle and a kiss", "a film"]
    status, several = ask(servers["several"], "predict", {"texts": texts})
    assert status == 200
    for received, answer in zip(
        several["predictions"], Predictor.load(folder / "several", ONE_THREAD).predict(texts), strict=True
    ):
        assert set(received) == {"labels", "probabilities", "truncated"}
        assert received["labels"] == list(answer.labels)
        assert received["probabilities"] == pytest.approx(answer.probabilities, abs=1e-6)
    status, rating = ask(servers["rating"], "predict", {"text": "great great awful"})
    (answer,) = Predictor.load(folder / "rating", ONE_THREAD).predict(["great great awful"])
    assert rating == {
        "labels": [],
        "predictions": [{"value": pytest.approx(answer.value, abs=1e-6), "truncated": False}],
    }
    pairs = [("the battle", "the army"), ("a kiss", "the police " * 30)]
    body = {"texts": [pair[0] for pair in pairs], "pairs": [pair[1] for pair in pairs]}
    status, received = ask(servers["pair"], "predict", body)
    answers = Predictor.load(folder / "pair", ONE_THREAD).predict(pairs)
    assert [prediction["label"] for prediction in received["predictions"]] == [answer.label for answer in answers]
    assert [prediction["truncated"] for prediction in received["predictions"]] == [False, True]
    single = ask(servers["pair"], "predict", {"text": "the battle", "pair": "the army"})[1]
    assert single["predictions"][0]["probability"] == pytest.approx(answers[0].probability, abs=1e-6)


def test_served_explanations_of_every_task_are_those_of_explain_prediction(folder, servers):
    status, received = ask(servers["several"], "explain", {"text": "the battle and a kiss", "label": "war"})
    explanation = explain_prediction(Predictor.load(folder / "several", ONE_THREAD), "the battle and a kiss", "war")
    assert (status, received["label"]) == (200, "war")
    assert [word["weight"] for word in received["words"]] == pytest.approx(
        [word.weight for word in explanation.words], abs=1e-4
    )
    assert sum(word["weight"] for word in received["words"]) == pytest.approx(
        received["margin"] - received["baseline"] + received["error"], abs=1e-4
    )
    assert ask(servers["rating"], "explain", {"text": "great"})[1]["label"] == "rating"
    pair = ask(servers["pair"], "explain", {"text": "the battle", "pair": "a kiss"})[1]
    assert [word["text"] for word in pair["words"]] == ["the", "battle", "|", "a", "kiss"]


def test_about_describes_every_task(servers):
    facts = {
        name: httpx2.get(f"{server.url}/about", timeout=PATIENCE).json()["task"] for name, server in servers.items()
    }
    assert facts["several"]["kind"] == "labels"
    assert set(facts["several"]["thresholds"]) == {"crime", "love", "war"}
    assert (facts["rating"]["lowest"], facts["rating"]["highest"]) == (1, 5)
    assert facts["pair"] == {"kind": "classes", "pair": True}


def test_a_pair_with_a_blank_text_has_an_error_in_its_place(servers):
    body = {"texts": ["a", "b", " "], "pairs": ["c", " ", "d"]}
    reply = httpx2.post(f"{servers['pair'].url}/predict", json=body, timeout=PATIENCE)
    assert reply.status_code == 200
    first, *others = reply.json()["predictions"]
    assert others == [{"error": "the text is empty"}] * 2
    assert set(first) == {"label", "probability", "probabilities", "truncated", "abstained"}


def test_a_request_that_does_not_fit_the_task_is_refused(servers):
    cases = [
        ("pair", {"text": "a"}, "this model expects pairs of texts: send pair with text, or pairs with texts"),
        ("several", {"text": "a", "pair": "b"}, "this model expects single texts; remove pair and pairs"),
        ("pair", {"text": "a", "pair": " "}, "text or pair is empty"),
        ("pair", {"texts": ["a", "b"], "pairs": ["c"]}, "texts has 2 and pairs 1; expected the same number"),
        ("pair", {"texts": ["a"], "pair": "c"}, "pair needs text, and pairs needs texts"),
        (
            "several",
            {"text": "a", "abstain": 0.9},
            "--abstain supports one class per text, but the model predicts any number of labels",
        ),
        (
            "rating",
            {"text": "a", "abstain": 0.9},
            "--abstain supports one class per text, but the model predicts a rating",
        ),
    ]
    for name, body, detail in cases:
        assert ask(servers[name], "predict", body) == (422, {"error": "invalid", "detail": detail}), body
