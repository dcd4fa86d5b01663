"""One micro model for all tests of this folder, and `trainer_reference` importable."""

import sys
from pathlib import Path

import pytest
import torch

from ajet_server.demo.micro import make_micro_model

torch.set_num_threads(1)
"""The models here are so small that threads would only wait for each other."""

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_micro_model(tmp_path_factory.mktemp("micro") / "model")
