"""How much calls share is chosen, and never changes what is learned."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from trainer_reference import micro_job, mixed_batch, quiet

from ajet_core.errors import ConfigError
from ajet_server.models.supported import LEVELS, Level, Sharing
from ajet_server.train import loading
from ajet_server.train.loading import choose_level
from ajet_server.train.trainer import Trainer


def test_less_sharing_computes_more_tokens_for_the_same_step(model_folder: Path) -> None:
    losses: list[float] = []
    norms: list[float] = []
    tokens: list[int] = []
    for level in LEVELS:
        trainer = Trainer.load(micro_job(model_folder, trainer={"sharing": level}))
        report = trainer.update("b", 1, mixed_batch(), quiet)
        losses.append(report.loss)
        norms.append(report.grad_norm)
        tokens.append(report.tokens_forest)
    assert tokens[0] < tokens[1] < tokens[2] == report.tokens_unmerged
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)


class _Model(torch.nn.Module):
    """Takes an attention implementation, and remembers it."""

    def set_attn_implementation(self, name: str) -> None:
        self.attention = name


@pytest.mark.parametrize(
    ("possible", "wanted", "chosen"),
    [
        ("forest", "auto", "forest"),
        ("rows", "auto", "rows"),
        ("forest", "forest", "forest"),
        ("forest", "rows", "rows"),
        ("forest", "calls", "calls"),
        ("rows", "calls", "calls"),
        ("rows", "forest", None),
        ("calls", "rows", None),
    ],
)
def test_no_more_is_shared_than_the_layers_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, possible: Level, wanted: str, chosen: Level | None
) -> None:
    monkeypatch.setattr(loading, "sharing_of", lambda model: Sharing(possible, "its layers"))
    job, model = micro_job(tmp_path, trainer={"sharing": wanted}), cast(Any, _Model())
    if chosen is None:
        with pytest.raises(ConfigError, match="its layers") as caught:
            choose_level(job, model)
        assert caught.value.field == "trainer.sharing"
    else:
        assert choose_level(job, model) == chosen
        assert hasattr(model, "attention") == (chosen != "forest")


def test_an_attention_without_effect_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "sharing_of", lambda model: Sharing("forest", ""))
    job = micro_job(tmp_path, trainer={"sharing": "rows", "attention": "segments"})
    with pytest.raises(ConfigError, match=r"sharing is 'rows'") as caught:
        choose_level(job, cast(Any, _Model()))
    assert caught.value.field == "trainer.attention"
