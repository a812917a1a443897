"""lt.Multipliers: the numbers of the core, as a scalar to differentiate."""

import copy
import math

import numpy as np
import pytest
import torch

import lariax as lx
import lariax.torch as lt


def training(multipliers, steps, seed=0, **more):
    """Adam on a quadratic with a bound on the sum: (-0.5, 1.5) with multiplier 0.5."""
    torch.manual_seed(seed)
    x = torch.zeros(2, requires_grad=True)
    adam = torch.optim.Adam([x], lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, steps)
    if multipliers is None:
        multipliers = lt.Multipliers({"line": lt.AtMost(1.0)}, steps=steps, parameters=[x])
    for _ in range(steps):
        z = torch.randn(16)
        losses, values = 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2) + 0.1 * z, x[0] + x[1] + 0.1 * z
        adam.zero_grad()
        multipliers.lagrangian(losses, {"line": values}, **more).backward()
        adam.step()
        schedule.step()
    return x.detach(), multipliers


def test_adam_with_multipliers_finds_the_solution():
    x, multipliers = training(None, 600)
    np.testing.assert_allclose(x, [-0.5, 1.5], atol=0.05)
    assert abs(multipliers["line"] - 0.5) < 0.3
    level, _, error = multipliers.values["line"]
    assert abs(level - 1) < 5 * error + 0.02
    assert multipliers.observe()["line/multiplier"] == multipliers["line"]


def test_without_parameters_it_works_on_values_and_says_so():
    with pytest.warns(RuntimeWarning, match="neither parameters= nor shared="):
        x, _ = training(lt.Multipliers({"line": lt.AtMost(1.0)}, steps=600), 600)
    np.testing.assert_allclose(x, [-0.5, 1.5], atol=0.1)


def test_the_core_gives_the_same_numbers_from_the_same_values():
    torch.manual_seed(0)
    kinds = {
        "rows": lt.AtMost(0.5),
        "mean": lt.AtLeast(0.2),
        "wide": lt.Equal(torch.tensor([0.0, 0.1], dtype=torch.float64)),
    }
    own = {"rows": lx.AtMost(bound=0.5), "mean": lx.AtLeast(bound=0.2), "wide": lx.Equal(bound=np.array([0.0, 0.1]))}
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    multipliers, core = lt.Multipliers(kinds, steps=100, parameters=[x]), lx.Multipliers(own, steps=100)
    multipliers.parameters = None  # gradients are no part of what is compared
    multipliers.core._said.add("alone")
    for _ in range(100):
        losses, rows, wide = torch.randn(8).double() + x[0], torch.randn(8).double() + 1, torch.randn(8, 2).double()
        values = {"rows": rows + x[0], "mean": rows.mean() * 0 + 0.1, "wide": wide + x}
        multipliers.lagrangian(losses, values)
        told = {
            name: (
                value.detach().numpy().mean(0) if value.ndim else float(value.detach()),
                np.sqrt(value.detach().numpy().var(0, ddof=1) / 8) if value.ndim else math.nan,
            )
            for name, value in values.items()
        }
        expected = core.update(told, objective=(0.0, float(losses.detach().std() / math.sqrt(8))))
        for name in kinds:
            np.testing.assert_allclose(multipliers[name], expected[name], rtol=1e-9, atol=1e-12)


def test_the_lagrangian_is_loss_plus_weighted_values_less_bounds():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    multipliers = lt.Multipliers({"a": lt.AtMost(0.0), "b": lt.AtLeast(3.0)}, steps=100, parameters=[x])
    for _ in range(50):
        losses, values = x**2, {"a": x + 1, "b": x}
        before = multipliers.multipliers
        total = multipliers.lagrangian(losses, values)
    expected = 1 + before["a"] * 2 + before["b"] * (1 - 3)
    assert before["a"] > 0 > before["b"]
    assert total.item() == pytest.approx(expected, rel=1e-12)


def test_a_proxy_is_measured_by_values_and_weighed_by_its_surrogate():
    x = torch.ones(4, requires_grad=True)
    multipliers = lt.Multipliers({"rate": lt.AtMost(0.1)}, steps=100, parameters=[x])
    for _ in range(50):
        y = multipliers["rate"]
        total = multipliers.lagrangian(0 * x, {"rate": lt.Proxy((x.detach() > 0).float(), 3 * x)})
    x.grad = None
    total.backward()
    np.testing.assert_allclose(x.grad, np.full(4, 3 * y / 4), rtol=1e-5)
    assert multipliers.values["rate"].level == pytest.approx(1.0)


