"""Loading a model folder runs nothing that is in it."""

import json
import pickle
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("kind", ["llama", "of-their-own"])
def test_no_code_of_the_folder_is_run(tmp_path: Path, kind: str) -> None:
    """A configuration may name classes in files beside it. For a known kind they are ignored, others are refused."""
    trace = tmp_path / "run"
    folder = make_micro_model(tmp_path / "model")
    (folder / "theirs.py").write_text(f"import pathlib\npathlib.Path({str(trace)!r}).touch()\nclass Theirs: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        _add(folder / name, {"auto_map": dict.fromkeys(_AUTO, "theirs.Theirs")})
    if kind == "of-their-own":
        _add(folder / "config.json", {"model_type": kind})
    config = ModelConfig(path=str(folder), device="cpu")
    if kind == "llama":
        assert load_causal_lm(config, "eager").num_parameters()
    else:
        with pytest.raises(ValueError, match=r"trust_remote_code|does not recognize"):
            load_causal_lm(config, "eager")
    assert not trace.exists()


_AUTO = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")


def _add(file: Path, changes: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
