"""Work that nobody waits for any more is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(event: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T | None:
    """Awaits `work`, or cancels it and returns None as soon as `event` ends.

    `work` runs in the caller's own task: of every call that is waited for, one more would be felt.
    """
    watch = _Watch(event, _current_task())
    try:
        return await work
    except asyncio.CancelledError:
        if watch.happened and watch.task.uncancel() == 0:
            return None
        raise
    finally:
        watch.watcher.cancel()


class _Watch:
    """Cancels a task when something has happened."""

    def __init__(self, event: Coroutine[Any, Any, object], task: asyncio.Task[Any]) -> None:
        self.task = task
        self.happened = False
        self.watcher = asyncio.create_task(self._wait(event))

    async def _wait(self, event: Coroutine[Any, Any, object]) -> None:
        await event
        self.happened = True
        self.task.cancel()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("this has to run inside of a task")
    return task
