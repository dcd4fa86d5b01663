"""Is anything lost? One training run, killed at random points with SIGKILL: API process, worker, both, the client.

The client's journal, the ledger, the checkpoints and the weights must agree: nothing acknowledged is lost, nothing is
trained twice, weight versions only rise, and it learns as a run that is left alone.
"""

import argparse
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ajet_core.config import Job
from ajet_server.demo.micro import make_micro_model
from killing.points import draw
from killing.proof import Journal, curve, retrain, verify
from killing.report import plot, show
from killing.run import Run, summary

_LEAST_UPDATES = 40
_SHARE_AT_END = 0.25
"""Part of the updates whose mean reward is the level that a run has reached."""
_HARM = 0.25
"""A level so much lower than that of the run left alone is no chance any more: both are means over tens of episodes."""


def run(points: int, seed: int, updates: int, folder: Path, progress: Progress) -> dict[str, Any]:
    """Runs all of it in a folder and returns what was found."""
    model = make_micro_model(folder / "model", seed)
    with _running(Run(folder / "killed", model)) as killed:
        bar = progress.add_task("kills", total=points)
        struck = killed.strike(draw(points, seed), lambda _: progress.advance(bar))
        killed.train(updates)
    journal = Journal.read(killed.journal)
    found = verify(killed.data, journal)
    again = progress.add_task("trained anew", total=found.updates)
    trained = retrain(killed.data, Job.model_validate(killed.job), found.updates, lambda: progress.advance(again))
    with _running(Run(folder / "alone", model)) as alone:
        progress.add_task("left alone", total=None)
        alone.train(found.updates)
    rewards, undisturbed = curve(killed.data, found.updates), curve(alone.data, found.updates)
    recoveries = [one.recovery_s for one in struck if one.recovery_s is not None]
    problems = list(found.problems)
    if not trained.identical:
        problems.append(f"the weights are {trained.weight_difference:.1e} away from each batch trained once")
    if _level(rewards) < _level(undisturbed) - _HARM:
        problems.append(f"the reward reached {_level(rewards):.3f}, left alone {_level(undisturbed):.3f}")
    return {
        "points": points,
        "clean": sum(one.clean for one in struck),
        "acknowledged": found.acknowledged,
        "found": found.found,
        "lost": found.lost,
        "trained_once": found.trained_once,
        "trained_twice": found.trained_twice,
        "waiting": found.waiting,
        "set_aside": found.set_aside,
        "versions_monotonic": found.versions_monotonic,
        "updates": found.updates,
        "redone": found.redone,
        "retried_calls": found.retried_calls,
        "recovery_s_median": median(recoveries),
        "recovery_s_max": max(recoveries),
        "weight_difference": trained.weight_difference,
        "retrained_identical": trained.identical,
        "reward_end": _level(rewards),
        "reward_end_undisturbed": _level(undisturbed),
        "seed": seed,
        "problems": problems,
        "phases": summary(struck),
        "kills": [asdict(one) for one in struck],
        "rewards": rewards,
        "rewards_undisturbed": undisturbed,
    }


@contextmanager
def _running(run: Run) -> Generator[Run]:
    try:
        yield run
    except BaseException:
        run.kill()
        raise
    run.stop()


def _level(rewards: list[float]) -> float:
    return mean(rewards[-max(int(len(rewards) * _SHARE_AT_END), 1) :])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200, help="kills")
    parser.add_argument("--seed", type=int, default=0, help="of the kill points, the model and nothing else")
    parser.add_argument("--updates", type=int, default=_LEAST_UPDATES, help="train at least so many updates")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the learning curves")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for data and logs, which stay")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with TemporaryDirectory() as temporary, Progress(*columns, console=Console(stderr=True)) as progress:
        folder = arguments.keep or Path(temporary)
        result = run(arguments.points, arguments.seed, arguments.updates, folder, progress)
    show(result)
    if arguments.plot:
        plot(result, arguments.plot)
    if arguments.json:
        print(json.dumps(result))
    if result["problems"] or result["clean"] != result["points"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
