"""Loading a model folder runs nothing that is in it."""

import pickle
from pathlib import Path

import pytest

from ajet_core.config import ModelConfig
from ajet_core.errors import ConfigError
from ajet_server.demo.micro import make_micro_model
from ajet_server.models.folder import open_model_folder
from ajet_server.models.load import load_causal_lm


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    trace = tmp_path / "unpickled"
    folder = make_micro_model(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trace)))
    config = ModelConfig(path=str(folder), device="cpu")
    assert load_causal_lm(config, "eager").num_parameters()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(OSError, match="safetensors"):
        load_causal_lm(config, "eager")
    with pytest.raises(ConfigError, match="holds an adapter"):
        open_model_folder(folder)
    assert not trace.exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert trace.exists()
