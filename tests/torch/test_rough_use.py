"""What users do to an optimizer without asking: copy it, interrupt it, freeze things, give odd batches and models."""

import copy
import pickle
import weakref
from collections import UserDict

import numpy as np
import pytest
import torch

import lariax.torch as lt
from lariax.torch import _batch_looks, _tracked

METHODS = [lt.QuadraticPenalty, lt.DualPenalty, lt.TrackedLagrangian]
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def _soon_ordinary(monkeypatch):
    monkeypatch.setattr(_tracked, "interval_at", lambda xp, k: 1 if k < 4 else 8)


def network(*layers):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), *layers, torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


def batch_of(seed, count=16):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def closure_of(model):
    def closure(x):
        out = model(x)
        return ((out - x[:, :2]) ** 2).mean(), {"mean": out[:, 0]}

    return closure


CONSTRAINTS = {"mean": lt.AtMost(-0.1)}


def train(model, opt, seeds, closure=None):
    for seed in seeds:
        opt.step(closure or closure_of(model), batch_of(seed))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# --- batches


def noisy(x, by_row):
    """The objective's noise decides on the penalty here: constraint values and gradients have enough of their own."""

    def closure(batch):
        (z,) = batch
        losses = ((x - 3 * z) ** 2).sum(dim=1)
        return losses if by_row else losses.mean(), {"sum": x.sum() - 1 + 2 * z[:, 0] * (x[0] - x[1])}

    return closure


@pytest.mark.parametrize("parts", [[4, 4, 4, 4], [7, 1, 8]], ids=str)
@pytest.mark.parametrize("entries", [0, 2**21], ids=["from halves", "from rows"])
@pytest.mark.parametrize("by_row", [False, True], ids=["mean", "rows"])
def test_accumulation_measures_what_one_batch_does(parts, entries, by_row, monkeypatch):
    monkeypatch.setattr(_batch_looks, "ROW_ENTRIES", entries)
    ends = []
    for cut in ([16], parts):
        x = torch.arange(3, dtype=torch.float64, requires_grad=True)
        opt = lt.TrackedLagrangian([x], {"sum": lt.Equal()})
        for seed in range(12):
            opt.step(noisy(x, by_row), [(part,) for part in batch_of(seed).split(cut)])
        ends.append(x.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-11)


@every_method
@pytest.mark.parametrize("by_row", [False, True], ids=["mean", "rows"])
def test_accumulation_has_one_part_in_memory(method, by_row):
    x = torch.arange(3, dtype=torch.float64, requires_grad=True)
    opt, graphs, most = method([x], {"sum": lt.Equal()}), [], []

    def closure(batch):
        answer = noisy(x, by_row)(batch)
        graphs.append(weakref.ref(answer[0]))
        most.append(sum(1 for graph in graphs if graph() is not None and graph().requires_grad))
        return answer

    for seed in range(12):
        opt.step(closure, [(part,) for part in batch_of(seed, 24).split(4)])
    assert max(most) <= 2  # the one before is let go when the next is there


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_halves_of_everything_that_has_rows(kind):
    """Arrays and lists of a batch are cut with its tensors, and what is as long by chance in a tuple is not."""
    model = network()
    opt, sizes = lt.TrackedLagrangian(model, CONSTRAINTS), set()

    def closure(batch):
        sizes.add((len(batch["x"]), len(batch["name"]), len(batch["array"]), len(batch["shape"])))
        assert [int(name) for name in batch["name"]] == batch["array"].tolist()
        return closure_of(model)(batch["x"])

    for seed in range(6):
        fields = {"x": batch_of(seed), "name": [str(i) for i in range(16)], "array": np.arange(16), "shape": (1,) * 16}
        opt.step(closure, kind(fields))
    assert sizes == {(8, 8, 8, 16), (16, 16, 16, 16)}


# --- models


def refused(opt, closure, batch):
    """How many steps were taken back, with this one."""
    opt.step(closure, batch)
    return opt.observe()["backed_off"]