def test_constraints_of_the_parameters_alone_and_vectors():
    x = torch.full((3,), 2.0, requires_grad=True)
    adam = torch.optim.Adam([x], lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, 1500)
    multipliers = lt.Multipliers(
        {"size": lt.Equal(1.0, samples=None), "each": lt.AtMost(0.7, samples=None)}, steps=1500, parameters=[x]
    )
    for _ in range(1500):
        adam.zero_grad()
        target = torch.tensor([2.0, 0.0, 0.0])
        multipliers.lagrangian(((x - target) ** 2).sum(), {"size": (x**2).sum(), "each": x}).backward()
        adam.step()
        schedule.step()
    assert float((x.detach() ** 2).sum()) == pytest.approx(1.0, abs=0.06)
    assert float(x.detach().max()) < 0.73
    assert multipliers["each"].shape == (3,)


def polygon(steps, multipliers=None, kind=lt.AtMost, begin=0, x=None, adam=None):
    """The nearest point to (2, 2) in a polygon of 16 sides, one an example: z(45 degrees), where one side works."""
    torch.manual_seed(begin)
    angles = torch.arange(16) * torch.pi / 8
    sides, sign = torch.stack([angles.cos(), angles.sin()], dim=1), 1.0 if kind is lt.AtMost else -1.0
    x = torch.zeros(2, requires_grad=True) if x is None else x
    adam = torch.optim.Adam([x], lr=0.02) if adam is None else adam
    if multipliers is None:
        multipliers = lt.Multipliers({"side": kind(sign, indexed=16)}, steps=1500, parameters=[x])
    for k in range(begin, begin + steps):
        adam.param_groups[0]["lr"] = 0.02 * (1 - k / 1500)
        index = torch.randperm(16)[:8]
        adam.zero_grad()
        values = lt.Indexed(sign * sides[index] @ x, index)
        multipliers.lagrangian(((x - 2) ** 2).sum() + 0 * sides[index, 0], {"side": values}).backward()
        adam.step()
    return x, multipliers, adam


@pytest.mark.parametrize("kind", [lt.AtMost, lt.AtLeast])
def test_each_example_has_its_multiplier(kind):
    x, multipliers, _ = polygon(1500, kind=kind)
    np.testing.assert_allclose(x.detach(), [0.5**0.5] * 2, atol=0.03)
    y = np.abs(multipliers["side"])
    assert y.shape == (16,)
    assert np.argmax(y) == 2
    assert abs(y[2] - 16 * 2 * (2 - 0.5**0.5) * 2**0.5) < 15  # mean over the examples: 58.5
    assert (multipliers["side"] * (1 if kind is lt.AtMost else -1) >= 0).all()


def test_tables_of_examples_are_saved_to_the_same_bits():
    x, multipliers, adam = polygon(100)
    again = lt.Multipliers({"side": lt.AtMost(1.0, indexed=16)}, steps=1500, parameters=[x])
    again.load_state_dict(multipliers.state_dict())
    y = x.detach().clone().requires_grad_()
    other = torch.optim.Adam([y], lr=0.02)
    other.load_state_dict(copy.deepcopy(adam.state_dict()))
    again.parameters = [y]
    polygon(100, multipliers, begin=100, x=x, adam=adam)
    polygon(100, again, begin=100, x=y, adam=other)
    assert torch.equal(x, y)
    np.testing.assert_array_equal(multipliers["side"], again["side"])


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (torch.zeros(2), TypeError, "is indexed"),
        (lt.Indexed(torch.zeros(2), torch.tensor([0, 16])), ValueError, "count from 0"),
        (lt.Indexed(torch.zeros(2), torch.tensor([0])), ValueError, "one number of each"),
    ],
    ids=["no numbers", "out of range", "shapes"],
)
def test_wrong_examples_are_named(given, error, words):
    multipliers = lt.Multipliers({"side": lt.AtMost(1.0, indexed=16)}, steps=10)
    with pytest.raises(error, match=words):
        multipliers.lagrangian(torch.ones(2, requires_grad=True), {"side": given})


