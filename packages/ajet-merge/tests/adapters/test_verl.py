"""The real verl on the adapter's batch: its `DataProto` methods, its padding removal and its actor loss.

verl asks for older transformers than this workspace has: `.ci/adapters` runs this file where verl can be installed.
"""

from typing import Any

import pytest
from adapter_cases import CLIP, DUAL_CLIP, agent_forest, dual_clip_ppo, inexact_forest, logprob, plain_loss

from ajet_merge import MergeError
from ajet_merge.adapters.verl import to_dataproto

pytest.importorskip("verl", reason="verl conflicts with this environment; .ci/adapters runs this file")

import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu
from verl.utils.model import compute_position_id_with_mask
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding

PAD = 99
TENSORS = {
    "prompts",
    "responses",
    "input_ids",
    "attention_mask",
    "position_ids",
    "response_mask",
    "advantages",
    "old_log_probs",
    "rollout_log_probs",
}


def batch_of(**options: Any) -> DataProto:
    return to_dataproto(agent_forest(), pad_token_id=PAD, **options)


def actor_config() -> ActorConfig:
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        loss_agg_mode="token-sum",
        clip_ratio=CLIP,
        clip_ratio_low=CLIP,
        clip_ratio_high=CLIP,
        clip_ratio_c=DUAL_CLIP,
    )


def model_output(data: TensorDict) -> dict[str, torch.Tensor]:
    """As an engine gives it: for each row without padding, entry i is the logprob of token i + 1; the last is noise."""
    rows = [row.tolist() for row in data["input_ids"].unbind()]
    new = [torch.tensor([logprob(row[: i + 1]) for i in range(1, len(row))] + [-7.0]) for row in rows]
    return {"log_probs": torch.nested.as_nested_tensor(new, layout=torch.jagged)}


def actor_loss(batch: DataProto, dp_size: int = 1) -> float:
    """What verl's actor worker does with a micro-batch, but for the model."""
    data = left_right_2_no_padding(batch.to_tensordict())
    tu.assign_non_tensor(data, dp_size=dp_size, batch_num_tokens=None, global_batch_size=None)
    loss, _ = ppo_loss(actor_config(), model_output(data), data)
    return loss.item()


@pytest.mark.parametrize("options", [{}, {"multiple_of": 4}, {"prompt_length": 9, "response_length": 12}])
def test_the_actor_s_loss_is_the_sum_over_the_calls(options: dict[str, int]) -> None:
    assert actor_loss(batch_of(**options)) == pytest.approx(plain_loss(agent_forest(), dual_clip_ppo), rel=1e-5)


def test_micro_batches_on_two_ranks_add_up_to_the_same() -> None:
    """Data-parallel ranks average their gradients, and verl scales each rank's loss by their number."""
    chunks = batch_of(multiple_of=2).chunk(2)
    mean = sum(actor_loss(chunk, dp_size=2) for chunk in chunks) / 2
    assert mean == pytest.approx(plain_loss(agent_forest(), dual_clip_ppo), rel=1e-5)


def test_the_policy_loss_of_core_algos_on_the_padded_tensors() -> None:
    batch = batch_of().batch
    width = batch["responses"].shape[1]
    new = torch.zeros(batch["responses"].shape)
    for index, (ids, mask) in enumerate(zip(batch["input_ids"].tolist(), batch["attention_mask"].bool(), strict=True)):
        tokens = [token for token, real in zip(ids, mask.tolist(), strict=True) if real]
        start = int(mask[:-width].sum())
        for t in range(int(mask[-width:].sum())):
            new[index, t] = logprob(tokens[: start + t + 1])
    config = actor_config()
    args = (batch["old_log_probs"], new, batch["advantages"], batch["response_mask"])
    loss, _ = core_algos.compute_policy_loss_vanilla(*args, loss_agg_mode="token-sum", config=config)
    assert loss.item() == pytest.approx(plain_loss(agent_forest(), dual_clip_ppo), rel=1e-5)
    other, _ = core_algos.compute_policy_loss_vanilla(*args, loss_agg_mode="token-mean", config=config)
    assert other.item() == pytest.approx(loss.item() / int(batch["response_mask"].sum()), rel=1e-5)


def test_fields_and_types() -> None:
    batch = batch_of(prompt_length=4, multiple_of=4)
    batch.check_consistency()
    assert set(batch.batch.keys()) == TENSORS
    floats = {"advantages", "old_log_probs", "rollout_log_probs"}
    assert {name for name, value in batch.batch.items() if value.dtype == torch.float32} == floats
    assert {value.dtype for name, value in batch.batch.items() if name not in floats} == {torch.int64}
    assert batch.non_tensor_batch["calls"][-1] == ()
    assert sorted(call for calls in batch.non_tensor_batch["calls"] for call in calls) == list(range(6))
    expected = compute_position_id_with_mask(batch.batch["attention_mask"])
    assert torch.equal(batch.batch["position_ids"], expected)


def test_batches_of_one_shape_can_be_joined_cut_and_chosen_from() -> None:
    batch = batch_of(prompt_length=4, response_length=9)
    joined = DataProto.concat([batch, batch])
    assert len(joined) == 6
    assert torch.equal(joined[3:].batch["input_ids"], batch.batch["input_ids"])
    chosen = joined.select_idxs([1, 4])
    assert chosen.non_tensor_batch["calls"].tolist() == [batch.non_tensor_batch["calls"][1]] * 2


def test_recomputed_logprobs_can_be_united_with_the_batch() -> None:
    with pytest.raises(MergeError, match=r"'call-1'.*context_exact is False.*recompute_logprobs=True"):
        to_dataproto(inexact_forest(), pad_token_id=PAD)
    batch = to_dataproto(inexact_forest(), pad_token_id=PAD, recompute_logprobs=True)
    assert set(batch.batch.keys()) == TENSORS - {"old_log_probs", "rollout_log_probs"}
    computed = torch.full(batch.batch["responses"].shape, -0.5)
    united = batch.union(DataProto.from_dict(tensors={"old_log_probs": computed}))
    assert torch.equal(united.batch["old_log_probs"], computed)
