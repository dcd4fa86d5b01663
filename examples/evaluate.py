"""Compares weight versions on the sums of `arithmetic.py` by pass@k, also while other clients train."""

import argparse
import random

from ajet_client import Swarm
from arithmetic import agent


def main() -> None:
    """Runs the same sums against each version: `evaluate.py URL --weights 0 --weights 12`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the server, as http://127.0.0.1:8700")
    parser.add_argument("--weights", type=int, action="append", help="a version; by default the current one")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=8, help="of each task")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    tasks = [{"a": rng.randint(1, 30), "b": rng.randint(1, 30)} for _ in range(arguments.tasks)]
    with Swarm(arguments.url) as swarm:
        for weights in arguments.weights or [None]:
            report = swarm.run(agent, tasks, kind="eval", weights=weights, group_size=arguments.episodes)
            print(f"weights {'current' if weights is None else weights}: {report}")
            print("   ".join(map(str, report.passes())))


if __name__ == "__main__":
    main()