def test_states_are_saved_to_the_same_bits(tmp_path):
    _, multipliers = training(None, 100)
    state = multipliers.state_dict()
    torch.save(state, tmp_path / "state.pt")
    other = lt.Multipliers({"line": lt.AtMost(1.0)}, steps=100, parameters=[torch.zeros(2, requires_grad=True)])
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.state_dict() == state
    assert copy.deepcopy(other).state_dict() == state
    one, two = (torch.ones(8, requires_grad=True) for _ in range(2))
    multipliers.parameters, other.parameters = [one], [two]
    multipliers.steps = other.steps = 200
    for k in range(60):  # of which some measure gradients, in other calls than those of a new run
        a = multipliers.lagrangian((k + 1) * one**2, {"line": one * 3 + k % 7})
        b = other.lagrangian((k + 1) * two**2, {"line": two * 3 + k % 7})
        assert a.item() == b.item()
    assert multipliers.state_dict() == other.state_dict()


def rows_and_entries(x, k):
    """Losses, and values by name: a row each, two entries a row, and a surrogate."""
    z = torch.randn(16, 3, generator=torch.Generator().manual_seed(k), dtype=x.dtype)
    values = {
        "one": x[0] + z[:, 0] + 1,
        "two": x + z[:, 1:],
        "rate": lt.Proxy((z[:, 2] > 0).to(x.dtype), x[1] * z[:, 2]),
    }
    return (x**2).sum() + z[:, 0], values


def of_three(x, steps=300):
    kinds = {"one": lt.AtMost(0.5), "two": lt.Equal(torch.tensor([0.0, 0.1])), "rate": lt.AtLeast(0.6)}
    return lt.Multipliers(kinds, steps=steps, parameters=[x])


@pytest.mark.filterwarnings("ignore:the multiplier of .* has been at its limit")  # these values answer to nothing
@pytest.mark.parametrize("told", [False, True], ids=["alone", "beside update"])
def test_calls_alike_weigh_and_record_what_others_do(told, monkeypatch):
    """Most calls go a shorter way than the first one does."""
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    multipliers, other, short = of_three(x), of_three(x), []
    monkeypatch.setattr(other, "_as_before", lambda *_: None)
    way = multipliers._as_before
    monkeypatch.setattr(multipliers, "_as_before", lambda *given: short.append(way(*given)) or short[-1])
    for k in range(200):
        losses, values = rows_and_entries(x, k)
        if k == 50:
            del values["two"]  # not weighed in this call
        if k == 70:
            losses, values = losses[:8], {name: value for name, value in values.items() if name != "rate"}
            values["two"] = values["two"][:8]  # and the other rows are more than the losses
        if told and k % 20 == 0:
            for each in (multipliers, other):
                each.update({"rate": (0.5, 0.01)})
        found, expected = (each.lagrangian(losses, values) for each in (multipliers, other))
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)
        slopes = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
    assert multipliers.state_dict() == other.state_dict()
    assert told or sum(each is not None for each in short) > 150


@pytest.mark.filterwarnings("ignore:the multiplier of .* has been at its limit")  # these values answer to nothing
def test_looking_at_multipliers_between_calls_changes_no_bit():
    x = torch.ones(2, requires_grad=True)
    seen, unseen = of_three(x), of_three(x)
    for k in range(200):
        for each in (seen, unseen):
            each.lagrangian(*rows_and_entries(x, k))
        if k % 7 == 0:
            resumed = of_three(x)
            resumed.load_state_dict(seen.state_dict())
            seen = resumed
    assert seen.state_dict() == unseen.state_dict()


@pytest.mark.filterwarnings("ignore:the multiplier of .* has been at its limit")  # these values answer to nothing
def test_autocast_leaves_values_and_losses_in_their_precision():
    """Products are what autocast rounds: of a loss of 1000.4 it left 1000."""
    x = torch.ones(2, requires_grad=True)
    multipliers, other = of_three(x), of_three(x)
    for k in range(60):
        losses, values = rows_and_entries(x, k)
        with torch.autocast("cpu", torch.bfloat16):
            found = multipliers.lagrangian(losses + 1000.4, values)
        assert found.item() == other.lagrangian(losses + 1000.4, values).item()
        assert found.dtype == torch.float32
    assert multipliers.state_dict() == other.state_dict()


def test_update_and_lagrangian_mix():
    """A metric that is told is not measured by lagrangian, which only weighs its stand-in."""
    x = torch.zeros(4, requires_grad=True)
    multipliers = lt.Multipliers({"recall": lt.AtLeast(0.9), "size": lt.AtMost(1.0)}, steps=200, parameters=[x])
    for k in range(120):
        if k % 10 == 0:
            multipliers.update({"recall": (0.5, 0.02)})
        multipliers.lagrangian(x**2, {"recall": x, "size": x + 0.5})
    assert multipliers.values["recall"].level == pytest.approx(0.5)
    assert multipliers["recall"] < 0
    assert multipliers.core.calls in (120, 121)


