"""The errors of this package, as one tree.

MergeError                a ValueError: the input cannot be merged or packed as asked
├── CallError             one field of one call is not usable
└── PathTooLongError      a call's path does not fit the limit it has to fit
"""

from typing import Any


class MergeError(ValueError):
    """The calls cannot be merged or packed as asked. Nothing was changed."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes whole, though their constructors take other arguments than the message."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[MergeError], args: tuple[Any, ...], attributes: dict[str, Any]) -> MergeError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class CallError(MergeError):
    """One field of one call is not usable.

    Attributes:
        call_id: the call's id as given, possibly empty.
        field: the name of the `Call` field.
    """

    def __init__(self, call_id: str, field: str, problem: str) -> None:
        super().__init__(f"call {call_id!r}: {field}{problem}")
        self.call_id = call_id
        self.field = field


class PathTooLongError(MergeError):
    """A call's prompt + completion is longer than a limit. Nothing is ever truncated.

    Attributes:
        call_index: index of the call in `Forest.calls`.
        call_id: its id, possibly empty.
        length: its number of tokens.
        limit: the number of tokens that would have fitted.
    """

    def __init__(self, call_index: int, call_id: str, length: int, limit: int, limit_name: str) -> None:
        super().__init__(
            f"call {call_index} ({call_id!r}): {length} tokens do not fit {limit_name}={limit}; "
            f"raise {limit_name} to at least {length}, or leave the call out (paths are never truncated)"
        )
        self.call_index = call_index
        self.call_id = call_id
        self.length = length
        self.limit = limit
