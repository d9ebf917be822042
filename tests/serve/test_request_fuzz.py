"""Fuzzing: every response is one of the OpenAPI document, and never an internal error."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.waiting import PATIENCE

POSTS = ["/predict", "/explain", "/generate", "/next"]
JSON = {"Content-Type": "application/json"}
names = st.sampled_from(
    ["text", "texts", "label", "abstain", "prompt", "tokens", "temperature", "top_k", "top_p", "seed"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
few_examples = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(reply, document, path):
    promised = document["paths"][path]["post"]["responses"]
    assert str(reply.status_code) in promised
    assert reply.status_code < 500
    assert reply.headers["x-content-type-options"] == "nosniff"
    if reply.status_code != 200:
        assert list(reply.json()) == ["error", "detail"]
        assert "Traceback" not in reply.text


@pytest.fixture(scope="module")
def documents():
    return {}


def document_of(ask, documents):
    if ask.base_url not in documents:
        documents[ask.base_url] = ask.get("/openapi.json").json()
    return documents[ask.base_url]


@pytest.mark.parametrize("path", POSTS)
@few_examples
@given(body=st.dictionaries(names, anything, max_size=4) | anything)
def test_random_json_never_causes_an_internal_error(ask, ask_language, documents, path, body):
    for client in (ask, ask_language):
        content = json.dumps(body)  # with NaN and Infinity, as Python writes them
        check(client.post(path, content=content, headers=JSON), document_of(client, documents), path)


@pytest.mark.parametrize("path", POSTS[:2])
@few_examples
@given(body=st.binary(max_size=200))
def test_random_bytes_never_cause_an_internal_error(ask, documents, path, body):
    check(ask.post(path, content=body, headers=JSON), document_of(ask, documents), path)


@few_examples
@given(
    texts=st.lists(st.text(max_size=80), min_size=1, max_size=6),
    abstain=st.none() | st.floats(0.01, 0.99),
)
def test_every_non_empty_text_is_answered(ask, documents, texts, abstain):
    reply = ask.post("/predict", json={"texts": texts, "abstain": abstain})
    check(reply, document_of(ask, documents), "/predict")
    if reply.status_code == 200:
        for text, answer in zip(texts, reply.json()["predictions"], strict=True):
            if text.strip():
                assert sum(answer["probabilities"].values()) == pytest.approx(1)
            else:
                assert answer == {"error": "the text is empty"}
    else:
        assert "no threshold gave" in reply.text


def test_the_openapi_document_lists_all_paths_and_fields(ask):
    document = ask.get("/openapi.json").json()
    assert set(document["paths"]) == {*POSTS, "/health", "/ready", "/metrics", "/about"}
    answer = document["components"]["schemas"]["SingleLabelAnswer"]["properties"]
    assert list(answer) == ["label", "probability", "probabilities", "truncated", "abstained"]
    assert answer["truncated"]["description"].startswith("True if the text was longer")


@pytest.mark.slow
def test_schemathesis_finds_no_fault(classifier, tmp_path):
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    import subprocess
    import sys

    arguments = [
        "run",
        f"{classifier.url}/openapi.json",
        "--max-examples",
        "15",
        "--phases",
        "examples,fuzzing",
        "--seed",
        "1",
    ]
    arguments += [
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    ]
    arguments += ["--mode", "all", "--no-color"]
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
