"""Does merging change learning? The quickstart as it is and with every call computed alone, over several seeds.

Both see the same tasks, sampling seeds and first weights. Their gradients agree to rounding and no further, and a
sampled token may turn on the last bit: of the weights, or of which calls the engine happens to compute together. So
the curves of one seed may part. What is compared is how many updates a run makes until two batches in a row reach the
quickstart's target, where it stops by itself.
"""

import argparse
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import Any

from ajet_cli.quickstart.client import TARGET
from measure import finish, machine
from quickstart import run

_SHARING = {"merged": "auto", "alone": "calls"}
"""What is compared, and the `trainer.sharing` of each."""


def compare(seed: int, arguments: list[str]) -> dict[str, Any]:
    """Runs one seed both ways. `parted_after` is the first update after which the rewards differ; None if none does."""
    runs = {name: _run(seed, [*arguments, "--sharing", sharing]) for name, sharing in _SHARING.items()}
    curves = zip_longest(*(line["rewards"] for line in runs.values()))
    parted = next((update for update, (merged, alone) in enumerate(curves) if merged != alone), None)
    return {"seed": seed, "parted_after": parted, **runs}


def _run(seed: int, arguments: list[str]) -> dict[str, Any]:
    line = run(seed, arguments)
    batches = line["rewards"][:-1]  # the last reward is of other tasks, after training
    reached = len(batches) > 1 and min(batches[-2:]) >= TARGET
    return {
        "rewards": line["rewards"],
        "updates_to_target": line["updates"] if reached else None,
        "seconds": line["seconds"],
        "update_seconds": mean(stage["update"] for stage in line["stages"]),
        "tokens_unmerged": line["tokens_unmerged"],
        "tokens_computed": line["tokens_forest"],
    }


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """Writes the reward curves, one colour a seed: merged as a broad line, alone as a broken one over it."""
    from matplotlib.figure import Figure

    styles: dict[str, dict[str, Any]] = {
        "merged": {"linewidth": 5, "alpha": 0.35},
        "alone": {"linewidth": 1.5, "linestyle": "--", "marker": "o", "markersize": 3},
    }
    figure = Figure(figsize=(6.4, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        for name, style in styles.items():
            label = f"seed {result['seed']}, {name}"
            axes.plot(result[name]["rewards"], color=f"C{number}", label=label, **style)
    axes.axhline(TARGET, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="updates", ylabel="mean reward", ylim=(0, 1.05))
    axes.set_xticks(range(max(len(result[name]["rewards"]) for result in results for name in styles)))
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(file)


def table(results: list[dict[str, Any]]) -> str:
    """Returns a Markdown table."""
    lines = [
        "| seed | calls | reward before, then after each update | updates to target | tokens computed | "
        "seconds an update | seconds, all in all |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for name in _SHARING:
            line = result[name]
            rewards = " ".join(f"{reward:.2f}" for reward in line["rewards"])
            cells = [result["seed"], name, rewards, line["updates_to_target"] or "not reached"]
            cells += [f"{line['tokens_computed']:,}", f"{line['update_seconds']:.1f}", f"{line['seconds']:.0f}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def verdict(results: list[dict[str, Any]]) -> str:
    """Returns in words on which seeds merging needed more updates, and where curves part."""
    slower = [result["seed"] for result in results if _updates(result["merged"]) > _updates(result["alone"])]
    parted = ", ".join(
        f"seed {result['seed']} after {result['parted_after']} updates"
        for result in results
        if result["parted_after"] is not None
    )
    return f"merging needed more updates on seeds: {slower or 'none'}\ncurves part: {parted or 'none does'}"


def _updates(line: dict[str, Any]) -> float:
    return float("inf") if line["updates_to_target"] is None else line["updates_to_target"]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=12, help="updates at most")
    parser.add_argument(
        "--tiny", action="store_true", help="the micro model, which 12 updates do not take to the target"
    )
    parser.add_argument("--plot", type=Path, default=Path("quickstart-output/learning.png"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    passed = ["--updates", str(arguments.updates), *(["--tiny"] if arguments.tiny else [])]
    results = [compare(seed, passed) for seed in arguments.seeds]
    plot(results, arguments.plot)
    text = f"{table(results)}\n\n{verdict(results)}\ncurves: {arguments.plot}"
    finish({"machine": machine(), "target": TARGET, "results": results}, text, as_json=arguments.json)


if __name__ == "__main__":
    main()
