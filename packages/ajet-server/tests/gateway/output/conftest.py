import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for reader_helpers, whichever import mode pytest runs in

from reader_helpers import KINDS, tokenizer_of


@pytest.fixture(scope="session", autouse=True)
def _tokenizers() -> None:
    """Made before any property is tested, since one of them takes seconds."""
    for kind in KINDS:
        tokenizer_of(kind)
