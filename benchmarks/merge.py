"""Merging calls into a forest, beside reading every id once and beside how others merge, all in one run.

The limit is one pass over all token ids. Peers are the functions of the published packages, each in an environment of
its own, and plain-Python versions of the same algorithms. The forest's size is checked against the number of distinct
prefixes, counted in another way.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ajet_merge import backend
from merging import exponents, ours, report
from merging.cases import CASES, make_case, save
from merging.peers import Peers

TWIN = "twin"


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_case(name: str, size: int, seed: int, budget_s: float, peers: Peers) -> dict[str, Any]:
    """Everything about one case."""
    captured = make_case(name, size, seed)
    _progress(f"{name}: ours")
    result = ours.measure(captured, budget_s)
    _progress(f"{name}: peers")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "case.npz"
        save(captured, file)
        others = peers.measure(file)
    twin = others.pop(TWIN, None)
    if twin is not None and twin["tokens"] != result["forest_tokens"]:
        raise AssertionError(f"{name}: the Python twin's forest has {twin['tokens']} tokens")
    by_text = others.pop(report.BY_TEXT, None)
    fields = {"peers": "us", "peer_rows": "rows", "peer_tokens": "tokens"}
    return {
        "about": CASES[name].about,
        "size": size,
        **result,
        "twin_us": twin and twin["us"],
        **{field: {peer: other[key] for peer, other in others.items()} for field, key in fields.items()},
        "by_text": by_text,
        "skipped": dict(peers.skipped),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases, then how time grows with size."""
    names: list[str] = arguments.case or list(CASES)
    budget_s, step_s = (0.1, 0.04) if arguments.quick else (2.0, 0.5)
    with Peers(budget_s) as peers:
        _progress("peers: loading their packages (the first time: downloading them)")
        peers.wait_ready()
        cases = {
            name: measure_case(
                name, CASES[name].quick if arguments.quick else CASES[name].size, arguments.seed, budget_s, peers
            )
            for name in names
        }
        skipped = peers.skipped
    growth: dict[str, Any] = {}
    for name in names:
        _progress(f"{name}: four sizes")
        growth[name] = exponents.measure(name, arguments.seed, step_s)
    return {
        "machine": _machine(),
        "cases": cases,
        "exponents": {key: value for one in growth.values() for key, value in one["exponents"].items()},
        "points": {name: one["points"] for name, one in growth.items()},
        "skipped": skipped,
    }


def _machine() -> dict[str, Any]:
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "backend": backend,
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="smaller groups, chains and sibling sets; fewer repeats")
    parser.add_argument("--case", nargs="+", choices=CASES, metavar="NAME", help=f"only these of {', '.join(CASES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a plot; the name's ending says which format")
    arguments = parser.parse_args()
    result = run(arguments)
    report.show(result)
    if arguments.plot:
        report.plot(result, arguments.plot)
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