def test_shared_tensors_serve_in_the_place_of_parameters():
    model = torch.nn.Linear(3, 1)
    multipliers = lt.Multipliers({"c": lt.AtMost(0.0)}, steps=50)
    for _ in range(20):
        logits = model(torch.randn(8, 3)).squeeze(1)
        multipliers.lagrangian(logits**2, {"c": logits + 1}, shared=logits).backward()
    assert multipliers.core.looks("c") == 5  # in calls 1, 5, 9, 13 and 19
    assert model.weight.grad is not None


def test_calls_without_gradients_are_not_counted():
    """An evaluation by the same function weighs, and leaves no trace."""
    x = torch.ones(4, requires_grad=True)
    multipliers = lt.Multipliers({"c": lt.AtMost(0.0)}, steps=100, parameters=[x])
    for _ in range(50):
        multipliers.lagrangian(x**2, {"c": x + 1})
    before = multipliers.state_dict()
    with torch.no_grad():
        total = multipliers.lagrangian(x**2, {"c": x + 1})
    assert total.item() == pytest.approx(1 + 2 * multipliers["c"])
    assert multipliers.state_dict() == before


def test_a_model_in_the_place_of_its_parameters_is_looked_up_in_each_call():
    model = torch.nn.Linear(3, 1)
    multipliers = lt.Multipliers({"c": lt.AtMost(0.0)}, steps=50, parameters=model)
    model.weight = torch.nn.Parameter(2 * torch.ones(1, 3))  # as wrappers do
    out = model(torch.randn(8, 3)).squeeze(1)
    multipliers.lagrangian(out**2, {"c": out + 1})
    assert multipliers.core.looks("c") == 1


def test_a_loss_that_does_not_reach_what_is_shared_is_said():
    x, other = torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)
    multipliers = lt.Multipliers({"c": lt.AtMost(0.0)}, steps=50)
    with pytest.warns(RuntimeWarning, match="does not depend on the given tensors"):
        multipliers.lagrangian(x**2, {"c": x + 1}, shared=other)


def test_what_is_not_finite_leaves_the_multiplier_as_it_was():
    x = torch.ones(4, requires_grad=True)
    multipliers = lt.Multipliers({"c": lt.AtMost(0.0)}, steps=100, parameters=[x])
    for _ in range(50):
        multipliers.lagrangian(x**2, {"c": x + 1})
    before = multipliers["c"]
    with pytest.warns(RuntimeWarning, match="was not finite"):
        multipliers.lagrangian(x**2, {"c": x * math.nan})
    assert multipliers["c"] == before


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m, x: m.lagrangian(x, {"d": x}), ValueError, "unknown"),
        (lambda m, x: m.lagrangian(1.0, {"c": x}), TypeError, "losses are a tensor"),
        (lambda m, x: m.lagrangian(x, {"c": 1.0}), TypeError, "must be a tensor"),
        (lambda m, x: lx.Multipliers({"c": lt.AtMost(0.0, indexed=5)}), NotImplementedError, "indexed"),
    ],
)
def test_wrong_use_is_named(call, error, words):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(error, match=words):
        call(lt.Multipliers({"c": lt.AtMost(0.0)}, parameters=[x]), x)


# --- onto the bounds


def all_rows():
    """Batches of unlike lengths."""
    z = torch.randn(100, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return list((z - z.mean(dim=0)).split(32))


def after_training(x, constraints):
    return lt.Multipliers(constraints, steps=10, parameters=[x])


def test_the_shortest_step_leads_onto_a_bound_of_all_rows():
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    multipliers = after_training(x, {"line": lt.AtMost(2.5)})
    values = multipliers.settle(lambda z: (0 * z[:, 0], {"line": x[0] + x[1] + z[:, 0]}), all_rows())
    assert 2.4 < values["line"] <= 2.5
    move = x.detach() - torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(move, torch.tensor([-0.2625, -0.2625, 0.0]).double(), rtol=0, atol=1e-4)  # 5 % beyond


def test_what_is_kept_moves_nothing():
    x = torch.tensor([1.0, 1.0], requires_grad=True)
    values = after_training(x, {"line": lt.AtMost(2.5)}).settle(lambda z: (x.sum(), {"line": x.sum()}), all_rows())
    assert x.tolist() == [1.0, 1.0]
    assert values == {"line": 2.0}


def test_a_loader_without_a_length_settles():
    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.zeros(8, 1))

    x = torch.nn.Parameter(torch.ones(2))
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    values = after_training(x, {"sum": lt.AtMost(1.5)}).settle(lambda z: (x.sum(), {"sum": x.sum() + z[:, 0]}), loader)
    assert float(values["sum"]) <= 1.5


