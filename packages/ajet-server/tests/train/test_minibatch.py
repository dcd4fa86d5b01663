"""Mini-batches: whole groups, weights of their own, one optimizer step each; epochs over them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from trainer_reference import VOCAB, Rows, micro_job, mixed_batch, quiet

from ajet_core.config import AlgorithmConfig
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.train.minibatch import mini_batches, split_calls
from ajet_server.train.trainer import Trainer
from ajet_server.worker.protocol import EpisodeRow


def four_groups() -> list[EpisodeRow]:
    made: list[EpisodeRow] = []
    for seed in (1, 2):
        for episode in mixed_batch(seed):
            name = f"{seed}.{episode.episode_id}"
            calls = [structs.replace(call, call_id=f"{seed}.{call.call_id}", episode_id=name) for call in episode.calls]
            made.append(EpisodeRow(name, f"{seed}.{episode.group_id}", episode.reward, calls))
    return made


def batch_of(episodes: list[EpisodeRow]) -> Batch:
    return build_batch(episodes, AlgorithmConfig(), VOCAB)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_parts_hold_whole_groups_and_every_call_once(parts: int) -> None:
    batch = batch_of(four_groups())
    found = split_calls(batch, parts)
    assert len(found) == parts
    assert sorted(np.concatenate(found).tolist()) == list(range(len(batch.calls)))
    groups = [{batch.group_names[batch.episode_N[call]] for call in part} for part in found]
    assert sum(map(len, groups)) == 4


def test_with_fewer_groups_than_parts_episodes_stay_whole() -> None:
    batch = batch_of(mixed_batch())
    found = split_calls(batch, 3)
    homes = [{int(batch.episode_N[call]) for call in part} for part in found]
    assert sum(map(len, homes)) == len(set(batch.episode_N.tolist()))


def test_each_part_has_weights_of_its_own_and_calls_of_the_batch(model_folder: Path) -> None:
    job = micro_job(model_folder, batch={"size": 4, "group_size": 2}, trainer={"mini_batches": 2, "pack_tokens": 64})
    batch = batch_of(four_groups())
    made = mini_batches(batch, job, "segments", "forest", torch.device("cpu"))
    assert len(made) == 2
    for mini in made:
        assert sum(float(pack.weight_M.sum()) for pack in mini.packs) == pytest.approx(1, rel=1e-5)
        for pack in mini.packs:
            wanted = [float(batch.calls[call].advantage[0]) for call in pack.call_M.tolist()]
            assert pack.advantage_M.tolist() == pytest.approx(wanted)
    seen = [set(torch.cat([pack.call_M for pack in mini.packs]).tolist()) for mini in made]
    assert not seen[0] & seen[1]


def test_two_mini_batches_are_two_steps_on_the_groups_of_each(model_folder: Path) -> None:
    options: dict[str, Any] = {"batch": {"size": 4, "group_size": 2}, "optimizer": {"learning_rate": 0.01}}
    together = Trainer.load(micro_job(model_folder, **options, trainer={"mini_batches": 2}))
    apart = Trainer.load(micro_job(model_folder, **options))
    episodes = four_groups()
    report = together.update("b", 1, episodes, quiet)
    names = list(dict.fromkeys(episode.group_id for episode in episodes))
    for step, part in enumerate((names[::2], names[1::2]), start=1):
        apart.update(f"b{step}", step, [episode for episode in episodes if episode.group_id in part], quiet)
    assert report.optimizer_steps == 2
    ours, theirs = together.model.state_dict(), apart.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_epochs_go_through_the_batch_again(model_folder: Path) -> None:
    options: dict[str, Any] = {"optimizer": {"learning_rate": 0.01}}
    twice = Trainer.load(micro_job(model_folder, **options, trainer={"epochs": 2}))
    once = Trainer.load(micro_job(model_folder, **options))
    report = twice.update("b", 1, mixed_batch(), quiet)
    for step in (1, 2):
        once.update(f"b{step}", step, mixed_batch(), quiet)
    assert report.optimizer_steps == 2
    ours, theirs = twice.model.state_dict(), once.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_recomputed_logprobs_are_those_before_the_first_step(model_folder: Path) -> None:
    algorithm = {"off_policy": {"kind": "truncate"}}
    trainer = Trainer.load(
        micro_job(model_folder, algorithm=algorithm, optimizer={"learning_rate": 0.02}, trainer={"epochs": 2})
    )
    report = trainer.update("b", 1, mixed_batch(), quiet)
    # The first epoch's ratios are exactly 1; the second's are not, against logprobs of before the first.
    assert report.ratio_min < 1 < report.ratio_max
    assert report.ratio_q50 == pytest.approx(1, abs=0.2)
    assert report.importance_max != 1


def test_a_batch_whose_rewards_are_equal_changes_nothing(model_folder: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder, trainer={"epochs": 2}))
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    equal = [EpisodeRow(e.episode_id, e.group_id, 1.0, e.calls) for e in mixed_batch()]
    trainer.update("b", 1, equal, quiet)
    after = trainer.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_part_that_trains_no_token_is_no_step(model_folder: Path, name: str) -> None:
    """Else the loss would be averaged with nothing, and a checkpoint without a change count as one with."""
    options: dict[str, Any] = {"batch": {"size": 2, "group_size": 2}, "algorithm": {"name": name}}
    parts, whole = (Trainer.load(micro_job(model_folder, **options, trainer={"mini_batches": n})) for n in (2, 1))
    rows = Rows()
    for reward in (0.0, 1.0):
        rows.episode("a", reward, (rows.ids(3), rows.ids(4), 1.0))
    rows.episode("b", 1.0, (rows.ids(3), [], 1.0))
    found, wanted = parts.update("b", 1, rows.episodes, quiet), whole.update("b", 1, rows.episodes, quiet)
    assert (found.optimizer_steps, found.loss, found.value_loss) == (1, wanted.loss, wanted.value_loss)
    empty = parts.update("c", 2, [rows.episodes[2]], quiet)
    assert (empty.optimizer_steps, empty.skipped, empty.loss) == (0, False, 0.0)


def test_batch_numbering_does_not_depend_on_the_parts(model_folder: Path) -> None:
    batch = batch_of(four_groups())
    jobs = [micro_job(model_folder, batch={"size": 4, "group_size": 2}, trainer={"mini_batches": n}) for n in (1, 2)]
    pairs = [
        sorted(
            (int(call), float(old))
            for mini in mini_batches(batch, job, "segments", "forest", torch.device("cpu"))
            for pack in mini.packs
            for call, old in zip(pack.call_M, pack.rollout_M, strict=True)
        )
        for job in jobs
    ]
    assert pairs[0] == pairs[1]


def by_roles(episodes: list[EpisodeRow]) -> tuple[list[EpisodeRow], list[EpisodeRow]]:
    """The episodes with calls dealt out to two roles, and each role as an episode of a group of its own."""
    whole: list[EpisodeRow] = []
    apart: list[EpisodeRow] = []
    for episode in episodes:
        roles = [("black", "white")[index % 2] for index in range(len(episode.calls))]
        rewards = {role: episode.reward + (role == "white") * len(whole) for role in sorted(set(roles))}
        calls = [structs.replace(call, role=role) for call, role in zip(episode.calls, roles, strict=True)]
        whole.append(structs.replace(episode, calls=calls, rewards=rewards))
        for role, reward in rewards.items():
            name = f"{episode.episode_id}-{role}"
            own = [structs.replace(call, episode_id=name, role=None) for call in calls if call.role == role]
            apart.append(EpisodeRow(name, f"{episode.group_id}-{role}", reward, own))
    return whole, apart


@pytest.mark.parametrize("parts", [2, 4, 7])
def test_the_roles_of_an_episode_stay_together(parts: int) -> None:
    whole, _ = by_roles(four_groups())
    batch = batch_of(whole)
    assert batch.groups == 4
    found = split_calls(batch, parts)
    homes = [{batch.wholes[batch.episode_N[call]][1] for call in part} for part in found]
    assert sum(map(len, homes)) == len(set.union(*homes))


def test_a_step_on_roles_is_one_on_episodes_of_their_own(model_folder: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    for episodes in by_roles(mixed_batch()):
        trainer = Trainer.load(micro_job(model_folder, optimizer={"learning_rate": 0.01}))
        report = trainer.update("b", 1, episodes, quiet)
        assert not report.skipped
        weights.append({name: value.detach().clone() for name, value in trainer.model.named_parameters()})
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
