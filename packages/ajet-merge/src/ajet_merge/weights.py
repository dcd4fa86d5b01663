"""Loss weights over the global batch, before anything is merged, cut or packed.

Each function returns one f32[C] array for each call, 0 where the call trains nothing, such that `sum(weight * loss)`
over all occurrences is the mean it is named after. Because weights are fixed here, the loss does not depend on how
episodes were cut into calls, rows or packs. Apply them with `dataclasses.replace(call, weight=array)`.

With L(x) the loss of an occurrence x, T all occurrences, and |.| a number of occurrences:

    token_mean     sum over T of L / |T|
    sequence_mean  1/S * sum over calls c with occurrences of (sum over c of L / |c|), S such calls
    episode_mean   the same over episodes e: an episode cut into many calls weighs as much as one cut into few
    group_mean     the same over groups g: tokens of one group are averaged, then groups
    unit_mean      the same over units that the caller names
    fixed_length_mean  1/S * sum over calls of (sum over c of L / n), with n the same number for all

Units without occurrences are left out of the number of units too: they have no mean.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ._arguments import integer
from ._arrays import FloatArray
from .call import Call
from .errors import CallError, MergeError


def token_mean(calls: Sequence[Call]) -> list[FloatArray]:
    """Every trained token of the batch weighs the same: 1 / |T|.

    As in "token-level policy gradient loss", DAPO (arXiv:2503.14476, eq. 8), with the mean taken over the whole batch.
    """
    return _unit_mean(calls, lambda index, call: None)


def sequence_mean(calls: Sequence[Call]) -> list[FloatArray]:
    """Every call weighs the same: 1 / (S |c|), with S the number of calls that train anything.

    As in GRPO, DeepSeekMath (arXiv:2402.03300, eq. 3), a sequence being one call. Tokens of long ones weigh less.
    """
    return _unit_mean(calls, lambda index, call: index)


def episode_mean(calls: Sequence[Call]) -> list[FloatArray]:
    """Every episode weighs the same, however many calls it took: 1 / (E |e|).

    This is GRPO's sequence mean when an episode is taken as the sequence.

    Raises:
        CallError: a call that trains something has no `episode_id`.
    """
    return _unit_mean(calls, lambda index, call: _named(call, "episode_id", call.episode_id))


def group_mean(calls: Sequence[Call]) -> list[FloatArray]:
    """Every group weighs the same, and every token in a group: 1 / (G |g|).

    As in DAPO (arXiv:2503.14476, eq. 8), where the sum over a group's tokens is divided by their number and the
    expectation is over prompts; the "prompt average" of ScaleRL (arXiv:2510.13786).

    Raises:
        CallError: a call that trains something has no `group_id`.
    """
    return _unit_mean(calls, lambda index, call: _named(call, "group_id", call.group_id))


def fixed_length_mean(calls: Sequence[Call], length: int) -> list[FloatArray]:
    """Every trained token weighs 1 / (S `length`), so that long sequences are not favoured when wrong.

    As in Dr. GRPO, "Understanding R1-Zero-Like Training" (arXiv:2503.20783): the sum over a response is divided by a
    constant, there the largest number of new tokens.

    Args:
        calls: the calls of the global batch.
        length: the constant, at least 1.

    Raises:
        MergeError: `length` is less than 1.
    """
    integer("length", length, least=1)
    trained = [call.trained for call in calls]
    sequences = sum(bool(mask.any()) for mask in trained)
    return [mask * np.float32(1 / (max(sequences, 1) * length)) for mask in trained]


def unit_mean(calls: Sequence[Call], units: Sequence[Hashable]) -> list[FloatArray]:
    """Every unit weighs the same, and every token in it: 1 / (U |u|).

    Args:
        calls: the calls of the global batch.
        units: what each call belongs to: its role, its task, its (group, turn)...

    Raises:
        MergeError: not one unit for each call.
    """
    calls = list(calls)
    if len(units) != len(calls):
        raise MergeError(f"units has {len(units)} entries for {len(calls)} calls; give one for each")
    return _unit_mean(calls, lambda index, call: units[index])


def _unit_mean(calls: Sequence[Call], unit_of: Callable[[int, Call], Hashable]) -> list[FloatArray]:
    """The weight 1 / (units * tokens of the unit) on each trained token."""
    calls = list(calls)
    trained = [call.trained for call in calls]
    tokens: dict[Hashable, int] = {}
    units: list[Hashable] = []
    for index, call in enumerate(calls):
        count = int(np.count_nonzero(trained[index]))
        units.append(unit_of(index, call) if count else None)
        if count:
            tokens[units[-1]] = tokens.get(units[-1], 0) + count
    return [
        mask * np.float32(1 / (len(tokens) * tokens[unit])) if mask.any() else np.zeros(mask.size, np.float32)
        for mask, unit in zip(trained, units, strict=True)
    ]


def _named(call: Call, field: str, value: str) -> str:
    if not value:
        raise CallError(call.call_id, field, " is empty: this mean needs to know what the call belongs to")
    return value
