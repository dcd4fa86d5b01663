"""The agent of `arithmetic.py` on asyncio: one connection pool, as many episodes at once as you like."""

import argparse
import asyncio
import random

from openai import AsyncOpenAI

from ajet_client import AsyncEpisode, AsyncSwarm

openai = AsyncOpenAI(api_key="each episode brings its own")


async def agent(episode: AsyncEpisode) -> float:
    """Asks for a sum. Reward: 1 if the answer holds the right number."""
    task = episode.task
    if not isinstance(task, dict):
        raise TypeError(f"this agent wants tasks with a and b, got {task!r}")
    a, b = int(str(task["a"])), int(str(task["b"]))
    client = openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
    answer = await client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": f"What is {a} + {b}?"}], max_tokens=16
    )
    return 1.0 if str(a + b) in (answer.choices[0].message.content or "") else 0.0


async def main() -> None:
    """Runs `--tasks` sums, `--group-size` rollouts each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the server, as http://127.0.0.1:8700")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--group-size", type=int, help="by default the job's")
    arguments = parser.parse_args()
    rng = random.Random(0)
    tasks = [{"a": rng.randint(1, 30), "b": rng.randint(1, 30)} for _ in range(arguments.tasks)]
    async with AsyncSwarm(arguments.url) as swarm:
        print(await swarm.run(agent, tasks, group_size=arguments.group_size, concurrency=32))


if __name__ == "__main__":
    asyncio.run(main())
