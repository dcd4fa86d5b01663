"""Clients that each send their next request once the last is answered, all in one thread and cheaper than any server.

`selectors` and plain sockets: a request is a few joined bytes, an answer is checked by its status and by the text that
must be in it.
"""

import gc
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from .texts import NUMBER
from .wire import take_message

_CONNECT_S = 10.0
_numbers = count()
"""Of conversations. No two are the same, whichever client has them and in whichever run."""


class LoadError(Exception):
    """A server answered wrongly or not in time."""


@dataclass(frozen=True)
class Target:
    """A server, with a path and a key for each client."""

    name: str
    port: int
    clients: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Script:
    """What every client says: the requests of a conversation, over and over, each time with another number."""

    bodies: Sequence[bytes]
    answer: bytes
    """Bytes that every right answer contains."""


@dataclass(frozen=True)
class Measured:
    """Answered requests: latencies in ns, in the order of the answers."""

    latencies: list[int]
    seconds: float
    """From the first request to the last answer."""
    client_load: float
    """Processor time of this process, as a part of that time: near 1, the client is what was measured."""


@dataclass(slots=True, eq=False)
class Client:
    """One connection. `sent` counts requests, `at` is when the last was sent, in ns."""

    socket: socket.socket
    requests: list[list[bytes]]
    """Of each turn, in pieces: between them stands the conversation's number."""
    number: int = 0
    sent: int = 0
    at: int = 0
    buffer: bytearray = field(default_factory=bytearray)

    def send(self) -> None:
        """Sends the next request."""
        turn = self.sent % len(self.requests)
        if turn == 0:
            self.number = next(_numbers)
        self.sent += 1
        self.at = time.perf_counter_ns()
        self.socket.sendall((b"%08d" % self.number).join(self.requests[turn]))


def connect(target: Target, place: int, script: Script) -> Client:
    """The client at a place of the target's list."""
    path, key = target.clients[place]
    connection = socket.create_connection(("127.0.0.1", target.port), _CONNECT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: "
    )
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in script.bodies]
    return Client(connection, [request.split(NUMBER) for request in requests])


def run(
    target: Target, clients: Sequence[Client], answer: bytes, more: Callable[[Client], bool], limit_s: float
) -> Measured:
    """Lets all clients go on while `more` says so, and waits for every answer, so that slow ones count too.

    Raises:
        LoadError: an answer was wrong, or some were missing after `limit_s`.
    """
    latencies: list[int] = []
    gc.disable()
    started, cpu_started = time.perf_counter(), time.process_time()
    try:
        with selectors.DefaultSelector() as selector:
            for client in clients:
                selector.register(client.socket, selectors.EVENT_READ, client)
                client.send()
            waiting = len(clients)
            while waiting:
                events = selector.select(max(0.0, started + limit_s - time.perf_counter()))
                if not events:
                    raise LoadError(f"{waiting} of {len(clients)} clients had no answer after {limit_s:.0f} s")
                for key, _ in events:
                    client: Client = key.data
                    if _receive(target, client, answer):
                        latencies.append(time.perf_counter_ns() - client.at)
                        if more(client):
                            client.send()
                        else:
                            waiting -= 1
    finally:
        gc.enable()
    seconds = time.perf_counter() - started
    return Measured(latencies, seconds, (time.process_time() - cpu_started) / seconds)


def _receive(target: Target, client: Client, answer: bytes) -> bool:
    """Whether the answer is whole now; one that is wrong ends the run."""
    received = client.socket.recv(1 << 18)
    if not received:
        raise LoadError(f"{target.name} closed the connection")
    client.buffer += received
    message = take_message(client.buffer)
    if message is None:
        return False
    status, body = message
    if b" 200 " not in status or answer not in body:
        raise LoadError(f"{target.name} answered {status.decode()}: {body[:300].decode(errors='replace')}")
    return True


def run_for(target: Target, count: int, script: Script, seconds: float, limit_s: float) -> Measured:
    """So many clients for some seconds, then until every answer is there."""
    clients = connect_all(target, range(count), script)
    try:
        end = time.perf_counter() + seconds
        return run(target, clients, script.answer, lambda _: time.perf_counter() < end, limit_s)
    finally:
        close_all(clients)


def connect_all(target: Target, places: Sequence[int], script: Script) -> list[Client]:
    """A client for each of these places."""
    return [connect(target, place, script) for place in places]


def close_all(clients: Sequence[Client]) -> None:
    for client in clients:
        client.socket.close()
