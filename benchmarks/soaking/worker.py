"""A worker of ours without a model: it answers every call at once, streamed where asked, and every update as done."""

import argparse
import json
import socket
import struct
from pathlib import Path

from ajet_core.events import StepReport
from ajet_server.worker import protocol

_PIECES = 4
"""Messages that a streamed completion comes in."""


class Worker:
    """Says the completion of the model folder every time."""

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._connection = connection
        completion = json.loads((folder / "completion.json").read_text())
        self._ids: list[int] = completion["token_ids"]
        self._logprobs: list[float] = completion["logprobs"]
        self._version = 0

    def run(self) -> None:
        """Until the other side is gone."""
        buffer = bytearray()
        while received := self._connection.recv(1 << 20):
            buffer += received
            messages = map(protocol.read_to_worker, protocol.take_frames(buffer))
            answers = [protocol.frame(answer) for asked in messages for answer in self._answers(asked)]
            self._connection.sendall(b"".join(answers))

    def _answers(self, message: protocol.ToWorker) -> list[protocol.FromWorker]:
        match message:
            case protocol.Load():
                return [protocol.Loaded(4096, max(self._ids) + 1, "cpu", "float32", "none", 0, None, None)]
            case protocol.Sync():
                self._version = message.weight_version
                return [protocol.Synced(message.weight_version, 0.0, 1e-4, 0.0)]
            case protocol.Update():
                return [protocol.Updated(_report(message).model_dump_json().encode(), "none")]
            case protocol.Generate():
                return self._completion(message)
            case _:
                return []

    def _completion(self, message: protocol.Generate) -> list[protocol.FromWorker]:
        size = len(self._ids) // _PIECES + 1
        pieces: list[protocol.FromWorker] = []
        for start in range(0, len(self._ids) if message.stream else 0, size):
            ids, logprobs = self._packed(slice(start, start + size))
            pieces.append(protocol.Streamed([protocol.Sampled(message.request_id, start, ids, logprobs, [])]))
        ids, logprobs = self._packed(slice(None))
        whole = protocol.Generated(message.request_id, ids, logprobs, "stop", None, self._version, 0, [])
        return [*pieces, whole]

    def _packed(self, part: slice) -> tuple[bytes, bytes]:
        ids, logprobs = self._ids[part], self._logprobs[part]
        return struct.pack(f"<{len(ids)}i", *ids), struct.pack(f"<{len(ids)}f", *logprobs)


def _report(message: protocol.Update) -> StepReport:
    """Figures of a step that trained nothing."""
    rewards = dict.fromkeys(("reward_mean", "reward_std", "reward_min", "reward_max", "advantage_abs_mean"), 0.0)
    losses = dict.fromkeys(("loss", "grad_norm", "clip_fraction", "approx_kl", "entropy"), 0.0)
    return StepReport(
        step=message.step,
        batch_id=message.batch_id,
        weight_version=message.step,
        episodes=len(message.episodes),
        groups=len({episode.group_id for episode in message.episodes}),
        calls=sum(len(episode.calls) for episode in message.episodes),
        ratio_min=1.0,
        ratio_max=1.0,
        tokens_unmerged=0,
        tokens_linear=0,
        tokens_forest=0,
        packs=1,
        skipped=False,
        seconds={},
        **rewards,
        **losses,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    with socket.socket(fileno=arguments.fd) as connection:
        Worker(connection, arguments.folder).run()


if __name__ == "__main__":
    main()
