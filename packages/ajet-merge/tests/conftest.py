"""Every test that merges runs on the compiled core and on its Python twin."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ajet_merge import _backend

sys.path.insert(0, str(Path(__file__).parent))  # for merge_strategies, whichever import mode pytest runs in

settings.register_profile("ajet", deadline=None, max_examples=60)
settings.load_profile("ajet")


@pytest.fixture(params=["cython", "python"], scope="session", autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The core in use."""
    before = _backend.name
    _backend.use(request.param)
    yield request.param
    _backend.use(before)
