"""The server gives the answers of `headstart predict`, for single requests and for many at once."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures.tiny import CPU
from headstart.cli.main import run
from headstart.config.schema import RuntimeConfig
from headstart.files import read_json
from headstart.predict.explain import explain_prediction
from headstart.predict.generate import Sampling, next_token_candidates, run_generate
from headstart.predict.predictor import Predictor
from headstart.store.bundle import load_bundle

ONE_THREAD = RuntimeConfig(threads=1, device="cpu")


@pytest.fixture(scope="module")
def texts(served):
    with (served / "test.csv").open(newline="") as file:
        rows = [row["text"] for row in csv.DictReader(file)]
    return [*rows, "the film was " * 30, "superb", "🙂 \u200b", "x" * 3000]


@pytest.fixture(scope="module")
def expected(served, texts):
    return [Predictor.load(served / "clf", ONE_THREAD).predict([text])[0] for text in texts]


def check(received, answers):
    for prediction, answer in zip(received, answers, strict=True):
        assert prediction["label"] == answer.label
        assert list(prediction["probabilities"]) == list(answer.probabilities)
        assert prediction["probabilities"] == pytest.approx(answer.probabilities, abs=1e-6)
        assert prediction["probability"] == pytest.approx(answer.probability, abs=1e-6)
        assert (prediction["truncated"], prediction["abstained"]) == (answer.truncated, answer.abstained)


def test_a_single_text_gets_the_answer_of_predict(ask, texts, expected):
    for text, answer in zip(texts[:5], expected[:5], strict=True):
        reply = ask.post("/predict", json={"text": text})
        assert reply.status_code == 200
        assert reply.json()["labels"] == ["negative", "positive"]
        check(reply.json()["predictions"], [answer])


def test_answers_are_in_the_order_of_the_texts(ask, texts, expected):
    check(ask.post("/predict", json={"texts": texts}).json()["predictions"], expected)
    assert len({answer.label for answer in expected}) == 2  # control: the answers do differ
    assert {answer.truncated for answer in expected} == {True, False}


def test_a_blank_text_among_several_has_an_error_in_its_place(ask, texts, expected):
    reply = ask.post("/predict", json={"texts": ["", texts[0], " \n", texts[1]]})
    assert reply.status_code == 200
    blank, first, other, second = reply.json()["predictions"]
    assert blank == other == {"error": "the text is empty"}
    check([first, second], expected[:2])
    assert ask.post("/predict", json={"texts": [" "]}).json()["predictions"] == [{"error": "the text is empty"}]


def test_concurrent_requests_get_the_same_answers_as_single_ones(ask, texts, expected):
    def request(number):
        start = number % len(texts)
        few = slice(start, start + 1 + number % 4)
        check(ask.post("/predict", json={"texts": texts[few]}).json()["predictions"], expected[few])
        return len(texts[few])

    before = count(ask, "headstart_batches_total"), count(ask, "headstart_texts_total")
    with ThreadPoolExecutor(24) as clients:
        sent = sum(clients.map(request, range(200)))
    batches, seen = count(ask, "headstart_batches_total") - before[0], count(ask, "headstart_texts_total") - before[1]
    assert seen == sent
    assert batches < 200  # control: requests did share batches


def count(ask, name):
    line = next(line for line in ask.get("/metrics").text.splitlines() if line.startswith(f"{name} "))
    return int(line.split()[1])


def test_the_server_and_the_command_line_give_the_same_answers(ask, served, texts, tmp_path):
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    out = tmp_path / "out.jsonl"
    arguments = ["predict", served / "clf", "--input", tmp_path / "in.csv", "--out", out, "--quiet", "--abstain", "0.5"]
    assert run([*map(str, arguments)]) == 0
    answers = ask.post("/predict", json={"texts": texts, "abstain": 0.5}).json()["predictions"]
    for line, answer in zip(out.read_text().splitlines(), answers, strict=True):
        row = json.loads(line)
        assert (row["label"], row["truncated"], row["abstained"]) == (
            answer["label"],
            answer["truncated"],
            answer["abstained"],
        )
        assert row["probabilities"] == pytest.approx(answer["probabilities"], abs=2e-6)


def test_answers_below_the_precision_abstain(ask, served, texts):
    predictor = Predictor.load(served / "clf", ONE_THREAD)
    precision = ask.get("/about").json()["precisions"][-1]
    check(
        ask.post("/predict", json={"texts": texts, "abstain": precision}).json()["predictions"],
        predictor.predict(texts, abstain=precision),
    )


def test_the_server_gives_the_explanation_of_explain_prediction(ask, served):
    predictor = Predictor.load(served / "clf", ONE_THREAD)
    for label in (None, "negative"):
        explanation = explain_prediction(predictor, "a superb film with a dull plot", label)
        received = ask.post("/explain", json={"text": "a superb film with a dull plot", "label": label}).json()
        assert received["label"] == explanation.label
        assert [word["text"] for word in received["words"]] == [word.text for word in explanation.words]
        assert [word["weight"] for word in received["words"]] == pytest.approx(
            [word.weight for word in explanation.words], abs=1e-3
        )
        assert received["truncated"] is False
    assert ask.post("/explain", json={"text": "dull " * 99}).json()["truncated"] is True


def read_stream(ask, body):
    reply = ask.post("/generate", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line]
    return "".join(event.get("text", "") for event in events), events[-1].get("done"), len(events)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_stream_is_the_continuation_that_generate_gives(ask_language, served, temperature):
    (full_text,) = run_generate(
        served / "base", "the film", sampling=Sampling(40, temperature, seed=3), runtime=ONE_THREAD
    )
    body = {"prompt": "the film", "tokens": 40, "temperature": temperature, "seed": 3}
    text, done, events = read_stream(ask_language, body)
    assert text == full_text
    assert done in ("length", "end")
    assert events > 3  # control: in pieces
    assert ask_language.post("/generate", json=body | {"stream": False}).json() == {"text": full_text, "done": done}


def test_multi_byte_characters_are_streamed_complete(ask_language, served):
    """An untrained model generates incomplete UTF-8: the streamed pieces still add up to the final text."""
    for seed in range(4):
        sampling = Sampling(60, 3.0, seed=seed)
        (full_text,) = run_generate(served / "base", "é", sampling=sampling, runtime=ONE_THREAD)
        assert (
            read_stream(ask_language, {"prompt": "é", "tokens": 60, "temperature": 3.0, "seed": seed})[0] == full_text
        )


def test_next_returns_the_most_probable_pieces(ask_language, served):
    bundle = load_bundle(served / "base")
    candidates = next_token_candidates(bundle.model, bundle.tokenizer, "the film", 5, CPU)
    pieces = ask_language.post("/next", json={"prompt": "the film", "count": 5}).json()["pieces"]
    assert [piece["text"] for piece in pieces] == [text for text, _ in candidates]
    probabilities = [piece["weight"] for piece in pieces]
    assert probabilities == pytest.approx([probability for _, probability in candidates], abs=1e-6)
    assert probabilities == sorted(probabilities, reverse=True)
    (greedy,) = run_generate(served / "base", "the film", sampling=Sampling(1), runtime=ONE_THREAD)
    assert pieces[0]["text"] == greedy


def test_about_describes_the_model_and_its_run(ask, ask_language, served):
    about = ask.get("/about").json()
    assert (about["name"], about["head_type"], about["labels"]) == ("clf", "classify", ["negative", "positive"])
    assert [chart["title"] for chart in about["curves"]] == ["Loss", "Accuracy"]
    assert [line["name"] for line in about["curves"][0]["lines"]] == ["loss on train", "loss on validation"]
    assert set(about["result"]) == {"accuracy on validation"}
    assert about["report"] is False
    assert about["quality"] == read_json(served / "clf" / "result.json")["quality"]
    language = ask_language.get("/about").json()
    assert (language["head_type"], language["labels"]) == ("language", [])
    assert set(language["result"]) == {"perplexity of held-out text", "bits per byte of held-out text"}


def test_a_report_beside_the_model_is_served_without_scripts(ask, served):
    assert ask.get("/report").json() == {"error": "not_found", "detail": "this model has no report"}
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
