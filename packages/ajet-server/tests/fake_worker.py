"""A worker process without a model: it speaks the protocol, keeps a "checkpoint" and fails when it is told to.

Its folder holds
    log            one JSON line per message received and per checkpoint written
    checkpoint     step, batch and report of the newest step
    fault-<type>   what goes wrong at the next message of this type (removed when it did); see `_fault`
    hold           while it is there, no call is answered; it says how many tokens of each are streamed nevertheless
    answers        what calls sample (see `Said`), one line each, the first call the first; the last one for ever
    hold-update    while it is there, an update that was begun does not end; calls go on
    max_model_len  how long prompt and completion may be; 512 without it
"""

import argparse
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet_server.worker import protocol

TOKENS = (5, 6, 7)
LOGPROBS = (-0.5, -0.25, -1.0)


@dataclass
class Said:
    """What one call samples: these tokens, as far as its `max_tokens` allows."""

    tokens: Sequence[int] = TOKENS
    stop: str | None = None
    cached_tokens: int = 0

    def of(self, message: protocol.Generate, oldest: int, newest: int) -> protocol.Generated:
        tokens = self.tokens[: message.sampling.max_tokens]
        logprobs = [LOGPROBS[at % len(LOGPROBS)] for at in range(len(tokens))]
        return protocol.Generated(
            request_id=message.request_id,
            token_ids=struct.pack(f"<{len(tokens)}i", *tokens),
            logprobs=struct.pack(f"<{len(tokens)}f", *logprobs),
            finish_reason="stop" if len(tokens) == len(self.tokens) else "length",
            stop=self.stop,
            weight_version=oldest,
            cached_tokens=self.cached_tokens,
            top_logprobs=[[(token, -0.1)] * message.sampling.top_logprobs for token in tokens],
            version_spans=((0, oldest), (1, newest)) if newest > oldest else (),
        )


@dataclass
class Call:
    """A call that is not answered yet: the weights that it began with, and how many of its tokens were streamed."""

    message: protocol.Generate
    said: Said
    version: int
    told: int = 0


def receive(connection: socket.socket) -> protocol.ToWorker | None:
    """The next message; None when the other side is gone."""
    header = connection.recv(protocol.HEADER.size, socket.MSG_WAITALL)
    if len(header) < protocol.HEADER.size:
        return None
    (length,) = protocol.HEADER.unpack(header)
    return protocol.read_to_worker(connection.recv(length, socket.MSG_WAITALL))


