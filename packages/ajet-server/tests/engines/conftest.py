"""Micro models with grouped and with plain heads, made once, and engines over them."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ajet_core.config import EngineConfig
from ajet_server.demo.micro import make_micro_model
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.models.folder import open_model_folder

sys.path.insert(0, str(Path(__file__).parent))  # for engine_helpers, whichever import mode pytest runs in

from engine_helpers import MakeEngine


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A micro model is faster on one thread, the more so when other processes keep the cores busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def gqa_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 query heads, 2 key heads."""
    return make_micro_model(tmp_path_factory.mktemp("gqa"), seed=1)


@pytest.fixture(scope="session")
def mha_folder(gqa_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 query heads, 4 key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("mha") / "model"
    shutil.copytree(gqa_folder, folder)
    torch.manual_seed(2)
    config = LlamaConfig.from_pretrained(gqa_folder, num_key_value_heads=4)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["gqa", "mha"])
def folder(request: pytest.FixtureRequest) -> Path:
    """Each kind of model in turn."""
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture(scope="session")
def plain_model(folder: Path) -> PreTrainedModel:
    """The same model with transformers' own attention: what an engine is compared with."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(scope="session")
def make_engine() -> MakeEngine:
    """Makes an engine over a model folder; keyword arguments are those of `EngineConfig`."""

    def make(folder: Path, seed: int = 0, **config: object) -> TorchEngine:
        model = AutoModelForCausalLM.from_pretrained(folder)
        return TorchEngine(model, open_model_folder(folder), EngineConfig(**config), seed=seed)

    return make


@pytest.fixture(scope="module")
def shared_engine(folder: Path, make_engine: MakeEngine) -> TorchEngine:
    """One engine for a module's tests that do not change it."""
    return make_engine(folder, max_batch_size=6, prefill_chunk=24)


@pytest.fixture
def engine(shared_engine: TorchEngine) -> Iterator[TorchEngine]:
    """The module's engine; it must be idle after each test."""
    yield shared_engine
    assert not shared_engine.has_work
