"""Merge captured LLM calls into a prefix forest: the fewest hidden states that train every call exactly.

    calls -> merge() -> Forest -> packs()      tree attention: every shared token runs forward once
                               -> timelines()  plain rows, where there is no tree attention

Component map: `call` checks the input; `_forest` (Cython) or `_forest_py` (its readable twin) build the trie, chosen
by `_backend`; `tracker` feeds it; `forest` turns its node table into token arrays; `occurrences` lists the terms of the
loss; `timelines` and `packs` lay the forest out for a trainer; `weights` sets loss weights before any of that;
`explain` says why paths part. `messages` and `context` compare calls by their messages, and find the one that new
messages go on from; `conversations` does so without ids. `text` puts sampled tokens back where a template wrote them
anew, on request. `records` reads and writes calls; `adapters` turn rows into what other stacks train on; `stats` and
`flops` count what merging saves.
"""

from . import adapters, weights
from ._backend import name as backend
from .call import Call
from .context import Continuation, Extension
from .conversations import Conversations
from .errors import CallError, MergeError, PathTooLongError
from .explain import Departure, Explanation
from .flops import ModelShape
from .forest import Forest
from .messages import Context
from .occurrences import Occurrences
from .packs import Pack
from .records import Record, read_calls, read_records, write_calls, write_records
from .stats import Flops, ForestStats
from .text import Drift, TextMatch, Unmatched, match_texts
from .timelines import Timeline
from .tracker import Tracker, merge
from .weights import episode_mean, group_mean, sequence_mean, token_mean

__version__ = "0.1.0"

__all__ = [
    "Call",
    "CallError",
    "Context",
    "Continuation",
    "Conversations",
    "Departure",
    "Drift",
    "Explanation",
    "Extension",
    "Flops",
    "Forest",
    "ForestStats",
    "MergeError",
    "ModelShape",
    "Occurrences",
    "Pack",
    "PathTooLongError",
    "Record",
    "TextMatch",
    "Timeline",
    "Tracker",
    "Unmatched",
    "__version__",
    "adapters",
    "backend",
    "episode_mean",
    "group_mean",
    "match_texts",
    "merge",
    "read_calls",
    "read_records",
    "sequence_mean",
    "token_mean",
    "weights",
    "write_calls",
    "write_records",
]
