"""Prometheus metrics, one registry per server. Names begin with the stage of the six that they tell of.

Calls are counted as they happen; everything else is read from one look at the server when somebody scrapes.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ajet_core.events import EngineState, StepReport
from ajet_core.status import JanitorView, StatusView

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """What `/metrics` shows.

    Args:
        status: looks at the server.
        janitor: asks its janitor.
    """

    def __init__(self, status: Callable[[], StatusView], janitor: Callable[[], JanitorView]) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_StatusCollector(status, janitor))
        self._calls = Counter("ajet_request_calls", "Calls answered", registry=registry)
        self._prompt = Counter("ajet_request_prompt_tokens", "Prompt tokens given to the engine", registry=registry)
        self._cached = Counter("ajet_request_cached_tokens", "Prompt tokens not computed again", registry=registry)
        self._completion = Counter("ajet_capture_tokens", "Tokens sampled and recorded", registry=registry)
        self._continued = Counter(
            "ajet_capture_tokens_continued",
            "Tokens sampled in calls that had begun with older weights",
            registry=registry,
        )
        self._malformed = Counter(
            "ajet_request_malformed_tool_calls", "Tool calls that could not be read and stayed text", registry=registry
        )
        self._replayed = Counter(
            "ajet_request_replayed", "Retries answered by the call that their first try recorded", registry=registry
        )
        self._seconds = Histogram(
            "ajet_request_seconds", "Seconds per call, waiting included", buckets=_SECONDS, registry=registry
        )

    def call_done(self, seconds: float, prompt: int, completion: int, cached: int) -> None:
        """Counts one answered call."""
        self._calls.inc()
        self._prompt.inc(prompt)
        if cached:
            self._cached.inc(cached)
        self._completion.inc(completion)
        self._seconds.observe(seconds)

    def continued(self, tokens: int) -> None:
        """Counts tokens of calls that had begun with older weights."""
        self._continued.inc(tokens)

    def malformed(self, count: int) -> None:
        """Counts tool calls that could not be read."""
        if count:
            self._malformed.inc(count)

    def replayed(self) -> None:
        """Counts one retry that was answered from the ledger."""
        self._replayed.inc()

    def exposition(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], StatusView], janitor: Callable[[], JanitorView]) -> None:
        self._status = status
        self._janitor = janitor

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing ahead of a scrape: the registry would look at a server that is not built yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yields one gauge for each figure of the status and of the last step, and the janitor's counts."""
        status = self._status()
        state = GaugeMetricFamily("ajet_engine_state", "1 for the present state", labels=["state"])
        for known in EngineState:
            state.add_metric([known.value], float(known is status.state))
        yield state
        for name, text, value in _of_status(status):
            yield GaugeMetricFamily(f"ajet_{name}", text, value)
        for name, text, count in _of_janitor(self._janitor()):
            yield CounterMetricFamily(f"ajet_{name}", text, count)
        if status.last_step is not None:
            for name, text, value in _of_step(status.last_step):
                yield GaugeMetricFamily(f"ajet_{name}", f"{text}, last step", value)


def _of_status(status: StatusView) -> list[tuple[str, str, float]]:
    return [
        ("request_running", "Calls in the engine", status.requests_running),
        ("request_waiting", "Calls that wait for the engine", status.requests_waiting),
        ("request_open_episodes", "Open episodes", status.pool.open_episodes),
        ("request_unions_in_doubt", "Unions whose decision nobody brought", len(status.pool.in_doubt)),
        ("sync_calls_continued", "Calls that went on with new weights", status.requests_continued),
        ("request_calls_recalled", "Calls that had to begin again", status.requests_recalled),
        ("capture_finished_episodes", "Finished episodes that wait for a batch", status.pool.finished_episodes),
        ("capture_stale_episodes", "Finished episodes set aside", status.pool.stale_episodes),
        ("update_steps", "Optimizer steps done", status.step),
        ("update_worker_restarts", "Worker restarts since the last step", status.worker_restarts),
        ("sync_weight_version", "Weight version that is served", status.weight_version),
    ]


def _of_janitor(view: JanitorView) -> list[tuple[str, str, int]]:
    return [
        ("request_expired_episodes", "Open episodes that the janitor closed", view.expired),
        ("capture_set_aside_episodes", "Finished episodes that no batch will take", view.set_aside),
        ("capture_dropped_episodes", "Episodes whose calls were dropped, as retention says", view.dropped),
        ("capture_janitor_failures", "Rounds of the janitor that failed", view.failed),
    ]


def _of_step(report: StepReport) -> list[tuple[str, str, float]]:
    seconds = report.seconds
    return [
        ("merge_tokens_before", "Tokens if nothing were shared", report.tokens_unmerged),
        ("merge_tokens_after", "Tokens computed", report.tokens_forest),
        ("merge_seconds", "Seconds of merging", seconds.get("merge", 0.0)),
        ("pack_packs", "Packs", report.packs),
        ("score_seconds", "Seconds of scoring before the update", seconds.get("score", 0.0)),
        ("update_seconds", "Seconds of forward, backward and optimizer", seconds.get("update", 0.0)),
        ("update_checkpoint_seconds", "Seconds of writing the checkpoint", seconds.get("checkpoint", 0.0)),
        ("update_reward_mean", "Mean reward", report.reward_mean),
        ("update_loss", "Loss", report.loss),
        ("update_grad_norm", "Norm of the gradient before clipping", report.grad_norm),
        ("update_clip_fraction", "Share of clipped ratios", report.clip_fraction),
        ("update_approx_kl", "KL between engine and trainer, nats", report.approx_kl),
        ("update_entropy", "Mean entropy, nats", report.entropy),
        ("update_reference_kl", "KL to the reference model, nats", report.reference_kl),
        ("update_ratio_q99", "The ratio that 99% of the occurrences are at most", report.ratio_q99),
        ("update_importance_cut", "Share of importance weights that were bounded", report.importance_cut),
        ("update_value_loss", "Loss of the critic", report.value_loss),
        ("update_value_clip_fraction", "Share of clipped values", report.value_clip_fraction),
        ("update_explained_variance", "Share of the returns' variance the critic knew", report.explained_variance),
        ("update_return_mean", "Mean return of a token", report.return_mean),
        ("update_learning_rate", "Learning rate of the last optimizer step", report.learning_rate),
        ("update_completion_tokens_mean", "Sampled tokens of a call", report.completion_tokens_mean),
        ("update_staleness_mean", "Versions that a token was older than what was trained", report.staleness_mean),
        ("update_staleness_max", "Versions that the oldest token was older", report.staleness_max),
        ("update_stale_fraction", "Share of tokens of an older version", report.stale_fraction),
        ("update_mixed_calls", "Calls of more than one version", report.mixed_calls),
        ("update_overlap_tokens", "Tokens sampled while the update computed", report.overlap_tokens),
        ("update_overlap_seconds", "Seconds of sampling while the update computed", report.overlap_seconds),
    ]
