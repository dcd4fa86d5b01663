# /// script
# requires-python = ">=3.11"
# dependencies = ["verifiers==0.4.0", "numpy"]
# [tool.uv]
# exclude-newer = "2026-11-28T00:00:00Z"
# ///
# pyright: reportMissingImports=false
"""verifiers: one `Trace` for each episode, `prepare_turn` and `commit` for each call, then the branches' arrays.

It shares whole messages of equal text and equal tokens, and trains one linear row for each leaf of that graph. The
texts it hashes are a word each here: hashing real ones would cost it more.
"""

from typing import Any

from cases import ASSISTANT, SYSTEM, USER, Captured, Message
from serve import Merger, answers, by_episode, serve

channel = answers()

from verifiers.v1.graph import prepare_turn  # noqa: E402
from verifiers.v1.trace import Trace  # noqa: E402
from verifiers.v1.types import (  # noqa: E402
    AssistantMessage,
    Response,
    SystemMessage,
    ToolMessage,
    TurnTokens,
    UserMessage,
)


def _message(message: Message) -> Any:
    text = f"text{message.text}"
    if message.role == SYSTEM:
        return SystemMessage(content=text)
    if message.role == USER:
        return UserMessage(content=text)
    if message.role == ASSISTANT:
        return AssistantMessage(content=text)
    return ToolMessage(content=text, tool_call_id="call")


def _turn(call: Captured) -> tuple[Any, Any]:
    spans: list[tuple[int, int]] = []
    for message in call.messages:
        start = spans[-1][1] if spans else 0
        spans.append((start, start + message.tokens.size))
    tokens = TurnTokens(
        prompt_ids=call.prompt.tolist(),
        completion_ids=call.completion.tolist(),
        completion_logprobs=call.logprobs.tolist(),
        message_spans=spans,
    )
    answer = AssistantMessage(content=f"text{call.response}")
    response = Response(id="", created=0, model="", message=answer, finish_reason="stop", tokens=tokens)
    return [_message(message) for message in call.messages], response


def prepare(calls: list[Captured]) -> Any:
    return [[_turn(call) for call in episode] for episode in by_episode(calls).values()]


def _merge_episode(turns: Any) -> Any:
    # Without validation: which build, task and agent it was is recorded only, and takes longer to find out.
    trace = Trace.model_construct(task=None, agent=None, verifiers=None)
    for messages, response in turns:
        prepare_turn(trace, messages).commit(response)
    return [(branch.token_ids, branch.sampled_mask, branch.logprobs) for branch in trace.branches]


def merge(episodes: Any) -> Any:
    return [row for turns in episodes for row in _merge_episode(turns)]


def count(rows: Any) -> tuple[int, int]:
    return len(rows), sum(len(tokens) for tokens, _, _ in rows)


serve({"verifiers": Merger(prepare, merge, count)}, channel)
