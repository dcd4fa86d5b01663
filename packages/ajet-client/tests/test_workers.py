import os
import signal
import threading

import pytest

from ajet_client.workers import Workers


def test_threads_are_reused() -> None:
    names: list[str] = []
    workers = Workers[int](4, lambda job: names.append(threading.current_thread().name))
    for job in range(20):
        workers.wait_for_one()
        workers.give(job)
        workers.wait_for_all()
    workers.join(5)
    assert set(names) == {"ajet-agent-0"}


def test_the_first_error_reaches_the_one_who_waits() -> None:
    def work(job: int) -> None:
        raise LookupError(str(job))

    workers = Workers[int](1, work)
    workers.wait_for_one()
    workers.give(7)
    with pytest.raises(LookupError, match="7"):
        workers.wait_for_one()
    workers.join(5)


def test_join_does_not_wait_for_a_hung_worker_longer_than_told() -> None:
    release = threading.Event()

    def work(job: int) -> None:
        release.wait(10)

    workers = Workers[int](1, work)
    workers.wait_for_one()
    workers.give(1)
    workers.join(0.01)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("ajet-agent")]
    release.set()
    workers.join(5)


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    blocked, release, in_time = threading.Event(), threading.Event(), list[bool]()

    def work(job: int) -> None:
        blocked.wait(10)
        os.kill(os.getpid(), signal.SIGINT)  # not to the main thread, which does not want it
        in_time.append(release.wait(10))

    workers = Workers[int](1, work)
    workers.wait_for_one()
    workers.give(1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        blocked.set()
        with pytest.raises(KeyboardInterrupt):
            workers.wait_for_one()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        release.set()
        workers.join(5)
    assert in_time == [True]
