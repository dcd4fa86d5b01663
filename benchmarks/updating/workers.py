"""One process for each method, running in turns: all meet the same machine, and each one's memory is its own."""

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from .cases import TINY, Sizes, make_episodes

TRL = "trl"
"""Beside the methods: TRL's loss step."""
_DEADLINE_S = 900
_TURN_S = 0.5
"""A turn lasts at least so long, so that a short update is not only ever run on caches that another has filled."""
_PRELOADED = ("torch", "transformers.models.llama.modeling_llama", "ajet_server.train.forward")

CONTEXT = multiprocessing.get_context("forkserver")
"""Processes begin with torch imported and no thread of it started."""
CONTEXT.set_forkserver_preload(list(_PRELOADED))


class Turn(NamedTuple):
    """The best update of a turn: wall time, processor time of all threads, and the loss."""

    seconds: float
    cpu_seconds: float
    loss: float


@dataclass(frozen=True)
class Task:
    """What a process runs: a method, or `TRL`, on a case."""

    method: str
    case: str
    sizes: Sizes
    seed: int
    threads: int


class Best(NamedTuple):
    """Of all turns of one method: the least times, the loss, and the growth of the process's memory in MB."""

    seconds: float
    cpu_seconds: float
    loss: float
    peak_mb: float


def best_of_rounds(tasks: Sequence[Task], rounds: int) -> dict[str, Best]:
    """Gives each task `rounds` turns, one after the other."""
    workers = [_Worker(task) for task in tasks]
    try:
        for worker in workers:
            worker.wait_ready()
        turns = [[worker.run() for worker in workers] for _ in range(rounds)]
        peaks = [worker.finish() for worker in workers]
    finally:
        for worker in workers:
            worker.close()
    columns = zip(*turns, strict=True)
    return {task.method: _best(column, peak) for task, column, peak in zip(tasks, columns, peaks, strict=True)}


def _best(turns: Sequence[Turn], peak_mb: float) -> Best:
    return Best(min(t.seconds for t in turns), min(t.cpu_seconds for t in turns), turns[0].loss, peak_mb)


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own."""
    with ProcessPoolExecutor(1, CONTEXT) as pool:
        return pool.submit(function, *arguments).result(_DEADLINE_S)


class _Worker:
    """The parent's end of one process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._pipe, other = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(other, task), daemon=True)
        self._process.start()
        other.close()

    def wait_ready(self) -> None:
        self._answer()

    def run(self) -> Turn:
        self._pipe.send(True)
        return self._answer()

    def finish(self) -> float:
        self._pipe.send(False)
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _answer(self) -> Any:
        if not self._pipe.poll(_DEADLINE_S):
            raise TimeoutError(f"{self._task.method} on {self._task.case}: no answer within {_DEADLINE_S} s")
        try:
            return self._pipe.recv()
        except EOFError as error:
            raise RuntimeError(f"{self._task.method} on {self._task.case}: its process failed, see above") from error


def _serve(pipe: Connection, task: Task) -> None:
    """The process: a turn whenever it is told to, at last the growth of its memory."""
    run = _prepared(task)
    before = _peak_mb()
    pipe.send(None)
    while pipe.recv():
        pipe.send(_turn(run))
    pipe.send(_peak_mb() - before)


def _turn(run: Callable[[], float]) -> Turn:
    best = Turn(float("inf"), float("inf"), 0.0)
    deadline = time.perf_counter() + _TURN_S
    while best.seconds == float("inf") or time.perf_counter() < deadline:
        started, cpu_started = time.perf_counter(), time.process_time()
        loss = run()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        best = Turn(min(best.seconds, seconds), min(best.cpu_seconds, cpu_seconds), loss)
    return best


def _prepared(task: Task) -> Callable[[], float]:
    """What one update runs, warmed up on a tiny batch."""
    import torch

    from .methods import METHODS
    from .model import make_model
    from .trl_loss import trl_step

    torch.set_num_threads(task.threads)
    episodes = make_episodes(task.case, task.sizes, task.seed)
    if task.method == TRL:
        return trl_step(episodes.calls)
    method = METHODS[task.method]
    model = make_model(method.attention)
    method.run(model, make_episodes(task.case, TINY, task.seed))

    def run() -> float:
        model.zero_grad()
        return method.run(model, episodes)

    return run


def _peak_mb() -> float:
    """Most memory the process ever had resident, in MB. Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
