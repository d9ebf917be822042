"""A served answer is the answer of `headstart predict`: alone, in company, and whatever else is asked at the same time."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures.tiny import CPU
from headstart.cli.main import run
from headstart.config.schema import RuntimeConfig
from headstart.predict.explain import explain_prediction
from headstart.predict.generate import Sampling, next_token_candidates, run_generate
from headstart.predict.predictor import Predictor
from headstart.store.bundle import load_bundle

ONE = RuntimeConfig(threads=1, device="cpu")


@pytest.fixture(scope="module")
def texts(served):
    with (served / "test.csv").open(newline="") as file:
        rows = [row["text"] for row in csv.DictReader(file)]
    return [*rows, "the film was " * 30, "superb", "🙂 \u200b", "x" * 3000]


@pytest.fixture(scope="module")
def alone(served, texts):
    return [Predictor.load(served / "clf", ONE).predict([text])[0] for text in texts]


def check(found, answers):
    for told, answer in zip(found, answers, strict=True):
        assert told["label"] == answer.label
        assert list(told["probabilities"]) == list(answer.probabilities)
        assert told["probabilities"] == pytest.approx(answer.probabilities, abs=1e-6)
        assert told["probability"] == pytest.approx(answer.probability, abs=1e-6)
        assert (told["truncated"], told["abstained"]) == (answer.truncated, answer.abstained)


def test_one_text_is_answered_as_predict_answers_it(ask, texts, alone):
    for text, answer in zip(texts[:5], alone[:5], strict=True):
        reply = ask.post("/predict", json={"text": text})
        assert reply.status_code == 200
        assert reply.json()["labels"] == ["negative", "positive"]
        check(reply.json()["predictions"], [answer])


def test_many_texts_are_answered_in_their_order(ask, texts, alone):
    check(ask.post("/predict", json={"texts": texts}).json()["predictions"], alone)
    assert len({answer.label for answer in alone}) == 2  # control: the answers do differ
    assert {answer.truncated for answer in alone} == {True, False}


def test_a_crowd_gets_the_same_answers_as_each_alone(ask, texts, alone):
    def one(number):
        place = number % len(texts)
        few = slice(place, place + 1 + number % 4)
        check(ask.post("/predict", json={"texts": texts[few]}).json()["predictions"], alone[few])
        return len(texts[few])

    before = count(ask, "headstart_batches_total"), count(ask, "headstart_texts_total")
    with ThreadPoolExecutor(24) as crowd:
        read = sum(crowd.map(one, range(200)))
    batches, seen = count(ask, "headstart_batches_total") - before[0], count(ask, "headstart_texts_total") - before[1]
    assert seen == read
    assert batches < 200  # control: they did share batches


def count(ask, name):
    line = next(line for line in ask.get("/metrics").text.splitlines() if line.startswith(f"{name} "))
    return int(line.split()[1])


def test_the_command_line_says_the_same(ask, served, texts, tmp_path):
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    out = tmp_path / "out.jsonl"
    words = ["predict", served / "clf", "--input", tmp_path / "in.csv", "--out", out, "--quiet", "--abstain", "0.5"]
    assert run([*map(str, words)]) == 0
    told = ask.post("/predict", json={"texts": texts, "abstain": 0.5}).json()["predictions"]
    for line, answer in zip(out.read_text().splitlines(), told, strict=True):
        row = json.loads(line)
        assert (row["label"], row["truncated"], row["abstained"]) == (
            answer["label"],
            answer["truncated"],
            answer["abstained"],
        )
        assert row["probabilities"] == pytest.approx(answer["probabilities"], abs=2e-6)


def test_what_is_not_sure_enough_is_withheld_and_said_to_be(ask, served, texts):
    predictor = Predictor.load(served / "clf", ONE)
    wanted = ask.get("/about").json()["precisions"][-1]
    check(
        ask.post("/predict", json={"texts": texts, "abstain": wanted}).json()["predictions"],
        predictor.predict(texts, abstain=wanted),
    )


def test_an_explanation_is_the_one_of_explain(ask, served):
    predictor = Predictor.load(served / "clf", ONE)
    for label in (None, "negative"):
        found = explain_prediction(predictor, "a superb film with a dull plot", label)
        told = ask.post("/explain", json={"text": "a superb film with a dull plot", "label": label}).json()
        assert told["label"] == found.label
        assert [word["text"] for word in told["words"]] == [word.text for word in found.words]
        assert [word["weight"] for word in told["words"]] == pytest.approx(
            [word.weight for word in found.words], abs=1e-3
        )
        assert told["truncated"] is False
    assert ask.post("/explain", json={"text": "dull " * 99}).json()["truncated"] is True


def streamed(ask, body):
    reply = ask.post("/generate", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line]
    return "".join(event.get("text", "") for event in events), events[-1].get("done"), len(events)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_stream_is_the_continuation_that_generate_gives(ask_language, served, temperature):
    (whole,) = run_generate(served / "base", "the film", sampling=Sampling(40, temperature, seed=3), runtime=ONE)
    body = {"prompt": "the film", "tokens": 40, "temperature": temperature, "seed": 3}
    text, done, events = streamed(ask_language, body)
    assert text == whole
    assert done in ("length", "end")
    assert events > 3  # control: in pieces
    assert ask_language.post("/generate", json=body | {"stream": False}).json() == {"text": whole, "done": done}


def test_letters_of_several_bytes_arrive_whole(ask_language, served):
    """A model that hardly learnt anything writes half letters: what is streamed is what stands in the end."""
    for seed in range(4):
        sampling = Sampling(60, 3.0, seed=seed)
        (whole,) = run_generate(served / "base", "é", sampling=sampling, runtime=ONE)
        assert streamed(ask_language, {"prompt": "é", "tokens": 60, "temperature": 3.0, "seed": seed})[0] == whole


def test_the_next_pieces_are_the_likeliest(ask_language, served):
    bundle = load_bundle(served / "base")
    found = next_token_candidates(bundle.model, bundle.tokenizer, "the film", 5, CPU)
    told = ask_language.post("/next", json={"prompt": "the film", "count": 5}).json()["pieces"]
    assert [piece["text"] for piece in told] == [text for text, _ in found]
    shares = [piece["weight"] for piece in told]
    assert shares == pytest.approx([share for _, share in found], abs=1e-6)
    assert shares == sorted(shares, reverse=True)
    (greedy,) = run_generate(served / "base", "the film", sampling=Sampling(1), runtime=ONE)
    assert told[0]["text"] == greedy


def test_the_server_says_what_it_holds(ask, ask_language):
    about = ask.get("/about").json()
    assert (about["name"], about["head_type"], about["labels"]) == ("clf", "classify", ["negative", "positive"])
    assert [chart["title"] for chart in about["curves"]] == ["Loss", "Accuracy"]
    assert [line["name"] for line in about["curves"][0]["lines"]] == ["loss on train", "loss on validation"]
    assert set(about["result"]) == {"accuracy on validation"}
    assert about["report"] is False
    language = ask_language.get("/about").json()
    assert (language["head_type"], language["labels"]) == ("language", [])
    assert set(language["result"]) == {"perplexity of held-out text", "bits per byte of held-out text"}


def test_a_report_beside_the_model_is_served_without_scripts(ask, served):
    assert ask.get("/report").json() == {"error": "not_found", "detail": "there is no report beside this model"}
    page = served / "clf" / "report.html"
    page.write_text("<h1>a report</h1>")
    try:
        reply = ask.get("/report")
        assert reply.text == "<h1>a report</h1>"
        assert "sandbox" in reply.headers["content-security-policy"]
        assert "script-src" not in reply.headers["content-security-policy"]
        assert ask.get("/about").json()["report"] is True
    finally:
        page.unlink()
