"""From a pack to the log-probability of every occurrence in it."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ajet_server.train.attention import Backend, PackLayout
from ajet_server.train.head import HeadPlan, head_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ajet_merge import Pack


@dataclass(frozen=True)
class PackTensors:
    """One pack on the device: T tokens, M occurrences.

    Attributes:
        tokens_T: i64[T].
        pos_T: i64[T], position of each token in its sequence.
        layout: what each token attends to.
        head: which log-probabilities are wanted.
        rollout_M: f32[M], log-probabilities of the engine, as recorded.
        advantage_M: f32[M].
        weight_M: f32[M].
        call_M: i64[M], the call of each occurrence in the forest.
        exact_M: bool[M]; where False `rollout_M` is of another context.
        token_M: i64[M], the token of each occurrence when the completions of all calls of the batch are laid end to
            end; None for a pack that is of no batch.
        old_M: f32[M], log-probabilities of the model before the update; None where nothing was updated since.
        reference_M: f32[M], of the reference model; None without one.
        old_value_M: f32[M], what the critic said before the update; None without one, as `return_M`.
        return_M: f32[M], what it should have said.
    """

    tokens_T: torch.Tensor
    pos_T: torch.Tensor
    layout: PackLayout
    head: HeadPlan
    rollout_M: torch.Tensor
    advantage_M: torch.Tensor
    weight_M: torch.Tensor
    call_M: torch.Tensor
    exact_M: torch.Tensor
    token_M: torch.Tensor | None = None
    old_M: torch.Tensor | None = None
    reference_M: torch.Tensor | None = None
    old_value_M: torch.Tensor | None = None
    return_M: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        pack: "Pack",
        temperature_M: npt.NDArray[np.float32],
        call_M: npt.NDArray[np.int32],
        backend: Backend,
        chunk: int,
        device: torch.device,
        token_M: npt.NDArray[np.int64] | None = None,
    ) -> "PackTensors":
        """Copies a pack to the device.

        Args:
            pack: the pack.
            temperature_M: what each of its occurrences was sampled with.
            call_M: the call of each: `Forest.occurrences.call[pack.occ_index]`.
            backend: who computes attention.
            chunk: rows of logits held at once.
            device: where to.
            token_M: see `PackTensors`.
        """

        def put(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array.copy()).to(device)

        return cls(
            tokens_T=put(pack.tokens).long(),
            pos_T=put(pack.pos).long(),
            layout=PackLayout.of(pack, backend, device),
            head=HeadPlan.of(pack.occ_predictor, pack.occ_target, temperature_M, chunk, device),
            rollout_M=put(pack.logprob),
            advantage_M=put(pack.advantage),
            weight_M=put(pack.weight),
            call_M=put(call_M).long(),
            exact_M=put(pack.context_exact),
            token_M=None if token_M is None else put(token_M),
        )

    @property
    def tokens_in_batch(self) -> torch.Tensor:
        """`token_M` of a pack of a batch. Raises `ValueError` for any other."""
        if self.token_M is None:
            raise ValueError("a pack has no token_M: it did not come from `mini_batches`")
        return self.token_M


def occurrence_logprobs(
    model: "PreTrainedModel", pack: PackTensors, autocast: torch.dtype | None = None, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the pack through the model: `hidden_states`, then `hidden_logprobs`."""
    return hidden_logprobs(model, hidden_states(model, pack, autocast), pack, autocast, entropy_gradient)


def hidden_states(model: "PreTrainedModel", pack: PackTensors, autocast: torch.dtype | None = None) -> torch.Tensor:
    """Runs the pack through all layers but the output layer.

    Args:
        model: the plain causal language model, with adapters in its layers or without.
        pack: T tokens.
        autocast: number format of the matrix products when it is not that of the weights.

    Returns:
        [T, D].
    """
    with _autocast(autocast, pack.tokens_T.device):
        return model.base_model(
            input_ids=pack.tokens_T[None],
            position_ids=pack.pos_T[None],
            use_cache=False,
            pack_layout=pack.layout,
        ).last_hidden_state[0]


def hidden_logprobs(
    model: "PreTrainedModel",
    hidden_TD: torch.Tensor,
    pack: PackTensors,
    autocast: torch.dtype | None = None,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the occurrences, from the pack's hidden states.

    Args:
        model: the plain causal language model.
        hidden_TD: what `hidden_states` gave.
        pack: T tokens, M occurrences.
        autocast: number format of the matrix products when it is not that of the weights.
        entropy_gradient: whether the entropy carries a gradient.

    Returns:
        (logprobs_M, entropy_M); float32, or float64 for a model in float64.
    """
    with _autocast(autocast, pack.tokens_T.device):
        head: Any = model.get_output_embeddings()
        softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        return head_logprobs(hidden_TD, head.weight, head.bias, pack.head, softcap, entropy_gradient)


def _autocast(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
