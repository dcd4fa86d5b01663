"""The figures of the last step, as Prometheus reads them."""

from ajet_core.events import EngineState, StepReport
from ajet_core.status import JanitorView, PoolView, StatusView
from ajet_server.observe.metrics import Metrics


def _status(report: StepReport) -> StatusView:
    pool = PoolView(
        open_episodes=0,
        finished_episodes=0,
        stale_episodes=0,
        groups_complete=0,
        groups_open=0,
        ready=False,
        waiting_for="",
    )
    return StatusView(
        name=None,
        state=EngineState.ROLLING,
        cause="",
        model=None,
        weight_version=1,
        step=1,
        pool=pool,
        last_step=report,
        worker_pid=None,
        worker_restarts=0,
        requests_running=0,
        requests_waiting=0,
        uptime_s=0,
        data_dir="",
    )


def test_the_critics_figures_are_there() -> None:
    given = dict.fromkeys((name for name, field in StepReport.model_fields.items() if field.is_required()), 0)
    critic = {"value_loss": 0.5, "value_clip_fraction": 0.25, "explained_variance": -0.5, "return_mean": 2.0}
    report = StepReport.model_validate(given | {"batch_id": "b", "seconds": {}} | critic)
    text = Metrics(lambda: _status(report), JanitorView).exposition().decode()
    for name, value in critic.items():
        assert f"\najet_update_{name} {value}\n" in text
