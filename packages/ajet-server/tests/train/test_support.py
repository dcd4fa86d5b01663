import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from family_reference import make
from trainer_reference import micro_job

from ajet_core.config import ModelConfig
from ajet_core.errors import ConfigError
from ajet_server.models.load import load_causal_lm
from ajet_server.train.attention import ATTENTION, Backend
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


@pytest.mark.parametrize("backend", ["segments", "rectangles", "dense"])
def test_a_model_with_windows_and_capped_scores(backend: Backend, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    model = make("gemma2", torch.float32)
    model.set_attn_implementation(ATTENTION)
    verify_exact(model, backend)
    assert ("1 of 2 layers see 6 tokens; they run on segments" in caplog.text) == (backend == "rectangles")
    assert ("scores are capped at 1.5, so all layers run on segments" in caplog.text) == (backend == "rectangles")


def test_a_plain_model_is_nothing_to_tell(caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    model = make("llama", torch.float32)
    model.set_attn_implementation(ATTENTION)
    verify_exact(model, "rectangles")
    assert caplog.text == ""
