"""Runs the quickstart over several seeds: reward by update, seconds by stage, and a plot of the curves."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from measure import finish, machine

_STAGES = ("rollout", "merge", "score", "update", "checkpoint", "sync")


def run(seed: int, arguments: list[str]) -> dict[str, Any]:
    """Runs one quickstart as a user would, and returns its JSON line."""
    command = [sys.executable, "-m", "ajet_cli", "quickstart", "--json", "--seed", str(seed), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return line


def plot(runs: list[dict[str, Any]], file: Path) -> None:
    """Writes the reward curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    for line in runs:
        axes.plot(range(len(line["rewards"])), line["rewards"], marker="o", label=f"seed {line['seed']}")
    axes.axhline(0.9, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="updates", ylabel="mean reward", ylim=(0, 1.05))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file)


def table(runs: list[dict[str, Any]]) -> str:
    """Returns a Markdown table."""
    lines = [
        "| seed | reward before, then after each update | seconds | tokens | in the forest |",
        "|---|---|---|---|---|",
    ]
    for line in runs:
        rewards = " ".join(f"{reward:.2f}" for reward in line["rewards"])
        tokens = f"{line['tokens_unmerged']} | {line['tokens_forest']}"
        lines.append(f"| {line['seed']} | {rewards} | {line['seconds']:.0f} | {tokens} |")
    return "\n".join(lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plot", type=Path, default=Path("quickstart-output/rewards.png"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runs = [run(seed, ["--tiny"] if arguments.tiny else []) for seed in arguments.seeds]
    plot(runs, arguments.plot)
    stages = {name: mean(stage[name] for line in runs for stage in line["stages"]) for name in _STAGES}
    seconds = "  ".join(f"{name} {value:.2f}" for name, value in stages.items())
    text = f"{table(runs)}\n\nmean seconds an update: {seconds}\ncurves: {arguments.plot}"
    finish({"machine": machine(), "stages": stages, "runs": runs}, text, as_json=arguments.json)


if __name__ == "__main__":
    main()
