"""One micro model for all tests of this folder, and `trainer_reference` importable."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ajet_server.demo.micro import make_micro_model

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A micro model is faster on one thread, the more so when other processes keep the cores busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_micro_model(tmp_path_factory.mktemp("micro") / "model")
