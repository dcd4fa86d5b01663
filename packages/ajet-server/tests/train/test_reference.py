"""The reference model: the adapter switched off, or a frozen copy; its distance in the loss and in the reward."""

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from trainer_reference import VOCAB, micro_job, mixed_batch, quiet

from ajet_core.errors import RequestError
from ajet_server.samples.merge import build_batch
from ajet_server.train.minibatch import mini_batches
from ajet_server.train.reference import token_kl, with_old
from ajet_server.train.scoring import Models, scored
from ajet_server.train.trainer import Trainer

METHODS = pytest.mark.parametrize("method", ["lora", "full"])


@METHODS
def test_at_the_start_the_reference_is_the_model_and_later_what_the_model_was(model_folder: Path, method: str) -> None:
    job = micro_job(model_folder, method, algorithm={"kl": {"coef": 0.1}}, optimizer={"learning_rate": 0.02})
    trainer = Trainer.load(job)
    first = trainer.update("b1", 1, mixed_batch(1), quiet)
    assert first.reference_kl == pytest.approx(0, abs=1e-6)
    second = trainer.update("b2", 2, mixed_batch(1), quiet)
    assert second.reference_kl > 1e-5


@METHODS
def test_a_dear_penalty_keeps_the_model_near_its_reference(model_folder: Path, method: str) -> None:
    distances: list[float] = []
    for coef in (0.001, 10.0):
        algorithm = {"kl": {"coef": coef}}
        trainer = Trainer.load(micro_job(model_folder, method, algorithm=algorithm, optimizer={"learning_rate": 0.01}))
        for step in range(1, 6):
            report = trainer.update(f"b{step}", step, mixed_batch(1), quiet)
        distances.append(report.reference_kl)
    assert distances[1] < 0.9 * distances[0]


def test_a_penalty_in_the_reward_changes_the_advantages(model_folder: Path) -> None:
    algorithm = {"name": "rloo", "kl": {"coef": 1.0, "estimator": "k1", "place": "reward"}}
    job = micro_job(model_folder, algorithm=algorithm)
    trainer = Trainer.load(job)
    batch = build_batch(mixed_batch(), job.algorithm, VOCAB)
    (mini,) = mini_batches(batch, job, "segments", "forest", torch.device("cpu"))
    models = Models(trainer.plain, trainer.model, None, None)
    ready = scored(batch, [mini], job, models, quiet)
    changed, packs = ready.batch, with_old(trainer.plain, ready.packs)
    cost_N = np.zeros(len(batch.calls))
    for pack in packs:
        assert pack.old_M is not None
        assert pack.reference_M is not None
        assert torch.equal(pack.old_M, pack.reference_M)  # a fresh adapter changes nothing
        np.add.at(cost_N, pack.call_M.numpy(), (pack.rollout_M - pack.reference_M).double().numpy())
    rewards = batch.rewards - np.bincount(batch.episode_N, cost_N, batch.rewards.size)
    members = [i for i, name in enumerate(batch.group_names) if name == batch.group_names[0]]
    others = [rewards[[j for j in members if j != i]].mean() for i in members]
    assert changed.advantages[members] == pytest.approx(rewards[members] - others, rel=1e-4)
    assert not np.allclose(changed.advantages, batch.advantages)
    for pack in packs:
        wanted = [float(changed.calls[call].advantage[0]) for call in pack.call_M.tolist()]
        assert pack.advantage_M.tolist() == wanted


@pytest.mark.parametrize("name", ["rloo", "ppo"])
def test_a_penalty_that_no_number_holds_is_refused_by_its_call(model_folder: Path, name: str) -> None:
    trainer = Trainer.load(micro_job(model_folder, algorithm={"name": name, "kl": {"place": "reward"}}))
    episodes = mixed_batch()
    bad = structs.replace(episodes[1].calls[1], logprobs=np.array([-6, -6, -120, -6, -6, -6, -6], "<f4").tobytes())
    episodes[1] = structs.replace(episodes[1], calls=[episodes[1].calls[0], bad])
    wanted = r"episode 'e1', call 'e1\.1': algorithm\.kl\.estimator 'k3' is inf at completion token 2.* -120\.0"
    with pytest.raises(RequestError, match=wanted) as caught:
        trainer.update("b", 1, episodes, quiet)
    assert caught.value.field == "algorithm.kl"


def test_a_pack_without_a_reference_is_refused(model_folder: Path) -> None:
    job = micro_job(model_folder, algorithm={"name": "rloo", "kl": {"estimator": "k1", "place": "reward"}})
    batch = build_batch(mixed_batch(), job.algorithm, VOCAB)
    (mini,) = mini_batches(batch, job, "segments", "forest", torch.device("cpu"))
    assert job.algorithm.kl is not None
    with pytest.raises(ValueError, match="no reference_M"):
        token_kl(batch, mini.packs, job.algorithm.kl)
