"""Connections on which a request does not come to its end, or its head does not."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from ajet_server.connection import MAX_HEAD_BYTES, BoundedProtocol

_FLOOD_BYTES = 16_000_000
_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


_SLOW = _HEAD.replace(b"/", b"/slow", 1)


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answers once the body is there, and beyond all patience if it is to be slow."""
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            await asyncio.sleep(5 * _Impatient.patience_s if scope["path"] == "/slow" else 0)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
            await send({"type": "http.response.body", "body": body[:5]})
            return


@contextmanager
def _listening(protocol: type[BoundedProtocol]) -> Iterator[tuple[str, int]]:
    config = uvicorn.Config(_app, port=0, http=protocol, log_level="critical", lifespan="off")
    http = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, name="http")
        thread.start()
        yield listener.getsockname()
        http.should_exit = True
        thread.join(20)
    assert not thread.is_alive()


class _Impatient(BoundedProtocol):
    patience_s = 0.2


@pytest.fixture(scope="module")
def impatient() -> Iterator[tuple[str, int]]:
    with _listening(_Impatient) as address:
        yield address


@pytest.fixture(scope="module")
def patient() -> Iterator[tuple[str, int]]:
    with _listening(BoundedProtocol) as address:
        yield address


def _all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received


@pytest.mark.parametrize("sent", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\n", _HEAD, _HEAD + b"1234"])
def test_a_request_that_does_not_come_to_its_end(impatient: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(impatient, timeout=20) as connection:
        connection.sendall(sent)
        assert _all_of(connection) == b""


def test_a_second_request_has_no_more_time(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=20) as connection:
        connection.sendall(_HEAD + b"first" + _HEAD + b"4567")
        received = _all_of(connection)
        assert received.endswith(b"first")
        assert received.count(b"200 OK") == 1


@pytest.mark.parametrize("ahead", [_HEAD + b"4567", _HEAD[:20]])
def test_a_long_answer_is_not_cut_off_by_what_is_sent_ahead(impatient: tuple[str, int], ahead: bytes) -> None:
    with socket.create_connection(impatient, timeout=20) as connection:
        connection.sendall(_SLOW + b"first" + ahead)
        received = _all_of(connection)  # the second one never comes to its end
        assert received.endswith(b"first")


def test_whole_requests_are_answered_however_they_come(patient: tuple[str, int]) -> None:
    with socket.create_connection(patient, timeout=20) as connection:
        for body in (b"first", b"other"):
            for byte in _HEAD + body:
                connection.sendall(bytes([byte]))
            received = b""
            while not received.endswith(body):
                received += connection.recv(1000)
            assert received.startswith(b"HTTP/1.1 200 OK")


def test_a_head_without_an_end(patient: tuple[str, int]) -> None:
    with socket.create_connection(patient, timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        received = _flood(connection, b"x: y\r\n")
        assert received in (None, b"HTTP/1.1 431 Request Header Fields Too Large")


def test_a_header_without_an_end(patient: tuple[str, int]) -> None:
    with socket.create_connection(patient, timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nx: ")
        assert _flood(connection, b"yyyyyy") in (None, b"HTTP/1.1 431 Request Header Fields Too Large")


def _flood(connection: socket.socket, part: bytes) -> bytes | None:
    """Sends without an end; returns the status line with which the server gave up, None if the connection was reset."""
    try:
        for _ in range(_FLOOD_BYTES // MAX_HEAD_BYTES):
            connection.sendall(part * (MAX_HEAD_BYTES // len(part)))
    except (BrokenPipeError, ConnectionResetError):
        return None
    try:
        return _all_of(connection).partition(b"\r\n")[0]
    except ConnectionResetError:
        return None
