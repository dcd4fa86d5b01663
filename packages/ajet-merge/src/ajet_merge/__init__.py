"""Merge captured LLM calls into a prefix forest: the fewest hidden states that train every call exactly.

    calls -> merge() -> Forest -> packs()      tree attention: every shared token runs forward once
                               -> timelines()  plain rows, where there is no tree attention

Component map: `call` checks the input; `_forest` (Cython) or `_forest_py` (its readable twin) build the trie, chosen
by `_backend`; `tracker` feeds it; `forest` turns its node table into token arrays; `occurrences` lists the terms of the
loss; `timelines` and `packs` lay the forest out for a trainer; `weights` sets loss weights before any of that;
`explain` says why paths part.
"""

from . import weights
from ._backend import name as backend
from .call import Call
from .errors import CallError, MergeError, PathTooLongError
from .explain import Departure, Explanation
from .forest import Forest, ForestStats
from .occurrences import Occurrences
from .packs import Pack
from .timelines import Timeline
from .tracker import Tracker, merge
from .weights import episode_mean, group_mean, sequence_mean, token_mean

__version__ = "0.1.0"

__all__ = [
    "Call",
    "CallError",
    "Departure",
    "Explanation",
    "Forest",
    "ForestStats",
    "MergeError",
    "Occurrences",
    "Pack",
    "PathTooLongError",
    "Timeline",
    "Tracker",
    "__version__",
    "backend",
    "episode_mean",
    "group_mean",
    "merge",
    "sequence_mean",
    "token_mean",
    "weights",
]
