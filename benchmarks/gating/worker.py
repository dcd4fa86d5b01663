"""The same engine as a worker of ours: it speaks the worker's protocol and answers every call at once."""

import argparse
import socket
import struct
from pathlib import Path

from texts import MAX_MODEL_LEN, Completion, read_completion

from ajet_server.worker import protocol


class Worker:
    """Answers all that has come with one `sendall`, so that the engine costs as little as it can."""

    def __init__(self, connection: socket.socket, completion: Completion) -> None:
        self._connection = connection
        count = len(completion.token_ids)
        self._ids = struct.pack(f"<{count}i", *completion.token_ids)
        self._logprobs = struct.pack(f"<{count}f", *completion.logprobs)
        self._vocab_size = max(completion.token_ids) + 1

    def run(self) -> None:
        """Until the other side is gone."""
        buffer = bytearray()
        while received := self._connection.recv(1 << 20):
            buffer += received
            messages = map(protocol.read_to_worker, protocol.take_frames(buffer))
            answers = [self._answer(message) for message in messages]
            self._connection.sendall(b"".join(answers))

    def _answer(self, message: protocol.ToWorker) -> bytes:
        match message:
            case protocol.Generate():
                return protocol.frame(self._generated(message.request_id))
            case protocol.Load():
                return protocol.frame(self._loaded())
            case protocol.Sync():
                return protocol.frame(protocol.Synced(message.weight_version, 0.0, 1e-4, 0.0))
            case _:
                return b""

    def _generated(self, request_id: str) -> protocol.Generated:
        return protocol.Generated(
            request_id=request_id,
            token_ids=self._ids,
            logprobs=self._logprobs,
            finish_reason="stop",
            stop=None,
            weight_version=0,
            cached_tokens=0,
            top_logprobs=[],
        )

    def _loaded(self) -> protocol.Loaded:
        return protocol.Loaded(
            max_model_len=MAX_MODEL_LEN,
            vocab_size=self._vocab_size,
            device="cpu",
            dtype="float32",
            attention="none",
            step=0,
            last_batch_id=None,
            last_report=None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    with socket.socket(fileno=arguments.fd) as connection:
        Worker(connection, read_completion(arguments.folder)).run()


if __name__ == "__main__":
    main()
