"""One episode in plain HTTP, with nothing but the standard library: what any language has to do."""

import json
import sys
import uuid
from typing import Any
from urllib.request import Request, urlopen


def post(url: str, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    """Posts JSON and returns the JSON that comes back. An error status raises `urllib.error.HTTPError`."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=120) as answer:
        value: dict[str, Any] = json.load(answer)
        return value


def main(url: str) -> None:
    """Opens an episode, calls the model, reports a reward."""
    grant = post(
        f"{url}/api/episodes", {"request_id": str(uuid.uuid4()), "kind": "eval", "task": "greet", "wait_s": 60}
    )
    answer = post(
        f"{grant['base_url']}/chat/completions",
        {"model": grant["model"], "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16},
        grant["api_key"],
    )
    text = answer["choices"][0]["message"]["content"]
    reward = 1.0 if "hello" in text.lower() else 0.0
    view = post(f"{url}/api/episodes/{grant['episode_id']}/finish", {"reward": reward}, grant["control_key"])
    print(json.dumps({"text": text, "reward": view["reward"], "usage": answer["usage"]}))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8700")
