"""The real `GRPOTrainer` on the adapter's batch: its loss is the sum over the calls."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from adapter_cases import agent_calls, inexact_forest, plain_loss, ppo, turn

from ajet_merge import Forest, MergeError, merge
from ajet_merge.adapters.trl import to_grpo_batch, to_rollout

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
trl = pytest.importorskip("trl", reason="trl is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

PAD, VOCAB = 0, 100
FIELDS = {
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "num_items_in_batch",
}


def micro_llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=VOCAB - 1,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config)


def word_tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {"<pad>": PAD, "<eos>": VOCAB - 1, **{str(token): token for token in range(1, VOCAB - 1)}}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>")


class ForestTrainer(trl.GRPOTrainer):
    """A trainer whose rollouts are forests, as the adapter's docstring says to make it."""

    forest: Forest

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        return to_grpo_batch(self.forest, pad_token_id=PAD, multiple_of=len(inputs))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model runs many times slower when its threads wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> ForestTrainer:
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_generations=2,
        learning_rate=1.0,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=1e9,
        max_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        activation_checkpointing=False,
    )
    return ForestTrainer(
        model=micro_llama(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["1 2"] * 4}),
        processing_class=word_tokenizer(),
    )


def logprob_of(model: Any) -> Any:
    def logprob(prefix: Sequence[int]) -> float:
        with torch.no_grad():
            logits = model(torch.tensor([list(prefix[:-1])])).logits[0, -1]
        return float(logits.double().log_softmax(-1)[prefix[-1]])

    return logprob


def near_on_policy(model: Any) -> Forest:
    """The agents' calls, with rollout logprobs near those of the micro model, on both sides of the clips."""
    logprob, made = logprob_of(model), []
    for call in agent_calls():
        tokens, start = [*call.prompt_ids.tolist(), *call.completion_ids.tolist()], call.prompt_ids.size
        near = [logprob(tokens[: start + t + 1]) - 0.4 + 0.4 * (t % 3) for t in range(call.completion_ids.size)]
        made.append(replace(call, logprobs=near))
    return merge(made)


@pytest.mark.parametrize("dummies", [False, True])
def test_the_trainer_s_loss_is_the_sum_over_the_calls(trainer: ForestTrainer, dummies: bool) -> None:
    model = trainer.model.eval()
    forest = near_on_policy(model)
    batch = to_grpo_batch(forest, pad_token_id=PAD, multiple_of=8 if dummies else 1)
    assert batch.keys() == FIELDS
    loss = trainer.compute_loss(model, batch).item()
    assert loss == pytest.approx(plain_loss(forest, ppo, logprob_of(model)), abs=1e-6)


def test_a_training_step_over_two_micro_batches_is_one_step_on_the_sum_over_the_calls(trainer: ForestTrainer) -> None:
    model = trainer.model
    trainer.forest = near_on_policy(model.eval())
    expected = sgd_step(model, trainer.forest)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer.train()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def sgd_step(model: Any, forest: Forest) -> dict[str, Any]:
    """The parameters after one step of size 1 down the gradient of sum(weight * loss), one call after another."""
    total = torch.zeros(())
    for call in forest.calls:
        tokens = torch.tensor([*call.prompt_ids.tolist(), *call.completion_ids.tolist()])
        new = model(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        ratio = (new[call.prompt_ids.size - 1 :] - torch.tensor(call.logprobs)).exp()
        advantage = torch.tensor(call.advantage)
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        total = total + (torch.tensor(call.weight) * loss)[torch.tensor(call.trained)].sum()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return {
        name: (value - gradient).detach()
        for (name, value), gradient in zip(model.named_parameters(), gradients, strict=True)
    }


def test_recomputed_logprobs_leave_the_old_ones_out() -> None:
    with pytest.raises(MergeError, match=r"'call-1'.*context_exact is False.*recompute_logprobs=True"):
        to_grpo_batch(inexact_forest(), pad_token_id=PAD)
    batch = to_grpo_batch(inexact_forest(), pad_token_id=PAD, recompute_logprobs=True)
    assert batch.keys() == FIELDS - {"old_per_token_logps"}


def test_a_rollout_has_one_row_for_each_prompt_in_their_order() -> None:
    turns = [
        turn([5, 6], [7], episode_id="b"),
        turn([1, 2], [3], episode_id="a"),
        turn([1, 2, 3, 50, 51], [4], episode_id="a"),
    ]
    rollout = to_rollout(merge(turns), ["a", "b"])
    assert rollout["prompt_ids"] == [[1, 2], [5, 6]]
    assert rollout["completion_ids"] == [[3, 50, 51, 4], [7]]
    assert rollout["env_mask"] == [[1, 0, 0, 1], [1]]
    first, last = turns[1].logprobs[0], turns[2].logprobs[0]
    assert np.array_equal(np.float32(rollout["logprobs"][0]), [first, 0, 0, last])


def test_the_trainer_takes_a_rollout(trainer: ForestTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = merge(
        [turn([1, 2], [3], episode_id="a"), turn([1, 2, 3, 50], [4], episode_id="a"), turn([5], [6], episode_id="b")]
    )
    monkeypatch.setattr(trainer, "rollout_func", lambda prompts, _: to_rollout(made, ["a", "b"]), raising=False)
    batch = trl.GRPOTrainer._generate_and_score_completions(trainer, [{"prompt": "1 2"}, {"prompt": "5"}])
    ours = to_grpo_batch(made, pad_token_id=PAD)
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"):
        assert torch.equal(batch[name], ours[name])
    assert torch.equal(batch["tool_mask"] * batch["completion_mask"], ours["tool_mask"])


@pytest.mark.parametrize(
    ("made", "episodes", "said"),
    [
        ([turn([1], [2], episode_id="a"), turn([3], [4], episode_id="a")], ["a"], "a second row of episode 'a'"),
        (
            [turn([1], [2], episode_id="a"), turn([1, 2], [3], episode_id="b")],
            ["a", "b"],
            r"belongs to episodes \['a', 'b'\]",
        ),
        ([turn([1], [2], episode_id="a")], ["a", "b"], "episode 'b' has no row"),
        ([turn([1], [2], episode_id="a")], ["a", "a"], "episode_ids holds 'a' more than once"),
        ([turn([1], [2], episode_id="a")], [], "episode 'a' of the forest is not among the 0"),
        ([replace(turn([1], [2], episode_id="a"), context_exact=False)], ["a"], "context_exact is False"),
    ],
)
def test_what_is_not_one_row_for_each_prompt_is_refused(made: list, episodes: list[str], said: str) -> None:
    with pytest.raises(MergeError, match=said):
        to_rollout(merge(made), episodes)


def test_a_rollout_without_logprobs_for_an_inexact_context() -> None:
    made = merge([replace(turn([1], [2], episode_id="a"), context_exact=False)])
    assert to_rollout(made, ["a"], recompute_logprobs=True)["logprobs"] is None
