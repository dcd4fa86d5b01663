"""The worker after updates that were skipped: the batch is kept, and older weights are taken when it goes on."""

import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from ajet_core.config import Job
from ajet_core.errors import EngineFailedError
from ajet_core.events import StepReport
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
    data = bytearray().join(iter(lambda: _received(connection), b""))
    return [protocol.read_from_worker(body) for body in protocol.take_frames(data)]


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 20)
    except BlockingIOError:
        return b""


def overlapped(job: Job, folder: Path, *sent: protocol.ToWorker) -> tuple[Trainer, list[protocol.FromWorker]]:
    """Does an update, with messages that come before its first pack; returns what the worker said until its end."""
    trainer = Trainer.load(job)
    worker, ours = worker_with(trainer, folder, 2)
    worker._engine = TorchEngine.load(job)
    with ours, worker._connection:
        for message in sent:
            worker._inbox.put(message)
        update(worker, 1)
        said = heard(ours)
        while worker._serve_calls():
            worker._step()
        assert worker._set_back in (None, *sent)
    return trainer, said


def call(name: str, max_tokens: int = 2) -> protocol.Generate:
    ids = np.arange(20, 30, dtype="<i4").tobytes()
    return protocol.Generate(name, ids, protocol.Sampling(max_tokens=max_tokens), stream=True)


def overlap_job(folder: Path, method: str = "lora") -> Job:
    model = {"path": str(folder), "device": "cpu"}
    return Job.model_validate(
        {"model": model, "method": method, "trainer": {"pack_tokens": 12}, "optimizer": {"learning_rate": 1e-2}}
    )


@pytest.mark.parametrize("method", ["lora", "full"])
def test_calls_go_on_while_an_update_computes_and_change_nothing_about_it(
    model_folder: Path, tmp_path: Path, method: str
) -> None:
    job = overlap_job(model_folder, method)
    alone, _ = overlapped(job, tmp_path / "alone")
    named = msgspec.structs.replace(call("n", 20), weights=0, evaluation=True)  # loaded in the middle of the update
    trainer, said = overlapped(job, tmp_path / "both", call("a"), call("b", 400), named, protocol.Cancel("c"))
    kinds = [type(message).__name__ for message in said]
    assert kinds.index("Generated") < kinds.index("Updated")
    assert "Streamed" in kinds[kinds.index("Generated") :], "the longer call goes on"
    reports = [StepReport.model_validate_json(one.report) for one in said if isinstance(one, protocol.Updated)]
    told = [message for message in said[: kinds.index("Updated")] if isinstance(message, protocol.Streamed)]
    assert 0 < reports[0].overlap_tokens <= sum(len(message.calls) for message in told)
    assert reports[0].overlap_seconds > 0
    assert "n" in {part.request_id for message in told for part in message.calls}
    for (name, one), other in zip(alone.model.state_dict().items(), trainer.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    for part in ("optimizer", "rng"):
        one, other = (tmp_path / how / f"checkpoints/step-000001/{part}.safetensors" for how in ("alone", "both"))
        assert one.read_bytes() == other.read_bytes(), "what the next update continues from"


def test_what_is_for_after_the_update_waits_and_ends_the_calls(model_folder: Path, tmp_path: Path) -> None:
    _, said = overlapped(overlap_job(model_folder), tmp_path, protocol.Shutdown(), call("a"))
    assert {type(message).__name__ for message in said} == {"Progress", "Updated"}


@pytest.mark.parametrize("keep_calls", [True, False])
def test_running_calls_go_on_with_new_weights_only_if_told_to(
    model_folder: Path, tmp_path: Path, keep_calls: bool
) -> None:
    job = overlap_job(model_folder)
    worker, ours = worker_with(Trainer.load(job), tmp_path, 2)
    worker._engine = engine = TorchEngine.load(job)
    with ours, worker._connection:
        worker._handle(call("a", 400))
        for _ in range(4):
            worker._step()
        update(worker, 1)
        if not keep_calls:
            with pytest.raises(EngineFailedError, match="1 calls were running"):
                worker._handle(protocol.Sync(1))
            return
        known = engine._scheduler.find("a")
        assert known is not None
        before = known.completion.tolist()
        worker._handle(protocol.Sync(1, keep_calls=True))
        while engine.has_work:
            worker._step()
        said = heard(ours)
    (synced,) = [message for message in said if isinstance(message, protocol.Synced)]
    assert (synced.weight_version, synced.calls_continued) == (1, 1)
    assert synced.probe_error < 1e-4, "the probe came before the call went on"
    (done,) = [message for message in said if isinstance(message, protocol.Generated)]
    ids = np.frombuffer(done.token_ids, "<i4").tolist()
    assert ids[: len(before)] == before
    assert (done.weight_version, done.version_spans) == (0, ((0, 0), (len(before), 1)))
