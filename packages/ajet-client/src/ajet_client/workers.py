"""A pool of daemon threads for the runner.

`concurrent.futures` would wait for its threads when the process ends, so that one hung agent would keep it alive.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")

_SIGNALS_S = 0.2
"""How often who waits looks up, seconds. A signal that the system hands to another thread does not wake the main one,
where alone it is handled."""


class Workers(Generic[Job]):
    """At most `size` threads, started when there is work for them.

    One thread hands out: `wait_for_one`, then `give`, and `wait_for_all` at the end. The first exception of a worker
    is raised there.
    """

    def __init__(self, size: int, work: Callable[[Job], None]) -> None:
        self._size = size
        self._work = work
        self._free = threading.Semaphore(size)
        self._jobs: queue.SimpleQueue[tuple[Job] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._error: BaseException | None = None

    def wait_for_one(self) -> None:
        """Waits until a worker is free, and keeps it for the next `give`."""
        while not self._free.acquire(timeout=_SIGNALS_S):
            pass
        if self._error is not None:
            raise self._error

    def give(self, job: Job) -> None:
        """Gives a job to the worker that `wait_for_one` found."""
        self._jobs.put((job,))
        if not self._idle.acquire(blocking=False):
            self._start()

    def release_one(self) -> None:
        """Gives back the worker that `wait_for_one` found."""
        self._free.release()

    def wait_for_all(self) -> None:
        """Waits until all jobs are done."""
        for _ in range(self._size):
            self.wait_for_one()
        self._free.release(self._size)

    def close(self) -> None:
        """Lets each thread end after its present job."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Ends the threads and waits for them, `timeout_s` seconds all together."""
        self.close()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _start(self) -> None:
        name = f"ajet-agent-{len(self._threads)}"
        thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._work(*job)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                if self._error is None:
                    self._error = error
            self._idle.release()
            self._free.release()
