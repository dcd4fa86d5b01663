"""slime's samples: slime's own mean over rollouts and tokens comes to the sum over the calls."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from adapter_cases import agent_calls, agent_forest, dual_clip_ppo, inexact_forest, logprob, plain_loss
from hypothesis import assume, given
from merge_strategies import calls

from ajet_merge import Call, CallError, Forest, MergeError, episode_mean, merge
from ajet_merge.adapters.slime import to_sample_dicts, to_samples

# The fields of slime.utils.types.Sample in THUDM/slime at 624b824 (2026-08-21) that hold what is trained on.
SAMPLE_FIELDS = {
    "group_index",
    "index",
    "rollout_id",
    "prompt",
    "tokens",
    "response",
    "response_length",
    "label",
    "reward",
    "loss_mask",
    "rollout_log_probs",
    "remove_sample",
    "status",
    "metadata",
    "train_metadata",
}


def weighed_by_episode() -> Forest:
    made = agent_calls()
    return merge([replace(call, weight=weight) for call, weight in zip(made, episode_mean(made), strict=True)])


def slime_loss(samples: list[dict]) -> float:
    """As its trainer reduces: by the trained tokens of the whole rollout, then by the rollouts of the step."""
    mask_sums: dict[int, int] = {}
    for sample in samples:
        mask_sums[sample["rollout_id"]] = mask_sums.get(sample["rollout_id"], 0) + sum(sample["loss_mask"])
    total = 0.0
    for sample in samples:
        tokens, mask = sample["tokens"], np.array(sample["loss_mask"])
        start = len(tokens) - sample["response_length"]
        new = np.array([logprob(tokens[: position + 1]) for position in range(start, len(tokens))])
        advantages = np.full(mask.size, sample["reward"])
        terms = dual_clip_ppo(new, np.array(sample["rollout_log_probs"]), advantages)
        total += float((terms * mask).sum()) / mask_sums[sample["rollout_id"]]
    return total / len(mask_sums)


@pytest.mark.parametrize("make", [agent_forest, weighed_by_episode])
def test_the_loss_of_the_samples_is_the_sum_over_the_calls(make: Callable[[], Forest]) -> None:
    forest = make()
    assert slime_loss(to_sample_dicts(forest)) == pytest.approx(plain_loss(forest, dual_clip_ppo), rel=1e-6)


@given(calls())
def test_the_same_for_any_calls(made: list[Call]) -> None:
    forest = merge(made)
    assume(len(forest.occurrences) > 0)
    assert slime_loss(to_sample_dicts(forest)) == pytest.approx(plain_loss(forest, dual_clip_ppo), rel=1e-5, abs=1e-6)


def test_with_episode_means_the_reward_is_the_advantage() -> None:
    rewards = {sample["metadata"]["episode_id"]: [] for sample in to_sample_dicts(weighed_by_episode())}
    for sample in to_sample_dicts(weighed_by_episode()):
        rewards[sample["metadata"]["episode_id"]].append(sample["reward"])
    assert rewards == {
        "a": pytest.approx([1.5, -2.0]),
        "b": pytest.approx([-0.5] * len(rewards["b"])),
        "c": pytest.approx([0.75]),
    }


def test_a_sample_trains_one_episode_with_one_value_and_ends_with_its_last_trained_token() -> None:
    by_tokens = {tuple(sample["tokens"]): sample for sample in to_sample_dicts(weighed_by_episode())}
    sample = by_tokens[1, 2, 3, 4, 5, 61, 62, 7, 8]
    assert sample["response_length"] == 6
    assert sample["loss_mask"] == [1, 1, 0, 0, 1, 1]
    assert by_tokens[1, 2, 3, 4, 5, 61, 62, 7, 8, 63, 9]["loss_mask"] == [1]


def test_samples_are_plain_values_under_slime_s_names() -> None:
    samples = to_sample_dicts(agent_forest())
    assert json.loads(json.dumps(samples)) == samples
    for sample in samples:
        assert sample.keys() <= SAMPLE_FIELDS
        assert len(sample["loss_mask"]) == len(sample["rollout_log_probs"]) == sample["response_length"]
    assert [sample["index"] for sample in samples] == list(range(len(samples)))
    assert {sample["rollout_id"] for sample in samples} == {0, 1, 2}
    assert {sample["group_index"] for sample in samples} == {0}


def test_slime_s_own_class_takes_them() -> None:
    types = pytest.importorskip("slime.utils.types", reason="slime is not installed")
    assert set(types.Sample.__dataclass_fields__) >= SAMPLE_FIELDS
    for sample, fields in zip(to_samples(agent_forest()), to_sample_dicts(agent_forest()), strict=True):
        assert sample.status is types.Sample.Status.COMPLETED
        assert {name: getattr(sample, name) for name in fields.keys() - {"status"}} == {
            name: value for name, value in fields.items() if name != "status"
        }
        assert sample.effective_response_length == sum(fields["loss_mask"])


def test_an_inexact_context_is_refused_unless_its_logprobs_are_recomputed() -> None:
    with pytest.raises(MergeError, match=r"'call-1'.*context_exact is False.*recompute_logprobs=True"):
        to_sample_dicts(inexact_forest())
    samples = to_sample_dicts(inexact_forest(), recompute_logprobs=True)
    assert {sample["rollout_log_probs"] for sample in samples} == {None}


def test_a_call_without_episode_is_refused() -> None:
    with pytest.raises(CallError, match="call 'x': episode_id is empty"):
        to_sample_dicts(merge([Call([1], [2], [-1.0], call_id="x")]))


def test_a_row_too_long_is_refused() -> None:
    with pytest.raises(MergeError, match="11 tokens do not fit max_length=10"):
        to_sample_dicts(agent_forest(), max_length=10)
