"""The quickstart's client: a process of its own that knows a URL and an agent, and nothing of the model.

    python -m ajet_cli.quickstart.client --url http://… --agent calculator --updates 6

It prints one JSON line for each round: the mean reward under the weights of that round, and two transcripts. A round
is one batch; the server updates once it is complete, and the next round waits for the new weights by itself.
"""

import argparse
import hashlib
import json
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from openai import OpenAI

from ajet_cli.quickstart.agents import AGENTS, GROUP_SIZE, GROUPS, Rollout
from ajet_client import Episode, EpisodeRecord, RunReport, Swarm
from ajet_core.errors import EngineFailedError, UnavailableError
from ajet_core.events import EngineState

TARGET = 0.9
"""Mean reward that counts as learned; two rounds in a row at it end the run early."""
_HELD_ROUNDS = 2
_SHOWN = 2
_SERVE_TIMEOUT_S = 600.0
_EVAL_ROUND = 1_000_003
_POLL_S = 0.2


class Rounds:
    """Runs rounds of episodes of one agent against one server."""

    def __init__(self, swarm: Swarm, openai: OpenAI, agent: str, seed: int) -> None:
        self._swarm = swarm
        self._openai = openai
        self._agent, self._make_tasks = AGENTS[agent]
        self._seed = seed
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._rollouts: list[Rollout] = []

    def run(self, number: int, kind: str) -> dict[str, Any]:
        """Runs one round and returns its line."""
        self._taken, self._rollouts = {}, []
        tasks = self._make_tasks(GROUPS, f"{self._seed}/{number}")
        report = self._swarm.run(
            self._play,
            [{**task, "round": number} for task in tasks],
            group_size=GROUP_SIZE,
            concurrency=GROUPS * GROUP_SIZE,
            kind=kind,
            progress=False,
            on_result=_require_reward,
        )
        return self._line(number, kind, report)

    def _play(self, episode: Episode) -> float:
        task = episode.task
        if not isinstance(task, dict):
            raise TypeError(f"the task must be an object, got {task!r}")
        # One connection pool for all episodes: a client of its own each would load the certificates each time (30 ms).
        client = self._openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
        rollout = self._agent(client, episode.model, task, self._sampling_seed(episode.group_id, task))
        with self._lock:
            self._rollouts.append(rollout)
        return rollout.reward

    def _sampling_seed(self, group_id: str, task: dict[str, Any]) -> int:
        """Returns a seed that differs between rollouts and is the same in every run with the same `--seed`."""
        with self._lock:
            member = self._taken[group_id] = self._taken.get(group_id, -1) + 1
        text = json.dumps([self._seed, task, member], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    def _line(self, number: int, kind: str, report: RunReport) -> dict[str, Any]:
        return {
            "type": "round",
            "round": number,
            "kind": kind,
            "reward": report.reward_mean,
            "episodes": report.finished,
            "transcripts": [asdict(rollout) for rollout in _typical(self._rollouts)],
        }


def _require_reward(record: EpisodeRecord) -> None:
    if record.reward is None:
        raise EngineFailedError(f"episode {record.episode_id} failed {record.attempts} times: {record.error}")


def _typical(rollouts: list[Rollout]) -> list[Rollout]:
    """Returns the rollouts at one and two thirds of the rewards: neither the luckiest nor the worst."""
    ranked = sorted(rollouts, key=lambda rollout: rollout.reward)
    return [ranked[len(ranked) * (index + 1) // (_SHOWN + 1)] for index in range(_SHOWN)] if ranked else []


def _learned(rewards: list[float], target: float) -> bool:
    return len(rewards) > _HELD_ROUNDS - 1 and all(reward >= target for reward in rewards[-_HELD_ROUNDS:])


def _wait_for_weights(swarm: Swarm, step: int, timeout_s: float) -> None:
    """Returns once weights of `step` are served. Raises `UnavailableError`, with the state, after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        status = swarm.status()
        if status.state is EngineState.FAILED:
            raise EngineFailedError(f"the engine failed: {status.cause}")
        if status.weight_version >= step and status.state is EngineState.ROLLING:
            return
        if time.monotonic() > deadline:
            raise UnavailableError(f"step {step} was not served in {timeout_s:g} s; {status.state}: {status.cause}")
        time.sleep(_POLL_S)


def main() -> None:
    """Entry point; see the module."""
    parser = argparse.ArgumentParser(prog="quickstart-client")
    parser.add_argument("--url", required=True)
    parser.add_argument("--agent", choices=sorted(AGENTS), required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--target", type=float, default=TARGET)
    arguments = parser.parse_args()
    with Swarm(arguments.url) as swarm, OpenAI(api_key="each episode has its own", max_retries=3) as openai:
        swarm.wait_until_serving(_SERVE_TIMEOUT_S)
        rounds, rewards = Rounds(swarm, openai, arguments.agent, arguments.seed), list[float]()
        for number in range(arguments.updates):
            line = rounds.run(number, "train")
            rewards.append(line["reward"])
            _print(line)
            if _learned(rewards, arguments.target):
                break
        _wait_for_weights(swarm, len(rewards), _SERVE_TIMEOUT_S)
        _print(rounds.run(_EVAL_ROUND, "eval"))


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
