"""Advantages of single tokens by a value model."""

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]


def gae(rewards_T: Float64s, values_T: Float64s, discount: float, trace: float) -> tuple[Float64s, Float64s]:
    """Generalized advantage estimation over the trained tokens of one episode, in order, across its calls.

    Schulman et al. 2016 (arXiv 1506.02438, eq. 16): `A_t = sum_k (discount * trace)^k delta_{t+k}` with
    `delta_t = r_t + discount * V_{t+1} - V_t`, and V = 0 after the last token, where the episode ends.

    Args:
        rewards_T: what each token earned; an episode's reward stands at its last.
        values_T: the value model's estimate before each token.
        discount: gamma.
        trace: lambda.

    Returns:
        (advantages_T, returns_T): the returns, `A_t + V_t`, are what the value model should learn.
    """
    delta_T = rewards_T - values_T
    delta_T[:-1] += discount * values_T[1:]
    advantages_T = np.zeros_like(delta_T)
    running = 0.0
    for t in range(delta_T.size - 1, -1, -1):
        running = float(delta_T[t]) + discount * trace * running
        advantages_T[t] = running
    return advantages_T, advantages_T + values_T
