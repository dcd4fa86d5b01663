"""AG2: its agent, which goes on from its last reply."""

# pyright: basic, reportMissingImports=false
# The framework is not installed here (.ci/conformance has it), so its types are unknown.

import asyncio
import json

from ag2 import Agent, tool
from ag2.config import OpenAIConfig
from ag2.events import ModelResponse
from task import API_KEY, BASE_URL, MODEL, QUESTIONS, SAMPLING, SYSTEM, TOOL, Seen, add


async def main() -> None:
    seen = Seen()
    agent = Agent(
        "adder",
        SYSTEM,
        config=OpenAIConfig(model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_retries=0, **SAMPLING),
        tools=[tool(add, name=TOOL["name"], description=TOOL["description"], schema=dict(TOOL["parameters"]))],
    )
    reply = await agent.ask(QUESTIONS[0])
    seen.answers.append(reply.body or "")
    for question in QUESTIONS[1:]:
        reply = await reply.ask(question)
        seen.answers.append(reply.body or "")
    for event in await reply.history.get_events():
        if isinstance(event, ModelResponse):
            seen.usage.append((int(event.usage.prompt_tokens or 0), int(event.usage.completion_tokens or 0)))
            seen.tool_calls += [(call.name, json.loads(call.arguments)) for call in event.tool_calls.calls]
    seen.tell()


asyncio.run(main())