@every_method
def test_closures_that_take_gradients_themselves(method):
    """As for physics: values are then computed with gradients on, and the steps are the same."""

    def run(enable):
        model = network()

        def closure(x):
            with torch.enable_grad() if enable else torch.set_grad_enabled(torch.is_grad_enabled()):
                x = x.clone().requires_grad_()
                out = model(x)[:, 0]
                (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
                return (out**2).mean(), {"mean": (slope**2).sum(dim=1)}

        return train(model, method(model, {"mean": lt.AtMost(0.1)}), range(8), closure)

    assert torch.equal(run(enable=False), run(enable=True))


@every_method
def test_sparse_gradients(method):
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Embedding(5, 3, sparse=sparse).double()
        opt = method(model, {"mean": lt.AtMost(-0.5)})
        for seed in range(8):
            rows = torch.randint(0, 5, (16,), generator=torch.Generator().manual_seed(seed))
            opt.step(lambda i, model=model: ((model(i) ** 2).mean(), {"mean": model(i)[:, 0]}), rows)
        ends.append(model.weight.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


class Counting(torch.nn.Module):
    """Its buffer is replaced, not written into."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1
        return x


@every_method
def test_buffers_that_are_replaced(method):
    model = network(Counting())
    opt, before = method(model, CONSTRAINTS), 0.0
    for seed in range(6):
        train(model, opt, [seed])
        assert model[1].seen.item() - before == (2 if method is lt.TrackedLagrangian and seed < 4 else 1)  # halves
        before = model[1].seen.item()


@pytest.mark.long_but("6-True")
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("at", [0, 6])
def test_a_batch_that_is_not_finite_stays_out_of_batch_norm(at, flat):
    model = network(torch.nn.BatchNorm1d(4))
    opt = lt.TrackedLagrangian(model, CONSTRAINTS)
    opt.space.flat = flat
    train(model, opt, range(at))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if at == 0:
        with pytest.raises(ValueError, match="not finite on the first batches"):
            opt.step(closure_of(model), batch_of(0) * torch.nan)
    else:
        with pytest.warns(RuntimeWarning, match="not finite"):
            assert refused(opt, closure_of(model), batch_of(0) * torch.nan) == 1
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert train(model, opt, range(4)).isfinite().all()


@pytest.mark.long_but("TrackedLagrangian")
@every_method
def test_an_interrupted_call_stays_out_of_batch_norm(method):
    ends = []
    for interrupted in (False, True):
        model = network(torch.nn.BatchNorm1d(4))
        opt, calls = method(model, CONSTRAINTS), []

        def closure(x, model=model, calls=calls):
            calls.append(1)
            answer = closure_of(model)(x)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return answer

        train(model, opt, range(5))
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                opt.step(closure, batch_of(9))
        ends.append(train(model, opt, range(5, 10)))
        ends.append(model[1].running_var.clone())
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[3])


def test_an_interrupted_refresh_changes_no_metric():
    """Nothing is half done: the old metric goes with the old curvature."""
    model = network()
    opt, calls = lt.TrackedLagrangian(model, CONSTRAINTS, adaptive_metric=True), []
    train(model, opt, range(3))

    def closure(x):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return closure_of(model)(x)

    interrupted = 0
    for stop in range(2, 40):
        calls.clear()
        before, curvature = opt.metric[0].clone(), opt.current().curvature.largest
        try:
            opt.step(closure, batch_of(stop))
        except KeyboardInterrupt:
            interrupted += 1
            assert torch.equal(opt.metric[0], before)
            assert opt.current().curvature.largest < 10 * curvature
    assert interrupted > 5


@pytest.mark.parametrize("named", [{}, CONSTRAINTS], ids=["indexed only", "both"])
def test_examples_survive_what_is_not_finite(named):
    """At the start, and where a refresh looks back on it."""
    model = network()
    opt = lt.TrackedLagrangian(model, {**named, "near": lt.AtMost(0.0, indexed=16)})

    def closure(x):
        loss, values = closure_of(model)(x)
        return loss, {**(values if named else {}), "near": lt.Indexed(model(x)[:, 1], torch.arange(16)[: len(x)])}

    with pytest.raises(ValueError, match="not finite on the first batches"):
        opt.step(closure, batch_of(0) * torch.nan)
    count = 0
    opt.step(closure, batch_of(0))
    with pytest.warns(RuntimeWarning, match="not finite"):
        count = refused(opt, closure, batch_of(1) * torch.nan)  # the first refresh looks back on it
    for seed in range(2, 40):
        at_refresh = opt.calendar.next_refresh == opt.calls + 1 - opt.calendar.start
        count += at_refresh
        assert refused(opt, closure, batch_of(seed) * (torch.nan if at_refresh else 1)) == count
    assert opt.multipliers["near"].isfinite().all()
    assert np.isfinite(opt.indexed.size)


@pytest.mark.long
def test_compiled_late():
    """That graphs can be used once only may turn out at any time."""
    model = network()
    opt = lt.TrackedLagrangian(model, CONSTRAINTS)
    for seed in range(140):  # more than 16 of them measure
        opt.step(closure_of(model), batch_of(seed))
    compiled = torch.compile(model, backend="aot_eager")
    for seed in range(16):
        opt.step(closure_of(compiled), batch_of(seed))
    assert opt.passes.single_use


def test_certify_leaves_modes_as_they_were():
    model = network(torch.nn.BatchNorm1d(4))
    model[1].eval()
    lt.certify(model, closure_of(model), [batch_of(seed) for seed in range(16)], CONSTRAINTS)
    assert [module.training for module in model] == [True, False, True, True]


# --- copies and states


@pytest.mark.long_but("copy-False-TrackedLagrangian", "pickle-False-QuadraticPenalty", "copy-True-DualPenalty")
@every_method
@pytest.mark.parametrize("adaptive_metric", [False, True])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_copies_go_on_by_themselves(method, adaptive_metric, copied):
    for calls in (0, 7):
        model = network(torch.nn.BatchNorm1d(4))
        opt = method(model, CONSTRAINTS, adaptive_metric=adaptive_metric)
        train(model, opt, range(calls))
        other, twin = copied((model, opt))
        expected = train(model, opt, range(calls, 16))
        assert torch.equal(train(other, twin, range(calls, 16)), expected)
        assert torch.equal(other[1].running_var, model[1].running_var)


def test_states_hold_no_more_than_they_need(tmp_path):
    """Not the data that a batch is a view of, and no graph."""
    model = network()
    opt, data = lt.TrackedLagrangian(model, CONSTRAINTS), torch.randn(100_000, 3, dtype=torch.float64)
    for i in range(6):
        opt.step(closure_of(model), data[16 * i : 16 * i + 16] * torch.ones((), requires_grad=i == 5))
    torch.save(copy.deepcopy(opt.state_dict()), tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 200_000
    opt.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


@every_method
def test_slacks_move_when_the_first_group_does_not(method):
    """An inequality that does not bind stays one, whichever group is frozen."""
    ends = []
    for frozen in (False, True):
        still, x = (torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
        groups = [{"params": [still], "lr": 1e-12 if frozen else 0.05}, {"params": [x]}]
        opt = method(groups, {"low": lt.AtMost(1.0)}, lr=0.05)
        for _ in range(300):
            opt.step(lambda z, x=x: (((x + 1) ** 2).sum(), {"low": x[0] + 0 * z}), torch.zeros(16))
        ends.append(x.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)
    assert ends[0][0] < -0.5
