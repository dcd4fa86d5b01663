"""Forests as the rows that other reinforcement-learning stacks train on.

    rows      trained_rows(forest)     the linear rows, split into prompt and response; base of all others
    padded    to_padded(forest)        one rectangular batch of numpy arrays; base of `verl` and `trl`
    verl      to_dataproto(forest)     a `verl.DataProto`, as `update_actor` takes it
    trl       to_grpo_batch(forest)    the inputs of `GRPOTrainer`'s loss; to_rollout(): what a `rollout_func` returns
    slime     to_samples(forest)       `slime.utils.types.Sample`s; to_sample_dicts(): the same without slime
    tinker    to_datums(forest)        `tinker.Datum`s
    datasets  to_dataset(forest)       a `datasets.Dataset`, for storage and for one's own loop

None of these stacks runs a forest, so each gets the rows of `Forest.timelines()`: exact, no more than needed, and every
occurrence in exactly one of them. Timelines that train nothing add nothing to a loss and are left out.

Weights are folded into advantages where a stack has no place for them: `advantages = advantage * weight`. That is
exact for a policy loss with loss(k * advantage) = k * loss(advantage) for k >= 0, as weights are never negative.
REINFORCE, importance sampling, PPO with one or two clips and CISPO are such losses. Entropy and KL terms have no
advantage in them, and stay unweighted.

Each module imports its stack when it is called, and says what to install where it is missing.
"""

from . import datasets, padded, rows, slime, tinker, trl, verl

__all__ = ["datasets", "padded", "rows", "slime", "tinker", "trl", "verl"]
