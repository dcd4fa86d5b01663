from typing import Any

import pytest

from ajet_cli.laststep import describe_step
from ajet_core.events import StepReport


def report(**figures: Any) -> StepReport:
    numbers = dict.fromkeys(
        ["reward_min", "reward_max", "advantage_abs_mean", "loss", "approx_kl", "ratio_min", "ratio_max"], 0.5
    )
    own = {"reward_mean": 0.25, "reward_std": 0.5, "grad_norm": 1.5, "clip_fraction": 0.02, "entropy": 2.0}
    counts = {"step": 3, "weight_version": 3, "episodes": 8, "groups": 2, "calls": 16, "packs": 1}
    tokens = {"tokens_unmerged": 4000, "tokens_linear": 3000, "tokens_forest": 1000}
    fields = {"batch_id": "b", "skipped": False, "seconds": {}} | numbers | own | counts | tokens
    return StepReport.model_validate(fields | figures)


def test_says_what_every_job_has_and_nothing_else() -> None:
    assert describe_step(report(ratio_q01=0.912345, ratio_q99=1.1)) == [
        "last step reward 0.250 (std 0.500), gradient 1.5, 4000 tokens merged to 1000",
        "policy    ratio 0.9123/1/1.1 at 1/50/99%, 2.0% clipped, entropy 2",
    ]


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"reference_kl": 0.0123}, "KL to the reference 0.0123"),
        ({"importance_max": 1.5, "importance_mean": 1.01, "importance_cut": 0.125}, "12.5% of importance weights cut"),
        ({"importance_max": 1.5}, "0.0% of importance weights cut"),
        (
            {"value_loss": 0.04, "explained_variance": -0.25, "return_mean": 0.5},
            "critic    value loss 0.04, explained variance -0.250, mean return 0.500",
        ),
        (
            {"staleness_max": 1, "staleness_mean": 0.25, "stale_fraction": 0.25, "mixed_calls": 3},
            "staleness 25.0% of tokens older (mean 0.25 versions, at most 1), 3 calls of several versions, 0 tokens",
        ),
        ({"overlap_tokens": 123456}, "staleness 0.0% of tokens older (mean 0.00 versions, at most 0), 0 calls"),
        ({"skipped": True, "skipped_in_row": 2}, "a step was skipped (2 in a row); see incidents/"),
        ({"skipped": True, "rolled_back_to": 1}, "the weights of step 1 were taken again"),
    ],
)
def test_says_what_the_job_has_besides(figures: dict[str, Any], said: str) -> None:
    lines = describe_step(report(**figures))
    assert said in "\n".join(lines)
    assert max(map(len, lines)) <= 140
