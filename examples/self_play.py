"""Self-play in one episode: the model plays both sides of a game of Nim, and each side is paid for its own result.

Ten matches lie on the table; the sides take one, two or three in turn, and who takes the last one wins. Who makes no
legal move loses.
"""

import argparse
import re

from openai import OpenAI

from ajet_client import Episode, Role, Swarm

openai = OpenAI(api_key="each role brings its own")
MATCHES = 10


def ask(role: Role, matches: int) -> int:
    """Lets the model move in one role. Returns how many matches it takes; 0 if it said nothing of the kind."""
    text = f"You are {role.name} in a game of Nim. {matches} matches are left. How many do you take, 1, 2 or 3?"
    client = openai.with_options(base_url=role.base_url, api_key=role.api_key)
    message = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=role.model, messages=message, max_tokens=12)  # type: ignore[arg-type]
    found = re.search(r"[123]", answer.choices[0].message.content or "")
    return int(found.group()) if found else 0


def play(episode: Episode) -> dict[str, float]:
    """Plays one game. Both sides move in the same episode, and each gets a reward of its own."""
    sides, left, moved = ("first", "second"), MATCHES, 0
    while True:
        taken = ask(episode.role(sides[moved % 2]), left)
        moved += 1
        if not 0 < taken <= left:
            loser = sides[(moved - 1) % 2]
            break
        left -= taken
        if left == 0:
            loser = sides[moved % 2]
            break
    played = sides[: min(moved, 2)]  # a game that ends with its first move has one side
    return {side: -1.0 if side == loser else 1.0 for side in played}


def main() -> None:
    """Runs `--games` games, as many each as the server compares with each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the server, as http://127.0.0.1:8700")
    parser.add_argument("--games", type=int, default=16)
    arguments = parser.parse_args()
    with Swarm(arguments.url) as swarm:
        print(swarm.run(play, [{"game": number} for number in range(arguments.games)], concurrency=32))


if __name__ == "__main__":
    main()
