"""Requests that are being answered, and who waits for each."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import closing, contextmanager
from typing import Any, Literal, TypeAlias

from ajet_core.errors import UnavailableError
from ajet_server.gateway.request import Answer, Delta, Item, Started
from ajet_server.gateway.waiting import unless

Emit: TypeAlias = Callable[[Started | Delta], None]


class Run:
    """One request being answered. Several may wait for it: an SDK that tries again while its first try still runs.

    It is cancelled when the last of them leaves.

    Args:
        work: is given what to call as the answer grows.
        over: called with the run when the work has ended, in whatever way.
    """

    def __init__(self, work: Callable[[Emit], Coroutine[Any, Any, Answer]], over: Callable[["Run"], None]) -> None:
        self._items: list[Started | Delta] = []
        self._grown = asyncio.Event()
        self._waiting = 0
        self._over = over
        self._task = asyncio.create_task(work(self._emit))
        self._task.add_done_callback(self._on_done)

    @property
    def task(self) -> asyncio.Task[Answer]:
        """The work."""
        return self._task

    @property
    def given_up(self) -> bool:
        """Whether everybody left, and it ends as soon as it can."""
        return self._task.cancelling() > 0

    async def over(self) -> None:
        """Waits until the work ended, in whatever way."""
        await asyncio.wait({self._task})

    async def answer(self, left: Coroutine[Any, Any, Literal[True]]) -> Answer | None:
        """Waits for the whole answer, and raises what the work raised; `UnavailableError` if it was given up.

        Args:
            left: ends when whoever waits has left.

        Returns:
            None if `left` ended first.
        """
        with closing(left), self._joined():
            return None if await unless(self._task, left) else self._task.result()

    async def items(self) -> AsyncGenerator[Item]:
        """Yields every item from the first on, the answer last. Raises as `answer` does."""
        with self._joined():
            seen = 0
            while True:
                while seen < len(self._items):
                    yield self._items[seen]
                    seen += 1
                if self._task.done():
                    break
                self._grown.clear()
                await self._grown.wait()
            yield self._task.result()

    def _emit(self, item: Started | Delta) -> None:
        self._items.append(item)
        self._grown.set()

    def _on_done(self, task: asyncio.Task[Answer]) -> None:
        if not task.cancelled():
            task.exception()  # looked at, for when nobody waits any more
        self._grown.set()
        self._over(self)

    @contextmanager
    def _joined(self) -> Generator[None]:
        if self.given_up:
            raise UnavailableError(
                "an earlier try of this request was given up just now; send it again", retry_after_s=1.0
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()


def announced(emit: Emit, started: Started) -> Emit:
    """Puts `started` before the first item."""
    waiting = [started]

    def tell(item: Started | Delta) -> None:
        while waiting:
            emit(waiting.pop())
        emit(item)

    return tell
