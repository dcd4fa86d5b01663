"""The contexts given: whether they fit the calls, and hold what chat messages hold."""

from collections.abc import Sequence
from typing import Any

from ajet_merge._arguments import checked_contexts
from ajet_merge.call import Call
from ajet_merge.messages import Context, Message, canonical_message, canonical_tools, check_ends


def readable(contexts: Sequence[Context | None] | None, calls: Sequence[Call]) -> Sequence[Context | None]:
    """The contexts, one for each call; None for each if there are none.

    Raises:
        MergeError: names the context, message and field that cannot be read.
    """
    if contexts is None:
        return [None] * len(calls)
    known = checked_contexts(contexts, len(calls))
    read = _Read()
    for index, context in enumerate(known):
        if context is not None:
            check_ends(context, calls[index].prompt_ids.size, f"contexts[{index}]")
            read.check(context, f"contexts[{index}]")
    return known


class _Read:
    """Remembers what was read last, because most requests begin with the messages of the one before."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._tools: Any = ()

    def check(self, context: Context, name: str) -> None:
        if context.tools != self._tools:
            canonical_tools(context.tools, f"{name}.")
            self._tools = context.tools
        for at, message in enumerate(context.messages):
            self._check_message(message, at, f"{name}.messages[{at}]")
        if context.response is not None:
            self._check_message(context.response, len(context.messages), f"{name}.response")

    def _check_message(self, message: Message, at: int, name: str) -> None:
        if self._messages[at : at + 1] != [message]:
            canonical_message(message, name)
            self._messages[at:] = [message]
