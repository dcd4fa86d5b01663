"""What an agent's process finds in its environment, so that SDKs need no argument."""

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet_client.episode import EpisodeBase

SECRETS = frozenset({"AJET_TOKEN"})
"""What the runner may have in its environment and no agent gets: it could set any reward with it."""
_LARGEST_TASK = 64_000
"""Bytes; Linux refuses a variable of 128 kB."""


def agent_environment(episode: "EpisodeBase") -> dict[str, str]:
    """Returns this process's environment, without the token of the server, and with what the episode's agent needs.

    `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL` (whose SDK adds the `/v1`), `ANTHROPIC_API_KEY`,
    `AJET_MODEL`, `AJET_EPISODE_ID`, and `AJET_TASK`: the task as JSON, left out above 64,000 bytes.
    """
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS | {"AJET_TASK"}}
    environment |= {
        "OPENAI_BASE_URL": episode.base_url,
        "OPENAI_API_KEY": episode.api_key,
        "ANTHROPIC_BASE_URL": episode.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": episode.api_key,
        "AJET_MODEL": episode.model,
        "AJET_EPISODE_ID": episode.id,
    }
    task = json.dumps(episode.task)
    if len(task) <= _LARGEST_TASK:
        environment["AJET_TASK"] = task
    return environment
