"""Merging in several threads at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import numpy as np
from merge_strategies import sequence

from ajet_merge import Call, Forest, Tracker, _forest, merge

THREADS = 4


def conversations(seed: int, count: int = 60) -> list[Call]:
    """Calls that extend and fork from each other, far longer than one switch between threads lasts."""
    rng = np.random.default_rng(seed)
    histories = [rng.integers(0, 3, 50).astype(np.int32)]
    made: list[Call] = []
    for index in range(count):
        base = histories[int(rng.integers(len(histories)))]
        prompt = np.concatenate([base[: int(rng.integers(1, base.size + 1))], rng.integers(0, 3, 20, np.int32)])
        completion = rng.integers(0, 3, 10, np.int32)
        made.append(Call(prompt, completion, rng.standard_normal(10, np.float32), call_id=f"{seed}.{index}"))
        histories.append(np.concatenate([prompt, completion]))
    return made


def at_once(work: Callable[[int], None]) -> None:
    """Run `work(0)`, `work(1)`, ... in threads that all start together; raises what any of them raises."""
    start = Barrier(THREADS)

    def run(number: int) -> None:
        start.wait(timeout=60)
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(run, number) for number in range(THREADS)]:
            done.result(timeout=60)


def content(forest: Forest) -> list[bytes]:
    return [array.tobytes() for array in (*forest.layout, forest.occurrences.token, forest.occurrences.logprob)]


def check_paths(forest: Forest) -> None:
    for index, call in enumerate(forest.calls):
        assert tuple(forest.tokens[forest.path(index)].tolist()) == sequence(call)


def test_separate_trackers_do_not_disturb_each_other() -> None:
    made = [conversations(seed) for seed in range(THREADS)]
    alone = [content(merge(calls)) for calls in made]

    def work(number: int) -> None:
        for _ in range(5):
            tracker = Tracker()
            for call in made[number]:
                tracker.add(call)
            assert content(tracker.forest()) == alone[number]
            assert content(merge(made[number])) == alone[number]

    at_once(work)


def test_one_tracker_shared_by_threads_stays_consistent() -> None:
    """Whatever the threads' turns, each call is there once, and every forest on the way is one of whole calls."""
    made, tracker = conversations(7, 120), Tracker()

    def work(number: int) -> None:
        own = made[number::THREADS]
        for first in range(0, len(own), 3):
            tracker.add(own[first])
            assert len(tracker.add_all(own[first + 1 : first + 3])) == len(own[first + 1 : first + 3])
            check_paths(tracker.forest())

    at_once(work)
    forest = tracker.forest()
    check_paths(forest)
    assert sorted(call.call_id for call in forest.calls) == sorted(call.call_id for call in made)
    assert content(forest)[:-3] == content(merge(made))[:-3]  # all but what depends on the order of the calls
    assert content(forest) == content(merge(forest.calls))


def test_the_shared_lengths_of_a_shared_tracker_are_those_of_some_order() -> None:
    """The same call from every thread: one of them is the first, all others find all of it."""
    call, tracker = conversations(1)[-1], Tracker()
    shared: list[int] = []
    at_once(lambda number: shared.append(tracker.add(call)))
    assert sorted(shared) == [0, *[len(call)] * (THREADS - 1)]


def test_the_gil_is_released_while_merging() -> None:
    """A trie tells that it is in use only to a thread that runs while another is inside it.

    The other thread asks without end. Were the GIL held, it could not run while `add` does, and would never be told.
    """
    trie = _forest.Trie()
    root = trie.new_root()
    ids, none = np.zeros(1_000_000, np.int32), np.zeros(0, np.int32)
    asking, told, stop = Event(), Event(), Event()

    def ask() -> None:
        while not stop.is_set() and not told.is_set():
            try:
                trie.layout([])  # refused at once, before anything is done
            except ValueError:
                asking.set()
            except RuntimeError:
                told.set()

    thread = Thread(target=ask)
    thread.start()
    try:
        assert asking.wait(timeout=60)
        for _ in range(100):
            trie.add([ids] * 20, [none] * 20, [root] * 20)
            if told.is_set():
                break
    finally:
        stop.set()
        thread.join(timeout=60)
    assert told.is_set()
