import msgspec
import numpy as np
import pytest

from ajet_core.config import AlgorithmConfig
from ajet_core.errors import RequestError
from ajet_server.samples.merge import advantages_with_kl, build_batch
from ajet_server.worker.protocol import CallRow, EpisodeRow

VOCAB = 100


def row(name: str = "c", episode: str = "e", completion: int = 3, **changes: object) -> CallRow:
    fields = {
        "call_id": name,
        "episode_id": episode,
        "prompt_ids": np.array([5, 6], np.int32).tobytes(),
        "completion_ids": np.arange(completion, dtype=np.int32).tobytes(),
        "logprobs": np.full(completion, -1, np.float32).tobytes(),
        "temperature": 1.0,
        "weight_version": 0,
    }
    return CallRow(**(fields | changes))  # pyright: ignore[reportArgumentType]


def test_weights_and_advantages_reach_every_token() -> None:
    episodes = [
        EpisodeRow("e1", "g", 1.0, [row("c1", "e1", 3), row("c2", "e1", 1, temperature=0.5)]),
        EpisodeRow("e2", "g", 0.0, [row("c3", "e2", 2)]),
        EpisodeRow("e3", "g", 0.0, []),
    ]
    batch = build_batch(episodes, AlgorithmConfig(advantage_scale="none"), VOCAB)
    assert [call.call_id for call in batch.calls] == ["c1", "c2", "c3"]
    assert batch.temperatures.tolist() == [1.0, 0.5, 1.0]
    assert [call.advantage[0] for call in batch.calls] == pytest.approx([2 / 3, 2 / 3, -1 / 3])
    assert [call.weight.tolist() for call in batch.calls] == [pytest.approx([1 / 8] * 3), [1 / 8], [1 / 4] * 2]
    by_token = build_batch(episodes, AlgorithmConfig(loss_weight="token_mean"), VOCAB)
    assert np.concatenate([call.weight for call in by_token.calls]) == pytest.approx(1 / 6)
    assert batch.groups == 1


def test_a_nearly_too_long_completion_costs_reward() -> None:
    algorithm = AlgorithmConfig.model_validate({"advantage_scale": "none", "overlong": {"max_tokens": 4, "buffer": 4}})
    episodes = [
        EpisodeRow("e1", "g", 1.0, [row("c1", "e1", 1), row("c2", "e1", 3)]),
        EpisodeRow("e2", "g", 1.0, [row("c3", "e2", 0)]),
        EpisodeRow("e3", "g", 1.0, []),
    ]
    batch = build_batch(episodes, algorithm, VOCAB)
    assert batch.rewards.tolist() == [1, 1, 1]
    assert batch.shaped_rewards.tolist() == [0.25, 1, 1]
    assert batch.advantages == pytest.approx([-0.5, 0.25, 0.25])


def test_the_distance_from_the_reference_is_taken_off_the_reward() -> None:
    parts = {"advantage_scale": "none", "kl": {"coef": 0.5, "estimator": "k1", "place": "reward"}}
    algorithm = AlgorithmConfig.model_validate(parts)
    episodes = [
        EpisodeRow("e1", "g", 1.0, [row("c1", "e1"), row("c2", "e1")]),
        EpisodeRow("e2", "g", 0.0, []),
        EpisodeRow("e3", "g", 0.0, [row("c3", "e3")]),
    ]
    batch = build_batch(episodes, algorithm, VOCAB)
    assert batch.episode_N.tolist() == [0, 0, 2]
    found = advantages_with_kl(batch, np.array([0.1, 0.3, -1.0]), algorithm)
    wanted = np.array([0.8, 0.0, 0.5]) - 1.3 / 3
    assert found.advantages == pytest.approx(wanted)
    assert [call.advantage[0] for call in found.calls] == pytest.approx([wanted[0], wanted[0], wanted[2]])
    assert [call.weight.tolist() for call in found.calls] == [call.weight.tolist() for call in batch.calls]
    assert found.rewards is batch.rewards
    in_loss = AlgorithmConfig.model_validate({"kl": {}})
    assert advantages_with_kl(batch, np.zeros(3), in_loss) is batch


def test_calls_with_rewards_of_their_own_are_credited_with_what_came_after() -> None:
    episodes = [
        EpisodeRow("e1", "g", 1.0, [row("c1", "e1", reward=0.5), row("c2", "e1", reward=0.0)]),
        EpisodeRow("e2", "g", 0.0, [row("c3", "e2", reward=-0.3)]),
    ]
    batch = build_batch(episodes, AlgorithmConfig(advantage_scale="none"), VOCAB)
    single = np.array([0.5, 1.0, -0.3]) - 0.4
    wanted = [single[0] + single[1], single[1], single[2]]
    assert [call.advantage[0] for call in batch.calls] == pytest.approx(wanted)
    assert batch.advantages == pytest.approx([np.mean(wanted[:2]), wanted[2]])
    parts = {"advantage_scale": "none", "kl": {"coef": 1.0, "place": "reward"}}
    later = advantages_with_kl(batch, np.array([0.0, 0.3, 0.0]), AlgorithmConfig.model_validate(parts))
    single = np.array([0.5, 0.7, -0.3]) - 0.3
    wanted = [single[0] + single[1], single[1], single[2]]
    assert [call.advantage[0] for call in later.calls] == pytest.approx(wanted)


