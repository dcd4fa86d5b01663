"""A named version is the model that its checkpoint holds, whatever the trainer has become."""

import copy
import shutil
from pathlib import Path

import pytest
import torch
from trainer_reference import micro_job, mixed_batch, quiet

from ajet_core.errors import ConfigError, NotFoundError, StorageError
from ajet_server.engines.base import GenerationRequest
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.sync.canary import probe_ids
from ajet_server.sync.named import AdaptedLinear, named_model
from ajet_server.sync.publish import publish
from ajet_server.train.trainer import Trainer
from ajet_server.worker.protocol import Sampling

IDS = probe_ids(512)


class Run:
    """A trainer and an engine after two updates, with a checkpoint of each."""

    def __init__(self, model: Path, method: str, checkpoints: Path) -> None:
        job = micro_job(model, method, optimizer={"learning_rate": 1e-2})
        self.checkpoints = checkpoints
        self.trainer, self.engine = Trainer.load(job), TorchEngine.load(job)
        self.expected = [self.trainer.score(IDS)]
        for step in (1, 2):
            report = self.trainer.update(f"b{step}", step, mixed_batch(step), quiet)
            self.trainer.save(checkpoints, report)
            publish(self.engine, self.trainer, step, IDS)
            self.expected.append(self.trainer.score(IDS))

    def hold(self, version: int) -> None:
        self.engine.hold(version, lambda live: named_model(self.trainer, self.checkpoints, version, live))

    def scored(self, version: int) -> torch.Tensor:
        """Log-probabilities of the ids after the first, by the model of a version."""
        model = named_model(self.trainer, self.checkpoints, version, self.engine._model)
        model = copy.deepcopy(model)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            logprobs = model(torch.from_numpy(IDS)[None].long()).logits[0].log_softmax(-1)
        return logprobs[:-1].gather(1, torch.from_numpy(IDS[1:]).long()[:, None])[:, 0]


@pytest.fixture(params=["lora", "full"])
def run(request: pytest.FixtureRequest, model_folder: Path, tmp_path: Path) -> Run:
    return Run(model_folder, request.param, tmp_path)


def test_every_version_scores_as_the_trainer_did_then(run: Run) -> None:
    for version, expected in enumerate(run.expected):
        torch.testing.assert_close(run.scored(version), torch.from_numpy(expected), atol=1e-4, rtol=0)
    assert abs(run.expected[0] - run.expected[2]).max() > 1e-2


def test_the_engine_samples_from_them_side_by_side(run: Run) -> None:
    def call(name: str, weights: int | None) -> GenerationRequest:
        return GenerationRequest(name, IDS[:9], Sampling(max_tokens=6, temperature=0.0), weights=weights)

    run.hold(1)
    for name, weights in (("named", 1), ("live", None)):
        run.engine.submit(call(name, weights))
    done = {}
    while run.engine.has_work:
        done |= {item.request_id: item for item in run.engine.step().completions}
    assert (done["named"].weight_version, done["live"].weight_version) == (1, 2)
    again = Run.__new__(Run)
    again.trainer, again.checkpoints = run.trainer, run.checkpoints
    again.engine = TorchEngine.load(run.trainer.job)
    again.hold(1)
    again.engine.submit(call("named", 1))
    found = []
    while again.engine.has_work:
        found += again.engine.step().completions
    assert found[0].token_ids.tolist() == done["named"].token_ids.tolist()


def test_with_an_adapter_only_the_adapter_is_held_once_more(model_folder: Path, tmp_path: Path) -> None:
    run = Run(model_folder, "lora", tmp_path)
    model = named_model(run.trainer, tmp_path, 1, run.engine._model)
    held = {
        parameter.data_ptr() for owner in (run.engine._model, run.trainer.model) for parameter in owner.parameters()
    }
    own = [name for name, parameter in model.named_parameters() if parameter.data_ptr() not in held]
    assert own
    assert all(name.endswith((".down", ".up")) for name in own)
    assert sum(isinstance(module, AdaptedLinear) for module in model.modules()) == len(own) // 2
    before = {name: parameter.clone() for name, parameter in run.trainer.model.named_parameters()}
    named_model(run.trainer, tmp_path, 2, run.engine._model)
    assert all(torch.equal(before[name], parameter) for name, parameter in run.trainer.model.named_parameters())
    assert not any(isinstance(module, AdaptedLinear) for module in run.engine._model.modules())


def test_an_update_leaves_a_held_version_alone(run: Run) -> None:
    run.hold(1)
    shutil.rmtree(run.checkpoints)
    held = run.engine._lanes.of(1).model
    before = [parameter.clone() for parameter in held.parameters()]
    run.trainer.update("b3", 3, mixed_batch(3), quiet)
    publish(run.engine, run.trainer, 3, IDS)
    assert all(torch.equal(old, new) for old, new in zip(before, held.parameters(), strict=True))
    run.hold(1)  # it is still here, though its checkpoint is not


def test_what_cannot_be_loaded(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="checkpoint of version 5 is not there"):
        run.hold(5)
    (weights,) = (run.checkpoints / "step-000001").rglob("*model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StorageError, match="corrupted"):
        run.hold(1)
    (run.checkpoints / "step-000002" / "optimizer.safetensors").unlink()  # not needed here
    run.hold(2)
    run.trainer.job = micro_job(run.trainer.job.model.path, "lora", lora={"rank": 3})
    with pytest.raises(ConfigError):
        named_model(run.trainer, run.checkpoints, 2, run.engine._model)
