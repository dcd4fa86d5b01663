"""LangChain: a model with tools bound to it, and a loop by hand."""

# pyright: basic, reportMissingImports=false
# The framework is not installed here (.ci/conformance has it), so its types are unknown.

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from task import API_KEY, BASE_URL, MODEL, MOST_CALLS, OPENAI_TOOL, QUESTIONS, SAMPLING, SYSTEM, Seen


def main() -> None:
    seen = Seen()
    model = ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, max_retries=0, **SAMPLING)
    with_tools = model.bind_tools([OPENAI_TOOL])
    messages: list[BaseMessage] = [SystemMessage(SYSTEM)]
    for question in QUESTIONS:
        messages.append(HumanMessage(question))
        seen.answers.append(_answer(with_tools, messages, seen))
    seen.tell()


def _answer(model, messages: list[BaseMessage], seen: Seen) -> str:
    for _ in range(MOST_CALLS):
        message = model.invoke(messages)
        seen.usage.append((message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]))
        messages.append(message)
        if not message.tool_calls:
            return message.content
        messages += [
            ToolMessage(seen.call(call["name"], call["args"]), tool_call_id=call["id"]) for call in message.tool_calls
        ]
    raise RuntimeError("the model calls its tool without end")


main()
