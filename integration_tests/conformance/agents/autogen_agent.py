"""AutoGen: its assistant agent, which keeps the conversation. Its tool shows the schema of all agents, not its own."""

# pyright: basic, reportMissingImports=false
# The framework is not installed here (.ci/conformance has it), so its types are unknown.

import asyncio
import json

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ToolCallRequestEvent
from autogen_core.models import ModelInfo
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from task import API_KEY, BASE_URL, MODEL, QUESTIONS, SAMPLING, SYSTEM, TOOL, Seen, add


class _Adder(FunctionTool):
    @property
    def schema(self):
        return TOOL


def _client() -> OpenAIChatCompletionClient:
    info = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
    return OpenAIChatCompletionClient(
        model=MODEL, base_url=BASE_URL, api_key=API_KEY, model_info=info, max_retries=0, **SAMPLING
    )


async def main() -> None:
    seen = Seen()
    agent = AssistantAgent(
        "adder",
        _client(),
        tools=[_Adder(add, TOOL["description"], TOOL["name"])],
        system_message=SYSTEM,
        max_tool_iterations=4,
    )
    for question in QUESTIONS:
        result = await agent.run(task=question)
        for message in result.messages:
            if message.models_usage is not None:
                seen.usage.append((message.models_usage.prompt_tokens, message.models_usage.completion_tokens))
            if isinstance(message, ToolCallRequestEvent):
                seen.tool_calls += [(call.name, json.loads(call.arguments)) for call in message.content]
        seen.answers.append(result.messages[-1].content)
    seen.tell()


asyncio.run(main())
