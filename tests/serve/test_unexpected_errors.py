"""A client gets an answer in JSON whatever happens."""

import asyncio
import json

import pytest

from headstart.serve.config import ServeConfig
from headstart.serve.middleware import ServerMetrics, ServiceMiddleware

SCOPE = {"type": "http", "method": "GET", "path": "/about", "headers": [(b"host", b"localhost")]}


class Panic(BaseException):
    """As a library written in Rust raises it."""


def ask(error, *, begun=False):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(_scope, _receive, send):
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    middleware = ServiceMiddleware(app, ServeConfig(), ServerMetrics())
    asyncio.run(middleware(dict(SCOPE), receive, send))
    return sent


@pytest.mark.parametrize("error", [Panic("no Exception"), ValueError("a secret text"), RecursionError()], ids=repr)
def test_an_unexpected_error_is_answered_in_json_without_its_text(error):
    start, body = ask(error)
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (500, b"application/json")
    assert json.loads(body["body"]) == {"error": "internal", "detail": "the server failed on this request"}


def test_running_out_of_memory_is_answered_with_503():
    start, body = ask(MemoryError())
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"5")
    assert json.loads(body["body"])["error"] == "busy"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_what_ends_a_task_or_the_process_is_not_answered(error):
    with pytest.raises(type(error)):
        ask(error)


def test_an_error_after_the_answer_has_begun_is_raised():
    with pytest.raises(Panic):
        ask(Panic(), begun=True)
