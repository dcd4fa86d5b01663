"""Agents of the chaos run, a process of its own: each episode two calls by the official OpenAI SDK, then its reward.

Trouble is left to the SDKs: no line here handles a server that is gone. What the server acknowledged is written to the
journal, and is on the disk before the next episode begins.
"""

import argparse
import itertools
import json
import logging
import os
from pathlib import Path
from threading import Lock
from typing import Any

from openai import OpenAI

from ajet_client import Episode, EpisodeRecord, Swarm, Task

_AT_ONCE = 8
_MAX_TOKENS = 24
_TRIES = 60
_CALL_S = 60.0
_PATIENCE_S = 900.0


class Journal:
    """What was acknowledged, a line of JSON each; complete lines survive the end of this process."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, entry: dict[str, Any]) -> None:
        """Appends one line in one write and waits for the disk."""
        os.write(self._descriptor, json.dumps(entry).encode() + b"\n")
        os.fsync(self._descriptor)


class Agents:
    """Episodes that are rewarded for digits."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._sdk = OpenAI(api_key="each episode has its own", max_retries=_TRIES, timeout=_CALL_S)
        self._made: dict[str, list[dict[str, Any]]] = {}
        self._lock = Lock()

    def act(self, episode: Episode) -> float:
        """Two turns. Returns the share of digits in what was said."""
        sdk = self._sdk.with_options(base_url=episode.base_url, api_key=episode.api_key)
        messages: list[Any] = [{"role": "user", "content": "digits"}]
        said: list[str] = []
        calls: list[dict[str, Any]] = []
        for _ in range(2):
            raw = sdk.chat.completions.with_raw_response.create(
                model=episode.model, messages=messages, max_tokens=_MAX_TOKENS
            )
            answer = raw.parse()
            said.append(answer.choices[0].message.content or "")
            calls.append({"id": answer.id, "text": said[-1], "retries": raw.retries_taken})
            messages += [{"role": "assistant", "content": said[-1]}, {"role": "user", "content": "more"}]
        with self._lock:
            self._made[episode.id] = calls
        return _share_of_digits("".join(said))

    def acknowledged(self, record: EpisodeRecord) -> None:
        """The server has taken the reward of an episode."""
        with self._lock:
            calls = self._made.pop(record.episode_id, [])
        if record.reward is not None:
            self._journal.add({"episode": record.episode_id, "reward": record.reward, "calls": calls})


def _share_of_digits(text: str) -> float:
    return sum(character.isdecimal() and character.isascii() for character in text) / max(len(text), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("journal", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    agents = Agents(Journal(arguments.journal))
    tasks = (Task(data={"client": os.getpid(), "task": number}) for number in itertools.count())
    with Swarm(arguments.url, timeout=_PATIENCE_S, report_timeout=_PATIENCE_S) as swarm:
        swarm.run(
            agents.act,
            tasks,
            concurrency=_AT_ONCE,
            attempts=10,
            wait=_PATIENCE_S,
            progress=False,
            on_result=agents.acknowledged,
            keep_records=1,
        )


if __name__ == "__main__":
    main()
