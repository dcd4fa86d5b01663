"""One update (forward and backward pass of a batch), by several ways of running it, in one run.

Five cases of episodes; the same model, tokens, loss and weights for all. `padded`: every call alone, in padded batches
by plain transformers. `packed`: every call alone, without padding. `linear`: exact linear merging. `text`: merging
by text, in contexts that nothing was sampled in; not exact. `forest`: ours. On single turns also TRL's own loss step.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from ajet_merge import ModelShape, merge
from measure import machine, matmul_gflops
from updating import report
from updating.cases import CASES, exact_sizes, make_episodes, sizes_of
from updating.exact import forest_errors
from updating.methods import METHODS
from updating.model import CONFIG
from updating.workers import TRL, Best, Task, best_of_rounds, in_a_process

SINGLE_TURN = "single_turn"
EXACT = ("padded", "packed", "linear", "forest")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_case(name: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Best]]:
    """All but the gradients of one case, and what was measured of each method."""
    sizes, seed = sizes_of(name, arguments.quick), arguments.seed
    methods = [*METHODS, *([TRL] if name == SINGLE_TURN else [])]
    tasks = [Task(method, name, sizes, seed, arguments.threads) for method in methods]
    best = best_of_rounds(tasks, 2 if arguments.quick else 3)
    _check_losses(name, {method: best[method].loss for method in EXACT})
    episodes = make_episodes(name, sizes, seed)
    stats = merge(episodes.calls).stats
    flops = stats.flops(ModelShape.from_config(CONFIG))
    flop_ratio = flops.unmerged / flops.forest
    result = {
        "about": CASES[name].about,
        "calls": stats.calls,
        "seconds": {method: best[method].seconds for method in METHODS},
        "cpu_seconds": {method: best[method].cpu_seconds for method in METHODS},
        "tokens": {method: METHODS[method].tokens(episodes) for method in METHODS},
        "peak_mb": {method: best[method].peak_mb for method in METHODS},
        "flop_ratio": flop_ratio,
        "linear_flop_ratio": flops.linear / flops.forest,
        "achieved": _achieved(best, flop_ratio),
    }
    return result, best


def _check_losses(name: str, losses: dict[str, float]) -> None:
    """Only times of equal work are worth comparing."""
    if max(losses.values()) - min(losses.values()) > 1e-5:
        raise AssertionError(f"{name}: the ways compute different losses: {losses}")


def _achieved(best: dict[str, Best], flop_ratio: float) -> dict[str, float]:
    """How much faster the forest is than every call alone without padding, and than linear rows; by wall time unless
    it says cpu, which other programs on the machine disturb less."""
    packed, linear, forest = best["packed"], best["linear"], best["forest"]
    ratio, cpu_ratio = packed.seconds / forest.seconds, packed.cpu_seconds / forest.cpu_seconds
    return {
        "ratio": ratio,
        "fraction": ratio / flop_ratio,
        "cpu_ratio": cpu_ratio,
        "cpu_fraction": cpu_ratio / flop_ratio,
        "linear_ratio": linear.seconds / forest.seconds,
        "cpu_linear_ratio": linear.cpu_seconds / forest.cpu_seconds,
    }


def _against_trl(best: dict[str, Best]) -> dict[str, float]:
    ours, theirs = best["forest"], best[TRL]
    return {
        "seconds_ours": ours.seconds,
        "seconds_trl": theirs.seconds,
        "cpu_seconds_ours": ours.cpu_seconds,
        "cpu_seconds_trl": theirs.cpu_seconds,
        "loss_ours": ours.loss,
        "loss_trl": theirs.loss,
        "loss_abs_diff": abs(ours.loss - theirs.loss),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases."""
    cases: dict[str, Any] = {}
    trl: dict[str, float] | None = None
    for name in arguments.case or list(CASES):
        _progress(f"{name}: {', '.join(METHODS)} in turns")
        cases[name], best = measure_case(name, arguments)
        if TRL in best:
            trl = _against_trl(best)
        _progress(f"{name}: gradients")
        sizes = exact_sizes(name, arguments.quick)
        cases[name]["grad_rel_err"] = in_a_process(forest_errors, name, sizes, arguments.seed)
    torch.set_num_threads(arguments.threads)
    return {"machine": machine() | {"matmul_gflops": matmul_gflops()}, "model": CONFIG, "cases": cases, "trl": trl}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds: under two minutes")
    parser.add_argument("--case", nargs="+", choices=CASES, metavar="NAME", help=f"only these of {', '.join(CASES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of every process; all cores")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a plot; the name's ending says which format")
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error(f"argument --threads: {arguments.threads}: must be at least 1")
    # Idle threads of one process must not spin while another has its turn.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    result = run(arguments)
    report.show(result)
    if arguments.plot:
        report.plot(result, arguments.plot)
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
