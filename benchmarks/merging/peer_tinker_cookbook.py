# /// script
# requires-python = ">=3.11"
# dependencies = ["tinker-cookbook==0.5.8", "torch==2.13.0", "numpy"]
# [tool.uv]
# exclude-newer = "2026-11-28T00:00:00Z"
# ///
# pyright: reportMissingImports=false
"""tinker-cookbook: `trajectory_to_data` on one trajectory for each episode.

It yields linear rows: the last row grows while the next observation begins with it, else a new row is begun.
"""

from typing import Any

from cases import Captured
from serve import Merger, answers, by_episode, serve

channel = answers()

import tinker  # noqa: E402
from tinker_cookbook.completers import TokensWithLogprobs  # noqa: E402
from tinker_cookbook.rl.data_processing import trajectory_to_data  # noqa: E402
from tinker_cookbook.rl.types import Trajectory, Transition  # noqa: E402


def _transition(call: Captured) -> Any:
    action = TokensWithLogprobs(tokens=call.completion.tolist(), maybe_logprobs=call.logprobs.tolist())
    return Transition(tinker.ModelInput.from_ints(call.prompt.tolist()), action, reward=0.0, episode_done=False)


def prepare(calls: list[Captured]) -> Any:
    return [
        Trajectory([_transition(call) for call in episode], tinker.ModelInput.empty())
        for episode in by_episode(calls).values()
    ]


def merge(trajectories: Any) -> Any:
    return [datum for trajectory in trajectories for datum in trajectory_to_data(trajectory, 1.0)]


def count(data: Any) -> tuple[int, int]:
    # A datum's input lacks the row's last token, which is only a target.
    return len(data), sum(datum.model_input.length + 1 for datum in data)


serve({"tinker_cookbook": Merger(prepare, merge, count)}, channel)
