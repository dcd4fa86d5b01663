"""A planner and an executor, each a model of its own: both are trained, on the same runs. Needs two running servers.

The same URL twice trains one model in both roles.
"""

import argparse
import random
import re

from openai import OpenAI

from ajet_client import Episode, Swarm, Team, together

openai = OpenAI(api_key="each episode brings its own")


def say(episode: Episode, text: str) -> str:
    """Asks the model of one episode."""
    client = openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
    message = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=episode.model, messages=message, max_tokens=24)  # type: ignore[arg-type]
    return answer.choices[0].message.content or ""


def agent(team: Team) -> tuple[float, float]:
    """Plans a sum, then does it. The executor is paid for the result; the planner for that too, and for being short."""
    planner, executor = team
    question = f"What is {planner.task}?"
    plan = say(planner, f"Say in few words how to solve this: {question}")
    numbers = re.findall(r"\d+", say(executor, f"{question} Hint: {plan}"))
    wanted = sum(int(number) for number in re.findall(r"\d+", str(planner.task)))
    right = bool(numbers) and numbers[-1][:9] == str(wanted)
    done = 1.0 if right else 0.1 if numbers else 0.0
    return done - 0.01 * min(len(plan.split()), 20), done


def main() -> None:
    """Runs `--tasks` sums, as many teams each as the servers compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("planner", help="its server, as http://127.0.0.1:8700")
    parser.add_argument("executor", help="its server, as http://127.0.0.1:8701")
    parser.add_argument("--tasks", type=int, default=64)
    arguments = parser.parse_args()
    rng = random.Random(0)
    tasks = [f"{rng.randint(1, 30)} + {rng.randint(1, 30)}" for _ in range(arguments.tasks)]
    with Swarm(arguments.planner) as planner, Swarm(arguments.executor) as executor:
        report = together(planner, executor).run(agent, tasks, concurrency=32)
    print(report)
    print("mean rewards of planner and executor:", report.metric_means)


if __name__ == "__main__":
    main()
