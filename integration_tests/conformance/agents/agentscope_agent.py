"""AgentScope: its agent, which streams. What it would tell the model of the time is never the same, so it is off."""

# pyright: basic, reportMissingImports=false
# The framework is not installed here (.ci/conformance has it), so its types are unknown.

import asyncio
import json

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.event import ModelCallEndEvent
from agentscope.message import Msg, ToolCallBlock, UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from task import API_KEY, BASE_URL, MAX_TOKENS, MODEL, QUESTIONS, SEED, SYSTEM, TEMPERATURE, TOOL, Seen, add


def _agent() -> Agent:
    model = OpenAIChatModel(
        credential=OpenAICredential(api_key=API_KEY, base_url=BASE_URL),
        model=MODEL,
        parameters=OpenAIChatModel.Parameters(max_tokens=MAX_TOKENS, temperature=TEMPERATURE),
        extra_body={"seed": SEED},
        max_retries=0,
    )
    tool = FunctionTool(
        add,
        name=TOOL["name"],
        description=TOOL["description"],
        input_schema=TOOL["parameters"],
        permission=PermissionDecision(PermissionBehavior.ALLOW, "It only adds."),
    )
    return Agent(
        "adder", SYSTEM, model, Toolkit(tools=[tool]), injection_config=InjectionConfig(inject_runtime_state=False)
    )


async def main() -> None:
    seen = Seen()
    agent = _agent()
    for question in QUESTIONS:
        async for event in agent.reply_stream(UserMsg("user", question), yield_final_msg=True):
            if isinstance(event, ModelCallEndEvent):
                seen.usage.append((event.input_tokens, event.output_tokens))
            elif isinstance(event, Msg):
                seen.answers.append(event.get_text_content() or "")
    for message in agent.state.context:
        for block in message.get_content_blocks():
            if isinstance(block, ToolCallBlock):
                seen.tool_calls.append((block.name, json.loads(block.input)))
    seen.tell()


asyncio.run(main())
