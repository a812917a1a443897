"""Wrong use gets an error that says what was found and what to do."""

import pytest
import torch

import lariax as lx
import lariax.torch as lt
from lariax.torch._state import is_finite


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def optimizers(net, constraints=None):
    constraints = {"gap": lt.AtMost(0.1)} if constraints is None else constraints
    return [
        lt.QuadraticPenalty(net, constraints),
        lt.DualPenalty(net, constraints),
        lt.TrackedLagrangian(net, constraints),
    ]


def good(net):
    return lambda x: ((net(x) ** 2).mean(), {"gap": net(x)[:, 0]})


BATCH = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))

CLOSURES = {
    "without grad": (lambda net: torch.no_grad()(good(net)), RuntimeError, "loss has no gradient.*no_grad"),
    "detached loss": (lambda net: lambda x: (net(x).mean().detach(), good(net)(x)[1]), RuntimeError, "no gradient"),
    "detached constraint": (
        lambda net: lambda x: (net(x).mean(), {"gap": (net(x)[:, 0] > 0).float()}),
        RuntimeError,
        "'gap' have no gradient.*Proxy",
    ),
    "ignores the batch": (
        lambda net: lambda x: (net(x).mean(), {"gap": net(x)[:, 0].mean()}),
        ValueError,
        r"'gap' has values of shape \(\) for a batch of \d+ rows.*samples=None",
    ),
    "unknown name": (
        lambda net: lambda x: (net(x).mean(), {"gap": net(x)[:, 0], "gpa": net(x)[:, 0]}),
        ValueError,
        r"unknown \['gpa'\].*\['gap'\]",
    ),
    "backward": (
        lambda net: lambda x: (lambda answer: (answer[0].backward(), answer)[1])(good(net)(x)),
        RuntimeError,
        "leave out backward",
    ),
    "another model": (
        lambda net: good(torch.nn.Linear(3, 2)),
        RuntimeError,
        "depends on the optimizer's parameters",
    ),
    "Indexed": (
        lambda net: lambda x: (net(x).mean(), {"gap": lt.Indexed(net(x)[:, 0], torch.arange(len(x)))}),
        TypeError,
        "'gap' are Indexed: declare it with indexed=",
    ),
    "missing name": (lambda net: lambda x: (net(x).mean(), {}), ValueError, r"no values for \['gap'\]"),
    "no tuple": (lambda net: lambda x: net(x).mean(), TypeError, "must return .loss"),
    "loss without a tensor": (lambda net: lambda x: (0.5, good(net)(x)[1]), TypeError, "loss must be a tensor"),
    "values without a tensor": (lambda net: lambda x: (net(x).mean(), {"gap": 0.5}), TypeError, "'gap' must be a ten"),
    "loss of a wrong shape": (
        lambda net: lambda x: (net(x), good(net)(x)[1]),
        ValueError,
        r"loss has shape \(\d+, 2\)",
    ),
    "surrogate of a wrong shape": (
        lambda net: lambda x: (net(x).mean(), {"gap": lt.Proxy(net(x)[:, 0], net(x))}),
        ValueError,
        "surrogate of 'gap'",
    ),
}


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("case", CLOSURES)
def test_closures(case, which):
    closure, kind, message = CLOSURES[case]
    net = model()
    with pytest.raises(kind, match=message):
        optimizers(net)[which].step(closure(net), BATCH)


@pytest.mark.parametrize("which", range(3))
def test_changed_shape(which):
    net = model()
    opt = optimizers(net)[which]
    opt.step(good(net), BATCH)
    with pytest.raises(ValueError, match=r"'gap' had one value a row before and has \(2,\) now"):
        opt.step(lambda x: (net(x).mean(), {"gap": net(x)}), BATCH)
    opt.step(good(net), BATCH)


@pytest.mark.parametrize("which", range(3))
def test_a_batch_of_one(which):
    net = model()
    with pytest.raises(ValueError, match="one row"):
        optimizers(net)[which].step(good(net), BATCH[:1])


@pytest.mark.parametrize("which", range(3))
def test_an_error_in_the_closure_leaves_no_trace(which):
    """Not in the parameters, and not in the steps after it."""
    one, other = model(), model()
    a, b = optimizers(one)[which], optimizers(other)[which]
    calls = []

    def fails(x):
        calls.append(1)
        return 1 / 0 if len(calls) % 2 == 0 else good(other)(x)  # at the second of the points

    for i in range(12):
        a.step(good(one), BATCH + i)
        calls.clear()
        if i:
            with pytest.raises(ZeroDivisionError):
                b.step(fails, BATCH + 100)
        b.step(good(other), BATCH + i)
    assert torch.equal(one.weight, other.weight)


