from collections.abc import Iterator
from pathlib import Path

import pytest
from api_helpers import Api, serving


@pytest.fixture(scope="module")
def api(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("server"), model) as made:
        yield made
