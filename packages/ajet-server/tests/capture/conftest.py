from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_helpers import History, history


@pytest.fixture
def past(tmp_path: Path) -> Iterator[History]:
    """An empty ledger, to write a history into."""
    with history(tmp_path / "ledger.sqlite") as found:
        yield found