def test_no_parameters_are_added_later():
    opt = lt.QuadraticPenalty(model(), {"gap": lt.AtMost(0.1)})
    with pytest.raises(NotImplementedError, match="new optimizer"):
        opt.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})


def test_constructors():
    net = model()
    gap = {"gap": lt.AtMost(0.1)}
    with pytest.raises(ValueError, match="lr must be positive, found 0"):
        lt.QuadraticPenalty(net, gap, lr=0)
    with pytest.raises(ValueError, match="penalty must be positive, found -1"):
        lt.DualPenalty(net, gap, penalty=-1)
    with pytest.raises(ValueError, match="step_size must be positive"):
        lt.TrackedLagrangian(net, gap, step_size=-0.1)
    with pytest.raises(TypeError, match=r"'gap' must be a .*AtLeast"):
        lt.QuadraticPenalty(net, {"gap": 0.1})
    with pytest.raises(TypeError, match=r"found lariax\.problem.*AtMost"):
        lt.QuadraticPenalty(net, {"gap": lx.AtMost(lambda x: x)})
    with pytest.raises(TypeError, match="dictionary of names, found list"):
        lt.QuadraticPenalty(net, [lt.AtMost(0.1)])
    with pytest.raises(ValueError, match="one finite number"):
        lt.AtMost(float("inf"))
    with pytest.raises(ValueError, match=r"one finite number .* found '0\.1'"):
        lt.AtMost("0.1")
    with pytest.raises(ValueError, match="number of training examples, found True"):
        lt.AtMost(0.1, indexed=True)
    with pytest.raises(ValueError, match=r"\['weight_decay'\], which .*ElasticNet"):
        lt.QuadraticPenalty([{"params": net.parameters(), "weight_decay": 0.1}], gap)
    with pytest.raises(ValueError, match="lr of a group must be at least 0, found -1"):
        lt.QuadraticPenalty([{"params": net.parameters(), "lr": -1}], gap)
    with pytest.raises(ValueError, match=r"real numbers, found \['torch.complex64'\]"):
        lt.QuadraticPenalty([torch.zeros(2, dtype=torch.complex64, requires_grad=True)], gap)
    with pytest.raises(ValueError, match="require no gradient"):
        lt.QuadraticPenalty([torch.zeros(2)], gap)
    with pytest.raises(ValueError, match="either within= or regularizer="):
        lt.QuadraticPenalty(
            [{"params": net.parameters(), "within": lx.sets.NonNegative(), "regularizer": lx.prox.L1(0.1)}], gap
        )
    with pytest.raises(ValueError, match="one matrix"):
        lt.QuadraticPenalty([{"params": net.parameters(), "within": lx.sets.PSDCone()}], gap)
    with pytest.raises(TypeError, match="within= takes a set"):
        lt.QuadraticPenalty([{"params": net.parameters(), "within": "box"}], gap)
    with pytest.raises(ValueError, match="ties entries together"):
        lt.QuadraticPenalty([{"params": net.parameters(), "within": lx.sets.L2Ball(1.0)}], gap, adaptive_metric=True)
    with pytest.raises(ValueError, match="bound has shape"):
        lt.QuadraticPenalty(net, {"gap": lt.AtMost([0.1, 0.2, 0.3])}).step(good(net), BATCH)


def test_indexed_needs_examples():
    net = model()
    opt = lt.QuadraticPenalty(net, {"gap": lt.AtMost(0.1, indexed=16)})
    with pytest.raises(TypeError, match="Indexed"):
        opt.step(good(net), BATCH)


@pytest.mark.parametrize("method", [lt.QuadraticPenalty, lt.TrackedLagrangian])
def test_examples_that_do_not_fit(method):
    net = model()

    def value(x, columns):
        return net(x)[:, :columns].squeeze(1)

    for examples, values, message in [
        (torch.arange(16) - 1, 1, "numbers from -1 to"),
        (torch.arange(16).flip(0) + 1, 1, "numbers from [19] to 16"),
        (torch.arange(4), 1, r"examples of shape \(4,\) for a batch of (16|8) rows"),
        (torch.arange(16), 2, r"values of shape \((16|8), 2\)"),
    ]:
        opt = method(net, {"gap": lt.AtMost(0.1, indexed=16)})
        with pytest.raises(ValueError, match=message):
            opt.step(
                lambda x, e=examples, n=values: (net(x).mean(), {"gap": lt.Indexed(value(x, n), e[: len(x)])}), BATCH
            )


