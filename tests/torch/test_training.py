"""What a training loop brings along: dropout, batch norm, low precision, accumulation, schedulers, saving."""

import copy

import pytest
import torch

import lariax.torch as lt
from lariax.torch import _kernels, _passes, _tracked
from lariax.torch._state import is_finite

OPTIMIZERS = {
    "QuadraticPenalty": lambda params, **more: lt.QuadraticPenalty(params, CONSTRAINTS, lr=0.05, **more),
    "DualPenalty": lambda params, **more: lt.DualPenalty(params, CONSTRAINTS, lr=0.05, dual_step=0.1, **more),
    "TrackedLagrangian": lambda params, **more: lt.TrackedLagrangian(params, CONSTRAINTS, **more),
}
CONSTRAINTS = {"mean": lt.AtMost([0.1, 0.2]), "norm": lt.AtLeast(0.5, samples=None)}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


@pytest.fixture(autouse=True)
def _soon_ordinary(monkeypatch):
    """So that short runs have both kinds of steps: those that measure on halves of a batch, and ordinary ones."""
    monkeypatch.setattr(_tracked, "interval_at", lambda xp, k: 1 if k < 4 else 8)


def network(dropout=0.0, norm=False, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8) if norm else torch.nn.Identity(), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Dropout(dropout), torch.nn.Linear(8, 2)).to(dtype)


def rows(count, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return (x.to(dtype), (x[:, :2] ** 2).to(dtype))


def closure_of(model):
    def closure(batch):
        x, y = batch
        out = model(x)
        first = next(model.parameters())
        return ((out - y) ** 2).mean(dim=1), {"mean": out - y, "norm": (first**2).mean()}

    return closure


def train(model, opt, batches):
    for batch in batches:
        opt.step(closure_of(model), batch)
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


def batches_of(count, size=16, dtype=torch.float64):
    return [rows(size, dtype, seed=10 + i) for i in range(count)]


@every_optimizer
@pytest.mark.parametrize("one_graph", [2**16, 0], ids=["one graph", "halves"])
@pytest.mark.parametrize("steps", [3, 4])
def test_dropout_masks_are_the_same_at_both_points(name, steps, one_graph, monkeypatch):
    """Where the two points are the same, so are the gradients: with momentum 0 nothing would be left of the noise."""
    monkeypatch.setattr(_passes, "ONE_GRAPH_ENTRIES", one_graph)
    model = network(dropout=0.5)
    opt = OPTIMIZERS[name](model)
    train(model, opt, batches_of(steps))
    seen = []

    def closure(batch):
        value = closure_of(model)(batch)
        seen.append((next(model.parameters()).detach().clone(), value[0].detach().clone(), torch.get_rng_state()))
        return value

    opt.previous = [p.detach().clone() for p in model.parameters()]  # as if the last step had been of length zero
    before = torch.get_rng_state()
    opt.step(closure, rows(16))
    half = 2 if name == "TrackedLagrangian" and steps == 3 and not one_graph else 1
    assert len(seen) == 2 or steps == 3  # an ordinary step makes two passes; others measure, or look back
    for first, second in zip(seen[:half], seen[half : 2 * half], strict=True):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
    assert torch.equal(seen[2 * half - 1][2], torch.get_rng_state())  # and the stream has moved on by one pass
    assert not torch.equal(before, torch.get_rng_state())


@every_optimizer
@pytest.mark.parametrize("steps", [3, 4])
def test_batch_norm_is_updated_once(name, steps):
    model = network(norm=True)
    opt = OPTIMIZERS[name](model)
    train(model, opt, batches_of(steps))
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    batch, now = rows(16, seed=5), [p.detach().clone() for p in model.parameters()]
    opt.step(closure_of(model), batch)
    other = network(norm=True)
    with torch.no_grad():
        for p, value in zip(other.parameters(), now, strict=True):
            p.copy_(value)
        for key, buffer in other.named_buffers():
            buffer.copy_(buffers[key])
        for part in batch[0].chunk(2 if name == "TrackedLagrangian" and steps == 3 else 1):
            other(part)
    for key, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, dict(other.named_buffers())[key], rtol=1e-12, atol=0)


@every_optimizer
def test_accumulation_takes_the_same_steps(name):
    whole, parts = network(), network()
    batches = batches_of(12)
    split = [[(x[i : i + 4], y[i : i + 4]) for i in range(0, 16, 4)] for x, y in batches]
    one = train(whole, OPTIMIZERS[name](whole), batches)
    other = train(parts, OPTIMIZERS[name](parts), split)
    torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


