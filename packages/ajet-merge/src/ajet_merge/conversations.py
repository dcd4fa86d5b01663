"""`Conversations`: find the call that a request's messages go on from, without any token ids."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from .context import Continuation, MessageIndex, scope_of
from .errors import MergeError
from .messages import Context, Message


class Conversations:
    """Calls by their messages alone: the half of `Tracker` that finds the call that new messages go on from.

    For who keeps token ids elsewhere: here nothing is merged, and no call is needed to add its messages. Safe to use
    from several threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls = 0
        self._messages = MessageIndex("these conversations")

    def __len__(self) -> int:
        """Number of calls added."""
        return self._calls

    def add(
        self, context: Context, after: Continuation | None = None, *, attempt_id: str = "", compat_key: str = ""
    ) -> int:
        """Add one call.

        Args:
            context: its messages, tools and response. New messages are copied. `message_ends` makes no difference.
            after: what `extends` gave for the call's messages, attempt, tools and `compat_key`. The context then holds
                only the messages that follow those that `after` stands for, and no tools: what was added before is not
                looked at again, however long it is. The attempt and `compat_key` are then those of `after`.
            attempt_id: the attempt that made the call.
            compat_key: see `Call`.

        Returns:
            The call's index, in the order of adding.

        Raises:
            MergeError: not a `Context`, a malformed message or tool, or an `after` that is not of these conversations.
                Nothing was added.
        """
        if not isinstance(context, Context):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise MergeError(f"context is a {type(context).__name__}; give an ajet_merge.Context")
        with self._lock:
            index = self._calls
            self._messages.record(index, self._messages.place(context, attempt_id, compat_key, after))
            self._calls += 1
        return index

    def extends(
        self,
        messages: Sequence[Message],
        *,
        attempt_id: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        compat_key: str = "",
    ) -> Continuation | None:
        """The call that a request goes on from, if there is one. The rules are those of `Tracker.extends`.

        Args:
            messages: list or tuple, the whole history. Not modified.
            attempt_id: that of the calls to look at.
            tools: list or tuple, as in the request.
            compat_key: that of the calls to look at.

        Returns:
            The call, and how many of the messages it stands for; None if the messages extend no call.

        Raises:
            MergeError: a message or tool is malformed; names the field.
        """
        scope = scope_of(attempt_id, compat_key, tools)
        with self._lock:
            return self._messages.extends(scope, messages)
