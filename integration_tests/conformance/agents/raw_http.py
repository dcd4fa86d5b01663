"""No framework: HTTP and JSON."""

import json
from typing import Any

import httpx2
from task import API_KEY, BASE_URL, MODEL, MOST_CALLS, OPENAI_TOOL, QUESTIONS, SAMPLING, SYSTEM, Seen


def main() -> None:
    seen = Seen()
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    with httpx2.Client(headers={"Authorization": f"Bearer {API_KEY}"}, timeout=120) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            seen.answers.append(_answer(client, messages, seen))
    seen.tell()


def _answer(client: httpx2.Client, messages: list[dict[str, Any]], seen: Seen) -> str:
    for _ in range(MOST_CALLS):
        body = {"model": MODEL, "messages": messages, "tools": [OPENAI_TOOL], **SAMPLING}
        answer: dict[str, Any] = client.post(f"{BASE_URL}/chat/completions", json=body).raise_for_status().json()
        seen.usage.append((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]))
        message: dict[str, Any] = answer["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            result = seen.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    raise RuntimeError("the model calls its tool without end")


main()
