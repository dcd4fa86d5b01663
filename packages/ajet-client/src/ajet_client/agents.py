"""What a runner runs: a function in its threads, a file that may change, a process, a program in any language."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

from ajet_client.attempts import AgentFailedError, call
from ajet_client.source import BrokenAgentError, Sources, changed
from ajet_client.transport import Stop, StoppedError
from ajet_core.errors import RequestError

if TYPE_CHECKING:
    from ajet_client.episode import Episode, EpisodeBase

Agent: TypeAlias = Callable[["Episode"], object]
"""Runs one episode. Returns its reward, or None after `episode.reward(...)`."""
Isolation: TypeAlias = Literal["thread", "process"]
E = TypeVar("E")

_POLL_S = 0.1
"""How often a file with an error is looked at, seconds."""

logger = logging.getLogger("ajet_client")


class AgentBase(ABC):
    """An agent that needs more than to be called. One object serves all threads of a run."""

    def wait_until_ready(self, stop: Stop) -> None:  # noqa: B027 - most are ready
        """Returns once there is code to run. Called before an episode is opened."""

    @abstractmethod
    def run(self, episode: "Episode", stop: Stop) -> object:
        """Runs one episode, and gives up soon after `stop` is set or the episode was closed.

        Returns:
            The reward; or None after `episode.reward(...)`.

        Raises:
            BrokenAgentError: the code changed since `wait_until_ready` and cannot be loaded; this was no attempt.
            Exception: the attempt failed.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Ends what still runs and frees what is held. A later run may begin anew."""


class FunctionAgent(Generic[E]):
    """A function, called in the runner's threads: of an episode, or of a team of them."""

    def __init__(self, function: Callable[[E], object]) -> None:
        self._function = function

    def wait_until_ready(self, stop: Stop) -> None:
        """It always is."""

    def run(self, episode: E, stop: Stop) -> object:
        """Calls it. A thread cannot be stopped: its calls to the model fail once the episode is aborted."""
        return call(self._function, episode)

    def close(self) -> None:
        """There is nothing to end."""


class WatchingAgent(AgentBase):
    """An agent whose code may change while it is used.

    Args:
        watch: take new code when its files change, and wait when it cannot be loaded. Else such code ends the run.
    """

    def __init__(self, watch: bool) -> None:
        self._watch = watch
        self._telling = threading.Lock()
        self._told: Mapping[str, object] | None = None

    @abstractmethod
    def load(self, stop: Stop) -> None:
        """Loads what changed. Raises `BrokenAgentError` if that fails."""

    def wait_until_ready(self, stop: Stop) -> None:
        """Loads what changed; if it cannot be loaded, waits for the next change.

        Raises:
            RequestError: it cannot be loaded, and changes are not watched.
        """
        while not stop.is_set():
            try:
                self.load(stop)
            except BrokenAgentError as broken:
                if not self._watch:
                    raise RequestError(f"agent: {broken}", field="agent") from None
                self.tell(f"{broken}\nno episode is opened until this is mended", broken.sources)
                _await_change(broken.sources, stop)
            else:
                return
        raise StoppedError(stop.reason)

    def tell(self, message: str, sources: Sources) -> None:
        """Says something about a state of the files, once for all threads."""
        with self._telling:
            if self._told != sources:
                self._told = dict(sources)
                logger.warning("%s", message)


def _await_change(sources: Sources, stop: Stop) -> None:
    while not changed(sources) and not stop.wait(_POLL_S):
        pass


def refuse_if_over(episode: "EpisodeBase", stop: Stop) -> None:
    """Raises `StoppedError` if the run was stopped, `AgentFailedError` if the episode was closed meanwhile."""
    if stop.is_set():
        raise StoppedError(stop.reason)
    if episode.is_closed:
        raise AgentFailedError(f"the episode is {episode.status} already")


def as_agent(
    agent: "Agent | AgentBase | str", isolation: Isolation, timeout: float | None, watch: bool
) -> "AgentBase | FunctionAgent[Episode]":
    """Returns what a runner runs; see `Swarm.run` for the arguments and their `RequestError`s."""
    if isolation not in {"thread", "process"}:
        raise RequestError(f"isolation must be 'thread' or 'process', got {isolation!r}", field="isolation")
    if isinstance(agent, AgentBase):
        _refuse_for_program(isolation, timeout, watch)
        return agent
    if watch and not isinstance(agent, str):
        raise RequestError(
            "watch: only an agent given as 'file.py:function' can change; a function stays", field="watch"
        )
    if isolation == "process":
        from ajet_client.isolation import ProcessAgent

        return ProcessAgent(agent, timeout=timeout, watch=watch)
    if timeout is not None:
        raise RequestError("timeout: a thread cannot be ended; use isolation='process'", field="timeout")
    if isinstance(agent, str):
        from ajet_client.agentfile import FileAgent

        return FileAgent(agent, watch=watch)
    return FunctionAgent(agent)


def _refuse_for_program(isolation: Isolation, timeout: float | None, watch: bool) -> None:
    if isolation == "process":
        raise RequestError("isolation: this agent is a process of its own already; leave it out", field="isolation")
    if timeout is not None:
        raise RequestError("timeout: give it to the agent itself", field="timeout")
    if watch:
        raise RequestError("watch: each episode starts the program anew; leave it out", field="watch")
