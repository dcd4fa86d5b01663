"""Exact attention over a pack: every token attends to its ancestors in the prefix forest and to itself.

A pack is one sequence of T tokens cut into S segments (heavy paths). Segment s's keys are the runs of its ancestors and
then itself, so causal attention aligned at the bottom right over the gathered keys is exactly the forest's mask.
transformers calls `attend` in every layer; the layout travels through the model as the keyword argument `pack_layout`.
"""

from ajet_server.train.attention.attend import ATTENTION, attend, register
from ajet_server.train.attention.backends import Backend, choose_backend
from ajet_server.train.attention.layout import PackLayout

__all__ = ["ATTENTION", "Backend", "PackLayout", "attend", "choose_backend"]

register()
