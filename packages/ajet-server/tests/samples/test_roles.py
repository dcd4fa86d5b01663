"""Roles of an episode are trained as if each were an episode of its own, in a group of its own."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ajet_core.config import AlgorithmConfig
from ajet_core.errors import RequestError
from ajet_server.samples.advantage import EQUAL_REWARDS
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.worker.protocol import CallRow, EpisodeRow

VOCAB = 100
ROLES = ("white", "black", "umpire")
ALGORITHMS = (
    {},
    {"baseline": "leave_one_out", "advantage_scale": "none", "loss_weight": "sequence_mean"},
    {"baseline": "batch_mean", "advantage_scale": "batch_std", "loss_weight": "token_mean"},
    {"loss_weight": "group_mean"},
    {"loss_weight": "fixed_length", "loss_length": 8},
    {"overlong": {"max_tokens": 4, "buffer": 4}},
)


def call(name: str, episode: str, completion: int, role: str | None) -> CallRow:
    ids = np.arange(completion, dtype=np.int32).tobytes()
    logprobs = np.full(completion, -1, np.float32).tobytes()
    return CallRow(name, episode, np.array([5, 6], np.int32).tobytes(), ids, logprobs, 1.0, 0, role=role)


@st.composite
def episodes_of(draw: st.DrawFn, roles: Sequence[str] = ROLES) -> list[EpisodeRow]:
    """Episodes whose calls come in any order of roles; not every episode has every role."""
    made: list[EpisodeRow] = []
    for number in range(draw(st.integers(1, 6))):
        turns = draw(st.lists(st.tuples(st.sampled_from(roles), st.integers(0, 5)), min_size=1, max_size=6))
        name = f"e{number}"
        calls = [call(f"{name}.{at}", name, size, role) for at, (role, size) in enumerate(turns)]
        rewards = {role: draw(st.sampled_from([-1.0, 0.0, 0.1, 1.0])) for role in {role for role, _ in turns}}
        made.append(EpisodeRow(name, draw(st.sampled_from("gh")), 9.0, calls, rewards))
    return made


def of_call(batch: Batch) -> dict[str, tuple[float, list[float]]]:
    """Advantage and loss weights by call."""
    return {
        call.call_id: (float(call.advantage[0]) if call.advantage.size else 0.0, call.weight.tolist())
        for call in batch.calls
    }


@given(episodes_of())
def test_a_role_is_compared_with_the_same_role_of_its_group(episodes: list[EpisodeRow]) -> None:
    """Against the formula of GRPO, written down once more."""
    rewards: dict[tuple[str, str], list[float]] = defaultdict(list)
    for episode in episodes:
        for role, reward in episode.rewards.items():
            rewards[episode.group_id, role].append(reward)
    batch = build_batch(episodes, AlgorithmConfig(), VOCAB)
    found = {call.call_id: call.advantage for call in batch.calls}
    for episode in episodes:
        for row in episode.calls:
            assert row.role is not None
            compared = np.array(rewards[episode.group_id, row.role])
            spread = compared.std() if np.ptp(compared) > EQUAL_REWARDS else np.inf  # rounding is no spread
            wanted = (episode.rewards[row.role] - compared.mean()) / spread
            assert found[row.call_id] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@given(episodes=episodes_of())
def test_it_is_as_if_each_role_were_an_episode(algorithm: dict[str, object], episodes: list[EpisodeRow]) -> None:
    apart = [
        EpisodeRow(
            f"{episode.episode_id}-{role}",
            f"{episode.group_id}-{role}",
            episode.rewards[role],
            [
                structs.replace(row, episode_id=f"{episode.episode_id}-{role}", role=None)
                for row in episode.calls
                if row.role == role
            ],
        )
        for episode in episodes
        for role in sorted(episode.rewards)
    ]
    config = AlgorithmConfig.model_validate(algorithm)
    assert of_call(build_batch(episodes, config, VOCAB)) == of_call(build_batch(apart, config, VOCAB))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@given(episodes=episodes_of(["white"]))
def test_one_role_is_none_to_the_bit(algorithm: dict[str, object], episodes: list[EpisodeRow]) -> None:
    plain = [
        EpisodeRow(
            episode.episode_id,
            episode.group_id,
            episode.rewards["white"],
            [structs.replace(row, role=None) for row in episode.calls],
        )
        for episode in episodes
    ]
    config = AlgorithmConfig.model_validate(algorithm)
    found, wanted = build_batch(episodes, config, VOCAB), build_batch(plain, config, VOCAB)
    for name in ("temperatures", "episode_N", "rewards", "shaped_rewards", "advantages"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name))
    assert (found.wholes, found.groups) == (wanted.wholes, wanted.groups)
    assert of_call(found) == of_call(wanted)


def test_calls_with_rewards_of_their_own_are_credited_within_their_role() -> None:
    rows = [
        structs.replace(call(f"c{at}", "e", 1, role), reward=reward)
        for at, (role, reward) in enumerate([("a", 1.0), ("b", 5.0), ("a", 0.0)])
    ]
    config = AlgorithmConfig(advantage_scale="none")
    batch = build_batch([EpisodeRow("e", "g", 0.0, rows, {"a": 2.0, "b": 0.0})], config, VOCAB)
    assert of_call(batch)["c0"][0] == pytest.approx(0.0)
    assert of_call(batch)["c1"][0] == 0.0
    assert of_call(batch)["c2"][0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("role", "rewards"), [("black", {"white": 1.0}), (None, {"white": 1.0}), ("white", {})], ids=str
)
def test_a_call_without_a_reward_is_refused(role: str | None, rewards: dict[str, float]) -> None:
    with pytest.raises(RequestError, match=f"'e', call 'c'.*role {role!r}") as caught:
        build_batch([EpisodeRow("e", "g", 1.0, [call("c", "e", 1, role)], rewards)], AlgorithmConfig(), VOCAB)
    assert caught.value.field == "role"


def test_a_reward_of_a_role_is_finite() -> None:
    bad = EpisodeRow("e", "g", 1.0, [call("c", "e", 1, "white")], {"white": float("nan")})
    with pytest.raises(RequestError, match=r"'e': reward nan is not finite"):
        build_batch([bad], AlgorithmConfig(), VOCAB)
