"""Agents in any language: a program for each episode.

    swarm.run(CommandAgent("node agent.js", timeout=60), tasks)

The program finds where to call in its environment (`agent_environment`) and the task on its standard input, one line of
JSON. It reports its reward in the last line that it prints, or by a `POST` to `AJET_REWARD_URL`; both take a number or
`{"reward": 1.0, "metrics": {"length": 7}}`. What was posted counts; then it may print what it likes.
"""

import json
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_client.agents import AgentBase, refuse_if_over
from ajet_client.attempts import AgentFailedError
from ajet_client.child import Child
from ajet_client.environment import agent_environment
from ajet_client.outcome import Outcome, parse_outcome
from ajet_client.rewardbox import RewardBox
from ajet_core.errors import RequestError, RewardError

if TYPE_CHECKING:
    from ajet_client.episode import Episode
    from ajet_client.transport import Stop

_QUOTED = 1000
"""Characters of a program's errors that a report quotes."""


class CommandAgent(AgentBase):
    """Runs a program for each episode, and ends it with everything that it started.

    An exit status other than 0, no reward, or what is no reward, is a failed attempt and never a reward of 0.

    Args:
        command: the program and its arguments. A text is split as a shell would; no shell runs it.
        timeout: seconds that it may take; None: without end. Then its process group gets SIGTERM, later SIGKILL.
        cwd: its working directory; None: ours.

    Raises:
        RequestError: there is no such program; or this system has no process groups (Windows).
    """

    def __init__(
        self, command: str | Sequence[str], *, timeout: float | None = None, cwd: str | Path | None = None
    ) -> None:
        self._arguments = _split(command)
        self._timeout = checked_timeout(timeout)
        self._cwd = Path(cwd) if cwd is not None else None
        _require_program(self._arguments[0], self._cwd)
        self._lock = threading.Lock()
        self._box: RewardBox | None = None
        self._children: set[Child] = set()

    def run(self, episode: "Episode", stop: "Stop") -> None:
        """Runs the program to its end and records what it reported.

        Raises:
            AgentFailedError: it failed, took too long, or reported nothing or what is no reward; quotes the end of its
                standard error.
        """
        box = self._rewards()
        url = box.open()
        try:
            child = self._start(episode, url)
            self._wait(child, episode, stop)
        finally:
            posted = box.take(url)
        outcome = posted or _printed(child)
        episode.reward(outcome.reward, **outcome.metrics)

    def close(self) -> None:
        """Kills the programs that still run, and closes the address for rewards."""
        with self._lock:
            box, self._box = self._box, None
            children = list(self._children)
        for child in children:
            child.kill()
        if box is not None:
            box.close()

    def _rewards(self) -> RewardBox:
        with self._lock:
            if self._box is None:
                self._box = RewardBox()
            return self._box

    def _start(self, episode: "Episode", url: str) -> Child:
        environment = agent_environment(episode) | {"AJET_REWARD_URL": url}
        line = f"{json.dumps(episode.task)}\n".encode()
        child = Child(self._arguments, env=environment, cwd=self._cwd, stdin=line)
        with self._lock:
            self._children.add(child)
        return child

    def _wait(self, child: Child, episode: "Episode", stop: "Stop") -> None:
        began = time.monotonic()
        try:
            while not child.has_ended:
                child.pump()
                refuse_if_over(episode, stop)
                refuse_if_late(began, self._timeout, child)
        finally:
            status = child.end()
            with self._lock:
                self._children.discard(child)
        if status != 0:
            raise AgentFailedError(f"{describe_status(status)}; {quote_errors(child)}")


def checked_timeout(timeout: float | None) -> float | None:
    """Returns a timeout. Raises `RequestError` unless it is more than 0, or None."""
    if timeout is not None and not timeout > 0:
        raise RequestError(f"timeout must be more than 0 seconds, got {timeout:g}", field="timeout")
    return timeout


def refuse_if_late(began: float, timeout: float | None, child: Child) -> None:
    """Raises `AgentFailedError` once more than `timeout` seconds have passed since `began` (monotonic)."""
    if timeout is not None and time.monotonic() - began > timeout:
        raise AgentFailedError(f"it took more than {timeout:g} s (timeout) and was ended; {quote_errors(child)}")


def describe_status(status: int) -> str:
    """Returns an exit status in words; -N means signal N."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def quote_errors(child: Child) -> str:
    """Returns the end of a program's standard error, for a message."""
    text = child.err.text.strip()
    if not text:
        return "it wrote no errors"
    return f"its errors end: {text if len(text) <= _QUOTED else '…' + text[-_QUOTED:]}"


def _printed(child: Child) -> Outcome:
    lines = child.out.text.strip().splitlines()
    if not lines:
        raise AgentFailedError(
            f"no reward: it printed nothing, and posted nothing to AJET_REWARD_URL; {quote_errors(child)}"
        )
    try:
        return parse_outcome(lines[-1].strip(), "the last line that it printed")
    except RewardError as error:
        raise AgentFailedError(f"{error}; {quote_errors(child)}") from None


def _split(command: str | Sequence[str]) -> list[str]:
    if os.name != "posix":
        raise RequestError("command: programs need a system with process groups, which this is not", field="command")
    try:
        arguments = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise RequestError(f"command: {error}: {command!r}", field="command") from None
    if not arguments:
        raise RequestError("command: it is empty", field="command")
    return arguments


def _require_program(name: str, cwd: Path | None) -> None:
    """Raises `RequestError` if there is no such program; a name with a slash is relative to its working directory."""
    if shutil.which(str((cwd or Path()) / name) if "/" in name else name) is None:
        raise RequestError(f"command: there is no program {name!r}", field="command")
