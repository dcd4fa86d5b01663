"""The worker after updates that were skipped: the batch is kept, and older weights are taken when it goes on."""

import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from ajet_core.config import Job
from ajet_core.errors import EngineFailedError
from ajet_server.demo.micro import make_micro_model
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.train.trainer import Trainer
from ajet_server.worker import protocol
from ajet_server.worker.main import Worker


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_micro_model(tmp_path_factory.mktemp("micro") / "model")


def episodes(seed: int, logprob: float) -> list[protocol.EpisodeRow]:
    rng = np.random.default_rng(seed)
    made: list[protocol.EpisodeRow] = []
    for index in range(4):
        ids = [rng.integers(0, 300, size).astype("<i4").tobytes() for size in (6, 4)]
        logprobs = np.full(4, logprob, "<f4").tobytes()
        call = protocol.CallRow(f"{seed}.{index}", f"e{index}", ids[0], ids[1], logprobs, 1.0, 0)
        made.append(protocol.EpisodeRow(f"e{index}", "g", float(index % 2), [call]))
    return made


def worker_with(trainer: Trainer, folder: Path, keep: int) -> tuple[Worker, socket.socket]:
    ours, theirs = socket.socketpair()
    worker = Worker(theirs)
    worker._trainer, worker._checkpoints, worker._keep = trainer, folder / "checkpoints", keep
    return worker, ours


def update(worker: Worker, step: int, logprob: float = -6.0) -> None:
    worker._update(protocol.Update(f"b{step}", step, episodes(step, logprob)))


@pytest.mark.parametrize("keep", [2, 1])
def test_after_enough_skipped_updates_older_weights_are_taken(model_folder: Path, tmp_path: Path, keep: int) -> None:
    job = Job.model_validate(
        {"model": {"path": str(model_folder), "device": "cpu"}, "trainer": {"rollback_after": 2}}
        | {"optimizer": {"learning_rate": 1e-2}}
    )
    trainer = Trainer.load(job)
    worker, ours = worker_with(trainer, tmp_path, keep)
    with ours, worker._connection:
        update(worker, 1)
        good = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        update(worker, 2)
        update(worker, 3, logprob=-1e30)  # every ratio overflows
        assert trainer.last_report is not None
        assert (trainer.last_report.skipped_in_row, trainer.last_report.rolled_back_to) == (1, None)
        if keep == 1:
            with pytest.raises(EngineFailedError, match=r"2 updates in a row were skipped \(the ratios of calls '4"):
                update(worker, 4, logprob=-1e30)
            return
        update(worker, 4, logprob=-1e30)
        report = trainer.last_report
        assert (report.step, report.skipped_in_row, report.rolled_back_to) == (4, 0, 1)
        assert all(torch.equal(good[name], tensor) for name, tensor in trainer.model.state_dict().items())
        kept = sorted(folder.name for folder in (tmp_path / "incidents").iterdir())
        assert kept == ["step-000003", "step-000004"]
        update(worker, 5)
        assert trainer.last_report.skipped is False


def test_a_named_version_is_loaded_at_its_first_call_and_its_checkpoint_stays(
    model_folder: Path, tmp_path: Path
) -> None:
    job = Job.model_validate({"model": {"path": str(model_folder), "device": "cpu"}})
    worker, ours = worker_with(Trainer.load(job), tmp_path, keep=1)
    worker._engine = TorchEngine.load(job)
    with ours, worker._connection:
        update(worker, 1)
        worker._update(protocol.Update("b2", 2, episodes(2, -6.0), keep=[1]))
        assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == ["step-000001", "step-000002"]
        sampling = protocol.Sampling(max_tokens=2)
        for version in (1, 0, 9):
            worker._generate(protocol.Generate(f"v{version}", b"\5\0\0\0", sampling, weights=version))
            while worker._engine.has_work:
                worker._step()
        update(worker, 3)
        assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["step-000003"]
        said = [message for message in heard(ours) if isinstance(message, protocol.Generated | protocol.Failed)]
    first, second, refused = said
    assert isinstance(first, protocol.Generated)
    assert isinstance(second, protocol.Generated)
    assert (first.weight_version, second.weight_version) == (1, 0)
    assert isinstance(refused, protocol.Failed)
    assert (refused.request_id, refused.code) == ("v9", "not_found")


def heard(connection: socket.socket) -> list[protocol.FromWorker]:
    """What the worker has sent until now."""
    connection.setblocking(False)
    data = b"".join(iter(lambda: _received(connection), b""))
    messages: list[protocol.FromWorker] = []
    while data:
        (length,) = protocol.HEADER.unpack(data[: protocol.HEADER.size])
        end = protocol.HEADER.size + length
        messages.append(protocol.read_from_worker(data[protocol.HEADER.size : end]))
        data = data[end:]
    return messages


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 20)
    except BlockingIOError:
        return b""
