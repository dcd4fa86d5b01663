"""An agent on the official OpenAI SDK: one question, one reward. Run it against a running server."""

import argparse
import random
import re

from openai import OpenAI

from ajet_client import Episode, Swarm

openai = OpenAI(api_key="each episode brings its own")


def agent(episode: Episode) -> float:
    """Asks for a sum. Reward: 1 for the right number, 0.1 for any number."""
    task = episode.task
    if not isinstance(task, dict):
        raise TypeError(f"this agent wants tasks with a and b, got {task!r}")
    a, b = int(str(task["a"])), int(str(task["b"]))
    client = openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
    answer = client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": f"What is {a} + {b}?"}], max_tokens=16
    )
    numbers = re.findall(r"\d+", answer.choices[0].message.content or "")
    if not numbers:
        return 0.0
    return 1.0 if int(numbers[-1][:9]) == a + b else 0.1


def main() -> None:
    """Runs `--tasks` sums, `--group-size` rollouts each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the server, as http://127.0.0.1:8700")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--group-size", type=int, help="by default the job's")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    tasks = [{"a": rng.randint(1, 30), "b": rng.randint(1, 30)} for _ in range(arguments.tasks)]
    with Swarm(arguments.url) as swarm:
        print(swarm.run(agent, tasks, group_size=arguments.group_size, concurrency=32))


if __name__ == "__main__":
    main()
