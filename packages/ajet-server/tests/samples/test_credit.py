"""Rewards on tokens, and advantages by a critic, against the definitions written out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.config import AlgorithmConfig
from ajet_core.config_algorithm import ValueConfig
from ajet_core.errors import RequestError
from ajet_server.samples.credit import CriticFigures, Steps, step_rewards, with_critic
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.worker.protocol import CallRow, EpisodeRow

PPO = AlgorithmConfig(name="ppo")


def call(name: str, episode: str, tokens: int, **given: Any) -> CallRow:
    ids = np.arange(tokens, dtype=np.int32).tobytes()
    logprobs = np.full(tokens, -1, np.float32).tobytes()
    return CallRow(name, episode, np.array([5], np.int32).tobytes(), ids, logprobs, 1.0, 0, **given)


def batch_of(
    episodes: list[tuple[float, list[int]]],
    call_rewards: list[float] | None = None,
    algorithm: AlgorithmConfig = PPO,
) -> Batch:
    """Episodes as (reward, tokens of each call)."""
    rewards = iter(call_rewards or [])
    rows = [
        EpisodeRow(
            f"e{e}",
            "g",
            reward,
            [call(f"{e}.{c}", f"e{e}", n, reward=next(rewards, None)) for c, n in enumerate(sizes)],
        )
        for e, (reward, sizes) in enumerate(episodes)
    ]
    return build_batch(rows, algorithm, 100)


def rewards_of(batch: Batch) -> list[float]:
    return step_rewards(batch, Steps.of(batch)).tolist()


@pytest.mark.parametrize(
    ("episodes", "call_rewards", "wanted"),
    [
        ([(2.0, [2, 3]), (-1.0, [1])], None, [0, 0, 0, 0, 2, -1]),
        ([(2.0, [2, 3]), (-1.0, [1])], [0.5, 0.25, 4.0], [0, 0.5, 0, 0, 2.25, 3]),
        ([(2.0, [2, 0]), (3.0, [1])], None, [0, 2, 3]),  # the last call trains nothing: the token before it earned it
        ([(2.0, [2, 0, 0, 1])], [1.0, 10.0, 100.0, 0.0], [0, 111, 2]),
        ([(7.0, [1]), (2.0, [0, 1])], [0.0, 5.0, 0.0], [7, 2]),  # earned before the first token: nobody's
        ([(7.0, [1]), (2.0, [0]), (1.0, []), (3.0, [2])], None, [7, 0, 3]),  # never another episode's
        ([(1.0, []), (2.0, [0])], None, []),
        ([(1.0, [])], None, []),
    ],
)
def test_where_rewards_stand(
    episodes: list[tuple[float, list[int]]], call_rewards: list[float] | None, wanted: list[float]
) -> None:
    assert rewards_of(batch_of(episodes, call_rewards)) == wanted


def test_overlong_completions_cost_the_critics_reward_too() -> None:
    algorithm = AlgorithmConfig.model_validate({"name": "ppo", "overlong": {"max_tokens": 4, "buffer": 4}})
    assert rewards_of(batch_of([(1.0, [1, 3])], algorithm=algorithm)) == [0, 0, 0, 0.25]


numbers = st.floats(-5, 5)
shares = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@st.composite
def _batches(draw: st.DrawFn) -> tuple[list[tuple[float, list[int]]], list[float] | None, int]:
    sizes = draw(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4))
    episodes = [(draw(numbers), row) for row in sizes]
    calls = sum(map(len, sizes))
    return episodes, draw(st.none() | st.lists(numbers, min_size=calls, max_size=calls)), draw(st.integers(0, 99))


@given(_batches(), shares, shares)
def test_is_the_sum_over_all_later_tokens_of_the_episode(
    drawn: tuple[list[tuple[float, list[int]]], list[float] | None, int], discount: float, trace: float
) -> None:
    """Brute force: each advantage by its definition, from one list of (call, position) for each episode."""
    episodes, call_rewards, seed = drawn
    batch = batch_of(episodes, call_rewards)
    rng = np.random.default_rng(seed)
    values, costs = rng.normal(size=(2, sum(sum(sizes) for _, sizes in episodes)))
    config = ValueConfig(discount=discount or 0.3, trace=trace)
    found, returns, _ = with_critic(batch, values, costs, config, whiten=False)
    wanted: list[float] = []
    start, at_call = 0, 0
    for reward, sizes in episodes:
        length = sum(sizes)
        earned = -costs[start : start + length]
        for c in range(len(sizes)):
            end = sum(sizes[: c + 1])
            own = (call_rewards[at_call + c] if call_rewards else 0.0) + (reward if c == len(sizes) - 1 else 0.0)
            if end > 0:
                earned[end - 1] += own
        value = [*values[start : start + length], 0.0]
        delta = [earned[t] + config.discount * value[t + 1] - value[t] for t in range(length)]
        wanted += [
            sum((config.discount * trace) ** (k - t) * delta[k] for k in range(t, length)) for t in range(length)
        ]
        start, at_call = start + length, at_call + len(sizes)
    advantages = np.concatenate([c.advantage for c in found.calls]) if found.calls else np.zeros(0)
    assert advantages == pytest.approx(wanted, abs=1e-5)
    assert returns == pytest.approx(np.array(wanted) + values, abs=1e-5)


def test_whitening_is_over_all_tokens_of_the_batch() -> None:
    batch = batch_of([(2.0, [2, 3]), (-1.0, [4])])
    values = np.random.default_rng(0).normal(size=9)
    plain, returns, figures = with_critic(batch, values, np.zeros(9), ValueConfig(), whiten=False)
    white, same, again = with_critic(batch, values, np.zeros(9), ValueConfig(), whiten=True)
    before, after = (np.concatenate([c.advantage for c in b.calls]).astype(np.float64) for b in (plain, white))
    assert after == pytest.approx((before - before.mean()) / before.std(), rel=1e-5)
    assert (after.mean(), after.std()) == pytest.approx((0, 1), abs=1e-6)
    assert white.advantages == pytest.approx([after[:5].mean(), after[5:].mean()], rel=1e-4)
    assert returns.tolist() == same.tolist()
    assert figures == again
    assert figures.return_mean == pytest.approx(returns.mean())
    assert figures.explained_variance == pytest.approx(1 - before.var() / returns.astype(np.float64).var(), rel=1e-4)


def test_without_any_difference_nothing_is_better_than_anything() -> None:
    batch = batch_of([(1.0, [1]), (1.0, [1]), (1.0, [0])])
    found, returns, figures = with_critic(batch, np.full(2, 0.25), np.zeros(2), ValueConfig(), whiten=True)
    assert [c.advantage.tolist() for c in found.calls] == [[0], [0], []]
    assert returns.tolist() == [1, 1]
    assert figures == CriticFigures(0.0, 1.0)


@pytest.mark.parametrize("episodes", [[(1.0, [])], [(1.0, [0])]])
def test_a_batch_without_a_trained_token_is_no_crash(episodes: list[tuple[float, list[int]]]) -> None:
    found, returns, figures = with_critic(batch_of(episodes), np.zeros(0), np.zeros(0), ValueConfig(), whiten=True)
    assert (found.advantages.tolist(), returns.size, figures) == ([0], 0, CriticFigures())


def test_a_reward_that_32_bits_cannot_hold_is_refused() -> None:
    batch = batch_of([(0.0, [1]), (1e39, [1])])
    with pytest.raises(RequestError, match=r"reward 1e\+39 of episode 1") as caught:
        with_critic(batch, np.zeros(2), np.zeros(2), ValueConfig(), whiten=True)
    assert caught.value.field == "reward"


def test_given_advantages_leave_the_critic_nothing_to_do() -> None:
    episodes = [EpisodeRow("e", "g", 0.0, [call("c", "e", 2, advantage=1.0)])]
    with pytest.raises(RequestError, match="advantages are given, so the critic") as caught:
        build_batch(episodes, PPO, 100)
    assert caught.value.field == "advantage"
