import io
from pathlib import Path

from rich.console import Console

from ajet_cli.quickstart.live import updates_table
from ajet_cli.quickstart.progress import Progress
from ajet_cli.quickstart.report import save_plot, terminal_plot
from ajet_core.episode import EpisodeKind
from ajet_core.events import (
    EngineState,
    EpisodeLost,
    EpisodeOpened,
    StateChanged,
    StepFinished,
    StepReport,
    UpdateProgress,
    WeightsSynced,
)


def _report(step: int) -> StepReport:
    numbers = dict.fromkeys(
        ["reward_mean", "reward_std", "reward_min", "reward_max", "advantage_abs_mean", "loss", "grad_norm",
         "clip_fraction", "approx_kl", "ratio_min", "ratio_max", "entropy"], 0.5,
    )  # fmt: skip
    return StepReport(
        step=step, batch_id="b", weight_version=step, episodes=8, groups=2, calls=16, skipped=False,
        tokens_unmerged=4000, tokens_linear=3000, tokens_forest=1000, packs=1,
        seconds={"merge": 0.01, "pack": 0.01, "update": 3.0, "checkpoint": 0.1}, **numbers,
    )  # fmt: skip


def _progress() -> Progress:
    progress = Progress()
    progress.add_event(StateChanged(state=EngineState.ROLLING, cause="collecting", step=0, weight_version=0))
    progress.add_event(EpisodeOpened(episode_id="e", group_id="g", kind=EpisodeKind.TRAIN))
    progress.add_event(
        EpisodeLost(episode_id="e", group_id="g", kind=EpisodeKind.TRAIN, status="expired", reason="silence")
    )
    progress.add_event(WeightsSynced(weight_version=0, probe_error=0, probe_tolerance=1e-3, seconds=0.1))
    progress.add_event(StepFinished(report=_report(1), rollout_s=2.0))
    progress.add_event(UpdateProgress(step=1, stage="sync", done=0, total=1))
    progress.add_event(WeightsSynced(weight_version=1, probe_error=1e-6, probe_tolerance=1e-3, seconds=0.4))
    progress.add_round({"reward": 0.25, "transcripts": []})
    progress.add_round({"reward": 0.75, "transcripts": []})
    return progress


def test_progress_adds_up() -> None:
    progress = _progress()
    assert (progress.opened, progress.lost, progress.finished) == (1, 1, 0)
    assert progress.rewards == [0.25, 0.75]
    assert (progress.updates[0].sync_s, progress.updates[0].probe_error) == (0.4, 1e-6)
    assert (progress.state, progress.stage) == (EngineState.ROLLING, "sync 0/1")


def test_the_table_fits_a_terminal_and_shows_the_saving() -> None:
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(updates_table(_progress()))
    text = capture.get()
    assert "4.0x" in text
    assert "0.750" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text


def test_the_curve_is_drawn_and_saved(tmp_path: Path) -> None:
    file = tmp_path / "reward.png"
    save_plot(_progress(), file)
    assert file.read_bytes().startswith(b"\x89PNG")
    drawn = terminal_plot([0.25, 0.75])
    assert "mean reward" in drawn
    assert "\x1b" not in drawn
    assert max(len(line) for line in drawn.splitlines()) <= 80