def test_a_list_of_tensors_is_one_batch():
    """That is what data loaders give."""
    one, other = network(), network()
    opt = OPTIMIZERS["QuadraticPenalty"]
    torch.testing.assert_close(
        train(one, opt(one), batches_of(3)), train(other, opt(other), [list(b) for b in batches_of(3)]), rtol=0, atol=0
    )


@every_optimizer
@pytest.mark.parametrize("adaptive_metric", [False, True])
def test_save_kill_load_continue_to_the_same_bits(name, adaptive_metric, tmp_path):
    batches = batches_of(40, size=8)
    torch.manual_seed(3)
    model = network(dropout=0.3)
    opt = OPTIMIZERS[name](model, adaptive_metric=adaptive_metric)
    train(model, opt, batches[:23])
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "saved.pt")
    expected = train(model, opt, batches[23:])
    torch.manual_seed(99)
    again = network(dropout=0.3, seed=7)
    other = OPTIMIZERS[name](again, adaptive_metric=adaptive_metric)
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["opt"])
    assert torch.equal(train(again, other, batches[23:]), expected)
    for key, value in opt.multipliers.items():
        assert torch.equal(value, other.multipliers[key])


@pytest.mark.parametrize("constraints", [{}, {"near": lt.AtMost(0.5, indexed=16)}], ids=["none", "indexed"])
@pytest.mark.parametrize("method", [lt.QuadraticPenalty, lt.DualPenalty, lt.TrackedLagrangian])
def test_runs_without_named_constraints_are_continued(method, constraints):
    def run(resumed):
        model = network()

        def closure(batch):
            x, index = batch
            out = model(x)
            values = {"near": lt.Indexed((out - x[:, :2]).abs().sum(dim=1), index.tolist())} if constraints else {}
            return (out**2).mean(), values

        opt = method(model, constraints)
        for i, batch in enumerate(batches_of(8)):
            if resumed and i == 5:
                saved, opt = opt.state_dict(), method(model, constraints)
                opt.load_state_dict(saved)
            opt.step(closure, (batch[0], torch.arange(16)))
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    assert torch.equal(run(False), run(True))


@every_optimizer
def test_a_state_can_be_loaded_again_and_again(name):
    model = network()
    opt = OPTIMIZERS[name](model)
    train(model, opt, batches_of(6))
    saved, weights = opt.state_dict(), copy.deepcopy(model.state_dict())
    ends = []
    for _ in range(2):
        model.load_state_dict(weights)
        opt.load_state_dict(saved)
        ends.append(train(model, opt, batches_of(6)))
    assert torch.equal(*ends)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("method", [lt.QuadraticPenalty, lt.TrackedLagrangian])
def test_gradients_that_are_one_tensor(method, flat):
    """Of two parameters, of several entries, or of the loss itself: nothing is written twice, or over a constant."""

    def run(shapes, scale):
        params = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        opt = method(params, {}, **({"lr": 0.01} if method is lt.QuadraticPenalty else {}))
        opt.space.flat = flat
        for _ in range(20):
            opt.step(lambda z: (scale(sum(p.sum() for p in params)), {}), torch.zeros(16))
        return torch.cat([p.detach().reshape(-1) for p in params])

    for shapes in [[()], [(1,)], [(3,)], [(2,), (2,)]]:
        expected = run(shapes, lambda loss: 2 * loss / 2)
        torch.testing.assert_close(run(shapes, lambda loss: loss), expected, rtol=0, atol=1e-12)
        assert (expected < 0.95).all()


def test_a_state_of_another_method_is_refused():
    model = network()
    opt = OPTIMIZERS["QuadraticPenalty"](model)
    with pytest.raises(ValueError, match="QuadraticPenalty, and this is a DualPenalty"):
        OPTIMIZERS["DualPenalty"](model).load_state_dict(opt.state_dict())


