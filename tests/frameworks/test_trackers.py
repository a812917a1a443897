"""The history in loggers of experiments, read back from what they have written."""

import jax.numpy as jnp
import pytest

import lariax as lx

pytestmark = pytest.mark.long  # the packages come with `make test-long`


@pytest.fixture(scope="module")
def history():
    problem = lx.Problem(
        lambda x: jnp.sum((x - 1) ** 2),
        constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None), "top (%)": lx.AtMost(lambda x: x, 0.6, samples=None)},
    )
    return lx.solve(problem, jnp.zeros(2), iterations=100, record_every=20).history


def expected(history, name):
    return {int(record["iteration"]): record[name] for record in history.to_records()}


def test_tensorboard(history, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        history.export(writer)
    found = EventAccumulator(str(tmp_path)).Reload()
    for name, title in (("objective", "objective"), ("multipliers.top (%)[1]", "multipliers.top ___.1")):
        seen = {event.step: event.value for event in found.Scalars(title.replace("(", "_"))}
        assert seen == pytest.approx(expected(history, name), rel=1e-6)


def test_mlflow(history, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its small package has no other that needs no server
    mlflow.set_tracking_uri((tmp_path / "new").as_uri())
    with mlflow.start_run() as run:
        history.export(mlflow)
    client = mlflow.MlflowClient()
    for name, title in (("objective", "objective"), ("multipliers.top (%)[1]", "multipliers.top ___.1")):
        seen = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, title)}
        assert seen == pytest.approx(expected(history, name))


def test_weights_and_biases_offline(history, tmp_path):
    import wandb

    with wandb.init(mode="offline", dir=str(tmp_path), project="lariax", settings=wandb.Settings(silent=True)) as run:
        history.export(run)
        last = dict(run.summary)
    record = history.to_records()[-1]
    assert last["objective"] == pytest.approx(record["objective"])
    assert last["multipliers.top ___.1"] == pytest.approx(record["multipliers.top (%)[1]"])
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_something_else(history):
    with pytest.raises(
        TypeError, match=r"export takes a logger with log_metrics .MLflow., add_scalar .TensorBoard. or"
    ):
        history.export([])
