"""Python agents in processes of their own: what one episode breaks, it breaks for itself.

A process runs one episode at a time. It is kept for the next one, so that imports are paid once, until it crashed,
hung, has old code, or has run a hundred. `isolated.py` is what runs in it; the two speak JSON lines over a socket pair.
What the agent prints is kept, up to 64 kB; the end of its standard error is quoted when the process dies or is ended.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ajet_client.agents import Agent, WatchingAgent, refuse_if_over
from ajet_client.attempts import AgentFailedError
from ajet_client.child import Child
from ajet_client.command import checked_timeout, describe_status, quote_errors, refuse_if_late
from ajet_client.environment import SECRETS, agent_environment
from ajet_client.source import BrokenAgentError, Place, Sources, changed, parse_place, place_of
from ajet_client.transport import Stop, StoppedError
from ajet_core.errors import RequestError

if TYPE_CHECKING:
    from ajet_client.episode import Episode

MARK = "AJET_AGENT_PROCESS"
"""In the environment of such a process."""
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from ajet_client.isolated import main; main()"
_EPISODES = 100
"""Episodes that a process runs, so that what they leak is given back."""
_LOAD_S = 300.0
"""How long the agent's imports may take, seconds."""


class ProcessAgent(WatchingAgent):
    """Runs a Python agent in processes, at most as many as episodes at a time.

    Args:
        agent: `file.py:function`, or a function at the top level of a module.
        timeout: seconds that an episode may take; None: without end.
        watch: see `WatchingAgent`.

    Raises:
        RequestError: another process could not find the function; or this is such a process.
    """

    def __init__(self, agent: Agent | str, *, timeout: float | None, watch: bool) -> None:
        super().__init__(watch)
        if MARK in os.environ:
            raise RequestError(
                "isolation: the agent's file runs itself when it is loaded; put that under if __name__ == '__main__':",
                field="isolation",
            )
        self._place = parse_place(agent) if isinstance(agent, str) else place_of(agent)
        self._timeout = checked_timeout(timeout)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._broken: BrokenAgentError | None = None

    def load(self, stop: Stop) -> None:
        """Sees to it that a process with the present code waits for an episode."""
        self._give_back(self._take(stop))

    def run(self, episode: "Episode", stop: Stop) -> None:
        """Runs an episode in a process and records what it reported.

        Raises:
            AgentFailedError: the agent raised, took too long, or its process died.
        """
        process = self._take(stop)
        try:
            answer = process.run(episode, stop, self._timeout)
        except BaseException:
            self._end(process)
            raise
        self._give_back(process)
        _record(answer, episode)

    def close(self) -> None:
        """Kills all processes."""
        with self._lock:
            processes, idle = list(self._all), self._idle
            self._idle, self._broken = [], None
        for process in processes:
            process.kill()
        for process in idle:
            self._end(process)

    def _take(self, stop: Stop) -> "_Process":
        """Returns a process with the present code, a waiting one or a new one. Raises `BrokenAgentError`."""
        while (process := self._pop_idle()) is not None:
            stale = self._watch and changed(process.sources)
            if not stale and not process.has_ended:
                return process
            self._end(process)
            if stale:
                self.tell("the agent's code changed; new processes run it", process.sources)
        return self._begin(stop)

    def _pop_idle(self) -> "_Process | None":
        with self._lock:
            if self._broken is not None and not changed(self._broken.sources):
                raise self._broken
            self._broken = None
            return self._idle.pop() if self._idle else None

    def _begin(self, stop: Stop) -> "_Process":
        process = _Process(self._place)
        with self._lock:
            self._all.add(process)
        try:
            process.load(stop)
        except BaseException as error:
            self._end(process)
            if isinstance(error, BrokenAgentError):
                with self._lock:
                    self._broken = error
            raise
        return process

    def _give_back(self, process: "_Process") -> None:
        if process.episodes >= _EPISODES:
            self._end(process)
            return
        with self._lock:
            self._idle.append(process)

    def _end(self, process: "_Process") -> None:
        process.end()
        with self._lock:
            self._all.discard(process)


class _Process:
    """One such process; loads the agent at once.

    Attributes:
        episodes: how many it ran.
        sources: the files that its code was loaded from.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.episodes = 0
        self.sources: Sources = {}
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = Child(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                env={name: value for name, value in os.environ.items() if name not in SECRETS} | {MARK: "1"},
                channel=ours,
                inherited=[theirs.fileno()],
            )
        self._say({"file": place.file, "module": place.module, "name": place.name})

    @property
    def has_ended(self) -> bool:
        """Whether it died."""
        return self._child.has_ended

    def load(self, stop: Stop) -> None:
        """Waits until it has loaded the agent.

        Raises:
            BrokenAgentError: it could not.
        """
        until = time.monotonic() + _LOAD_S

        def check() -> None:
            if stop.is_set():
                raise StoppedError(stop.reason)
            if time.monotonic() > until:
                raise BrokenAgentError(f"{self._place} was not loaded in {_LOAD_S:g} s", self._place.sources())

        try:
            answer = self._hear(check)
        except AgentFailedError as died:
            raise BrokenAgentError(f"{self._place} cannot be loaded: {died}", self._place.sources()) from None
        self.sources = {path: tuple(seen) if seen else None for path, seen in answer["sources"].items()}
        if "broken" in answer:
            raise BrokenAgentError(answer["broken"], self.sources)

    def run(self, episode: "Episode", stop: Stop, timeout: float | None) -> dict[str, Any]:
        """Runs an episode and returns its answer; see `isolated`. Raises `AgentFailedError` if there is none."""
        self.episodes += 1
        self._child.err.clear()
        self._say({"grant": _public(episode), "task": episode.task, "environment": agent_environment(episode)})
        began = time.monotonic()

        def check() -> None:
            refuse_if_over(episode, stop)
            refuse_if_late(began, timeout, self._child)

        return self._hear(check)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._child.kill()

    def end(self) -> None:
        """Ends it."""
        self._child.end()

    def _say(self, message: dict[str, Any]) -> None:
        self._child.send(json.dumps(message).encode() + b"\n")

    def _hear(self, check: Callable[[], None]) -> dict[str, Any]:
        received = self._child.received
        while b"\n" not in received:
            if self._child.has_ended:
                status = self._child.end()  # and reads what it said at last
                if b"\n" in received:
                    break
                raise AgentFailedError(f"its process died: {describe_status(status)}; {quote_errors(self._child)}")
            self._child.pump()
            check()
        line, _, rest = bytes(received).partition(b"\n")
        received[:] = rest
        answer: dict[str, Any] = json.loads(line)
        return answer


def _public(episode: "Episode") -> dict[str, Any]:
    """Returns the grant without the control key: a process that runs an agent cannot finish its episode."""
    return episode.grant.model_dump(mode="json") | {"control_key": ""}


def _record(answer: dict[str, Any], episode: "Episode") -> None:
    if "reward" in answer:
        episode.reward(answer["reward"], **answer["metrics"])
    elif "aborted" in answer:
        episode.abort(answer["aborted"])
        raise AgentFailedError(f"the agent aborted it: {answer['aborted']}")
    else:
        error = AgentFailedError(answer["error"])
        error.add_note(answer["traceback"])
        raise error
