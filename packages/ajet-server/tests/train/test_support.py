from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_reference import micro_job
from transformers import Gemma2Config, JambaConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3NextConfig

from ajet_core.config import ModelConfig
from ajet_core.errors import ConfigError
from ajet_server.models.load import load_causal_lm
from ajet_server.train.attention import ATTENTION
from ajet_server.train.support import refuse_unsupported, verify_exact


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MistralConfig(sliding_window=128), "sliding"),
        (Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=1), "sliding"),
        (Gemma2Config(), "sliding|softcapping"),
        (LlamaConfig(attention_dropout=0.1), "attention_dropout"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "rope"),
        (Qwen3NextConfig(), "linear_attention"),
        (JambaConfig(), "linear_attention|recurrent"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refused_by_configuration(config: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        refuse_unsupported(config)
    assert caught.value.field == "model.path"


@pytest.mark.parametrize("config", [LlamaConfig(), Qwen2Config(), MistralConfig(sliding_window=None)])
def test_accepted(config: Any) -> None:
    refuse_unsupported(config)


def test_a_model_that_shares_wrongly_is_found_by_running_it(model_folder: Path) -> None:
    model = load_causal_lm(ModelConfig(path=str(model_folder), device="cpu"), ATTENTION)
    verify_exact(model, "segments")

    def leak(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
        return output + output.roll(1, dims=1)  # a convolution over the pack: the token before need not be the parent

    hook = model.get_submodule("model.layers.0.mlp").register_forward_hook(leak)
    with pytest.raises(ConfigError, match="changes log-probabilities"):
        verify_exact(model, "segments")
    hook.remove()
    model.lm_head.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.raises(ConfigError, match="changes log-probabilities"):
        verify_exact(model, "segments")


def test_refused_before_training(model_folder: Path, tmp_path: Path) -> None:
    from ajet_server.train.trainer import Trainer

    for file in model_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text().replace('"attention_dropout": 0.0', '"attention_dropout": 0.5')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match="attention_dropout"):
        Trainer.load(micro_job(tmp_path))
