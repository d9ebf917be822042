"""Limits, keys and host names: a refusal has one status and one sentence, and never quotes a text."""

import socket

import httpx2
import pytest

from fixtures.waiting import PATIENCE

HEADERS_WITH_KEY = {"Authorization": "Bearer open-sesame", "Content-Type": "application/json"}


def check_error(reply, status):
    assert reply.status_code == status
    assert list(reply.json()) == ["error", "detail"]
    return reply.json()["error"], reply.json()["detail"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"texts": ["a"] * 4}, "a request may have at most 3 texts, got 4"),
        ({"texts": ["a", "b" * 51]}, "texts[1] has 51 characters; a text may have at most 50"),
        ({"text": "  "}, "text is empty"),
        ({"texts": []}, "texts must have at least 1 item"),
        ({}, "expected either text or texts"),
        ({"text": "a", "texts": ["b"]}, "expected either text or texts"),
        ({"text": 7}, "text must be a valid string"),
        ({"text": "a", "more": 1}, "more is not a known field; the fields are text, pair, texts, pairs, abstain"),
        ({"txt": "a"}, "txt is not a known field; did you mean text? the fields are text, pair, texts, pairs, abstain"),
        ({"text": "a", "abstain": 1}, "abstain must be less than 1"),
        ("text", "the request body must be a JSON object"),
    ],
    ids=str,
)
def test_an_invalid_body_is_refused_with_the_reason(ask_strict, body, detail):
    assert check_error(ask_strict.post("/predict", json=body), 422) == ("invalid", detail)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'text': 'a'}", b'{"text": "\xff"}', b"[" * 900, b'{"text": "\\ud800"}', b"\x00"], ids=repr
)
def test_a_body_that_is_not_json_is_refused(ask_strict, body):
    reply = ask_strict.post("/predict", content=body, headers=HEADERS_WITH_KEY)
    assert reply.status_code in (400, 422)
    assert list(reply.json()) == ["error", "detail"]


def test_an_empty_body_is_called_empty_and_a_missing_field_missing(ask_strict):
    empty = ask_strict.post("/predict", content=b"", headers=HEADERS_WITH_KEY)
    assert check_error(empty, 422) == ("invalid", "the request body is empty")
    assert check_error(ask_strict.post("/explain", json={}), 422) == ("invalid", "text is missing")


def test_the_error_about_an_unreached_precision_does_not_contain_the_path_of_the_model(ask_strict):
    reply = ask_strict.post("/predict", json={"text": "a", "abstain": 0.9999})
    error, detail = check_error(reply, 422)
    assert error == "invalid"
    assert detail.startswith("no threshold gave a precision of 0.9999 on the 80 validation rows of the model; ")


def test_a_large_body_is_refused_with_and_without_content_length(ask_strict):
    expected = ("too_large", "a request may have at most 1,000 bytes; send fewer or shorter texts per request")
    assert check_error(ask_strict.post("/predict", json={"text": "a" * 2000}), 413) == expected
    parts = (b'{"text": "' + b"a" * 1500 + b'"}' for _ in range(9))
    assert check_error(ask_strict.post("/predict", content=parts, headers=HEADERS_WITH_KEY), 413) == expected
    assert ask_strict.post("/predict", json={"text": "a" * 50}).status_code == 200  # control


def test_only_json_is_accepted(ask_strict):
    """A form on another site can submit plain text, but not JSON."""
    reply = ask_strict.post("/predict", content='{"text": "a"}', headers={"Content-Type": "text/plain"})
    assert check_error(reply, 415) == (
        "not_json",
        "the body must be JSON, with the header Content-Type: application/json",
    )


def test_an_expired_request_is_not_scored(ask):
    def texts():
        return next(line for line in ask.get("/metrics").text.splitlines() if line.startswith("headstart_texts_total"))

    before = texts()
    late = ("deadline", "the deadline passed before the response was ready; send fewer texts, or allow more time")
    assert check_error(ask.post("/predict", json={"text": "a"}, headers={"X-Deadline-Ms": "0"}), 504) == late
    assert check_error(ask.post("/explain", json={"text": "a"}, headers={"X-Deadline-Ms": "0"}), 504) == late
    assert texts() == before
    assert ask.post("/predict", json={"text": "a"}, headers={"X-Deadline-Ms": "600000"}).status_code == 200
    assert texts() != before  # control


@pytest.mark.parametrize("deadline", ["soon", "-1", "1.5", "9" * 30])
def test_the_deadline_must_be_a_number_of_milliseconds(ask, deadline):
    reply = ask.post("/predict", json={"text": "a"}, headers={"X-Deadline-Ms": deadline})
    assert check_error(reply, 422) == ("invalid", "X-Deadline-Ms must be a whole number of milliseconds")


