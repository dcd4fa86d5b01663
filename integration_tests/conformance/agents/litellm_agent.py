"""LiteLLM: one function in front of all vendors."""

# pyright: basic, reportMissingImports=false
# The framework is not installed here (.ci/conformance has it), so its types are unknown.

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # else its import fetches one
import litellm
from task import API_KEY, BASE_URL, MODEL, MOST_CALLS, OPENAI_TOOL, QUESTIONS, SAMPLING, SYSTEM, Seen


def main() -> None:
    seen = Seen()
    messages = [{"role": "system", "content": SYSTEM}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        seen.answers.append(_answer(messages, seen))
    seen.tell()


def _answer(messages: list, seen: Seen) -> str:
    for _ in range(MOST_CALLS):
        answer = litellm.completion(
            model=f"openai/{MODEL}",
            api_base=BASE_URL,
            api_key=API_KEY,
            messages=messages,
            tools=[OPENAI_TOOL],
            max_retries=0,
            **SAMPLING,
        )
        seen.usage.append((answer.usage.prompt_tokens, answer.usage.completion_tokens))
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = seen.call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise RuntimeError("the model calls its tool without end")


main()
