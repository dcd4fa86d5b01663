"""Measures how wrong known shortcuts make the gradient of a merged batch: `python docs/exactness/shortcuts.py`.

A small Llama in float64; a batch with branches, drift, stripped thinking and completions that two episodes sampled
alike. Each gradient is compared with that of one backward pass for each call, by plain transformers. See
`docs/exactness.md`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from ajet_merge import Call, Pack, episode_mean, merge
from updating.cases import Episodes, Sizes, make_episodes
from updating.exact import Gradients, gradients, relative_errors
from updating.methods import called_alone, forest_packs, text_packs
from updating.model import make_model
from updating.passes import ATTENTION, run_packs

LSE_HELD = "lse_held_constant"
SIZES = Sizes(prompt=24, completion=10, observation=8, turns=3, rollouts=2, thinking=6)
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "initializer_range": 0.1,
}
FAR = -1e9
"""A score as good as none; softmax of nothing else is still a number."""


def make_batch() -> Episodes:
    """Two episodes each of three kinds, and a third that sampled what the first did, with another advantage."""
    batch = Episodes([], [])
    for seed, case in enumerate(("append_only", "drift", "stripped_thinking")):
        made = make_episodes(case, SIZES, seed)
        own = [named(call, f"{case} {call.episode_id}", call.advantage) for call in made.calls]
        twins = [named(call, f"{case} twin", -0.5 * call.advantage) for call in made.calls[: SIZES.turns]]
        batch.calls.extend(own + twins)
        batch.contexts.extend(made.contexts + made.contexts[: SIZES.turns])
    weights = episode_mean(batch.calls)
    calls = [replace(call, weight=weight_C) for call, weight_C in zip(batch.calls, weights, strict=True)]
    return Episodes(calls, batch.contexts)


def named(call: Call, episode: str, advantage: NDArray[np.float32]) -> Call:
    """The call as one of another episode."""
    return replace(call, episode_id=episode, attempt_id=episode, advantage=advantage)


def with_occurrences(pack: Pack, keep_M: NDArray[np.bool_]) -> Pack:
    """The pack with some of its occurrences only."""
    names = ("occ_predictor", "occ_target", "occ_token", "occ_index", "logprob", "advantage", "weight", "context_exact")
    return replace(pack, **{name: getattr(pack, name)[keep_M] for name in names})


def first_claimant(batch: Episodes) -> list[Pack]:
    """Of several calls that train one token, the first alone."""
    return [with_occurrences(pack, first_of_each(pack.occ_token)) for pack in forest_packs(batch)]


def first_of_each(values: NDArray[np.int32]) -> NDArray[np.bool_]:
    """True where a value is there for the first time."""
    first = np.zeros(values.size, np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def dropped_branch_targets(batch: Episodes) -> list[Pack]:
    """No token whose predictor is not the token before it in the pack."""
    return [with_occurrences(pack, pack.occ_predictor == pack.occ_token - 1) for pack in forest_packs(batch)]


def shift_by_one(batch: Episodes) -> list[Pack]:
    """Each token predicted by the one before it in the pack, whatever that is."""
    return [replace(pack, occ_predictor=pack.occ_token - 1) for pack in forest_packs(batch)]


def renormalised_rows(batch: Episodes) -> list[Pack]:
    """Weights made anew after merging: the mean over rows of the mean over each row's trained tokens."""
    rows = merge(batch.calls).timelines()
    calls = list(batch.calls)
    for row in rows:
        for index in row.calls:
            calls[index] = replace(calls[index], weight=1 / (len(rows) * row.occurrences.size))
    return forest_packs(Episodes(calls, batch.contexts))


def lse_held_constant(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float,
    pack_layout: Any,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention to the own segment and to the ancestors above it, merged by log-sum-exps that carry no gradient."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    index_T = torch.arange(query.shape[2])
    segment_T = torch.repeat_interleave(torch.tensor(pack_layout.q_lens))
    seen_TT = (index_T[None] <= index_T[:, None]) & (index_T[:, None] < pack_layout.end_T[None])
    own_TT = segment_T[:, None] == segment_T[None]
    scores = query @ key.transpose(2, 3) * scaling
    (own, own_lse), (above, above_lse) = (part(scores, value, seen_TT & mask) for mask in (own_TT, ~own_TT))
    share = torch.sigmoid(own_lse - above_lse).detach()
    return (share * own + (1 - share) * above).transpose(1, 2), None


def part(scores: torch.Tensor, value: torch.Tensor, mask_TT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to some keys, and its log-sum-exp [..., 1]."""
    scores = scores.masked_fill(~mask_TT, FAR)
    return scores.softmax(-1) @ value, scores.logsumexp(-1, keepdim=True)


SHORTCUTS: dict[str, tuple[str, Callable[[Episodes], Sequence[Pack]]]] = {
    "ours": (ATTENTION, forest_packs),
    "first claimant only": (ATTENTION, first_claimant),
    "dropped branch targets": (ATTENTION, dropped_branch_targets),
    "shift by one across segments": (ATTENTION, shift_by_one),
    "weights re-normalised per row": (ATTENTION, renormalised_rows),
    "LSE merge held constant": (LSE_HELD, forest_packs),
    "text merge with old log-probabilities": (ATTENTION, text_packs),
}


def measure() -> dict[str, float]:
    """Relative error of the whole gradient, for each shortcut and for ours."""
    AttentionInterface.register(LSE_HELD, lse_held_constant)
    AttentionMaskInterface.register(LSE_HELD, lambda *_, **__: None)
    batch = make_batch()
    wanted = gradient("sdpa", lambda model: called_alone(model, batch))
    return {
        name: relative_errors(gradient(attention, lambda m, make=make: run_packs(m, make(batch))), wanted).whole
        for name, (attention, make) in SHORTCUTS.items()
    }


def gradient(attention: str, run: Callable[[PreTrainedModel], float]) -> Gradients:
    """The gradient on the small model in float64."""
    return gradients(make_model(attention, double=True, **SMALL), run)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    errors = measure()
    print(f"| {'shortcut':37} | relative error |\n|{'-' * 39}|{'-' * 16}|")
    for name, error in errors.items():
        print(f"| {name:37} | {error:14.2g} |")
    if arguments.json:
        print(json.dumps(errors))


if __name__ == "__main__":
    main()
