"""pydantic-ai: an agent with a tool, and its message history."""

# pyright: basic, reportMissingImports=false
# The framework is not installed here (.ci/conformance has it), so its types are unknown.

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import UsageLimits
from task import API_KEY, BASE_URL, MODEL, QUESTIONS, SAMPLING, SYSTEM, TOOL, Seen, add


def main() -> None:
    seen = Seen()
    tool = Tool.from_schema(add, TOOL["name"], TOOL["description"], TOOL["parameters"])
    tool.strict = False  # it would ask for more than the others: "strict" in the tool
    agent = Agent(
        OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)),
        system_prompt=SYSTEM,
        tools=[tool],
        model_settings=ModelSettings(**SAMPLING),
    )
    history = []
    for question in QUESTIONS:
        result = agent.run_sync(question, message_history=history, usage_limits=UsageLimits(request_limit=4))
        history = result.all_messages()
        seen.answers.append(result.output)
    for message in history:
        if isinstance(message, ModelResponse):
            seen.usage.append((message.usage.input_tokens, message.usage.output_tokens))
            parts = [part for part in message.parts if isinstance(part, ToolCallPart)]
            seen.tool_calls += [(part.tool_name, part.args_as_dict()) for part in parts]
    seen.tell()


main()
