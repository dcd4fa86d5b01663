"""`Tracker`: merge calls as they arrive, and find the one that new messages extend; `merge`: all at once."""

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from ._arguments import checked_calls, checked_contexts
from ._backend import new_trie
from ._layout import TrieBackend
from .call import Call
from .context import Extension, MessageIndex, Place, scope_of
from .errors import MergeError
from .forest import Forest
from .messages import Context, Message


class Tracker:
    """A forest that grows call by call. Adding one by one and merging at once give the same forest.

    A call is matched against everything added so far, not against the last call only. Safe to use from several threads.

    With contexts it also keeps an agent's tokens continuous. When a request arrives as messages, `extends` gives the
    exact ids of the call that it goes on from, and the new prompt is these + the template's bridge to the next turn.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._trie = new_trie()
        self._roots: dict[str, int] = {}
        self._calls: list[Call] = []
        self._messages = MessageIndex()

    def __len__(self) -> int:
        """Number of calls added."""
        return len(self._calls)

    def add(self, call: Call, context: Context | None = None, after: Extension | None = None) -> int:
        """Add one call.

        Args:
            call: what to merge.
            context: its messages, for `extends`. The forest depends on the call alone. New messages are copied.
            after: what `extends` gave for the call's messages, attempt, tools and `compat_key`. The context then holds
                only the messages that follow those that `after` stands for, and no tools: what was added before is not
                looked at again, however long it is.

        Returns:
            How many of its leading tokens earlier calls with the same `compat_key` had already.

        Raises:
            MergeError: not a `Call` or `Context`, a malformed message, messages that end beyond the prompt, an `after`
                that is not of this tracker, or the forest would pass 2**31 - 1 tokens. Nothing was added.
        """
        return self._add(checked_calls([call]), checked_contexts([context], 1), [after])[0]

    def add_all(self, calls: Iterable[Call], contexts: Iterable[Context | None] | None = None) -> list[int]:
        """Add several calls in order, faster than one by one; see `add`. `contexts`: one for each call, or none."""
        calls = checked_calls(calls)
        contexts = [] if contexts is None else checked_contexts(contexts, len(calls))
        return self._add(calls, contexts, [None] * len(contexts))

    def _add(
        self, calls: list[Call], contexts: Sequence[Context | None], after: Sequence[Extension | None]
    ) -> list[int]:
        with self._lock:
            given = zip(calls, contexts, after, strict=False)  # of one length, or there are no contexts
            places = [context and self._messages.place_call(call, context, base) for call, context, base in given]
            shared = _insert(self._trie, self._roots, calls)
            self._record(places)
            self._calls += calls
        return shared

    def extends(
        self,
        messages: Sequence[Message],
        *,
        attempt_id: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        compat_key: str = "",
    ) -> Extension | None:
        """The call whose exact ids a request goes on from, if there is one.

        Looks at the calls added with a context, the same attempt, tools and `compat_key`, and compares messages in
        canonical form (see `messages`). What else the template is given must not change within an attempt.

        If a call's request is the same list of messages, its prompt is the answer: a retry, or another sample. If not,
        it is the call whose request + response is the longest such prefix of `messages`.

        Several calls may have the same messages in other tokens: two samples of one visible text, say. Then the first
        of these rules that tells them apart decides: the response is equal to the one given in every field, in the ids
        of its tool calls, in its reasoning; then the same for the responses before it, the latest first; then the call
        added last.

        Reasoning is no part of the canonical form, be it in a field of its own or in the text up to `</think>`: agents
        may leave it out of the turns that they send again.

        Costs one comparison of dicts for each message that was added before in the same form, however many calls were
        added. Where calls have the same messages but for reasoning, ids and the like, each such response is compared
        too; naming the attempts keeps them few.

        Args:
            messages: list or tuple, the whole history. Not modified.
            attempt_id: that of the calls to look at.
            tools: list or tuple, as in the request.
            compat_key: that of the calls to look at.

        Returns:
            The call, its ids and how many messages they stand for; None if the messages extend no call.

        Raises:
            MergeError: a message or tool is malformed; names the field.
        """
        scope = scope_of(attempt_id, compat_key, tools)
        with self._lock:
            found = self._messages.extends(scope, messages)
        if found is None:
            return None
        call = self._calls[found.call]
        ids = np.concatenate([call.prompt_ids, call.completion_ids]) if found.response_included else call.prompt_ids
        return Extension(found.call, ids, found.messages, found.response_included)

    def forest(self) -> Forest:
        """The forest of all calls added so far. Later calls do not change it."""
        with self._lock:
            return Forest(self._calls, self._trie.layout(_in_order(self._roots)))

    def _record(self, places: Sequence[Place | None]) -> None:
        for index, place in enumerate(places, len(self._calls)):
            if place:
                self._messages.record(index, place)


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
    calls, trie, roots = checked_calls(calls), new_trie(), dict[str, int]()
    _insert(trie, roots, calls)
    return Forest(calls, trie.layout(_in_order(roots)))


def _insert(trie: TrieBackend, roots: dict[str, int], calls: Sequence[Call]) -> list[int]:
    """Add calls to the trie, each below the root of its `compat_key`; how many tokens of each were there already."""
    keys = [call.compat_key for call in calls]
    for key in set(keys) - roots.keys():
        roots[key] = trie.new_root()
    prompts, completions = [call.prompt_ids for call in calls], [call.completion_ids for call in calls]
    try:
        return trie.add(prompts, completions, [roots[key] for key in keys])
    except OverflowError as error:
        raise MergeError(f"{error}; merge fewer calls at a time") from error


def _in_order(roots: dict[str, int]) -> list[int]:
    """The trees in the order of their keys, which does not depend on the order of the calls."""
    return [roots[key] for key in sorted(roots)]