def test_several_bounds_are_settled_in_turn():
    x = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    kinds = {
        "sum": lt.AtMost(2.5),
        "each": lt.AtLeast(torch.tensor([0.9, 0.9, 0.7])),
        "size": lt.Equal(3, samples=None),
    }

    def closure(z):
        return 0 * z[:, 0], {"sum": x[0] + x[1] + z[:, 0], "each": x + z[:, :1], "size": (x**2).sum()}

    values = after_training(x, kinds).settle(closure, iter(all_rows()), most=100)
    assert values["sum"] <= 2.5
    assert (values["each"] >= [0.9, 0.9, 0.7]).all()
    assert values["size"] == pytest.approx(3, abs=1e-5)


def test_bounds_of_examples_are_no_means():
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    multipliers = after_training(x, {"each": lt.AtMost(1.0, indexed=100), "mean": lt.AtMost(1.5)})
    numbered = [(z, torch.arange(len(z))) for z in all_rows()]

    def closure(batch):
        return 0 * batch[0][:, 0], {"each": lt.Indexed(x + batch[0][:, 0], batch[1]), "mean": x + batch[0][:, 0]}

    values = multipliers.settle(closure, numbered)
    assert list(values) == ["mean"]
    assert values["mean"] <= 1.5


@pytest.mark.parametrize("steep", [1.0, 30.0])
def test_a_rate_is_settled_by_its_surrogate(steep):
    """Also where that promises far more than the rate does."""
    x = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def closure(z):
        return 0 * z[:, 0], {"rate": lt.Proxy((z[:, 0] + x > 0).double(), steep * torch.sigmoid(3 * (z[:, 0] + x)))}

    values = after_training(x, {"rate": lt.AtLeast(0.8)}).settle(closure, all_rows())
    assert 0.8 <= values["rate"] < 0.85


def test_what_cannot_be_settled_is_said_and_left_as_it_was():
    x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    multipliers = after_training(x, {"c": lt.AtMost(0.5)})
    with pytest.warns(RuntimeWarning, match="parameters stay as they were, 'c' off by 0.5"):
        multipliers.settle(lambda z: (0 * z[:, 0], {"c": lt.Proxy(x.detach() ** 2, -(x**2))}), all_rows())
    assert x.tolist() == [1.0]
    with pytest.warns(RuntimeWarning, match="parameters stay as they were, 'c' off by nan"):
        after_training(x, {"c": lt.AtMost(0.5)}).settle(lambda z: (x, {"c": x.sum() * math.nan}), all_rows())
    assert x.tolist() == [1.0]
    with pytest.raises(ValueError, match="parameters=model"):
        lt.Multipliers({"c": lt.AtMost(0.5)}).settle(lambda z: (z, {"c": x}), all_rows())
    with pytest.raises(ValueError, match="found none"):
        multipliers.settle(lambda z: (z, {"c": x}), [])
    with pytest.raises(ValueError, match="unknown"):
        multipliers.settle(lambda z: (z, {"d": x}), all_rows())
    with pytest.warns(RuntimeWarning, match="'c' off by 0.5"):
        after_training(x, {"c": lt.AtMost(0.5)}).settle(lambda z: (x, {"c": torch.ones(2)}), all_rows())


@pytest.mark.parametrize("kind", [lt.AtMost, lt.Equal])
def test_a_step_onto_a_bound_that_leads_too_far_is_taken_back(kind):
    """Along the gradient the value curves upwards before the step that would end it to first order is done."""
    x = torch.tensor([0.5, 0.07], dtype=torch.float64, requires_grad=True)
    values = after_training(x, {"c": kind(0.0)}).settle(lambda z: (x.sum(), {"c": x[0] + 20 * x[1] ** 2}), [None])
    assert values["c"] <= 1e-5
    assert torch.dist(x.detach(), torch.tensor([0.5, 0.07], dtype=torch.float64)) < 1.0
