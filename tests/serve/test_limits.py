"""What a server does not take, it refuses with one status and one sentence; what it says never quotes a text."""

import socket

import httpx2
import pytest

KEYED = {"Authorization": "Bearer open-sesame", "Content-Type": "application/json"}


def refused(reply, status):
    assert reply.status_code == status
    assert list(reply.json()) == ["error", "detail"]
    return reply.json()["error"], reply.json()["detail"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"texts": ["a"] * 4}, "a request may have 3 texts, this one has 4"),
        ({"texts": ["a", "b" * 51]}, "texts[1] has 51 characters; a text may have 50 at most"),
        ({"text": "  "}, "texts[0] is empty; there is nothing to read"),
        ({"texts": []}, "texts: List should have at least 1 item after validation, not 0"),
        ({}, "give either text or texts"),
        ({"text": "a", "texts": ["b"]}, "give either text or texts"),
        ({"text": 7}, "text: Input should be a valid string"),
        ({"text": "a", "more": 1}, "more is not asked for here; known are text, pair, texts, pairs, abstain"),
        ({"txt": "a"}, "txt is not asked for here; did you mean text? known are text, pair, texts, pairs, abstain"),
        ({"text": "a", "abstain": 1}, "abstain: Input should be less than 1"),
        ("text", "Input should be a valid dictionary or object to extract fields from"),
    ],
    ids=str,
)
def test_a_wrong_question_is_told_what_is_wrong_with_it(ask_strict, body, detail):
    assert refused(ask_strict.post("/predict", json=body), 422) == ("invalid", detail)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'text': 'a'}", b'{"text": "\xff"}', b"[" * 900, b'{"text": "\\ud800"}', b"\x00"], ids=repr
)
def test_a_body_that_is_no_json_is_refused(ask_strict, body):
    reply = ask_strict.post("/predict", content=body, headers=KEYED)
    assert reply.status_code in (400, 422)
    assert list(reply.json()) == ["error", "detail"]


def test_a_precision_that_validation_never_reached_is_refused_without_telling_where_the_model_lies(ask_strict):
    reply = ask_strict.post("/predict", json={"text": "a", "abstain": 0.9999})
    error, detail = refused(reply, 422)
    assert error == "invalid"
    assert detail.startswith("no threshold gave a precision of 0.9999 on the 80 validation rows of the model; ")


def test_a_large_body_is_refused_whether_it_is_announced_or_not(ask_strict):
    told = ("too_large", "a request may have 1,000 bytes; ask for fewer or shorter texts at a time")
    assert refused(ask_strict.post("/predict", json={"text": "a" * 2000}), 413) == told
    parts = (b'{"text": "' + b"a" * 1500 + b'"}' for _ in range(9))
    assert refused(ask_strict.post("/predict", content=parts, headers=KEYED), 413) == told
    assert ask_strict.post("/predict", json={"text": "a" * 50}).status_code == 200  # control


def test_only_json_is_taken(ask_strict):
    """A form of another site can send plain text here without being asked; JSON it cannot."""
    reply = ask_strict.post("/predict", content='{"text": "a"}', headers={"Content-Type": "text/plain"})
    assert refused(reply, 415) == ("not_json", "the body must be JSON, with the header Content-Type: application/json")


def test_what_came_too_late_is_not_read(ask):
    def texts():
        return next(line for line in ask.get("/metrics").text.splitlines() if line.startswith("headstart_texts_total"))

    before = texts()
    late = ("deadline", "the deadline passed before there was an answer; ask for less, or allow more time")
    assert refused(ask.post("/predict", json={"text": "a"}, headers={"X-Deadline-Ms": "0"}), 504) == late
    assert refused(ask.post("/explain", json={"text": "a"}, headers={"X-Deadline-Ms": "0"}), 504) == late
    assert texts() == before
    assert ask.post("/predict", json={"text": "a"}, headers={"X-Deadline-Ms": "30000"}).status_code == 200
    assert texts() != before  # control


@pytest.mark.parametrize("given", ["soon", "-1", "1.5", "9" * 30])
def test_a_deadline_is_a_number_of_milliseconds(ask, given):
    reply = ask.post("/predict", json={"text": "a"}, headers={"X-Deadline-Ms": given})
    assert refused(reply, 422) == ("invalid", "X-Deadline-Ms must be a whole number of milliseconds")


def test_a_stream_ends_at_its_deadline(ask_language):
    reply = ask_language.post("/generate", json={"tokens": 9}, headers={"X-Deadline-Ms": "0"})
    assert reply.text == 'data: {"done": "deadline"}\n\n'


