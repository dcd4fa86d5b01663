"""The end of a quickstart: curve, transcripts, adapter, what to try next, and the JSON line."""

import os
import shutil
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.panel import Panel

from ajet_cli.quickstart.live import updates_table
from ajet_cli.quickstart.progress import Progress
from ajet_cli.quickstart.setup import Plan
from ajet_core.errors import EngineFailedError

_PLOT_ROWS, _PLOT_MAX_COLUMNS = 10, 60
_TICK_COLUMNS = 10
"""plotille writes a tick every ten columns; that many an update puts each tick on an update."""


def collect_adapter(plan: Plan) -> Path:
    """Copies the newest checkpoint's adapter (or whole model) out of the server's data, and returns its folder."""
    steps = sorted((plan.data_dir / "checkpoints").glob("step-*"))
    for kind in ("adapter", "model"):
        source = steps[-1] / kind if steps else Path()
        if steps and source.is_dir():
            return Path(shutil.copytree(source, plan.folder / kind))
    raise EngineFailedError(f"no checkpoint in {plan.data_dir / 'checkpoints'}")


def summary(progress: Progress, plan: Plan, adapter: Path, seconds: float) -> dict[str, Any]:
    """Returns the object of the `--json` line."""
    return {
        "rewards": [round(reward, 6) for reward in progress.rewards],
        "updates": len(progress.updates),
        "seconds": round(seconds, 2),
        "tokens_unmerged": sum(update.report.tokens_unmerged for update in progress.updates),
        "tokens_forest": sum(update.report.tokens_forest for update in progress.updates),
        "adapter": str(adapter),
        "plot": str(plan.folder / "reward.png"),
        "model": str(plan.model),
        "seed": plan.seed,
        "sharing": plan.sharing,
        "stages": [
            {"rollout": update.rollout_s, **update.report.seconds, "sync": update.sync_s} for update in progress.updates
        ],
    }


def save_plot(progress: Progress, file: Path) -> None:
    """Writes the reward curve as PNG."""
    from matplotlib.figure import Figure

    rewards = progress.rewards
    figure = Figure(figsize=(6.4, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.plot(range(len(rewards)), rewards, marker="o", color="#1f77b4")
    axes.set(xlabel="updates", ylabel="mean reward", ylim=(0, 1.05), title="Reward under each weight version")
    axes.set_xticks(range(len(rewards)))
    axes.grid(alpha=0.3)
    figure.savefig(file)


def terminal_plot(rewards: list[float]) -> str:
    """Returns the reward curve drawn in characters."""
    import plotille

    figure = plotille.Figure()
    updates = max(len(rewards) - 1, 1)
    figure.width, figure.height = min(updates * _TICK_COLUMNS, _PLOT_MAX_COLUMNS), _PLOT_ROWS
    figure.origin = figure.with_colors = False
    figure.set_x_limits(0, updates)
    figure.set_y_limits(0, 1)
    figure.x_label, figure.y_label = "updates", "mean reward"
    figure.x_ticks_fkt = figure.y_ticks_fkt = cast(Any, _tick)  # typed as if a tick could be a date
    figure.plot(range(len(rewards)), rewards)
    return str(figure.show())


def _tick(value: float, _: float) -> str:
    return f"{value:.3g}"


def show_report(progress: Progress, plan: Plan, adapter: Path, console: Console) -> None:
    """Prints the end for a person."""
    console.print(updates_table(progress))
    console.print(terminal_plot(progress.rewards), highlight=False, markup=False, soft_wrap=True)
    for title, line in (("before", progress.rounds[0]), ("after", progress.rounds[-1])):
        for transcript in line["transcripts"]:
            body = "\n".join(
                f"[bold]{turn['role']:>9}[/] {_plain(turn['content'])}" for turn in transcript["transcript"]
            )
            console.print(Panel(body, title=f"{title}: reward {transcript['reward']:.1f}", title_align="left"))
    console.print(f"reward curve  {plan.folder / 'reward.png'}", f"adapter       {adapter}", sep="\n", soft_wrap=True)
    console.print("\n[bold]Try next[/]", *_next_commands(plan), sep="\n  ", soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    # A model may write anything, the terminal's control characters too.
    shown = "".join(character if character.isprintable() else "�" for character in text.replace("\n", " ⏎ "))
    return escape(shown)


def _next_commands(plan: Plan) -> list[str]:
    ajet = "uv run ajet" if "UV" in os.environ else "ajet"
    return [
        f"{ajet} server start --data-dir {plan.data_dir}    # serve and train on from here",
        f"{ajet} job init my-job.yaml --model {plan.model}    # a job of your own",
        f"{ajet} quickstart --model PATH    # the same with another Hugging Face model",
    ]