@pytest.mark.parametrize("which", range(3))
def test_states_of_other_constraints(which):
    net = model()
    opt = optimizers(net)[which]
    opt.step(good(net), BATCH)
    other = optimizers(net)[which]
    other.passes.rank, other.passes.processes = 1, 2
    with pytest.raises(ValueError, match="process 0 of 1, and this is process 1 of 2"):
        other.load_state_dict(opt.state_dict())
    wide = torch.nn.Linear(3, 5)
    with pytest.raises(ValueError, match=r"state is of parameters .*\(2, 3\).* these are .*\(5, 3\)"):
        optimizers(wide)[which].load_state_dict(opt.state_dict())
    with pytest.raises(ValueError, match=r"float32.* these are .*float64"):
        optimizers(model().double())[which].load_state_dict(opt.state_dict())
    for others in ({"gpa": lt.AtMost(0.1)}, {"gap": lt.AtMost(0.1), "more": lt.Equal()}, {}):
        with pytest.raises(ValueError, match=r"constraints \['gap'\], and this optimizer has"):
            optimizers(net, others)[which].load_state_dict(opt.state_dict())


@pytest.mark.parametrize("which", range(3))
def test_states_with_constraints_in_another_order(which):
    """Multipliers would change places."""
    net = model()
    names = ("a", "b")
    opt = optimizers(net, {name: lt.AtMost(0.1) for name in names})[which]
    opt.step(lambda x: (net(x).mean(), {name: net(x)[:, 0] for name in names}), BATCH)
    with pytest.raises(ValueError, match="in the same order"):
        optimizers(net, {name: lt.AtMost(0.1) for name in reversed(names)})[which].load_state_dict(opt.state_dict())
    opt = optimizers(net, {name: lt.AtMost(0.1, indexed=20) for name in names})[which]
    with pytest.raises(ValueError, match=r"indexed constraints with .*'a': 20"):
        optimizers(net, {name: lt.AtMost(0.1, indexed=20) for name in ("a", "c")})[which].load_state_dict(
            opt.state_dict()
        )


def test_a_state_with_another_metric():
    net = model()
    opt = lt.TrackedLagrangian(net, {}, adaptive_metric=True)
    opt.step(lambda x: ((net(x) ** 2).mean(), {}), BATCH)
    with pytest.raises(ValueError, match="another adaptive_metric"):
        lt.TrackedLagrangian(net, {}).load_state_dict(opt.state_dict())


@pytest.mark.parametrize("which", range(3))
def test_steps_as_of_other_optimizers(which):
    net = model()
    opt = optimizers(net)[which]
    for arguments in ((), (good(net),), (BATCH, BATCH)):
        with pytest.raises(TypeError, match=r"step\(closure, batch\) wants .* no backward\(\)"):
            opt.step(*arguments)


@pytest.mark.parametrize("which", range(3))
def test_parameters_frozen_during_a_run(which):
    net = model()
    opt = optimizers(net)[which]
    opt.step(good(net), BATCH)
    net.bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"shapes \[\(2,\)\] require no gradient any more.*lr to 0"):
        opt.step(good(net), BATCH)


@pytest.mark.parametrize("which", range(3))
def test_nothing_is_learned_from_a_refused_answer(which):
    net = model()
    opt = optimizers(net, {"a": lt.AtMost(0.1), "b": lt.AtMost(0.1)})[which]
    with pytest.raises(ValueError, match="'b' has values of shape"):
        opt.step(lambda x: (net(x).mean(), {"a": net(x), "b": net(x).mean()}), BATCH)
    opt.step(lambda x: (net(x).mean(), {"a": net(x)[:, 0], "b": net(x)[:, 1]}), BATCH)


@pytest.mark.parametrize("which", range(3))
def test_a_corrected_closure_is_accepted(which):
    net = model()
    opt = optimizers(net, {"gap": lt.AtMost([0.1, 0.2])})[which]
    with pytest.raises(ValueError, match="bound has shape"):
        opt.step(good(net), BATCH)
    opt.step(lambda x: ((net(x) ** 2).mean(), {"gap": net(x)}), BATCH)


@pytest.mark.parametrize("method", [lt.QuadraticPenalty, lt.TrackedLagrangian])
def test_a_population_smaller_than_a_batch(method):
    net = model()
    with pytest.raises(ValueError, match=r"population=10 .* this batch has 16"):
        method(net, {"gap": lt.AtMost(0.1)}, population=10).step(good(net), BATCH)


@pytest.mark.parametrize("constraints", [{}, {"gap": lt.AtMost(0.1)}], ids=["none", "gap"])
def test_a_start_that_is_not_finite(constraints):
    """It is refused, and the next batches are as good as the first."""
    net = model()
    opt = lt.TrackedLagrangian(net, constraints)

    def closure(x):
        return (net(x) ** 2).mean(), {name: net(x)[:, 0] for name in constraints}

    with pytest.raises(ValueError, match="not finite on the first batches"):
        opt.step(closure, BATCH * torch.nan)
    opt.step(closure, BATCH)
    assert is_finite(opt.current())
