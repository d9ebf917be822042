"""Connections that do not send a request are closed, in time and where they are too many; errors of HTTP are JSON."""

import json
import re
import socket
from urllib.parse import urlsplit

import httpx2
import pytest

from fixtures.serving import Server
from fixtures.waiting import PATIENCE

HALF = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A"


@pytest.fixture(scope="module")
def two_servers(served):
    """One gives a head a second; the other has eight connections, four of which may wait from one address."""
    with (
        Server(served / "base", "--serve.head-deadline", 1) as hasty,
        Server(served / "base", "--serve.head-deadline", 600, "--serve.connections", 8) as small,
    ):
        yield hasty, small


@pytest.fixture
def hasty(two_servers):
    return two_servers[0]


@pytest.fixture
def small(two_servers):
    return two_servers[1]


def connect(server):
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=PATIENCE)


def read_to_the_end(connection):
    """The status and the content of an answer after which the server closes the connection; None without one."""
    answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)) if answer else None


def test_a_head_that_does_not_arrive_in_time_is_answered_with_408(hasty):
    late = (408, {"error": "slow_request", "detail": "the request head was not received in time"})
    with connect(hasty) as connection:
        connection.sendall(HALF)
        assert read_to_the_end(connection) == late
    with connect(hasty) as connection:  # the second request on a connection
        connection.sendall(HALF[:-3] + b"\r\n" + HALF)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"408"]


def test_a_connection_without_a_byte_is_closed_without_an_answer(hasty):
    with connect(hasty) as connection:
        assert read_to_the_end(connection) is None


def test_what_is_not_http_is_refused_in_json(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_to_the_end(connection) == (
            400,
            {"error": "bad_request", "detail": "this is not a valid HTTP request"},
        )
    with connect(hasty) as connection:
        connection.sendall(
            b"POST /next HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n"
        )
        assert read_to_the_end(connection)[0] == 400


def test_the_oldest_connection_that_waits_is_closed_where_an_address_has_too_many(small):
    connections = [connect(small)]
    connections[0].sendall(HALF)
    assert (
        httpx2.get(f"{small.url}/health", timeout=PATIENCE).status_code == 200
    )  # after it, the half head was read as well
    for _ in range(4):
        connections.append(connect(small))
        connections[-1].sendall(HALF)
    assert read_to_the_end(connections[0]) == (
        503,
        {"error": "busy", "detail": "too many open connections are waiting for a request; try again later"},
    )
    connections[-1].sendall(b": b\r\n\r\n")  # control: the newest is still open, and complete now
    assert connections[-1].recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
    metrics = httpx2.get(f"{small.url}/metrics", timeout=PATIENCE).text.splitlines()
    assert next(line for line in metrics if line.startswith("headstart_refused_connections_total ")) != (
        "headstart_refused_connections_total 0"
    )
    for connection in connections:
        connection.close()


def test_a_limit_of_open_files_limits_the_connections(served):
    """Without it, connections would take the files that answers need."""
    with Server(served / "base", "--serve.head-deadline", 600, files=120) as server:
        connections = [connect(server) for _ in range(150)]
        for connection in connections:
            connection.sendall(HALF)
        assert httpx2.get(f"{server.url}/health", timeout=PATIENCE).json() == {"status": "ok"}
        for connection in connections:
            connection.close()
