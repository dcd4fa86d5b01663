"""The worker process: the engine and the trainer, one loop, one thread that computes.

It holds no socket but the one to the API process, knows no key and no client, and ends when the API process does.
"""

import argparse
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ajet_core.config import Job
from ajet_core.errors import AjetError, EngineFailedError
from ajet_server.worker import protocol
from ajet_server.worker.protocol import FromWorker, ToWorker

if TYPE_CHECKING:
    from ajet_server.engines.torch_engine import TorchEngine
    from ajet_server.train.trainer import Trainer

log = logging.getLogger("ajet.worker")

_HEARTBEAT_S = 2.0
_EXIT_FAILED = 3
_EXIT_ORPHANED = 4
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Worker:
    """Serves one API process over `connection`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._engine: TorchEngine | None = None
        self._trainer: Trainer | None = None
        self._checkpoints = Path()
        self._keep = 1
        self._probe: npt.NDArray[np.int32] | None = None
        self._heard = time.monotonic()
        self._set_back: ToWorker | None = None
        """Came while an update computed, and has to wait for its end."""
        self._turn_began = 0.0
        self._overlap_s = 0.0

    def run(self) -> int:
        """Serves until `Shutdown` and returns the exit code. A failure is reported before it ends the process."""
        threading.Thread(target=self._read, name="worker-inbox", daemon=True).start()
        try:
            while True:
                if not self._serve_inbox():
                    return 0
                self._step()
        except ConnectionError as error:  # the API process was killed while it was told something
            log.error("the connection broke: %s", error)
            return _EXIT_ORPHANED
        except Exception as error:
            # The boundary of the process: whatever the computation raised becomes a reason that the API can show.
            log.exception("the worker failed")
            code = error.code if isinstance(error, AjetError) else EngineFailedError.code
            self._send(protocol.Failed(f"{type(error).__name__}: {error}", code=code))
            return _EXIT_FAILED

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as stream:
                while header := stream.read(protocol.HEADER.size):
                    (length,) = protocol.HEADER.unpack(header)
                    body = stream.read(length)
                    if len(body) != length:
                        break
                    self._inbox.put(protocol.read_to_worker(body))
        except OSError as error:  # a reset: the API process was killed with messages unread
            log.error("the connection broke: %s", error)
        finally:
            # Nobody is there to work for. Checkpoints are renamed into place whole: no instant is a wrong one to stop.
            os._exit(_EXIT_ORPHANED)

    def _send(self, message: FromWorker) -> None:
        self._connection.sendall(protocol.frame(message))
        self._heard = time.monotonic()

    def _serve_inbox(self) -> bool:
        idle = self._engine is None or not self._engine.has_work
        while idle or self._set_back or not self._inbox.empty():
            message, self._set_back = self._set_back or self._inbox.get(), None
            if isinstance(message, protocol.Shutdown):
                return False
            self._handle(message)
            idle = False
        return True

    def _handle(self, message: ToWorker) -> None:
        match message:
            case protocol.Load():
                self._load(message)
            case protocol.Generate():
                self._generate(message)
            case protocol.Cancel():
                self._loaded_engine().cancel(message.request_id)
            case protocol.Update():
                self._update(message)
            case protocol.Sync():
                self._sync(message)
            case protocol.Shutdown():
                raise AssertionError("handled by the inbox")

    def _load(self, message: protocol.Load) -> None:
        self._progress("load", 0, 2)
        from transformers.utils import logging as transformers_logging

        from ajet_server.engines.torch_engine import TorchEngine
        from ajet_server.train.checkpoint import latest_checkpoint
        from ajet_server.train.trainer import Trainer

        transformers_logging.disable_progress_bar()
        job = Job.model_validate_json(message.job)
        self._checkpoints, self._keep = Path(message.checkpoints_dir), job.checkpoint.keep
        self._trainer = trainer = Trainer.load(job, latest_checkpoint(self._checkpoints))
        self._progress("load", 1, 2)
        self._engine = engine = TorchEngine.load(job)
        self._progress("load", 2, 2)
        report = trainer.last_report
        self._send(
            protocol.Loaded(
                max_model_len=engine.max_model_len,
                vocab_size=engine.vocab_size,
                device=str(trainer.device),
                dtype=str(trainer.dtype).removeprefix("torch."),
                attention=trainer.attention,
                step=trainer.step,
                last_batch_id=trainer.last_batch_id,
                last_report=report.model_dump_json().encode() if report else None,
            )
        )

    def _generate(self, message: protocol.Generate) -> None:
        from ajet_server.engines.base import GenerationRequest

        prompt = np.frombuffer(message.prompt_ids, dtype="<i4")
        request = GenerationRequest(
            message.request_id, prompt, message.sampling, message.stream, message.weights, message.evaluation
        )
        try:
            if message.weights is not None:
                self._hold(message.weights)
            self._loaded_engine().submit(request)
        except AjetError as error:
            self._refuse(message.request_id, error)

    def _hold(self, version: int) -> None:
        """Has a version that a call names in the engine; from its checkpoint, also after another worker had it."""
        from ajet_server.sync.named import named_model

        trainer = self._loaded_trainer()
        self._loaded_engine().hold(version, lambda live: named_model(trainer, self._checkpoints, version, live))

    def _refuse(self, request_id: str, error: AjetError) -> None:
        self._send(protocol.Failed(error.message, request_id, error.code, error.field))

    def _step(self) -> None:
        engine = self._engine
        if engine is None or not engine.has_work:
            return
        outcome = engine.step()
        if outcome.sampled:
            self._send(protocol.Streamed(outcome.sampled))
        for refusal in outcome.refusals:
            self._refuse(refusal.request_id, refusal.error)
        for completion in outcome.completions:
            self._send(completion.message())
        if time.monotonic() - self._heard > _HEARTBEAT_S:
            self._progress("generate", engine.running, engine.running + engine.waiting)

    def _update(self, message: protocol.Update) -> None:
        from ajet_server.train.checkpoint import prune
        from ajet_server.train.recovery import after_skip

        trainer = self._loaded_trainer()
        self._turn_began, self._overlap_s = time.monotonic(), 0.0
        sampled_before = self._sampled_tokens
        report = trainer.update(message.batch_id, message.step, message.episodes, self._take_turns)
        if trainer.skip_reason is not None:
            report = after_skip(trainer, report, trainer.skip_reason, self._checkpoints)
        self._take_turns("checkpoint", 0, 1)
        overlap = {"overlap_tokens": self._sampled_tokens - sampled_before, "overlap_seconds": self._overlap_s}
        report = report.model_copy(update=overlap)
        folder = trainer.save(self._checkpoints, report)
        prune(self._checkpoints, self._keep, message.keep)
        self._take_turns("checkpoint", 1, 1)
        self._probe = next((_token_ids(call) for episode in message.episodes for call in episode.calls), None)
        self._send(protocol.Updated((trainer.last_report or report).model_dump_json().encode(), str(folder)))

    def _take_turns(self, stage: str, done: int, total: int) -> None:
        """Tells how far the update is, and has the engine compute for as long as the update has just done.

        So calls get half of the time on the thread that both share. They are sampled with the engine's own weights,
        which are the old ones until the next sync.
        """
        self._progress(stage, done, total)
        began = now = time.monotonic()
        until = began + (began - self._turn_began)
        while self._serve_calls() and now < until:
            self._step()
            now = time.monotonic()
        self._turn_began = now
        self._overlap_s += now - began

    @property
    def _sampled_tokens(self) -> int:
        return 0 if self._engine is None else self._engine.sampled_tokens

    def _serve_calls(self) -> bool:
        """Takes what came for calls, up to a message that must wait for the update's end.

        Returns whether calls are to go on. After such a message, which can only be `Shutdown`, none is.
        """
        while self._set_back is None and not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, protocol.Generate | protocol.Cancel):
                self._handle(message)
            else:
                self._set_back = message
        return self._set_back is None and self._engine is not None and self._engine.has_work

    def _sync(self, message: protocol.Sync) -> None:
        from ajet_server.sync.canary import probe_ids
        from ajet_server.sync.publish import publish

        self._progress("sync", 0, 1)
        engine, trainer = self._loaded_engine(), self._loaded_trainer()
        continued = engine.pause() if message.keep_calls else 0
        done = publish(engine, trainer, message.weight_version, probe_ids(engine.vocab_size, self._probe))
        self._send(
            protocol.Synced(done.weight_version, done.probe_error, done.probe_tolerance, done.seconds, continued)
        )

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._send(protocol.Progress(stage, done, total))

    def _loaded_engine(self) -> "TorchEngine":
        if self._engine is None:
            raise EngineFailedError("the worker was asked to work before it was asked to load a model")
        return self._engine

    def _loaded_trainer(self) -> "Trainer":
        if self._trainer is None:
            raise EngineFailedError("the worker was asked to work before it was asked to load a model")
        return self._trainer


def _token_ids(call: protocol.CallRow) -> "npt.NDArray[np.int32]":
    return np.frombuffer(call.prompt_ids + call.completion_ids, dtype="<i4")


def _die_with_parent() -> None:
    """Has the kernel kill this process when the API process is gone, also one that is stopped or deep in a long call.

    Else it could write a checkpoint while the next server's worker does the same step. Where there is no such thing,
    the end of the connection has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Entry point of `python -m ajet_server.worker.main --fd N`; N is one end of a socket pair."""
    parser = argparse.ArgumentParser(prog="ajet-worker", description="Worker of a swarm server; started by it.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the API process")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s worker %(levelname)s %(message)s", stream=sys.stderr)
    _die_with_parent()
    with socket.socket(fileno=arguments.fd) as connection:
        return Worker(connection).run()


if __name__ == "__main__":
    sys.exit(main())
