"""TRL's own GRPO loss step on a single-turn group: `GRPOTrainer.compute_loss` and its backward pass."""

import importlib
import warnings
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ajet_merge import Call

from .cases import END
from .model import make_model

_PAD = 0


def trl_step(calls: Sequence[Call]) -> Callable[[], float]:
    """Returns what runs the group through a `GRPOTrainer` on the benchmark's model and returns its loss.

    `loss_type="grpo"`: the mean over completions of the mean over tokens, which is what single-turn episodes weigh.
    """
    trainer = _trainer(len(calls))
    batch = _batch(calls)

    def run() -> float:
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        return loss.item()

    return run


def _trainer(rows: int) -> Any:
    import datasets

    trl: Any = importlib.import_module("trl")  # exports its classes in a way that type checkers do not see
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = trl.GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=rows,
            num_generations=rows,
            loss_type="grpo",
            beta=0.0,
            use_cpu=True,
            bf16=False,
            report_to=[],
            activation_checkpointing=False,
        )
        trainer: Any = trl.GRPOTrainer(
            model=make_model("sdpa"),
            reward_funcs=_no_reward,
            args=arguments,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["pad"] * rows}),
            processing_class=_tokenizer(),
        )
    trainer.model.eval()
    return trainer


def _no_reward(completions: list[str], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _tokenizer() -> Any:
    """Never tokenizes anything; the trainer wants one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"pad": _PAD, "end": END}, unk_token="pad"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad", eos_token="end")


def _batch(calls: Sequence[Call]) -> dict[str, torch.Tensor]:
    prompts = [call.prompt_ids for call in calls]
    completions = [call.completion_ids for call in calls]
    return {
        "prompt_ids": _padded([ids[::-1] for ids in prompts]).flip(1),
        "prompt_mask": _padded([np.ones_like(ids) for ids in prompts]).flip(1),
        "completion_ids": _padded(completions),
        "completion_mask": _padded([np.ones_like(ids) for ids in completions]),
        "old_per_token_logps": _padded([call.logprobs for call in calls]),
        "advantages": torch.tensor([float(call.advantage[0]) for call in calls]),
    }


def _padded(rows: Sequence[NDArray[Any]]) -> torch.Tensor:
    """[rows, longest], filled with 0 on the right; integers as int64."""
    tensors = [torch.from_numpy(row.copy()) for row in rows]
    padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
    return padded if padded.is_floating_point() else padded.long()
