"""The figures of the last update, for people: a few lines, and none on what the job does not have."""

from ajet_core.events import StepReport


def describe_step(report: StepReport) -> list[str]:
    """Returns two to five lines: what came in, how far the policy moved, the critic, old tokens and trouble if any."""
    lines = [
        f"last step reward {report.reward_mean:.3f} (std {report.reward_std:.3f}), gradient {report.grad_norm:.3g}, "
        f"{report.tokens_unmerged} tokens merged to {report.tokens_forest}",
        f"policy    {', '.join(_policy(report))}",
    ]
    if report.value_loss or report.return_mean:
        lines.append(
            f"critic    value loss {report.value_loss:.3g}, explained variance {report.explained_variance:.3f}, "
            f"mean return {report.return_mean:.3f}"
        )
    if report.staleness_max or report.overlap_tokens:
        lines.append(f"staleness {_staleness(report)}")
    if report.skipped:
        lines.append(f"trouble   {_trouble(report)}")
    return lines


def _policy(report: StepReport) -> list[str]:
    ratios = "/".join(f"{ratio:.4g}" for ratio in (report.ratio_q01, report.ratio_q50, report.ratio_q99))
    parts = [f"ratio {ratios} at 1/50/99%", f"{report.clip_fraction:.1%} clipped"]
    if (report.importance_mean, report.importance_max) != (1.0, 1.0):
        parts.append(f"{report.importance_cut:.1%} of importance weights cut")
    parts.append(f"entropy {report.entropy:.3g}")
    if report.reference_kl:
        parts.append(f"KL to the reference {report.reference_kl:.3g}")
    return parts


def _staleness(report: StepReport) -> str:
    return (
        f"{report.stale_fraction:.1%} of tokens older (mean {report.staleness_mean:.2f} versions, at most "
        f"{report.staleness_max}), {report.mixed_calls} calls of several versions, {report.overlap_tokens} tokens "
        "sampled meanwhile"
    )


def _trouble(report: StepReport) -> str:
    if report.rolled_back_to is not None:
        return f"too many updates were skipped; the weights of step {report.rolled_back_to} were taken again"
    return (
        f"a loss or gradient was not finite, so a step was skipped ({report.skipped_in_row} in a row); "
        "see incidents/ in the data folder"
    )
