#!/usr/bin/env python
"""Fuzz the merge: random families of calls, every merge checked; bad input, every piece refused.

    python fuzz_merge.py --merges 100000 --seed 1 --jobs 2

Deterministic: family f of seed s is always the same, whatever the number of jobs. A failure prints the command that
repeats it and the fewest calls that show it. The last line is JSON. The exit status is 1 if anything failed, or if
memory grew. Linux only: memory is read from /proc.
"""

import argparse
import faulthandler
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from checks import check_forest
from families import Family, Sample, make_family
from layout_checks import check_everything
from refusals import check_bad_batch, check_refusal

from ajet_merge import backend as backend_name
from ajet_merge import merge

MERGES_PER_FAMILY = 32
REFUSALS_PER_FAMILY = 8
FAMILIES_PER_CHUNK = 40
WARM_UP_CHUNKS = 4
MOST_FAILURES = 5
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
SHOW_UP_TO = 300


@dataclass(slots=True)
class Chunk:
    """What one chunk of families came to.

    Attributes:
        merges: merges made and checked.
        refusals: pieces of bad input refused.
        failures: one text for each failure.
        process: who did it.
        rss_mb: the process's resident memory after the chunk.
    """

    merges: int = 0
    refusals: int = 0
    failures: list[str] = field(default_factory=list[str])
    process: int = 0
    rss_mb: float = 0.0


def run_chunk(seed: int, families: range) -> Chunk:
    """These families of a seed."""
    chunk = Chunk(process=os.getpid())
    for number in families:
        run_family(seed, number, chunk)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    chunk.rss_mb = pages * PAGE_MB
    return chunk


def run_family(seed: int, number: int, chunk: Chunk) -> None:
    """Merge one family in many selections and orders, and try some bad input; stops at the first failure."""
    rng = np.random.default_rng([seed, number])
    again = f"--seed {seed} --first {number} --merges {MERGES_PER_FAMILY}"
    family = make_family(rng)
    for turn in range(MERGES_PER_FAMILY):
        picked = rng.integers(0, len(family.samples), int(rng.integers(1, len(family.samples) + 2))).tolist()
        samples = [family.samples[index] for index in picked]
        problem = _problem(family, samples, [seed, number, turn], everything=turn == 0)
        if problem:
            chunk.failures.append(_report(problem, again, family, samples, [seed, number, turn]))
            return
        chunk.merges += 1
    for check in [check_refusal] * (REFUSALS_PER_FAMILY - 1) + [check_bad_batch]:
        try:
            check(rng)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
            chunk.failures.append(f"{type(error).__name__}: {error}\n  {again}")
            return
        chunk.refusals += 1


def _problem(family: Family, samples: list[Sample], seed: list[int], *, everything: bool) -> str:
    """What is wrong with the merge of these calls; empty if nothing is."""
    try:
        forest = merge([sample.call for sample in samples])
        check_forest(family, samples, forest)
        if everything:
            check_everything(family, samples, forest, np.random.default_rng(seed))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
        return f"{type(error).__name__}: {error}"
    return ""


def _report(problem: str, again: str, family: Family, samples: list[Sample], seed: list[int]) -> str:
    """The failure, how to repeat it, and the fewest of its calls that show it."""
    at = 0
    while at < len(samples):
        fewer = samples[:at] + samples[at + 1 :]
        shorter = _problem(family, fewer, seed, everything=True) if fewer else ""
        samples, problem, at = (fewer, shorter, at) if shorter else (samples, problem, at + 1)
    return "\n".join([problem, f"  {again}", *(f"  {_code(sample)}" for sample in samples)])


def _code(sample: Sample) -> str:
    call = sample.call
    if len(call) > SHOW_UP_TO:
        return f"{call!r}: too long to print"
    names = ("prompt_ids", "completion_ids", "logprobs", "mask", "advantage", "weight")
    arrays = ", ".join(f"{name}={getattr(call, name).tolist()}" for name in names)
    return f"Call({arrays}, call_id={call.call_id!r}, compat_key={call.compat_key!r})"


