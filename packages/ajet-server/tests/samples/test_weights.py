from typing import Any

import numpy as np
import pytest

from ajet_core.config import AlgorithmConfig
from ajet_merge import Call
from ajet_server.samples.weights import with_loss_weights


def call(name: str, completion: int, episode: str, group: str) -> Call:
    return Call([1], [2] * completion, [0.0] * completion, call_id=name, episode_id=episode, group_id=group)


CALLS = [call("a", 3, "1", "g"), call("b", 1, "1", "g"), call("c", 2, "2", "g"), call("d", 2, "3", "h")]
CALLS.append(call("empty", 0, "4", "i"))


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({}, [1 / 12, 1 / 12, 1 / 6, 1 / 6]),
        ({"loss_weight": "sequence_mean"}, [1 / 12, 1 / 4, 1 / 8, 1 / 8]),
        ({"loss_weight": "group_mean"}, [1 / 12, 1 / 12, 1 / 12, 1 / 4]),
        ({"loss_weight": "token_mean"}, [1 / 8] * 4),
        ({"name": "dr_grpo", "loss_length": 10}, [1 / 30] * 4),
        ({"name": "rloo"}, [1 / 3] * 4),
    ],
)
def test_one_number_for_each_token_of_a_call(parts: dict[str, Any], wanted: list[float]) -> None:
    found = with_loss_weights(CALLS, AlgorithmConfig(**parts))
    assert [call.call_id for call in found] == ["a", "b", "c", "d", "empty"]
    for weighted, weight in zip(found, wanted, strict=False):
        assert weighted.weight == pytest.approx([weight] * len(weighted.completion_ids))
    assert found[-1].weight.size == 0


@pytest.mark.parametrize("loss_weight", ["episode_mean", "group_mean", "token_mean", "fixed_length"])
def test_how_an_episode_is_cut_into_calls_does_not_matter(loss_weight: str) -> None:
    algorithm = AlgorithmConfig.model_validate({"loss_weight": loss_weight})
    cut = [call("a1", 1, "1", "g"), call("a2", 2, "1", "g"), *CALLS[1:]]
    found = [np.concatenate([c.weight for c in with_loss_weights(calls, algorithm)]) for calls in (CALLS, cut)]
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("loss_weight", ["fixed_length", "episode_mean"])
def test_masked_tokens_weigh_nothing(loss_weight: str) -> None:
    masked = Call([1], [2] * 3, [0.0] * 3, mask=[1, 0, 1], call_id="m", episode_id="1")
    (found,) = with_loss_weights([masked], AlgorithmConfig.model_validate({"loss_weight": loss_weight}))
    assert [weight > 0 for weight in found.weight.tolist()] == [True, False, True]
