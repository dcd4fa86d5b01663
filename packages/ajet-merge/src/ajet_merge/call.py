"""`Call`: one captured request to the model, as token ids."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import BoolArray, FloatArray, IntArray, MaskArray
from ._fields import Field, ones_f32, ones_u8, plain_floats, plain_ids, zeros_f32

_NAMES = ("call_id", "attempt_id", "episode_id", "group_id", "compat_key")


@dataclass(frozen=True, eq=False, init=False, repr=False, slots=True)
class Call:
    """One captured call: the ids the engine was given (P of them) and the ids it sampled (C of them).

    Fields accept lists, buffers, numpy arrays and anything with `__array__` (torch tensors on a CPU). They are held as
    read-only arrays; int32 ids and float32 numbers in contiguous memory are taken without a copy. The caller's object
    is never modified, and must not be changed by the caller while the call is in use.

    Attributes:
        prompt_ids: i32[P]. May be empty; then the first completion token has no predictor and is never trained.
        completion_ids: i32[C]. May be empty; the call then only adds its prompt to the forest, and no loss.
        logprobs: f32[C], natural logarithm of the probability each completion token was sampled with; all finite.
        mask: u8[C], 1 = trainable. Default: all.
        advantage: f32[C]; one number stands for C equal ones.
        weight: f32[C] >= 0, the factor of each token's loss over the global batch; one number stands for C equal ones.
        call_id: names the call in errors.
        attempt_id: the attempt that made the call.
        episode_id: the episode of the attempt. `weights.episode_mean` needs it.
        group_id: the group of the episode. `weights.group_mean` needs it.
        compat_key: whatever must be equal for hidden states to be shared: model, adapter, digest of images, routes.
        context_exact: False where the prompt is not what the engine was given (see `match_texts`). The logprobs are
            then those of another context and must not be the denominator of a ratio; recompute them.

    Raises:
        CallError: a field is not usable; names the call, the field, the value and what would be right.
    """

    prompt_ids: IntArray
    completion_ids: IntArray
    logprobs: FloatArray
    mask: MaskArray
    advantage: FloatArray
    weight: FloatArray
    call_id: str
    attempt_id: str
    episode_id: str
    group_id: str
    compat_key: str
    context_exact: bool

    def __init__(
        self,
        prompt_ids: ArrayLike,
        completion_ids: ArrayLike,
        logprobs: ArrayLike,
        mask: ArrayLike | None = None,
        advantage: ArrayLike = 0.0,
        weight: ArrayLike = 1.0,
        call_id: str = "",
        attempt_id: str = "",
        episode_id: str = "",
        group_id: str = "",
        compat_key: str = "",
        context_exact: bool = True,
    ) -> None:
        set_field = object.__setattr__  # frozen: this is the one place that sets anything
        for name, value in zip(_NAMES, (call_id, attempt_id, episode_id, group_id, compat_key), strict=True):
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
                Field(str(call_id), name).refuse(f" = {value!r}: must be a string")
            set_field(self, name, value)
        if not isinstance(context_exact, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            Field(call_id, "context_exact").refuse(f" = {context_exact!r}: must be True or False")
        set_field(self, "context_exact", context_exact)
        prompt, completion = _ids(call_id, "prompt_ids", prompt_ids), _ids(call_id, "completion_ids", completion_ids)
        length = completion.size
        if prompt.size + length == 0:
            Field(call_id, "prompt_ids").refuse(" and completion_ids are both empty: a call needs at least one token")
        set_field(self, "prompt_ids", prompt)
        set_field(self, "completion_ids", completion)
        set_field(self, "logprobs", _logprobs(call_id, logprobs, length))
        set_field(self, "mask", ones_u8(length) if mask is None else Field(call_id, "mask").mask(mask, length))
        set_field(self, "advantage", _advantage(call_id, advantage, length))
        set_field(self, "weight", _weight(call_id, weight, length))

    def __len__(self) -> int:
        """Number of tokens, prompt + completion."""
        return self.prompt_ids.size + self.completion_ids.size

    def __repr__(self) -> str:
        return f"Call({self.call_id!r}, prompt={self.prompt_ids.size}, completion={self.completion_ids.size})"

    @property
    def trained(self) -> BoolArray:
        """bool[C]: the completion tokens that become occurrences: unmasked, and with a token before them."""
        trained = self.mask.astype(np.bool_)
        if self.prompt_ids.size == 0:
            trained[:1] = False
        return trained

    @property
    def excluded(self) -> int:
        """1 if a trainable first token has no predictor because the prompt is empty, else 0."""
        return int(self.prompt_ids.size == 0 and self.mask[0])


def _ids(call_id: str, name: str, value: ArrayLike) -> IntArray:
    ids = plain_ids(value)
    return Field(call_id, name).token_ids(value) if ids is None else ids


def _logprobs(call_id: str, value: ArrayLike, length: int) -> FloatArray:
    numbers = plain_floats(value, length)
    return Field(call_id, "logprobs").floats(value, length) if numbers is None else numbers


def _advantage(call_id: str, value: ArrayLike, length: int) -> FloatArray:
    if isinstance(value, float) and value == 0.0:  # the default: one array for all calls
        return zeros_f32(length)
    return Field(call_id, "advantage").floats(value, length, scalar=True)


def _weight(call_id: str, value: ArrayLike, length: int) -> FloatArray:
    if isinstance(value, float) and value == 1.0:
        return ones_f32(length)
    return Field(call_id, "weight").weights(value, length)
