from pathlib import Path

import pytest
from folder_helpers import make_folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without a model, for tests with a fake worker."""
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
