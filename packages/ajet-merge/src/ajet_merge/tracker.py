"""`Tracker`: merge calls as they arrive; `merge`: all at once."""

from collections.abc import Iterable, Sequence
from threading import Lock

from ._backend import new_trie
from .call import Call
from .errors import MergeError
from .forest import Forest


class Tracker:
    """A forest that grows call by call. Adding one by one and merging at once give the same forest.

    A call is matched against everything added so far, not against the last call only. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._trie = new_trie()
        self._roots: dict[str, int] = {}
        self._calls: list[Call] = []

    def __len__(self) -> int:
        """Number of calls added."""
        return len(self._calls)

    def add(self, call: Call) -> int:
        """Add one call.

        Returns:
            How many of its leading tokens earlier calls with the same `compat_key` had already.

        Raises:
            MergeError: not a `Call`, or the forest would pass 2**31 - 1 tokens.
        """
        return self.add_all([call])[0]

    def add_all(self, calls: Iterable[Call]) -> list[int]:
        """Add several calls in order, faster than one by one; see `add`."""
        calls = list(calls)
        for index, call in enumerate(calls):
            if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
                raise MergeError(f"calls[{index}] is a {type(call).__name__}; wrap it in ajet_merge.Call")
        with self._lock:
            roots = [self._root(call.compat_key) for call in calls]
            prompts, completions = [call.prompt_ids for call in calls], [call.completion_ids for call in calls]
            try:
                shared = self._trie.add(prompts, completions, roots)
            except OverflowError as error:
                raise MergeError(f"{error}; merge fewer calls at a time") from error
            self._calls += calls
        return shared

    def forest(self) -> Forest:
        """The forest of all calls added so far. Later calls do not change it."""
        with self._lock:
            roots = [self._roots[key] for key in sorted(self._roots)]
            return Forest(self._calls, self._trie.layout(roots))

    def _root(self, compat_key: str) -> int:
        if compat_key not in self._roots:
            self._roots[compat_key] = self._trie.new_root()
        return self._roots[compat_key]


def merge(calls: Sequence[Call]) -> Forest:
    """Merge calls into one forest: the fewest hidden states that serve every call exactly.

    Reads every token once and copies each distinct one once. The compiled core releases the GIL.

    Args:
        calls: in any order; the forest does not depend on it. May be empty.

    Returns:
        The forest. Its `occurrences` hold every sampled, trainable token of every call exactly once.

    Raises:
        MergeError: not a `Call`, or more than 2**31 - 1 distinct tokens.
    """
    tracker = Tracker()
    tracker.add_all(calls)
    return tracker.forest()
