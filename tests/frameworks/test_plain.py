"""Loops without a framework: compiled, scaled, accumulated, in several processes; what a tracker is given."""

import numbers
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from common import BOUND, ROWS, STEPS, data, flat, loader, multipliers, network, plain, rows
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import lariax.torch as lt
from processes import launch


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.fixture
def double():
    """Compiled sums are rounded in another order, and single precision shows it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


LONG = [pytest.param(backend, marks=pytest.mark.long) for backend in ("aot_eager", "inductor")]


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.*deprecated", "ignore::SyntaxWarning")  # of theirs
@pytest.mark.parametrize("backend", ["eager", *LONG])
def test_a_compiled_step(backend, double):
    """The step as a whole: what numbers of the host decide stays outside of what is compiled."""
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor compiles C++")
    torch._dynamo.reset()
    model = network()
    adam, own = torch.optim.Adam(model.parameters(), lr=0.02), multipliers(model)

    @torch.compile(backend=backend)
    def step(x, y):
        loss = own.lagrangian(*rows(model(x), y))
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss

    for x, y in loader():
        step(x, y)
    weights, alone = plain()
    close(flat(model), weights)
    assert own["mean"] == pytest.approx(alone["mean"], rel=1e-4)
    assert own["mean"] > 0
    assert own.core.looks("mean") == alone.core.looks("mean") > 4  # gradients are measured


def test_a_compiled_graph_that_is_used_once_wants_a_shared_tensor():
    model = network()
    compiled, own = torch.compile(model, backend="aot_eager"), multipliers(model)
    for x, y in loader():
        out = compiled(x)
        own.lagrangian(*rows(out, y), shared=out).backward()
    assert own.core.looks("mean") == plain()[1].core.looks("mean") > 4


def test_a_scaled_loss():
    """A step that the scaler skips changes nothing but the count of calls."""
    model = network()
    adam, own = torch.optim.Adam(model.parameters(), lr=0.02), multipliers(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in loader():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x).float()
        loss = own.lagrangian(*rows(out, y))
        adam.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
    weights, alone = plain()
    torch.testing.assert_close(flat(model), weights, rtol=0, atol=0.05)
    assert own["mean"] == pytest.approx(alone["mean"], rel=0.2)


def test_accumulated_batches():
    """Two calls a step; steps= counts calls."""
    model = network()
    adam, own = torch.optim.Adam(model.parameters(), lr=0.02), multipliers(model, steps=2 * STEPS)
    for x, y in loader():
        adam.zero_grad()
        for half in (slice(ROWS // 2), slice(ROWS // 2, None)):
            (own.lagrangian(*rows(model(x[half]), y[half])) / 2).backward()
        adam.step()
    assert own.observe()["calls"] == 2 * STEPS
    level, _, error = own.values["mean"]
    assert level < BOUND + 4 * error + 0.1


def replicated(rank, size, folder):
    model = network()
    called = torch.nn.parallel.DistributedDataParallel(model)
    adam, own = torch.optim.Adam(model.parameters(), lr=0.02), multipliers(model)
    for x, y in loader():
        out = called(x[rank::size])
        loss = own.lagrangian(*rows(out, y[rank::size]), shared=out)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return flat(model), own.state_dict(), own["mean"]


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_replicated_models_take_the_steps_of_one(size, tmp_path):
    found = launch(replicated, size, tmp_path)
    model = network()
    adam, own = torch.optim.Adam(model.parameters(), lr=0.02), multipliers(model)
    for x, y in loader():
        out = model(x)
        loss = own.lagrangian(*rows(out, y), shared=out)
        adam.zero_grad()
        loss.backward()
        adam.step()
    for weights, state, y in found:
        close(weights, flat(model))
        assert state == found[0][1]
        assert y == pytest.approx(own["mean"], rel=1e-4)


# --- trackers


def test_what_is_logged_is_plain():
    found = plain()[1].observe()
    assert {"mean/multiplier", "mean/value", "mean/standard_error", "mean/violation_ahead"} <= found.keys()
    assert all(type(name) is str and type(number) is float for name, number in found.items())
    assert isinstance(found["mean/multiplier"], numbers.Real)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    own = plain()[1]
    with SummaryWriter(tmp_path) as writer:
        for name, number in own.observe().items():
            writer.add_scalar(name, number, 1)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("mean/multiplier")[0].value == pytest.approx(own["mean"])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its small package has no other that needs no server
    mlflow.set_tracking_uri((tmp_path / "new").as_uri())
    own = plain()[1]
    with mlflow.start_run() as run:
        mlflow.log_metrics(own.observe(), step=3)
    found = mlflow.MlflowClient().get_metric_history(run.info.run_id, "mean/multiplier")
    assert [(metric.step, metric.value) for metric in found] == [(3, own["mean"])]
    assert mlflow.MlflowClient().get_run(run.info.run_id).data.metrics == own.observe()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path):
    wandb = pytest.importorskip("wandb")
    own = plain()[1]
    with wandb.init(mode="offline", dir=str(tmp_path), project="lariax", settings=wandb.Settings(silent=True)) as run:
        wandb.log(own.observe(), step=3, commit=True)
        seen = dict(run.summary)
    assert {name: seen[name] for name in own.observe()} == pytest.approx(own.observe())
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


# --- optimizers of ours, in torch's tools for states


METHODS = {
    "tracked": lt.TrackedLagrangian,
    "adaptive": lambda model, c: lt.TrackedLagrangian(model, c, adaptive_metric=True),
    "dual": lt.DualPenalty,
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("method", METHODS)
def test_a_distributed_checkpoint_of_our_optimizers(method, tmp_path):
    """Entries by parameter, and a new optimizer that `step()` makes room in."""

    def parts():
        model = network()
        return model, METHODS[method](model, {"mean": lt.AtMost(BOUND)})

    def train(model, opt, first, last):
        for i in range(first, last):
            opt.step(lambda batch: rows(model(batch[0]), batch[1]), data(12)[i * ROWS : (i + 1) * ROWS])

    model, opt = parts()
    train(model, opt, 0, 6)
    state = {"model": model.state_dict(), "opt": get_optimizer_state_dict(model, opt)}
    assert state["opt"]["state"]["0.weight"]["previous"].shape == (8, 3)
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    train(model, opt, 6, 12)
    other, again = parts()
    loaded = {"model": other.state_dict(), "opt": get_optimizer_state_dict(other, again)}
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    other.load_state_dict(loaded["model"])
    set_optimizer_state_dict(other, again, loaded["opt"])
    train(other, again, 6, 12)
    assert torch.equal(flat(model), flat(other))
    assert again.multipliers == opt.multipliers


def test_a_step_without_arguments():
    """Room for a state on a new optimizer; a loop that expects a step along its gradients is told what to do."""
    model = network()
    opt = lt.TrackedLagrangian(model, {"mean": lt.AtMost(BOUND)})
    before = flat(model)
    with pytest.raises(TypeError, match="wants the batch"):
        opt.step()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    assert set(opt.state) == set(model.parameters())
    assert torch.equal(flat(model), before)
    with pytest.raises(TypeError, match=r"lt\.Multipliers with any optimizer"):
        opt.step()


def test_parameters_are_looked_up_when_they_are_used():
    """As wrappers replace them between construction and the first call."""
    model, other = network(), network()
    opts = [lt.TrackedLagrangian(each, {"mean": lt.AtMost(BOUND)}) for each in (model, other)]
    for layer in (other[0], other[2]):
        layer.weight = torch.nn.Parameter(layer.weight.detach().clone())
    opts[1].param_groups[0]["params"] = list(other.parameters())
    for i in range(6):
        for each, opt in zip((model, other), opts, strict=True):
            opt.step(lambda b, each=each: rows(each(b[0]), b[1]), data(6)[i * ROWS : (i + 1) * ROWS])
    assert torch.equal(flat(model), flat(other))
