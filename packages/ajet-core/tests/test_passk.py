from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.passk import PassAt, mean_pass_at, pass_at_k, powers_of_two


@given(st.data())
def test_it_is_the_share_of_choices_with_a_success(data: st.DataObject) -> None:
    attempts = data.draw(st.integers(1, 9))
    successes, k = data.draw(st.integers(0, attempts)), data.draw(st.integers(1, attempts))
    choices = list(combinations([True] * successes + [False] * (attempts - successes), k))
    assert pass_at_k(attempts, successes, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@given(st.integers(1, 100_000), st.data())
def test_it_is_a_probability_for_any_size(attempts: int, data: st.DataObject) -> None:
    successes, k = data.draw(st.integers(0, min(attempts, 500))), data.draw(st.integers(1, attempts))
    value = pass_at_k(attempts, successes, k)
    assert 0.0 <= value <= 1.0
    assert pass_at_k(attempts, successes, 1) == pytest.approx(successes / attempts)
    assert (value == 0) == (successes == 0)


@pytest.mark.parametrize("wrong", [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_what_cannot_be(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        pass_at_k(*wrong)


def test_tasks_with_too_few_attempts_are_left_out_and_told() -> None:
    counts = [(4, 1), (4, 4), (1, 0), (0, 0)]
    assert mean_pass_at(counts, 2) == PassAt(2, (0.5 + 1) / 2, 2, 2)
    assert str(mean_pass_at(counts, 2)) == "pass@2 0.75 (2 tasks, 2 left out)"
    assert str(mean_pass_at(counts[:1], 8)) == "pass@8 - (0 tasks, 1 left out)"
    assert str(mean_pass_at(counts[:1], 1)) == "pass@1 0.25 (1 task)"
    with pytest.raises(ValueError, match="at least 1"):
        mean_pass_at([], 0)


def test_powers() -> None:
    assert [powers_of_two(most) for most in (0, 1, 3, 8)] == [[], [1], [1, 2], [1, 2, 4, 8]]
