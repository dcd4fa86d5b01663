import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from trainer_reference import Rows, micro_job, quiet
from transformers import MistralConfig, MistralForCausalLM

from ajet_core.config import ModelConfig
from ajet_core.errors import ConfigError
from ajet_server.models.load import load_causal_lm
from ajet_server.train.attention import ATTENTION
from ajet_server.train.support import verify_exact
from ajet_server.train.trainer import Trainer


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
    for file in model_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text().replace('"attention_dropout": 0.0', '"attention_dropout": 0.5')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match="attention_dropout"):
        Trainer.load(micro_job(tmp_path))


def test_a_sliding_window_is_trained_where_no_call_is_longer(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    small = json.loads((model_folder / "config.json").read_text())
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings")
    config = MistralConfig(
        num_hidden_layers=2,
        num_key_value_heads=2,
        sliding_window=48,
        eos_token_id=1,
        **{name: small[name] for name in names},
    )
    model = MistralForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"set engine\.max_model_len to 48 or less"):
        Trainer.load(micro_job(tmp_path))
    sections = {"engine": {"max_model_len": 48}, "limits": {"max_completion_tokens": 8}}
    trainer = Trainer.load(micro_job(tmp_path, **sections))
    ids = np.arange(2, 50, dtype=np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None].long()).logits[0]
    expected = logits.log_softmax(-1)[torch.arange(47), torch.from_numpy(ids[1:]).long()]
    assert trainer.score(ids) == pytest.approx(expected.numpy(), abs=1e-5)
    rows = Rows()
    rows.episode("g", 0.0, (rows.ids(40), rows.ids(9), 1.0))  # sampled when the job allowed more, say
    with pytest.raises(ConfigError, match="48 tokens at a time, but a call has 49"):
        trainer.update("b", 1, rows.episodes, quiet)
