"""An agent in a file, called in the runner's threads and loaded anew when its source changes."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ajet_client.agents import WatchingAgent
from ajet_client.attempts import call
from ajet_client.source import BrokenAgentError, SourceFile, changed, parse_place

if TYPE_CHECKING:
    from ajet_client.episode import Episode
    from ajet_client.transport import Stop


class FileAgent(WatchingAgent):
    """A function of a file. Episodes that run while it is loaded anew go on with the old code.

    Args:
        place: `file.py:function`; without a name the function is `agent`.
        watch: see `WatchingAgent`.

    Raises:
        RequestError: there is no such file.
    """

    def __init__(self, place: str, *, watch: bool) -> None:
        super().__init__(watch)
        self._source = SourceFile(parse_place(place))
        self._loading = threading.Lock()
        self._function: Callable[..., object] | None = None
        self._broken: BrokenAgentError | None = None

    def load(self, stop: "Stop") -> None:
        """Loads the file if that was not done, or if it changed and changes are watched."""
        self._current()

    def run(self, episode: "Episode", stop: "Stop") -> object:
        """Calls the function."""
        return call(self._current(), episode)

    def close(self) -> None:
        """Forgets what was loaded."""
        self._source.close()
        self._function = self._broken = None

    def _current(self) -> Callable[..., object]:
        with self._loading:
            if self._broken is not None and not changed(self._broken.sources):
                raise self._broken
            if self._function is None or (self._watch and changed(self._source.sources)):
                self._function = self._load()
            return self._function

    def _load(self) -> Callable[..., object]:
        anew = self._function is not None or self._broken is not None
        self._function = self._broken = None
        try:
            function = self._source.load()
        except BrokenAgentError as broken:
            self._broken = broken
            raise
        if anew:
            self.tell("the agent's code changed and was loaded anew", self._source.sources)
        return function