def test_too_many_at_once_are_sent_away(language, ask_language):
    host, port = language.url.removeprefix("http://").split(":")
    head = f"POST /next HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    with socket.create_connection((host, port)) as one, socket.create_connection((host, port)) as two:
        one.sendall(head.encode())
        two.sendall(head.encode())
        while True:  # until both are in hand
            found = ask_language.get("/metrics").text
            if "headstart_requests_in_hand 2" in found:
                break
        reply = ask_language.post("/next", json={"prompt": "a"})
        assert refused(reply, 429) == (
            "too_many_requests",
            "2 requests are in hand, as many as this server takes; try again later",
        )
        assert reply.headers["retry-after"] == "1"
    while ask_language.post("/next", json={"prompt": "a"}).status_code == 429:  # control: once they left there is room
        pass


def test_a_language_model_takes_only_so_many_tokens(ask_language):
    reply = ask_language.post("/generate", json={"tokens": 301})
    assert refused(reply, 422) == ("invalid", "tokens may be 300 at most, got 301")


@pytest.mark.parametrize("path", ["predict", "explain"])
def test_a_language_model_does_not_classify(ask_language, path):
    reply = ask_language.post(f"/{path}", json={"text": "a"})
    assert refused(reply, 404) == ("not_found", f"this server holds a language model; /{path} needs a classifier")


@pytest.mark.parametrize("path", ["generate", "next"])
def test_a_classifier_does_not_go_on(ask, path):
    reply = ask.post(f"/{path}", json={"prompt": "a"})
    assert refused(reply, 404) == ("not_found", f"this server holds a classifier; /{path} needs a language model")


def test_an_unknown_label_is_told_the_known_ones(ask):
    reply = ask.post("/explain", json={"text": "a", "label": "angry"})
    assert refused(reply, 422) == ("invalid", "there is no label 'angry'; the labels are negative, positive")


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("GET", "/nowhere", 404, ("not_found", "there is nothing here")),
        ("GET", "/docs", 404, ("not_found", "there is nothing here")),
        ("GET", "/health/", 404, ("not_found", "there is nothing here")),
        ("GET", "/page/../settings.py", 404, ("not_found", "there is nothing here")),
        ("GET", "/predict", 405, ("method_not_allowed", "this path is asked with another method")),
        ("PUT", "/predict", 405, ("method_not_allowed", "this path is asked with another method")),
    ],
)
def test_other_paths_and_methods_are_refused_in_the_same_shape(ask, method, path, status, told):
    assert refused(ask.request(method, path), status) == told


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "open-sesame"}, {"X-API-Key": ""}, {"X-API-Key": "é"}],
    ids=str,
)
def test_without_the_key_nothing_is_answered(strict, headers):
    with httpx2.Client(base_url=strict.url, headers={k: v.encode() for k, v in headers.items()}) as stranger:
        for path in ("/about", "/metrics", "/report", "/openapi.json"):
            assert refused(stranger.get(path), 401) == (
                "no_key",
                "this server needs a key: Authorization: Bearer KEY",
            )
        assert stranger.post("/predict", json={"text": "a"}).status_code == 401
        assert stranger.get("/health").json() == {"status": "ok"}  # control: what holds nothing is open
        assert stranger.get("/").status_code == 200
    assert httpx2.get(f"{strict.url}/about", headers={"X-API-Key": "open-sesame"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"])
def test_a_name_that_is_not_this_machines_is_not_answered_to(ask, host):
    """A page elsewhere can let its own name point here (DNS rebinding)."""
    reply = ask.get("/about", headers={"Host": host})
    assert refused(reply, 403)[0] == "forbidden"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:99"])
def test_this_machines_own_names_are(ask, host):
    assert ask.get("/about", headers={"Host": host}).status_code == 200


def test_every_answer_carries_the_headers_that_keep_a_browser_safe(ask):
    for reply in (ask.get("/"), ask.get("/page.js"), ask.get("/nowhere"), ask.post("/predict", json={"text": "a"})):
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in reply.headers if name.startswith("access-control-")]
    asked = ask.options(
        "/predict", headers={"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    )
    assert asked.status_code == 405
    assert not [name for name in asked.headers if name.startswith("access-control-")]


def test_names_that_a_client_makes_up_are_counted_together(ask):
    for path in ("/made/up", "/other"):
        ask.get(path)
    paths = {line.split('"')[1] for line in ask.get("/metrics").text.splitlines() if 'path="' in line}
    assert "other" in paths
    assert "/made/up" not in paths
