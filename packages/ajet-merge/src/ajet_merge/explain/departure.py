"""What a departure is: one place where a call left the path of an earlier one."""

from dataclasses import dataclass
from typing import Literal

Evidence = Literal["messages", "text", "ids"]

Cause = Literal[
    "retokenization",
    "white_space",
    "tool_call_reserialized",
    "stripped_reasoning",
    "rendered_differently",
    "changed_system_prompt",
    "changed_tools",
    "context_edited",
    "context_removed",
    "context_inserted",
    "context_compacted",
    "context_changed",
    "other_agent",
    "other_conversation",
    "nothing_shared",
    "sibling",
    "retry",
]

CAUSES: dict[Cause, str] = {
    "retokenization": "the same text in other tokens",
    "white_space": "texts that differ in white space only",
    "tool_call_reserialized": "the same tool call, its JSON written otherwise",
    "stripped_reasoning": "a message without the reasoning that it was sampled with",
    "rendered_differently": "the same messages in other tokens; why is not known",
    "changed_system_prompt": "another system prompt, and then the same conversation",
    "changed_tools": "other tools, and then the same conversation",
    "context_edited": "a message differs",
    "context_removed": "messages (or tokens, where that is all there is to see) are gone, and then the same again",
    "context_inserted": "messages (or tokens) are new, and then the same again",
    "context_compacted": "messages are replaced by fewer and shorter ones, or by a summary",
    "context_changed": "tokens differ; what is given does not tell more",
    "other_agent": "another system prompt or other tools, and another conversation",
    "other_conversation": "the same system prompt and tools, and another conversation",
    "nothing_shared": "not even the first token is the same, and nothing that follows",
    "sibling": "the same prompt, sampled in another attempt or episode",
    "retry": "the same prompt, sampled again",
}
"""Each cause and what it claims."""

SAME_CONTENT: frozenset[Cause] = frozenset(
    ("retokenization", "white_space", "tool_call_reserialized", "stripped_reasoning", "rendered_differently")
)
"""Causes that change how a message is written and not what it says: none of them was anybody's intention."""


@dataclass(frozen=True, slots=True)
class Departure:
    """One place where a call left the longest path that earlier calls had laid.

    It is compared with one of the calls on that path: the latest of the same attempt and episode whose conversation
    begins alike, or else the latest of the same attempt and episode, or else the latest.

    Attributes:
        call: index of the call.
        call_id: its id.
        earlier: index of the earlier call.
        earlier_id: its id.
        shared: tokens shared, which is also the position of the first different token.
        token: the call's token there.
        earlier_token: the earlier call's.
        sampled: whether the earlier call sampled its token there (and was not given it in its prompt).
        text: the call's text from there on, of a few tokens; None without a tokenizer.
        earlier_text: the earlier call's.
        new: tokens of the call that differ, up to where both are the same again; None if they never are.
        gone: tokens of the earlier call that differ; None if they are never the same again.
        cause: why (see `CAUSES`), as far as the evidence tells.
        evidence: what the cause was read from: the messages of both calls, decoded text, or token ids alone.
        detail: one sentence about this departure.
        cost: tokens of the call's prompt after the break that stand for what the earlier call holds after it. These are
            the tokens that are equal in both in the same order, and those between them that were rewritten: where `m`
            tokens of the earlier call became `n`, the lesser of the two. What was inserted or removed costs nothing,
            nor does what follows the last place where both are the same. So it is never more than either call has after
            the break; and 0 where the prompt is shared whole, or nothing in the rest of it is the same.
    """

    call: int
    call_id: str
    earlier: int
    earlier_id: str
    shared: int
    token: int
    earlier_token: int
    sampled: bool
    text: str | None
    earlier_text: str | None
    new: int | None
    gone: int | None
    cause: Cause
    evidence: Evidence
    detail: str
    cost: int