def test_given_advantages_are_taken_as_they_are() -> None:
    episodes = [EpisodeRow("e", "g", 9.0, [row("c1", advantage=0.25), row("c2", advantage=-1.0)])]
    batch = build_batch(episodes, AlgorithmConfig(), VOCAB)
    assert [call.advantage[0] for call in batch.calls] == [0.25, -1.0]
    assert batch.advantages == pytest.approx([-0.375])


@pytest.mark.parametrize(
    ("first", "second", "parts", "words"),
    [
        ({"reward": 1.0}, {}, {}, "'c2'.*reward is missing"),
        ({}, {"advantage": 1.0}, {}, "'c1'.*advantage is missing"),
        ({"reward": 1.0}, {"reward": float("inf")}, {}, "'c2'.*reward inf is not finite"),
        ({"advantage": 1.0}, {"advantage": 1.0, "reward": 1.0}, {}, "reward"),
        ({"advantage": 1.0}, {"advantage": 1.0}, {"kl": {"place": "reward"}}, "no effect"),
        ({"advantage": 1.0}, {"advantage": 1.0}, {"overlong": {"max_tokens": 9, "buffer": 1}}, "no effect"),
    ],
)
def test_what_single_calls_cannot_say(
    first: dict[str, object], second: dict[str, object], parts: dict[str, object], words: str
) -> None:
    episodes = [EpisodeRow("e", "g", 0.0, [row("c1", **first), row("c2", **second)])]  # pyright: ignore[reportArgumentType]
    with pytest.raises(RequestError, match=words):
        build_batch(episodes, AlgorithmConfig.model_validate(parts), VOCAB)


@pytest.mark.parametrize("loss_weight", ["episode_mean", "token_mean"])
def test_weights_do_not_depend_on_how_an_episode_is_cut_into_calls(loss_weight: str) -> None:
    algorithm = AlgorithmConfig.model_validate({"loss_weight": loss_weight})
    whole = [EpisodeRow("e1", "g", 1.0, [row("a", "e1", 4)]), EpisodeRow("e2", "g", 0.0, [row("b", "e2", 2)])]
    cut = [EpisodeRow("e1", "g", 1.0, [row("a", "e1", 1), row("a2", "e1", 3)]), whole[1]]
    weights = [np.concatenate([c.weight for c in build_batch(e, algorithm, VOCAB).calls]) for e in (whole, cut)]
    assert weights[0].tolist() == weights[1].tolist()


nan = np.array([-1, np.nan, -1], np.float32).tobytes()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"logprobs": nan}, "logprobs"),
        ({"logprobs": np.array([-1, 0.5, -1], np.float32).tobytes()}, "logprobs"),
        ({"logprobs": np.full(2, -1, np.float32).tobytes()}, "logprobs"),
        ({"logprobs": b""}, "logprobs"),
        ({"logprobs": b"abc"}, "logprobs"),
        ({"completion_ids": np.array([1, -1, 2], np.int32).tobytes()}, "completion_ids"),
        ({"completion_ids": np.array([1, VOCAB, 2], np.int32).tobytes()}, "completion_ids"),
        ({"prompt_ids": b""}, "prompt_ids"),
        ({"prompt_ids": b"12345"}, "prompt_ids"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"episode_id": "other"}, "episode_id"),
    ],
)
def test_a_bad_call_is_named(changes: dict[str, object], field: str) -> None:
    bad = msgspec.structs.replace(row("bad-call"), **changes)
    episodes = [EpisodeRow("e", "g", 1.0, [row("good"), bad])]
    with pytest.raises(RequestError, match="bad-call") as caught:
        build_batch(episodes, AlgorithmConfig(), VOCAB)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        ([], "no episode"),
        ([EpisodeRow("e", "g", float("nan"), [])], "'e'.*nan"),
        ([EpisodeRow("e", "g", 0.0, []), EpisodeRow("e", "g", 0.0, [])], "'e'.*more than once"),
        ([EpisodeRow("e", "g", 0.0, [row(), row()])], "'c'.*more than once"),
    ],
)
def test_a_bad_batch_is_named(episodes: list[EpisodeRow], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        build_batch(episodes, AlgorithmConfig(), VOCAB)
