"""A fake worker that says anything: tags, calls, halves of characters, in whatever order, in pieces.

`--said` is a file with lists of token ids, which its completions are put together from.
"""

import argparse
import hashlib
import json
import random
import socket
import struct
import sys
from pathlib import Path

from fake_worker import receive

from ajet_server.worker import protocol


class FuzzWorker:
    """What it says follows from the prompt and the request's id."""

    def __init__(self, connection: socket.socket, said: list[list[int]]) -> None:
        self._connection = connection
        self._said = said

    def run(self) -> int:
        while message := receive(self._connection):
            match message:
                case protocol.Load():
                    self._send(protocol.Loaded(4096, 1024, "cpu", "float32", "eager", 0, None, None))
                case protocol.Sync():
                    self._send(protocol.Synced(message.weight_version, 0.0, 1e-4, 0.01))
                case protocol.Generate():
                    self._answer(message)
                case protocol.Shutdown():
                    break
                case _:
                    pass
        return 0

    def _answer(self, message: protocol.Generate) -> None:
        seed = hashlib.sha256(message.prompt_ids + message.request_id.encode()).digest()
        chance = random.Random(seed)
        ids = [token for _ in range(chance.randrange(8)) for token in chance.choice(self._said)]
        cut = len(ids) >= message.sampling.max_tokens
        ids = ids[: message.sampling.max_tokens] or [0]
        if message.stream:
            self._stream(message, ids, chance)
        packed = struct.pack(f"<{len(ids)}i", *ids), struct.pack(f"<{len(ids)}f", *_logprobs(len(ids)))
        tops = _tops(message, ids)
        self._send(protocol.Generated(message.request_id, *packed, "length" if cut else "stop", None, 0, 0, tops))

    def _stream(self, message: protocol.Generate, ids: list[int], chance: random.Random) -> None:
        start = 0
        while start < len(ids):
            end = start + chance.randint(1, 4)
            piece, logprobs = ids[start:end], _logprobs(len(ids))[start:end]
            packed = struct.pack(f"<{len(piece)}i", *piece), struct.pack(f"<{len(piece)}f", *logprobs)
            self._send(protocol.Streamed([protocol.Sampled(message.request_id, start, *packed, _tops(message, piece))]))
            start = end

    def _send(self, message: protocol.FromWorker) -> None:
        self._connection.sendall(protocol.frame(message))


def _logprobs(count: int) -> list[float]:
    """Among them what JSON cannot say."""
    return [float("-inf") if place % 7 == 6 else -0.5 * place for place in range(count)]


def _tops(message: protocol.Generate, ids: list[int]) -> list[list[tuple[int, float]]]:
    count = message.sampling.top_logprobs
    return [[((token + place) % 256, -0.1 * place) for place in range(count)] for token in ids]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--said", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    with socket.socket(fileno=arguments.fd) as connection:
        return FuzzWorker(connection, json.loads(arguments.said.read_text())).run()


if __name__ == "__main__":
    sys.exit(main())
