from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_reference import ALGORITHMS, random_inputs, reference_loss, take

from ajet_core.config import AlgorithmConfig
from ajet_core.errors import ConfigError
from ajet_merge import Call, merge
from ajet_server.train.losses.policy import LossInputs, policy_loss
from ajet_server.train.losses.stats import LossStats, no_stats

CPU = torch.device("cpu")
every_algorithm = pytest.mark.parametrize("parts", ALGORITHMS.values(), ids=ALGORITHMS)


def gradients(loss: torch.Tensor, inputs: LossInputs) -> list[torch.Tensor]:
    leaves = [leaf for leaf in (inputs.logprobs_M, inputs.entropy_M) if leaf.requires_grad]
    return [g.clone() for g in torch.autograd.grad(loss, leaves, allow_unused=True) if g is not None]


@every_algorithm
@pytest.mark.parametrize("later", [False, True], ids=["first pass", "later pass"])
def test_equals_the_formula_sequence_by_sequence(parts: dict[str, Any], later: bool) -> None:
    algorithm = AlgorithmConfig(**parts)
    inputs = random_inputs(algorithm, later=later)
    found, stats = policy_loss(inputs, algorithm)
    wanted = reference_loss(inputs, algorithm)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert stats.loss.item() == found.item()
    ours, theirs = gradients(found, inputs), gradients(wanted, inputs)
    assert ours
    assert any(g.any() for g in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


DIFFERENTIABLE = [
    name
    for name, parts in ALGORITHMS.items()
    if (algorithm := AlgorithmConfig(**parts)).clipping != "weight" and algorithm.ratio_level == "token"
]
"""The gradient of the others is, on purpose, not that of their value."""


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck(name: str) -> None:
    """With all that is held constant given from outside, so that finite differences see what autograd sees."""
    algorithm = AlgorithmConfig(**ALGORITHMS[name])
    inputs = random_inputs(algorithm, later=True)

    def loss(logprobs_M: torch.Tensor, entropy_M: torch.Tensor) -> torch.Tensor:
        return policy_loss(replace(inputs, logprobs_M=logprobs_M, entropy_M=entropy_M), algorithm)[0]

    assert torch.autograd.gradcheck(loss, (inputs.logprobs_M, inputs.entropy_M), eps=1e-7, atol=1e-5)


@given(st.data())
def test_however_calls_are_spread_over_packs(data: st.DataObject) -> None:
    algorithm = AlgorithmConfig(**data.draw(st.sampled_from(list(ALGORITHMS.values()))))
    lengths = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    inputs = random_inputs(algorithm, data.draw(st.integers(0, 99)), lengths, data.draw(st.booleans()))
    whole, whole_stats = policy_loss(inputs, algorithm)
    packs: dict[int, list[int]] = {}
    homes = {unit: data.draw(st.integers(0, 2)) for unit in set(inputs.unit_M.tolist())}
    for m in data.draw(st.permutations(range(sum(lengths)))):
        packs.setdefault(homes[int(inputs.unit_M[m])], []).append(m)
    parts = [policy_loss(take(inputs, torch.tensor(pack)), algorithm) for pack in packs.values()]
    total = torch.stack([loss for loss, _ in parts]).sum()
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(total, inputs), gradients(whole, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert_same(sum((stats for _, stats in parts), no_stats(CPU)), whole_stats)


def assert_same(found: LossStats, wanted: LossStats) -> None:
    for name, value in vars(wanted).items():
        mine = getattr(found, name)
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(mine.double(), value.double(), rtol=1e-5, atol=1e-5, msg=name)
        else:
            assert torch.equal(mine.histogram_B, value.histogram_B)
            assert (mine.lowest, mine.highest) == (value.lowest, value.highest)
            assert mine.mean() == pytest.approx(value.mean(), rel=1e-5)


@every_algorithm
def test_duplicates_count_twice(parts: dict[str, Any]) -> None:
    algorithm = AlgorithmConfig(**parts)
    inputs = random_inputs(algorithm)
    count = len(inputs.unit_M)
    doubled = take(inputs, torch.arange(count).repeat(2))
    unit_M = doubled.unit_M + torch.arange(2).repeat_interleave(count) * 1000
    doubled = replace(doubled, weight_M=doubled.weight_M / 2, unit_M=unit_M)
    one, two = policy_loss(inputs, algorithm)[0], policy_loss(doubled, algorithm)[0]
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@every_algorithm
def test_a_foreign_logprob_is_never_used(parts: dict[str, Any]) -> None:
    algorithm = AlgorithmConfig(**parts)
    inputs = random_inputs(algorithm)
    loss, stats = policy_loss(inputs, algorithm)
    spoiled = replace(inputs, rollout_M=torch.where(inputs.exact_M, inputs.rollout_M, -80.0))
    again, same = policy_loss(spoiled, algorithm)
    assert again.item() == loss.item()
    assert (same.k3, same.ratio.highest, same.importance.highest) == (
        stats.k3,
        stats.ratio.highest,
        stats.importance.highest,
    )
    assert (int(stats.count), int(stats.exact)) == (14, 13)
    (gradient,) = torch.autograd.grad(again, [inputs.logprobs_M])
    assert gradient[3] != 0  # the token is trained all the same


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp", "ppo", "dapo", "gspo", "cispo"])
def test_on_policy_every_preset_is_reinforce(name: str) -> None:
    """At ratio 1 the gradient is -weight * advantage, each token's own."""
    algorithm = AlgorithmConfig.model_validate({"name": name})
    inputs = random_inputs(algorithm)
    inputs = replace(inputs, rollout_M=inputs.logprobs_M.detach())
    loss, stats = policy_loss(inputs, algorithm)
    (gradient,) = torch.autograd.grad(loss, [inputs.logprobs_M])
    torch.testing.assert_close(gradient, -inputs.weight_M * inputs.advantage_M, rtol=1e-12, atol=0)
    assert int(stats.clipped_low + stats.clipped_high) == 0
    assert (stats.ratio.quantile(0.01), stats.ratio.mean(), stats.ratio.quantile(1)) == (1, 1, 1)


def test_of_a_masked_token_nothing_is_learned_with_a_sequences_ratio_either() -> None:
    algorithm = AlgorithmConfig.model_validate({"name": "gspo", "off_policy": {"kind": "mask", "high": 1.5}})
    inputs = random_inputs(algorithm)
    rollout_M = inputs.logprobs_M.detach().clone()
    rollout_M[5] -= 1  # e times as likely now
    loss, stats = policy_loss(replace(inputs, rollout_M=rollout_M), algorithm)
    (gradient,) = torch.autograd.grad(loss, [inputs.logprobs_M])
    assert int(stats.cut) == 1
    assert torch.nonzero(gradient == 0).flatten().tolist() == [5]


def test_statistics_against_plain_counts() -> None:
    algorithm = AlgorithmConfig.model_validate({"off_policy": {"high": 1.1}, "kl": {"coef": 0.5}})
    x = random_inputs(algorithm, lengths=(12, 9, 17), later=True)
    assert x.old_M is not None
    assert x.reference_M is not None
    _, stats = policy_loss(x, algorithm)
    ratio = (x.logprobs_M.detach() - x.old_M).exp().numpy()
    advantage, exact = x.advantage_M.numpy(), x.exact_M.numpy()
    assert int(stats.clipped_low) == ((ratio < 0.8) & (advantage < 0)).sum() > 0
    assert int(stats.clipped_high) == ((ratio > 1.2) & (advantage > 0)).sum() > 0
    importance = np.where(exact, (x.old_M - x.rollout_M).exp().numpy(), 1)
    assert int(stats.cut) == (importance > 1.1).sum() > 0
    assert stats.importance.mean() == pytest.approx(importance.mean(), rel=1e-12)
    assert float(stats.importance.lowest) == pytest.approx(importance.min(), rel=1e-12)  # not rounded to float32
    assert float(stats.entropy) == pytest.approx(float(x.entropy_M.sum()))
    r = (x.reference_M - x.logprobs_M.detach()).exp().numpy()
    assert float(stats.kl) == pytest.approx((r - 1 - np.log(r)).sum())
    moved = (x.logprobs_M.detach() - x.rollout_M).exp().numpy()[exact]
    assert float(stats.k3) == pytest.approx((moved - 1 - np.log(moved)).sum())
    penalty = 0.5 * (x.weight_M.numpy() * (r - 1 - np.log(r))).sum()
    assert float(stats.loss) == pytest.approx(float(stats.policy_loss) + penalty)


def test_a_missing_reference_and_one_too_many() -> None:
    with_kl, without = AlgorithmConfig.model_validate({"kl": {}}), AlgorithmConfig()
    inputs = random_inputs(with_kl)
    with pytest.raises(ConfigError, match="needs log-probabilities of the reference"):
        policy_loss(replace(inputs, reference_M=None), with_kl)
    with pytest.raises(ConfigError, match="is not set"):
        policy_loss(inputs, without)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=6), st.integers(7, 40))
def test_a_call_is_whole_in_its_pack(calls: list[tuple[int, int]], budget: int) -> None:
    """What sequence ratios rest on: over the packs of a real forest, units are the calls."""
    forest = merge([Call(np.arange(p), np.arange(c), np.zeros(c)) for p, c in calls])
    seen: list[int] = []
    for pack in forest.packs(budget):
        seen += sorted(set(forest.occurrences.call[pack.occ_index].tolist()))
    assert len(seen) == len(set(seen))
