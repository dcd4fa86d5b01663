"""Every test that merges runs on the compiled core and on its Python twin."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from ajet_merge import _backend

sys.path.insert(0, str(Path(__file__).parent))  # for merge_strategies, whichever import mode pytest runs in

settings.register_profile("ajet", deadline=None, max_examples=60)
settings.load_profile("ajet")


@pytest.fixture(params=["_forest", "_forest_py"], ids=["cython", "python"], scope="session", autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The module name of the trie in use."""
    before = _backend._factory
    _backend._factory = import_module(f"ajet_merge.{request.param}").Trie
    yield request.param
    _backend._factory = before
