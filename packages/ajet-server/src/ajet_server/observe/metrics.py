"""Prometheus metrics, one registry per server; prefixes are the six stages."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ajet_core.events import EngineState

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """What `/metrics` shows."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter("ajet_request_calls", "Calls answered", registry=self._registry)
        self._prompt = Counter(
            "ajet_request_prompt_tokens", "Prompt tokens given to the engine", registry=self._registry
        )
        self._cached = Counter(
            "ajet_request_cached_tokens", "Prompt tokens that the engine did not compute again", registry=self._registry
        )
        self._completion = Counter(
            "ajet_capture_completion_tokens", "Tokens sampled and captured", registry=self._registry
        )
        self._seconds = Histogram(
            "ajet_request_seconds", "Seconds per call, waiting included", buckets=_SECONDS, registry=self._registry
        )
        self._state = Gauge("ajet_engine_state", "1 for the present state", ["state"], registry=self._registry)

    def call_done(self, seconds: float, prompt: int, completion: int, cached: int) -> None:
        """Counts one answered call."""
        self._calls.inc()
        self._prompt.inc(prompt)
        self._cached.inc(cached)
        self._completion.inc(completion)
        self._seconds.observe(seconds)

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read when the metrics are."""
        Gauge(name, help_text, registry=self._registry).set_function(read)

    def exposition(self, state: EngineState) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        for known in EngineState:
            self._state.labels(known.value).set(known is state)
        return generate_latest(self._registry)
