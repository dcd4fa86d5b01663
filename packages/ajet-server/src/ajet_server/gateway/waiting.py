"""Work that nobody waits for any more is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Event(Protocol):
    """What tells when it has happened, as tasks and futures do."""

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None: ...

    def remove_done_callback(self, callback: Callable[[Any], None], /) -> object: ...


async def unless(event: Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Awaits `work`, or cancels it and returns None as soon as `event` has happened.

    No task is made for it: of every call that is waited for, one more would be felt.
    """
    watch = _Watch(_current_task())
    event.add_done_callback(watch.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.happened and watch.task.uncancel() == 0:
            return None
        raise
    finally:
        watch.over = True  # it may be on its way
        event.remove_done_callback(watch.cancel)


class _Watch:
    """Cancels a task when something has happened."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.happened = False
        self.over = False

    def cancel(self, _: object) -> None:
        if not self.over:
            self.happened = True
            self.task.cancel()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("this has to run inside of a task")
    return task
