"""`Forest`: the merged calls as arrays, and what follows from them."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ._arrays import IntArray
from ._layout import Layout, as_i32, concat_ranges
from .call import Call
from .errors import MergeError
from .explain import Explanation, Tokenizer, explain
from .messages import Context
from .occurrences import Occurrences, collect, last_runs
from .packs import DEPTH_COST, TOKEN_COST, Pack, pack_forest
from .stats import ForestStats, find_stats
from .timelines import Timeline, build_timelines, find_rows


class Forest:
    """One prefix trie for each `compat_key`: N tokens, one for each distinct non-empty prefix of prompt + completion.

    Tokens stand in depth-first preorder, the child with the longest path first (then by first token; trees of different
    keys in the order of their keys). The order of tokens depends on the set of sequences alone, not on the order of the
    calls. Arrays are computed when first read and must not be written to.

    Attributes:
        calls: the calls as given.
        layout: the node table behind the arrays; internal.
    """

    def __init__(self, calls: Sequence[Call], layout: Layout) -> None:
        self.calls = tuple(calls)
        self.layout = layout

    def __repr__(self) -> str:
        return f"Forest(calls={len(self.calls)}, tokens={self.num_tokens})"

    @property
    def num_tokens(self) -> int:
        """N."""
        return self.layout.tokens.size

    @property
    def tokens(self) -> IntArray:
        """i32[N]: token ids."""
        return self.layout.tokens

    @cached_property
    def pos(self) -> IntArray:
        """i32[N]: position of each token in the sequences it belongs to, 0 at roots."""
        return concat_ranges(self.layout.depth, self.layout.length)

    @cached_property
    def parent(self) -> IntArray:
        """i32[N]: forest index of the token before, -1 at roots. Its hidden state predicts the token."""
        parent = np.arange(-1, self.num_tokens - 1, dtype=np.int32)
        above = self.layout.parent
        last = self.layout.start + self.layout.length - 1
        parent[self.layout.start] = np.where(above < 0, -1, last[above]) if above.size else above
        return parent

    @cached_property
    def subtree_end(self) -> IntArray:
        """i32[N]: `k <= q < subtree_end[k]` exactly when token k is q or one of q's ancestors."""
        return np.repeat(self.layout.end, self.layout.length)

    @cached_property
    def occurrences(self) -> Occurrences:
        """The terms of the loss, by call and then by position in its completion."""
        return collect(self.calls, self.layout)

    @cached_property
    def stats(self) -> ForestStats:
        """What merging saved."""
        rows = [len(self.calls[calls[0]]) for calls in self._rows]
        return find_stats(self.calls, rows, self.layout, self.parent[self.occurrences.token])

    def path(self, call_index: int) -> IntArray:
        """i32[n]: forest indices of the prompt + completion of one call, from its root on.

        `tokens[path(i)]` is the call's sequence, and `pos[path(i)]` is 0..n-1.
        """
        table = self.layout
        node = int(table.call_node[call_index])
        runs = last_runs(self._tables, node, int(table.depth[node] + table.length[node]))
        return concat_ranges(as_i32([start for start, _ in runs]), as_i32([length for _, length in runs]))

    def timelines(self) -> list[Timeline]:
        """Linear rows for trainers without tree attention; every call is owned by exactly one. See `Timeline`."""
        return build_timelines(self, self._rows)

    def packs(
        self,
        budget: int,
        max_path: int | None = None,
        ranks: int = 1,
        *,
        token_cost: float = TOKEN_COST,
        depth_cost: float = DEPTH_COST,
    ) -> list[Pack]:
        """Cut the forest into packs of at most `budget` tokens, for tree attention. See `Pack`.

        Prefixes that several packs need are run again in each of them; cuts are chosen so that this is least.
        The packs partition the occurrences. Every rank gets the same number of packs, so that collective operations
        line up: where there are too few, dummies of weight zero are added and marked.

        Args:
            budget: most tokens in a pack, at least 2.
            max_path: most tokens in the path of a call; None means only `budget` limits it.
            ranks: number of ranks to spread the packs over; the list is ordered by rank.
            token_cost: cost of one token, for balancing ranks.
            depth_cost: cost of one (token, ancestor or self) pair, for balancing ranks.

        Raises:
            PathTooLongError: a call is longer than `max_path` or `budget`. Nothing is ever truncated.
            MergeError: an argument is out of range.
        """
        return pack_forest(self, budget, max_path, ranks, token_cost, depth_cost)

    def explain(
        self, tokenizer: Tokenizer | None = None, contexts: Sequence[Context | None] | None = None
    ) -> Explanation:
        """Where calls left the longest path of earlier ones, in the order of the calls: why, and what it cost.

        Token ids alone tell where, and whether both are the same again later; text and messages tell why. No cause is
        claimed that does not show in what is given.

        Args:
            tokenizer: anything with `decode(list of ids) -> str`. Texts are shown then, and read for the markers of
                common chat templates.
            contexts: the messages of each call, None where they are not known.

        Raises:
            MergeError: not as many contexts as calls, or a message that cannot be read; names it.
        """
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise MergeError(f"tokenizer is a {type(tokenizer).__name__}: it needs a method decode(list of ids) -> str")
        return explain(self, tokenizer, contexts)

    @cached_property
    def _rows(self) -> list[list[int]]:
        return find_rows(self)

    @cached_property
    def _tables(self) -> tuple[list[int], list[int], list[int]]:
        return self.layout.start.tolist(), self.layout.length.tolist(), self.layout.parent.tolist()