def run_chunks(seed: int, chunks: Sequence[range], jobs: int) -> Iterator[Chunk]:
    """The chunks, in this process if there is one job, else in `jobs` others."""
    if jobs == 1:
        yield from map(run_chunk, repeat(seed), chunks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), faulthandler.enable) as pool:
        try:
            yield from pool.map(run_chunk, repeat(seed), chunks)
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(slots=True)
class Totals:
    """The sum of all chunks, and the memory each process had after each of its chunks, in MB."""

    merges: int = 0
    refusals: int = 0
    failures: list[str] = field(default_factory=list[str])
    rss_mb: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, chunk: Chunk) -> None:
        """Count a chunk, and print its failures."""
        self.merges += chunk.merges
        self.refusals += chunk.refusals
        self.failures += chunk.failures
        self.rss_mb[chunk.process].append(chunk.rss_mb)
        for failure in chunk.failures:
            print(failure, file=sys.stderr, flush=True)

    def memory(self) -> tuple[float, float]:
        """Resident memory early and late, of the process where it grew most.

        The least of each third after warming up: a few huge families leave peaks, only a leak raises the floor.
        """
        ranges: list[tuple[float, float]] = []
        for samples in self.rss_mb.values():
            warm = samples[WARM_UP_CHUNKS:] or samples[-1:]
            third = -(-len(warm) // 3)
            ranges.append((min(warm[:third]), min(warm[-third:])))
        return max(ranges, key=lambda pair: pair[1] - pair[0])


def main() -> int:
    """Run, print the JSON line, and return the exit status."""
    options = _parser().parse_args()
    faulthandler.enable()
    families = range(options.first, options.first + -(-options.merges // MERGES_PER_FAMILY))
    chunks = [families[at : at + FAMILIES_PER_CHUNK] for at in range(0, len(families), FAMILIES_PER_CHUNK)]
    totals, start = Totals(), time.monotonic()
    with ExitStack() as stack:
        advance = _progress(stack, len(families) * MERGES_PER_FAMILY)
        for chunk in run_chunks(options.seed, chunks, options.jobs):
            totals.add(chunk)
            advance(chunk.merges)
            late = options.seconds is not None and time.monotonic() - start > options.seconds
            if late or len(totals.failures) >= MOST_FAILURES:
                break
    seconds = time.monotonic() - start
    early, after = totals.memory()
    result = {
        "backend": backend_name,
        "seed": options.seed,
        "jobs": options.jobs,
        "merges": totals.merges,
        "refusals": totals.refusals,
        "failures": len(totals.failures),
        "seconds": round(seconds, 1),
        "merges_per_second": round(totals.merges / seconds),
        "rss_start_mb": round(early, 1),
        "rss_end_mb": round(after, 1),
    }
    print(json.dumps(result))
    if after - early > options.rss_growth_mb:
        print(f"memory grew by {after - early:.1f} MB; at most {options.rss_growth_mb} are allowed", file=sys.stderr)
    return int(bool(totals.failures) or after - early > options.rss_growth_mb)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Fuzz ajet_merge.")
    parser.add_argument("--merges", type=int, default=100_000, help="rounded up to whole families of 32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first family")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="stop after so long, even if there are fewer merges")
    parser.add_argument("--rss-growth-mb", type=float, default=32.0, help="growth of memory that counts as a leak")
    return parser


def _progress(stack: ExitStack, total: int) -> Callable[[int], None]:
    """What to call with the number of merges made; shows a bar if there is a terminal."""
    if not sys.stderr.isatty():
        return _no_progress
    from rich.console import Console
    from rich.progress import Progress

    bar = stack.enter_context(Progress(console=Console(stderr=True)))
    return partial(bar.advance, bar.add_task("merges", total=total))


def _no_progress(merges: int) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
