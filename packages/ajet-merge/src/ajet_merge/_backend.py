"""Which trie is in use: the compiled core, or its Python twin if asked for (`AJET_MERGE_PURE=1`) or if it must be."""

import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

from ._forest_py import Trie as PythonTrie
from ._layout import TrieBackend

PURE_VARIABLE = "AJET_MERGE_PURE"


def _select() -> tuple[Literal["cython", "python"], Callable[[], TrieBackend]]:
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return "python", PythonTrie
    if find_spec("ajet_merge._forest") is None:
        warnings.warn(
            "ajet_merge: the compiled extension _forest is not installed; merging with the slow Python twin. "
            f"Results are the same. Reinstall with a C compiler, or set {PURE_VARIABLE}=1 to choose the twin.",
            RuntimeWarning,
            stacklevel=2,
        )
        return "python", PythonTrie
    # An extension that is there but does not load is a broken installation: let its ImportError out.
    from ._forest import Trie as CompiledTrie

    return "cython", CompiledTrie


name, _factory = _select()


def new_trie() -> TrieBackend:
    """An empty trie of the backend in use."""
    return _factory()
