"""An engine that answers at once, over HTTP, with one fixed completion: what is bare, and what stands behind peers.

It reads a request whole, JSON included, as any engine must. Token ids and log-probabilities are in the answer where
they are asked for, in the fields that vLLM has for them.
"""

import argparse
import json
import selectors
import socket
from pathlib import Path
from typing import Any

import msgspec
from texts import MAX_MODEL_LEN, MODEL, Completion, read_completion
from wire import take_message

_PROMPT_TOKENS = 500
"""What it says the prompt's length is: to count would take a tokenizer."""


def _response(content: dict[str, Any], status: str = "200 OK") -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chat(completion: Completion, *, with_tokens: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": completion.text},
        "finish_reason": "stop",
    }
    tokens = len(completion.token_ids)
    usage = {
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": _PROMPT_TOKENS + tokens,
    }
    answer: dict[str, Any] = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "usage": usage,
    }
    if with_tokens:
        choice |= {"token_ids": completion.token_ids, "logprobs": {"content": _logprobs(completion)}}
        answer["prompt_token_ids"] = list(range(_PROMPT_TOKENS))
    return answer | {"choices": [choice]}


def _logprobs(completion: Completion) -> list[dict[str, Any]]:
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    return [{"token": f"token_id:{token}", "logprob": value, "top_logprobs": []} for token, value in pairs]


def _generated(completion: Completion) -> dict[str, Any]:
    logprobs = {"content": _logprobs(completion)}
    choice = {"index": 0, "token_ids": completion.token_ids, "logprobs": logprobs, "finish_reason": "stop"}
    return {"request_id": "0", "choices": [choice]}


class Engine:
    """Every answer is made beforehand."""

    def __init__(self, completion: Completion) -> None:
        self._plain = _response(_chat(completion, with_tokens=False))
        self._with_tokens = _response(_chat(completion, with_tokens=True))
        self._generated = _response(_generated(completion))
        self._models = _response({"object": "list", "data": [{"id": MODEL, "max_model_len": MAX_MODEL_LEN}]})
        self._unknown = _response({"error": {"message": "no such path"}}, "404 Not Found")

    def answer(self, start_line: bytes, body: bytes) -> bytes:
        """The response to one request."""
        path = start_line.split(b" ")[1]
        if path == b"/v1/chat/completions":
            asked = msgspec.json.decode(body)
            return self._with_tokens if asked.get("return_token_ids") else self._plain
        if path == b"/inference/v1/generate":
            msgspec.json.decode(body)
            return self._generated
        return self._models if path == b"/v1/models" else self._unknown

    def serve(self, listener: socket.socket) -> None:
        """Answers until the process is ended."""
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(connection, selectors.EVENT_READ, bytearray())
                elif not self._read(key.fileobj, key.data):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # pyright: ignore[reportAttributeAccessIssue] - a socket: see above

    def _read(self, connection: Any, buffer: bytearray) -> bool:
        """Answers what has come; False once the other side is gone."""
        try:
            received = connection.recv(1 << 20)
            buffer += received
            while message := take_message(buffer):
                connection.sendall(self.answer(*message))
        except ConnectionError:
            return False
        return bool(received)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    engine = Engine(read_completion(parser.parse_args().folder))
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        engine.serve(listener)


if __name__ == "__main__":
    main()
