"""The official `openai` SDK: sync, stream, async, async-stream."""

import asyncio
import json
from typing import Any

from openai import AsyncOpenAI, OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion
from task import API_KEY, BASE_URL, HOW, MODEL, MOST_CALLS, OPENAI_TOOL, QUESTIONS, SAMPLING, SYSTEM, Seen

_WHOLE: dict[str, Any] = {"model": MODEL, "tools": [OPENAI_TOOL], **SAMPLING}
_STREAM: dict[str, Any] = _WHOLE | {"stream": True, "stream_options": {"include_usage": True}}
_ACCESS: dict[str, Any] = {"base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0}


async def _ask_sync(messages: list[Any]) -> ChatCompletion:
    with OpenAI(**_ACCESS) as client:
        return client.chat.completions.create(messages=messages, **_WHOLE)


async def _ask_stream(messages: list[Any]) -> ChatCompletion:
    state = ChatCompletionStreamState()
    with OpenAI(**_ACCESS) as client:
        for chunk in client.chat.completions.create(messages=messages, **_STREAM):
            state.handle_chunk(chunk)
    return state.get_final_completion()


async def _ask_async(messages: list[Any]) -> ChatCompletion:
    async with AsyncOpenAI(**_ACCESS) as client:
        return await client.chat.completions.create(messages=messages, **_WHOLE)


async def _ask_async_stream(messages: list[Any]) -> ChatCompletion:
    state = ChatCompletionStreamState()
    async with AsyncOpenAI(**_ACCESS) as client:
        async for chunk in await client.chat.completions.create(messages=messages, **_STREAM):
            state.handle_chunk(chunk)
    return state.get_final_completion()


_ASK = {"sync": _ask_sync, "stream": _ask_stream, "async": _ask_async, "async-stream": _ask_async_stream}[HOW[0]]


async def main() -> None:
    seen = Seen()
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        seen.answers.append(await _answer(messages, seen))
    seen.tell()


async def _answer(messages: list[Any], seen: Seen) -> str:
    for _ in range(MOST_CALLS):
        answer = await _ASK(messages)
        assert answer.usage is not None
        seen.usage.append((answer.usage.prompt_tokens, answer.usage.completion_tokens))
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            assert call.type == "function"
            result = seen.call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise RuntimeError("the model calls its tool without end")


asyncio.run(main())