class FakeWorker:
    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._held: dict[str, Call] = {}
        self._version = 0
        self._updating: protocol.Update | None = None

    def run(self) -> int:
        while True:
            readable, _, _ = select.select([self._connection], [], [], 0.01 if self._held or self._updating else None)
            if readable:
                message = receive(self._connection)
                if message is None or isinstance(message, protocol.Shutdown):
                    return 0
                self._handle(message)
            if self._updating is not None and self._read("hold-update") is None:
                self._update(self._updating)
                self._updating = None
            held = self._read("hold")
            for call in list(self._held.values()):
                self._stream(call, len(call.said.tokens) if held is None else int(held or 0))
            if held is None:
                for request_id in list(self._held):
                    call = self._held.pop(request_id)
                    self.send(call.said.of(call.message, call.version, self._newest(call)))

    def _newest(self, call: Call) -> int:
        """The weights that sample its last token: those of now, unless it names some."""
        return self._version if call.message.weights is None else call.version

    def _handle(self, message: protocol.ToWorker) -> None:
        kind = type(message).__name__.lower()
        self._log(kind, message)
        self._fault(kind)
        match message:
            case protocol.Load():
                self._loaded()
            case protocol.Generate():
                self._held[message.request_id] = Call(
                    message, self._say(), self._version if message.weights is None else message.weights
                )
            case protocol.Cancel():
                self._held.pop(message.request_id, None)
            case protocol.Update():
                self._updating = message
            case protocol.Sync():
                assert message.keep_calls or all(call.message.weights is not None for call in self._held.values())
                self._version = message.weight_version
                self.send(protocol.Synced(self._version, 0.0, 1e-4, 0.01, len(self._held)))
            case protocol.Shutdown():
                pass

    def _fault(self, kind: str) -> None:
        """die, die-always, hang, refuse (a wrong job), full (disk), break (with a reason), garbage, nonsense."""
        file = self._folder / f"fault-{kind}"
        try:
            what = file.read_text()
        except FileNotFoundError:
            return
        if what != "die-always":
            file.unlink()
        match what:
            case "hang":
                while True:
                    time.sleep(60)
            case "refuse":
                self.send(protocol.Failed("ConfigError: model.path: no such model", code="invalid_config"))
                sys.exit(3)
            case "full":
                self.send(protocol.Failed("DiskFullError: cannot write the checkpoint: no space", code="disk_full"))
                sys.exit(3)
            case "break":
                self.send(protocol.Failed("ValueError: the fake broke"))
                sys.exit(3)
            case "garbage":
                self._connection.sendall(struct.pack(">I", 3) + b"\xc1\xc1\xc1")
                time.sleep(60)
            case "nonsense":
                self.send(protocol.Synced(99, 0.0, 0.0, 0.0))
                time.sleep(60)
            case _:
                os._exit(9)

    def _loaded(self) -> None:
        step, batch, report = self._checkpoint()
        self.send(
            protocol.Loaded(
                max_model_len=int(self._read("max_model_len") or 512),
                vocab_size=512,
                device="cpu",
                dtype="float32",
                attention="eager",
                step=step,
                last_batch_id=batch,
                last_report=report.encode() if report else None,
            )
        )

    def _update(self, message: protocol.Update) -> None:
        self.send(protocol.Progress("update", 1, 2))
        report = json.dumps(_report(message))
        saved = {"step": message.step, "batch": message.batch_id, "report": report}
        work = self._folder / ".checkpoint"
        work.write_text(json.dumps(saved))
        work.replace(self._folder / "checkpoint")
        self._log("checkpoint", message)
        self._fault("checkpointed")
        self.send(protocol.Updated(report.encode(), str(self._folder / "checkpoint")))

    def _checkpoint(self) -> tuple[int, str | None, str | None]:
        try:
            saved = json.loads((self._folder / "checkpoint").read_text())
        except FileNotFoundError:
            return 0, None, None
        return saved["step"], saved["batch"], saved["report"]

    def _say(self) -> Said:
        lines = (self._read("answers") or "{}").splitlines()
        if len(lines) > 1:
            (self._folder / "answers").write_text("\n".join(lines[1:]))
        return Said(**json.loads(lines[0]))

    def _stream(self, call: Call, most: int) -> None:
        """Tells a call's tokens one by one, if it wants that."""
        if not call.message.stream:
            return
        whole = call.said.of(call.message, call.version, self._newest(call))
        for at in range(call.told, min(most, len(whole.token_ids) // 4)):
            ids, logprobs = whole.token_ids[4 * at : 4 * at + 4], whole.logprobs[4 * at : 4 * at + 4]
            tops = whole.top_logprobs[at : at + 1]
            self.send(protocol.Streamed([protocol.Sampled(call.message.request_id, at, ids, logprobs, tops)]))
            call.told = at + 1

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return None

    def _log(self, kind: str, message: protocol.ToWorker) -> None:
        line = {"kind": kind, "pid": os.getpid()}
        for name in ("request_id", "batch_id", "step", "weight_version"):
            if hasattr(message, name):
                line[name] = getattr(message, name)
        if isinstance(message, protocol.Generate):
            line |= {"prompt": memoryview(message.prompt_ids).cast("i").tolist(), "stream": message.stream}
            line |= {"weights": message.weights, "evaluation": message.evaluation}
        if isinstance(message, protocol.Update):
            line["episodes"] = [episode.episode_id for episode in message.episodes]
            line["keep"] = message.keep
        with (self._folder / "log").open("a") as log:
            log.write(json.dumps(line) + "\n")

    def send(self, message: protocol.FromWorker) -> None:
        self._connection.sendall(protocol.frame(message))


def _report(message: protocol.Update) -> dict[str, object]:
    floats = (
        "reward_mean reward_std reward_min reward_max advantage_abs_mean loss grad_norm clip_fraction approx_kl"
        " ratio_min ratio_max entropy"
    )
    counts = "groups calls tokens_unmerged tokens_linear tokens_forest packs"
    return {
        "step": message.step,
        "batch_id": message.batch_id,
        "weight_version": message.step,
        "episodes": len(message.episodes),
        "skipped": False,
        "seconds": {},
        **dict.fromkeys(floats.split(), 0.5),
        **dict.fromkeys(counts.split(), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    with socket.socket(fileno=arguments.fd) as connection:
        return FakeWorker(connection, arguments.folder).run()


if __name__ == "__main__":
    sys.exit(main())
