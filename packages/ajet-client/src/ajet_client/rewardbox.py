"""Where a program may report its reward by HTTP: a listener on loopback, with one secret address for each episode.

The episode's control key stays with the runner. Who knows an address can set the reward of that one episode, as the
program could by its last line.
"""

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ajet_client.outcome import Outcome, parse_outcome
from ajet_core.errors import AjetError, NotFoundError, RequestError, to_wire

_LARGEST = 65_536
_SILENCE_S = 30.0
_POLL_S = 0.05
"""How soon `close` is noticed, seconds."""


class RewardBox:
    """Listens on a free port of 127.0.0.1, in threads of its own, until `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[str, Outcome | None] = {}
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._serve, name="ajet-rewards", daemon=True).start()

    def open(self) -> str:
        """Returns a new address, to `POST` a number or `{"reward": …, "metrics": {…}}` to. The last report counts."""
        path = f"/reward/{secrets.token_urlsafe(24)}"
        with self._lock:
            self._outcomes[path] = None
        return f"http://127.0.0.1:{self._listener.server_port}{path}"

    def take(self, url: str) -> Outcome | None:
        """Closes an address and returns what was reported there, if anything was."""
        with self._lock:
            return self._outcomes.pop(url[url.index("/reward/") :])

    def put(self, path: str, text: str) -> Outcome:
        """Takes a report. Raises `NotFoundError` for an address that is not open, `RewardError` for no reward."""
        outcome = parse_outcome(text, "the body")
        with self._lock:
            if path not in self._outcomes:
                raise NotFoundError("this address is not open (any more)")
            self._outcomes[path] = outcome
        return outcome

    def close(self) -> None:
        """Stops listening."""
        self._listener.shutdown()
        self._listener.server_close()

    def _serve(self) -> None:
        self._listener.serve_forever(poll_interval=_POLL_S)


def _handler(box: RewardBox) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SILENCE_S

        def do_POST(self) -> None:
            try:
                outcome = box.put(self.path, self._body())
            except AjetError as error:
                self._answer(error.status, to_wire(error))
            else:
                self._answer(200, {"reward": outcome.reward, "metrics": outcome.metrics})

        def _body(self) -> str:
            length = self.headers.get("content-length", "")
            if not length.isdecimal() or int(length) > _LARGEST:
                self.close_connection = True  # its body is not read
                raise RequestError(f"content-length must be at most {_LARGEST}, got {length!r}", field="content-length")
            return self.rfile.read(int(length)).decode("utf-8", errors="replace").strip()

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
            """Says nothing."""

    return Handler
