"""A fake worker that says anything: tags, calls, halves of characters, in whatever order, in pieces.

Its folder also holds `said.json`: lists of token ids, which its completions are put together from.
"""

import argparse
import hashlib
import json
import random
import socket
import struct
import sys
from pathlib import Path

from fake_worker import FakeWorker

from ajet_server.worker import protocol


class FuzzWorker(FakeWorker):
    """What it says follows from the prompt and the request's id."""

    def _answer(self, message: protocol.Generate) -> None:
        seed = hashlib.sha256(message.prompt_ids + message.request_id.encode()).digest()
        chance = random.Random(seed)
        said: list[list[int]] = json.loads((self._folder / "said.json").read_text())
        ids = [token for _ in range(chance.randrange(8)) for token in chance.choice(said)]
        cut = len(ids) >= message.sampling.max_tokens
        ids = ids[: message.sampling.max_tokens] or [0]
        if message.stream:
            self._stream(message, ids, chance)
        self.send(
            protocol.Generated(
                request_id=message.request_id,
                token_ids=struct.pack(f"<{len(ids)}i", *ids),
                logprobs=struct.pack(f"<{len(ids)}f", *_logprobs(len(ids))),
                finish_reason="length" if cut else "stop",
                stop=None,
                weight_version=0,
                cached_tokens=0,
                top_logprobs=_tops(message, ids),
            )
        )

    def _loaded(self) -> None:
        self.send(protocol.Loaded(4096, 1024, "cpu", "float32", "eager", 0, None, None))

    def _stream(self, message: protocol.Generate, ids: list[int], chance: random.Random) -> None:
        start = 0
        while start < len(ids):
            end = start + chance.randint(1, 4)
            piece = ids[start:end]
            sampled = protocol.Sampled(
                message.request_id,
                start,
                struct.pack(f"<{len(piece)}i", *piece),
                struct.pack(f"<{len(piece)}f", *_logprobs(len(ids))[start:end]),
                _tops(message, piece),
            )
            self.send(protocol.Streamed([sampled]))
            start = end


def _logprobs(count: int) -> list[float]:
    """Among them what JSON cannot say."""
    return [float("-inf") if place % 7 == 6 else -0.5 * place for place in range(count)]


def _tops(message: protocol.Generate, ids: list[int]) -> list[list[tuple[int, float]]]:
    count = message.sampling.top_logprobs
    return [[((token + place) % 256, -0.1 * place) for place in range(count)] for token in ids]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    with socket.socket(fileno=arguments.fd) as connection:
        return FuzzWorker(connection, arguments.folder).run()


if __name__ == "__main__":
    sys.exit(main())
