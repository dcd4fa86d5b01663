"""Which core is in use: the compiled one, or its Python twin if asked for (`AJET_MERGE_PURE=1`) or if it must be."""

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol, cast

from ._arrays import FloatArray, IntArray
from ._layout import TrieBackend

PURE_VARIABLE = "AJET_MERGE_PURE"


class Scan(Protocol):
    """The module `_scan` or `_scan_py`."""

    first_negative: Callable[[IntArray], int]
    first_not_finite: Callable[[FloatArray], int]
    packed_ids: Callable[[list[Any]], IntArray | None]


def _select() -> Literal["cython", "python"]:
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return "python"
    if find_spec("ajet_merge._forest") is None or find_spec("ajet_merge._scan") is None:
        warnings.warn(
            "ajet_merge: the compiled extensions are not installed; merging with the slow Python twin. "
            f"Results are the same. Reinstall with a C compiler, or set {PURE_VARIABLE}=1 to choose the twin.",
            RuntimeWarning,
            stacklevel=2,
        )
        return "python"
    return "cython"


def use(backend: Literal["cython", "python"]) -> None:
    """Choose the core for what is made from now on."""
    global name, scan, _factory  # noqa: PLW0603  # chosen once, at import; by tests for each of the two
    suffix = "" if backend == "cython" else "_py"
    # An extension that is there but does not load is a broken installation: let its ImportError out.
    name, scan = backend, cast(Scan, import_module(f"ajet_merge._scan{suffix}"))
    _factory = import_module(f"ajet_merge._forest{suffix}").Trie


name: Literal["cython", "python"]
scan: Scan
_factory: Callable[[], TrieBackend]
use(_select())


def new_trie() -> TrieBackend:
    """An empty trie of the backend in use."""
    return _factory()