@pytest.mark.long_but("autocast-TrackedLagrangian")
@every_optimizer
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
def test_precision(name, precision):
    """Close to double precision, with trackers and multipliers in single precision or better."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    exact, model = network(), network(dtype=dtype)
    reference = train(exact, OPTIMIZERS[name](exact), batches_of(20))
    opt, plain = OPTIMIZERS[name](model), closure_of(model)

    def closure(batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            return plain(batch)

    for batch in batches_of(20, dtype=dtype):
        opt.step(closure, batch)
    found = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
    assert (found - reference).norm() < (0.05 if precision == "float32" else 0.15) * reference.norm()
    assert next(model.parameters()).dtype == dtype
    for value in [*opt.multipliers.values(), *opt.estimate]:
        assert value.dtype == torch.float32


def test_low_precision_parameters_keep_their_long_tail():
    """Steps below the last digit of bfloat16 add up."""
    x = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    opt = lt.QuadraticPenalty([x], {}, lr=1e-3)
    for _ in range(200):
        opt.step(lambda batch: (x.sum(), {}), None)
    assert 0.97 < x.item() < 0.985


def test_compiled_model():
    plain, model = network(), network()
    batches = batches_of(6)
    compiled = torch.compile(model, backend="aot_eager")
    opt = OPTIMIZERS["TrackedLagrangian"](model)
    for batch in batches:
        opt.step(closure_of(compiled), batch)
    found = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert opt.passes.single_use  # found out on the way: compiled graphs are not kept
    other = OPTIMIZERS["TrackedLagrangian"](plain)
    other.passes.single_use = True
    torch.testing.assert_close(found, train(plain, other, batches), rtol=0, atol=1e-11)


@every_optimizer
def test_schedulers_multiply_the_steps(name):
    model = network()
    opt = OPTIMIZERS[name](model)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.0)
    train(model, opt, batches_of(2))
    scheduler.step()
    before = [p.detach().clone() for p in model.parameters()]
    train(model, opt, batches_of(2))
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_groups_have_their_own_rate():
    model = network()
    first, second = model[0].parameters(), model[4].parameters()
    opt = OPTIMIZERS["TrackedLagrangian"]([{"params": first}, {"params": second, "lr": 1e-9}])
    before = copy.deepcopy(model.state_dict())
    train(model, opt, batches_of(4))
    assert (model[0].weight - before["0.weight"]).norm() > 1e-4
    assert (model[4].weight - before["4.weight"]).norm() < 1e-6


@every_optimizer
@pytest.mark.parametrize("adaptive_metric", [False, True])
def test_vectors_as_on_a_gpu(name, adaptive_metric, monkeypatch):
    """There a vector is one tensor a parameter, and the update has a kernel of its own; here that of a CPU."""
    used = []
    monkeypatch.setattr(_kernels, "update_on", lambda device: used.append(device) or _kernels.advance)
    one, other = network(), network()
    opt = OPTIMIZERS[name](other, adaptive_metric=adaptive_metric)
    opt.space.flat = False
    expected = train(one, OPTIMIZERS[name](one, adaptive_metric=adaptive_metric), batches_of(12))
    torch.testing.assert_close(train(other, opt, batches_of(12)), expected, rtol=0, atol=1e-11)
    assert used


@pytest.mark.long_but("")
@pytest.mark.parametrize("options", [{}, {"adaptive_metric": True}, {"one_backward": True}], ids=["", "metric", "one"])
def test_what_is_not_finite_is_taken_back(options):
    """A step to where there is nothing, and a refresh that looks back on it; also as on a GPU, where the update is
    under way before the host knows. Nothing remains of it but shorter steps."""
    batches = batches_of(24)
    batches[10] = tuple(part * float("nan") for part in batches[10])
    found = []
    for flat in (True, False):
        model = network()
        opt = OPTIMIZERS["TrackedLagrangian"](model, **options)
        opt.space.flat = flat
        with pytest.warns(RuntimeWarning, match="in call 1[12] or the one before it .* not finite"):
            found.append(train(model, opt, batches))
        assert opt.observe()["backed_off"] == 1
        assert is_finite(opt.current())
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)


@pytest.mark.long
def test_a_jump_of_the_gradient_is_an_error_of_the_estimate():
    """A batch whose kink lies between the previous and the current point, in a run that has averaged for long: what it
    leaves in the estimate would be followed for thousands of calls, if it passed for signal."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def closure(batch):
        z, kink, strength = batch
        loss = 0.5 * ((x - z) ** 2).sum(dim=1) + strength * (x[0] - kink).abs()
        return loss, {"sum": x.sum() - 1 + z[:, 0]}

    opt = lt.TrackedLagrangian([x], {"sum": lt.Equal()})
    generator = torch.Generator().manual_seed(0)

    def go(calls, kink=0.0, strength=0.0):
        for _ in range(calls):
            opt.step(closure, (torch.randn(8, 2, generator=generator, dtype=torch.float64), kink, strength))

    go(3_000)
    before = opt.observe()["gradient_error"]
    go(1, kink=(0.5 * (x[0] + opt.previous[0][0])).item(), strength=2.0)
    assert before < 0.05
    assert opt.observe()["gradient_error"] > 3 * float(opt.metric[0][0])  # of a jump by 4, in the units of the method
    go(300)
    assert (x - 0.5).abs().max() < 0.15
    assert opt.observe()["gradient_error"] < 0.2
