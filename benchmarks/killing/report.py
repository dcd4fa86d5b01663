"""Tables and the plot of a chaos run."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def show(result: dict[str, Any]) -> None:
    """Prints kills by phase, and what was found."""
    console = Console(width=110)
    phases = Table("hit while", "api", "worker", "both", "client", "kills", "clean")
    for row in result["phases"]:
        counts = [row[target] for target in ("api", "worker", "both", "client")]
        phases.add_row(row["phase"], *map(str, counts), str(sum(counts)), str(row["clean"]))
    console.print(phases)
    found = Table("kills", "clean", "acknowledged", "found", "lost", "trained once", "twice", "updates", "redone")
    names = ("points", "clean", "acknowledged", "found", "lost", "trained_once", "trained_twice", "updates", "redone")
    found.add_row(*(str(result[name]) for name in names))
    console.print(found)
    console.print(
        f"weight versions monotonic: {result['versions_monotonic']}; {result['retried_calls']} calls answered after a "
        f"retry; back after {result['recovery_s_median']:.1f} s (median); weights and optimizer as if each batch was "
        f"trained once: {result['retrained_identical']}; reward at the end {result['reward_end']:.3f}, left alone "
        f"{result['reward_end_undisturbed']:.3f}"
    )
    for problem in result["problems"]:
        console.print(problem, style="red", highlight=False, markup=False)


def plot(result: dict[str, Any], file: Path) -> None:
    """Writes both learning curves, and where the kills came."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    for kill in result["kills"]:
        axes.axvline(kill["step"] + 0.5, color="C3", linewidth=0.6, alpha=0.25)
    axes.plot([], [], color="C3", linewidth=0.6, label="kill -9")
    axes.plot(range(1, len(result["rewards_undisturbed"]) + 1), result["rewards_undisturbed"], "C7", label="left alone")
    axes.plot(range(1, len(result["rewards"]) + 1), result["rewards"], "C0", label=f"killed {result['points']} times")
    axes.set(xlabel="updates", ylabel="mean reward of the batch", ylim=(0, 1.05))
    axes.legend(loc="lower right")
    figure.savefig(file)
