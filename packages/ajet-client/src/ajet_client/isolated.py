"""What runs in an agent's own process: loads the agent, then runs one episode after the other as it is told.

Reads a line of JSON over the socket whose number is its first argument, and answers each with one:

    {"file": "agent.py", "module": null, "name": "agent"}    ->  {"sources": {…}}, and "broken" if it cannot be loaded
    {"grant": {…}, "task": …, "environment": {…}}            ->  {"reward": 1.0, "metrics": {…}}, {"aborted": "why"},
                                                                 or {"error": "ValueError: …", "traceback": "…"}
It ends when the other side closes the socket.
"""

import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ajet_client.api import Api
from ajet_client.attempts import adopt, call
from ajet_client.clock import Clock
from ajet_client.episode import Episode, EpisodeBase, describe
from ajet_client.source import BrokenAgentError, Place, SourceFile, Sources
from ajet_core.episode import EpisodeStatus
from ajet_core.wire import EpisodeGrant

_TRACED = 4000
"""Characters of a traceback that are told."""


class IsolatedEpisode(Episode):
    """An episode as its agent's process knows it: the control key, and so the server, is left to the runner."""

    def __init__(self, grant: EpisodeGrant, task: Any) -> None:
        EpisodeBase.__init__(self, Api(None, None, 0.0, 0.0, Clock()), grant, task)
        self.aborted: str | None = None

    def abort(self, reason: str) -> None:
        """Gives the episode up; the runner does so when the agent has returned."""
        if self._close(EpisodeStatus.ABORTED):
            self.aborted = reason


def main() -> None:
    """Entry point."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # what an agent starts must not hold the line
    sys.argv[:] = sys.argv[:1]
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rw", encoding="utf-8") as lines:
        try:
            function, sources = _load(Place(**json.loads(lines.readline())))
        except BrokenAgentError as broken:
            _answer(lines, {"sources": broken.sources, "broken": str(broken)})
            return
        _answer(lines, {"sources": sources})
        while line := lines.readline():
            _answer(lines, _run(function, json.loads(line)))


def _load(place: Place) -> tuple[Callable[..., object], Sources]:
    if place.module is None:
        source = SourceFile(place)
        return source.load(), source.sources
    try:
        return getattr(importlib.import_module(place.module), place.name), {}
    except Exception as error:
        raise BrokenAgentError(f"{place} cannot be loaded:\n{traceback.format_exc()}", {}) from error


def _run(function: Callable[..., object], message: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(message["environment"])
    episode = IsolatedEpisode(EpisodeGrant.model_validate(message["grant"]), message["task"])
    try:
        returned = call(function, episode)
        if episode.aborted is None:
            adopt(episode, returned)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told to the runner, which aborts the episode
        return {"error": describe(error), "traceback": traceback.format_exc()[-_TRACED:]}
    if episode.aborted is not None:
        return {"aborted": episode.aborted}
    return {"reward": episode.recorded_rewards or episode.recorded_reward, "metrics": episode.metrics}


def _answer(lines: Any, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()