def test_a_stream_ends_at_its_deadline(ask_language):
    reply = ask_language.post("/generate", json={"tokens": 9}, headers={"X-Deadline-Ms": "0"})
    assert reply.text == 'data: {"done": "deadline"}\n\n'


def test_requests_above_the_concurrency_limit_are_refused(language, ask_language):
    host, port = language.url.removeprefix("http://").split(":")
    head = f"POST /next HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    with (
        socket.create_connection((host, port), timeout=PATIENCE) as one,
        socket.create_connection((host, port), timeout=PATIENCE) as two,
    ):
        one.sendall(head.encode())
        two.sendall(head.encode())
        while True:  # until both are admitted
            metrics = ask_language.get("/metrics").text
            if "headstart_requests_in_hand 2" in metrics:
                break
        reply = ask_language.post("/next", json={"prompt": "a"})
        assert check_error(reply, 429) == (
            "too_many_requests",
            "2 requests are in progress, which is the limit of this server; try again later",
        )
        assert reply.headers["retry-after"] == "1"
    while ask_language.post("/next", json={"prompt": "a"}).status_code == 429:  # control: later requests are admitted
        pass


def test_a_language_model_limits_the_number_of_tokens(ask_language):
    reply = ask_language.post("/generate", json={"tokens": 301})
    assert check_error(reply, 422) == ("invalid", "tokens must be at most 300, got 301")


@pytest.mark.parametrize("path", ["predict", "explain"])
def test_a_language_model_does_not_classify(ask_language, path):
    reply = ask_language.post(f"/{path}", json={"text": "a"})
    assert check_error(reply, 404) == ("not_found", f"/{path} needs a classifier, but this server has a language model")


@pytest.mark.parametrize("path", ["generate", "next"])
def test_a_classifier_does_not_generate(ask, path):
    reply = ask.post(f"/{path}", json={"prompt": "a"})
    assert check_error(reply, 404) == ("not_found", f"/{path} needs a language model, but this server has a classifier")


def test_the_error_about_an_unknown_label_lists_the_labels(ask):
    reply = ask.post("/explain", json={"text": "a", "label": "angry"})
    assert check_error(reply, 422) == ("invalid", "there is no label 'angry'; the labels are negative, positive")


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        ("GET", "/nowhere", 404, ("not_found", "not found")),
        ("GET", "/docs", 404, ("not_found", "not found")),
        ("GET", "/health/", 404, ("not_found", "not found")),
        ("GET", "/page/../settings.py", 404, ("not_found", "not found")),
        ("GET", "/predict", 405, ("method_not_allowed", "method not allowed for this path")),
        ("PUT", "/predict", 405, ("method_not_allowed", "method not allowed for this path")),
    ],
)
def test_unknown_paths_and_methods_are_refused_in_the_same_format(ask, method, path, status, expected):
    assert check_error(ask.request(method, path), status) == expected


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "open-sesame"}, {"X-API-Key": ""}, {"X-API-Key": "é"}],
    ids=str,
)
def test_without_the_key_only_public_paths_are_answered(strict, headers):
    with httpx2.Client(
        base_url=strict.url, headers={k: v.encode() for k, v in headers.items()}, timeout=PATIENCE
    ) as client:
        for path in ("/about", "/metrics", "/report", "/openapi.json"):
            assert check_error(client.get(path), 401) == (
                "no_key",
                "this server requires an API key: Authorization: Bearer KEY",
            )
        assert client.post("/predict", json={"text": "a"}).status_code == 401
        assert client.get("/health").json() == {"status": "ok"}  # control: a public path
        assert client.get("/").status_code == 200
    assert httpx2.get(f"{strict.url}/about", headers={"X-API-Key": "open-sesame"}, timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"])
def test_a_loopback_server_refuses_other_host_names(ask, host):
    """A page elsewhere can point its own name at this machine (DNS rebinding)."""
    reply = ask.get("/about", headers={"Host": host})
    assert check_error(reply, 403)[0] == "forbidden"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:99"])
def test_a_loopback_server_accepts_loopback_names(ask, host):
    assert ask.get("/about", headers={"Host": host}).status_code == 200


def test_every_response_has_the_security_headers(ask):
    for reply in (ask.get("/"), ask.get("/page.js"), ask.get("/nowhere"), ask.post("/predict", json={"text": "a"})):
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in reply.headers if name.startswith("access-control-")]
    preflight = ask.options(
        "/predict", headers={"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 405
    assert not [name for name in preflight.headers if name.startswith("access-control-")]


def test_unknown_paths_are_counted_together_in_the_metrics(ask):
    for path in ("/made/up", "/other"):
        ask.get(path)
    paths = {line.split('"')[1] for line in ask.get("/metrics").text.splitlines() if 'path="' in line}
    assert "other" in paths
    assert "/made/up" not in paths
