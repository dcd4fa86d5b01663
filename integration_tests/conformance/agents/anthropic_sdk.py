"""The official `anthropic` SDK: sync, stream, async, async-stream. What its API does not have goes as extra fields."""

import asyncio
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, Usage
from task import API_KEY, BASE_URL, HOW, MAX_TOKENS, MODEL, MOST_CALLS, QUESTIONS, SEED, SYSTEM, TEMPERATURE, TOOL, Seen

_ASKED: dict[str, Any] = {
    "model": MODEL,
    "system": SYSTEM,
    "tools": [
        {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]},
    ],
    "max_tokens": MAX_TOKENS,
    "extra_body": {"temperature": TEMPERATURE, "seed": SEED},
}
_ACCESS: dict[str, Any] = {"base_url": BASE_URL.removesuffix("/v1"), "api_key": API_KEY, "max_retries": 0}


async def _ask_sync(messages: list[Any]) -> Message:
    with Anthropic(**_ACCESS) as client:
        return client.messages.create(messages=messages, **_ASKED)


async def _ask_stream(messages: list[Any]) -> Message:
    with Anthropic(**_ACCESS) as client, client.messages.stream(messages=messages, **_ASKED) as stream:
        return stream.get_final_message()


async def _ask_async(messages: list[Any]) -> Message:
    async with AsyncAnthropic(**_ACCESS) as client:
        return await client.messages.create(messages=messages, **_ASKED)


async def _ask_async_stream(messages: list[Any]) -> Message:
    async with AsyncAnthropic(**_ACCESS) as client, client.messages.stream(messages=messages, **_ASKED) as stream:
        return await stream.get_final_message()


_ASK = {"sync": _ask_sync, "stream": _ask_stream, "async": _ask_async, "async-stream": _ask_async_stream}[HOW[0]]


async def main() -> None:
    seen = Seen()
    messages: list[Any] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        seen.answers.append(await _answer(messages, seen))
    seen.tell()


async def _answer(messages: list[Any], seen: Seen) -> str:
    for _ in range(MOST_CALLS):
        answer = await _ASK(messages)
        seen.usage.append((_prompt_tokens(answer.usage), answer.usage.output_tokens))
        messages.append({"role": "assistant", "content": answer.content})
        results: list[dict[str, Any]] = []
        for block in answer.content:
            if block.type == "tool_use":
                result = seen.call(block.name, dict(block.input))
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": result})
        if not results:
            return "".join(block.text for block in answer.content if block.type == "text")
        messages.append({"role": "user", "content": results})
    raise RuntimeError("the model calls its tool without end")


def _prompt_tokens(usage: Usage) -> int:
    """`input_tokens` are those that were neither read from a cache nor written to one."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


asyncio.run(main())
