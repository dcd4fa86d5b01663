"""Draws follow the distribution they are asked for."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from ajet_core.errors import EngineFailedError
from ajet_server.engines import sampler
from ajet_server.engines.constraint import Constraint
from ajet_server.engines.sampler import Draw, sample
from ajet_server.worker.protocol import Sampling


@dataclass
class Row:
    """A row of logits."""

    sampling: Sampling
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    request_id: str = "row"
    constraint: Constraint | None = None


def draws(logits: torch.Tensor, count: int = 1, **settings: object) -> list[Draw]:
    """Draws `count` times from one row of logits f[V]."""
    row = Row(Sampling(max_tokens=1, **settings))
    return [draw for _ in range(count) for draw in sample(logits[None].clone(), [row])]


def many(logits: torch.Tensor, rows: int, **settings: object) -> np.ndarray:
    """Draws once for each of many rows; returns how often each id came up, i64[V]."""
    row = Row(Sampling(max_tokens=1, **settings))
    tokens = [draw.token for draw in sample(logits.expand(rows, -1).clone(), [row] * rows)]
    return np.bincount(tokens, minlength=len(logits))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("size", [7, 256, 1000])
def test_ids_come_up_as_often_as_they_should(size: int, temperature: float) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 2
    expected = (logits / temperature).softmax(-1).double().numpy() * 20_000
    counts = many(logits, 20_000, temperature=temperature)
    # The standard deviation of a count is below the root of its mean.
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 5).all()


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {3, 1}),
        ({"top_k": 100}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.4}, {3}),
        ({"top_p": 0.6}, {3, 1}),
        ({"top_p": 0.75}, {3, 1, 4}),
        ({"top_k": 2, "top_p": 0.6}, {3}),
        ({"top_p": 1e-9}, {3}),
    ],
)
@pytest.mark.parametrize("candidates", [2, 512])
def test_only_what_truncation_leaves_is_drawn(
    settings: dict[str, float], allowed: set[int], candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_CANDIDATES", candidates)
    logits = torch.tensor([0.1, 0.25, 0.05, 0.44, 0.16]).log()
    assert set(np.flatnonzero(many(logits, 2000, **settings))) == allowed


def test_truncation_keeps_the_proportions_and_the_full_logprob() -> None:
    logits = torch.tensor([0.1, 0.25, 0.05, 0.44, 0.16]).log()
    counts = many(logits, 20_000, top_k=2)
    assert abs(counts[3] / 20_000 - 0.44 / 0.69) < 0.02
    assert {round(np.exp(draw.logprob), 4) for draw in draws(logits, 50, top_k=2)} == {0.25, 0.44}


def test_rows_are_sampled_each_in_its_own_way() -> None:
    logits = torch.randn(4, 600, generator=torch.Generator().manual_seed(1))
    ways = [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 0.3, "top_logprobs": 2}, {"top_p": 0.5}]
    rows = [Row(Sampling(max_tokens=1, **way), np.random.default_rng(at)) for at, way in enumerate(ways)]
    together = sample(logits.clone(), rows)
    for at, way in enumerate(ways):
        row = Row(Sampling(max_tokens=1, **way), np.random.default_rng(at))
        assert sample(logits[at : at + 1].clone(), [row]) == [together[at]]
    assert together[0].token == together[0].token == int(logits[0].argmax())
    assert together[1].token == int(logits[1].argmax())
    assert [len(draw.top) for draw in together] == [0, 0, 2, 0]


def test_a_token_of_no_weight_is_never_drawn() -> None:
    logits = torch.full((600,), -torch.inf)
    logits[[5, 300]] = torch.tensor([0.0, -16.0])

    class Extreme:
        def __init__(self) -> None:
            self.values = iter([0.0, 1 - 2**-53, 1 - 1e-12, 0.5])

        def random(self) -> float:
            return next(self.values)

    rows = [Row(Sampling(max_tokens=1), Extreme())] * 4
    assert {draw.token for draw in sample(logits.expand(4, -1).clone(), rows)} == {5, 300}


class Only(Constraint):
    """Allows some ids, whatever was sampled."""

    def __init__(self, size: int, *ids: int) -> None:
        self.allowed = np.isin(np.arange(size), ids)


def test_biases_are_added_before_everything() -> None:
    logits = torch.tensor([0.1, 0.25, 0.05, 0.44, 0.16]).log()
    biases = ((0, 2.0), (3, -1.0), (0, 0.5))
    shifted = logits + torch.tensor([2.5, 0, 0, -1, 0])
    for temperature in (1.0, 0.7):
        expected = (shifted / temperature).log_softmax(-1)
        found = draws(logits, 20, temperature=temperature, logit_bias=biases, top_logprobs=2, top_k=1)[0]
        assert (found.token, [token for token, _ in found.top]) == (0, [0, 1])
        np.testing.assert_allclose([value for _, value in found.top], expected[:2], atol=1e-6)
        counts = many(logits, 20_000, temperature=temperature, logit_bias=biases) / 20_000
        np.testing.assert_allclose(counts, expected.exp(), atol=0.02)
    greedy = draws(logits, temperature=0.0, logit_bias=biases)[0]
    np.testing.assert_allclose(greedy.logprob, shifted.log_softmax(-1)[0], atol=1e-6)


def test_a_mask_comes_after_the_biases_and_touches_its_rows_only() -> None:
    logits = torch.randn(4, 600, generator=torch.Generator().manual_seed(1))
    asked = Sampling(max_tokens=1, temperature=0.6, top_logprobs=3, logit_bias=((7, 30.0), (9, 1.5)))
    greedy = Sampling(max_tokens=1, temperature=0.0, top_logprobs=3)
    ways = [(asked, None), (asked, Only(600, 9, 500)), (greedy, Only(600, 3)), (greedy, None)]
    together = sample(logits.clone(), [Row(way, constraint=only) for way, only in ways])
    for at, (way, only) in enumerate(ways):
        assert sample(logits[at : at + 1].clone(), [Row(way, constraint=only)]) == [together[at]]
    expected = ((logits[1, [9, 500]] + torch.tensor([1.5, 0.0])) / 0.6).log_softmax(-1)
    found = dict(together[1].top)
    assert found.keys() == {9, 500}  # and no third
    np.testing.assert_allclose([found[9], found[500]], expected, atol=1e-6)
    assert together[1].logprob == found[together[1].token]
    assert together[2] == Draw(3, 0.0, [(3, 0.0)])
    assert (together[0].token, together[3].token) == (7, int(logits[3].argmax()))


@pytest.mark.parametrize("temperature", [1e-3, 1e6])
def test_extreme_temperatures_and_logits_stay_finite(temperature: float) -> None:
    logits = torch.tensor([-1e30, 0.0, 1e30])
    draw = draws(logits, temperature=temperature)[0]
    assert (draw.token, draw.logprob) == (2, 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_named(bad: float) -> None:
    logits = torch.zeros(2, 5)
    logits[1, 3] = bad
    rows = [Row(Sampling(max_tokens=1), request_id="good"), Row(Sampling(max_tokens=1), request_id="bad")]
    with pytest.raises(EngineFailedError, match="'bad' are not finite"):
        sample(logits, rows)
