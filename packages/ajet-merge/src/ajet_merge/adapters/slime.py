"""slime (THUDM/slime on GitHub): training `Sample`s."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet_merge._arrays import IntArray
from ajet_merge.errors import CallError
from ajet_merge.forest import Forest

from ._optional import optional
from .rows import Row, refuse_inexact, trained_rows


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """The tokens of a row that one sample trains: those of one episode and with one value of advantage * weight."""

    row: Row
    episode_id: str
    group_id: str
    compat_key: str
    value: float
    positions: IntArray


def to_sample_dicts(
    forest: Forest, *, max_length: int | None = None, recompute_logprobs: bool = False
) -> list[dict[str, Any]]:
    """The rows of a forest as dicts of plain values that `slime.utils.types.Sample.from_dict` takes. Needs no slime.

    A slime sample has one reward for all its tokens, and nothing of a sample reaches the trainer that could hold one
    for each. A row is therefore repeated, with another part of it trained, for each episode and each value of
    advantage * weight on it. That is one sample for each row and episode if advantages are constant over an episode,
    and weights are those of `token_mean`, `episode_mean` or `group_mean`.

    slime's loss is a mean over the trained tokens of a rollout, then over the `global_batch_size` rollouts of a step.
    A rollout is an episode here, and the reward undoes both means: reward = advantage * weight * trained tokens of the
    episode * number of episodes, which is the advantage itself with `weights.episode_mean`. Set `--advantage-estimator
    grpo`, `--disable-rewards-normalization`, and `--global-batch-size` to the number of episodes that train something
    (slime drops those that do not fill a step), and leave off `--normalize-advantages`, `--calculate-per-token-loss`,
    and the entropy and KL terms. The loss of the step is then the sum of weight * loss over all occurrences. Losses
    with a ratio for each sequence (`--advantage-estimator gspo`) take it over a sample.

    Fields of a sample of n tokens, R of them the response:
        tokens: n ids, up to the last that is trained.
        response_length: R; the response begins with the first trained token.
        loss_mask: R times 1 (trained here) or 0.
        rollout_log_probs: R rollout logprobs, 0 where not trained here; None with `recompute_logprobs`.
        reward: float, see above.
        index: number of the sample.
        rollout_id: number of its episode.
        group_index: number of its group.
        status: "completed".
        metadata: episode_id, group_id and compat_key.

    Args:
        forest: the merged calls, with weights and advantages set, and all with an `episode_id`.
        max_length: most tokens in a row; None sets no limit.
        recompute_logprobs: give no rollout logprobs, because the actor computes the old ones (slime's default). Not
            with `--use-rollout-logprobs` or `--use-tis`, which want them.

    Raises:
        CallError: a call that trains something has no `episode_id`.
        MergeError: a row is longer than `max_length` (rows are never truncated), or has `context_exact` False and its
            logprobs are not recomputed.
    """
    rows = trained_rows(forest, max_length)
    if not recompute_logprobs:
        refuse_inexact(rows, "pass recompute_logprobs=True and let the actor compute the old logprobs")
    parts = [part for row in rows for part in _parts(forest, row)]
    tokens: Counter[str] = Counter()
    for part in parts:
        tokens[part.episode_id] += part.positions.size
    episodes = {episode: number for number, episode in enumerate(tokens)}
    groups = {group: number for number, group in enumerate(dict.fromkeys(part.group_id for part in parts))}
    return [
        {
            **_fields(part, recompute_logprobs),
            "reward": part.value * tokens[part.episode_id] * len(episodes),
            "index": index,
            "rollout_id": episodes[part.episode_id],
            "group_index": groups[part.group_id],
        }
        for index, part in enumerate(parts)
    ]


def to_samples(forest: Forest, *, max_length: int | None = None, recompute_logprobs: bool = False) -> list[Any]:
    """`to_sample_dicts` as `slime.utils.types.Sample`s, for a custom rollout function of slime to return.

    Raises:
        MergeError: slime is missing; and whatever `to_sample_dicts` raises.
    """
    types = optional("slime.utils.types", "install slime from its repository, THUDM/slime on GitHub")
    dicts = to_sample_dicts(forest, max_length=max_length, recompute_logprobs=recompute_logprobs)
    return [types.Sample.from_dict(fields) for fields in dicts]


def _parts(forest: Forest, row: Row) -> list[_Part]:
    """The row's occurrences, by episode and value, in the order of their first tokens."""
    line, occurrences = row.timeline, forest.occurrences
    value = occurrences.advantage[line.occurrences] * occurrences.weight[line.occurrences]
    owner = occurrences.call[line.occurrences]
    positions: dict[tuple[str, str, str, float], list[int]] = {}
    for position, call_index, number in zip(line.positions.tolist(), owner.tolist(), value.tolist(), strict=True):
        call = forest.calls[call_index]
        if not call.episode_id:
            raise CallError(
                call.call_id, "episode_id", " is empty: slime averages over rollouts, which are episodes here"
            )
        positions.setdefault((call.episode_id, call.group_id, call.compat_key, number), []).append(position)
    return [_Part(row, *key, np.array(found, np.int32)) for key, found in positions.items()]


def _fields(part: _Part, recompute_logprobs: bool) -> dict[str, Any]:
    line = part.row.timeline
    start, end = int(part.positions[0]), int(part.positions[-1]) + 1
    mask = np.zeros(end - start, np.uint8)
    mask[part.positions - start] = 1
    return {
        "tokens": line.tokens[:end].tolist(),
        "response_length": end - start,
        "loss_mask": mask.tolist(),
        "rollout_log_probs": None if recompute_logprobs else (line.logprobs[start:end] * mask).tolist(),
        "status": "completed",
        "metadata": {
            "episode_id": part.episode_id,
            "group_id": part.group_id,
            "compat_key": part.compat_key,
        },
    }
