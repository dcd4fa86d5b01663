"""The algorithms that others merge with, in plain Python and our own words: lists in, lists out.

They are what the method costs without the rest of a trainer around it.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from cases import Captured
from serve import Merger, answers, by_episode, serve


@dataclass
class Lists:
    """A call as lists."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]


@dataclass
class Row:
    """A linear row: one mask entry and one logprob for each token."""

    tokens: list[int] = field(default_factory=list[int])
    mask: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])

    def extend(self, context: list[int], completion: list[int], logprobs: list[float]) -> None:
        self.tokens += context
        self.tokens += completion
        self.mask += [0] * len(context)
        self.mask += [1] * len(completion)
        self.logprobs += [0.0] * len(context)
        self.logprobs += logprobs


def count_rows(rows: list[Row]) -> tuple[int, int]:
    return len(rows), sum(len(row.tokens) for row in rows)


def as_lists(calls: list[Captured]) -> list[list[Lists]]:
    return [
        [Lists(call.prompt.tolist(), call.completion.tolist(), call.logprobs.tolist()) for call in episode]
        for episode in by_episode(calls).values()
    ]


def linear_prefix(episodes: list[list[Lists]]) -> list[Row]:
    """rLLM's, ART's and SkyRL's way: a call extends the row before if its prompt begins with that, else opens one."""
    rows: list[Row] = []
    for episode in episodes:
        rows.append(Row())
        for call in episode:
            if call.prompt[: len(rows[-1].tokens)] != rows[-1].tokens:
                rows.append(Row())
            rows[-1].extend(call.prompt[len(rows[-1].tokens) :], call.completion, call.logprobs)
    return rows


Branches: TypeAlias = dict[int, "Branches"]


def trie_per_token(episodes: list[list[Lists]]) -> tuple[Branches, int]:
    """A trie with one dict for each token: what tree-training code without a compressed trie does. Exact, no rows.

    It finds the forest only: no occurrences, no masks, no logprobs.
    """
    root: Branches = {}
    size = 0
    for episode in episodes:
        for call in episode:
            node = root
            for token in call.prompt + call.completion:
                below = node.get(token)
                if below is None:
                    below = node[token] = {}
                    size += 1
                node = below
    return root, size


def count_trie(result: tuple[Branches, int]) -> tuple[int, int]:
    root, size = result
    leaves, open_nodes = 0, [root]
    while open_nodes:
        node = open_nodes.pop()
        open_nodes += node.values()
        leaves += not node
    return leaves, size


@dataclass
class Spoken:
    """A message of a timeline; `logprobs` is None where the model did not sample it in this call."""

    text: str
    tokens: list[int]
    logprobs: list[float] | None


Timeline: TypeAlias = list[Spoken]


def as_timelines(calls: list[Captured]) -> list[list[Timeline]]:
    """Each call as messages with their texts, of about a token's letters for each token, every text a new string."""
    texts: dict[int, bytes] = {}
    for call in calls:
        for message in call.messages:
            texts.setdefault(message.text, " ".join(map(str, message.tokens.tolist())).encode())

    def timeline(call: Captured) -> Timeline:
        said = [Spoken(texts[m.text].decode(), m.tokens.tolist(), None) for m in call.messages]
        header = call.prompt[sum(m.tokens.size for m in call.messages) :].tolist()
        answer = texts.get(call.response, str(call.response).encode()).decode()
        return [*said, Spoken(answer, header + call.completion.tolist(), call.logprobs.tolist())]

    return [[timeline(call) for call in episode] for episode in by_episode(calls).values()]


def _begins_with(longer: Timeline, shorter: Timeline) -> bool:
    return len(longer) >= len(shorter) and all(
        a.text == b.text for a, b in zip(longer[: len(shorter)], shorter, strict=True)
    )


def _row(timeline: Timeline) -> Row:
    row = Row()
    for message in timeline:
        sampled = message.logprobs or []
        context = len(message.tokens) - len(sampled)
        row.extend(message.tokens[:context], message.tokens[context:], sampled)
    return row


def text_merge(episodes: list[list[Timeline]]) -> list[Row]:
    """AgentJet's way: from the last call back, a call absorbs earlier ones whose messages' texts are a prefix of its.

    The absorbed call's sampled tokens replace what the later prompt showed in their place, so the row's context may be
    one that no call ever had: not exact under drift, or where thinking is stripped.
    """
    rows: list[Row] = []
    for episode in episodes:
        waiting = list(reversed(episode))
        while waiting:
            kept, *rest = waiting
            waiting = []
            merged = list(kept)
            for other in rest:
                if _begins_with(merged, other):
                    merged[: len(other)] = [new if new.logprobs else old for old, new in zip(merged, other)]  # noqa: B905
                else:
                    waiting.append(other)
            rows.append(_row(merged))
    return rows


MERGERS: dict[str, Merger] = {
    "recreated_linear_prefix_python": Merger(as_lists, linear_prefix, count_rows),
    "recreated_trie_per_token_python": Merger(as_lists, trie_per_token, count_trie),
    "recreated_text_merge_python": Merger(as_timelines, text_merge, count_rows),
}
serve(MERGERS, answers())
