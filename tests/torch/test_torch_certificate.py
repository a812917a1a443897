"""The certificate of a torch model is the core's, from means that torch computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lariax as lx
import lariax.torch as lt

ROWS = np.random.default_rng(0).normal([1.0, 3.0], size=(512, 2))


class Point(torch.nn.Module):
    def __init__(self, x):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(x, dtype=torch.float64))
        self.noise = torch.nn.Dropout(0.5)

    def closure(self, z):
        assert not self.training  # judged as it is deployed
        x = self.noise(self.x)
        return 0.5 * ((x - z) ** 2).sum(dim=1), {"sum": x.sum(), "low": z[:, 0] * x[0]}


CONSTRAINTS = {"sum": lt.Equal(2.0, samples=None), "low": lt.AtMost(0.5)}


def batches(size=8):
    return [torch.tensor(ROWS[i : i + size]) for i in range(0, len(ROWS), size)]


@pytest.fixture(scope="module")
def core():
    return lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
        samples=lx.Dataset(ROWS),
        constraints={"sum": lx.Equal(jnp.sum, 2.0, samples=None), "low": lx.AtMost(lambda x, z: z[0] * x[0], 0.5)},
        within=lx.sets.NonNegative(),
    )


@pytest.mark.long_but("True")
@pytest.mark.parametrize("given", [True, False])
def test_about_all_rows_it_says_what_the_core_says(core, given):
    x, multipliers = [0.3, 1.6], {"sum": 0.9, "low": 0.1}
    model = Point(x)
    opt = lt.QuadraticPenalty([{"params": [model.x], "within": lx.sets.NonNegative()}], CONSTRAINTS)
    mine = lt.certify(model, model.closure, batches(), opt, multipliers if given else None, population=False)
    its = lx.certify(core, jnp.asarray(x), multipliers if given else None, draws=None)
    assert mine.exact
    assert not mine.population
    assert mine.fitted is not given
    for name in ("stationarity", "feasibility", "complementarity", "natural_residual", "objective"):
        np.testing.assert_allclose(getattr(mine, name).estimate, getattr(its, name).estimate, atol=1e-6, err_msg=name)
    for name, report in its.constraints.items():
        np.testing.assert_allclose(mine.constraints[name].value, report.value, atol=1e-9)
        assert mine.constraints[name].holds == report.holds
        np.testing.assert_allclose(mine.multipliers[name], its.multipliers[name], atol=1e-6)
    assert model.training


def test_about_the_distribution():
    """The solution of min E|x - z|^2/2 with x1 + x2 = 2 is (0, 2): there nothing speaks against it, elsewhere much."""
    constraints = {"sum": lt.Equal(2.0, samples=None)}

    def judged(x):
        model = Point(x)
        return lt.certify(
            model, lambda z: (model.closure(z)[0], {"sum": model.noise(model.x).sum()}), batches(), constraints
        )

    good, bad = judged([0.0, 2.0]), judged([1.0, 1.0])
    assert good.population
    assert good.stationarity.low == 0
    assert good.constraints["sum"].holds == "surely"
    assert good.draws == 512
    assert bad.stationarity.low > 1
    assert "distribution" in bad.verdict


def test_too_few_batches():
    model = Point([0.0, 2.0])
    with pytest.raises(ValueError, match=r"8 batches of equal size.*at least 16"):
        lt.certify(model, model.closure, batches(64), CONSTRAINTS)


def test_multipliers_of_unknown_names():
    model = Point([0.3, 1.6])
    with pytest.raises(ValueError, match=r"multipliers for \['smu'\]"):
        lt.certify(model, model.closure, batches(), CONSTRAINTS, {"smu": 0.9, "sum": 0.9, "low": 0.1})


@pytest.mark.parametrize("place", [0, 20, 63])
def test_a_short_batch_is_left_out(place):
    model, parts = Point([0.3, 1.6]), batches()
    parts[place] = parts[place][:3]
    found = lt.certify(model, model.closure, parts, CONSTRAINTS, {"sum": 0.9, "low": 0.1})
    assert found.draws == 63 * 8


@pytest.mark.long
def test_a_compiled_model():
    model = Point([0.3, 1.6])
    compiled = torch.compile(model.closure, backend="aot_eager")
    mine, its = (lt.certify(model, closure, batches(), CONSTRAINTS) for closure in (compiled, model.closure))
    np.testing.assert_allclose(mine.stationarity.estimate, its.stationarity.estimate)


@pytest.mark.long_but("127-True-127")
@pytest.mark.parametrize(("count", "given", "used"), [(127, True, 127), (127, False, 127), (254, True, 252)])
def test_hardly_a_row_is_left_out(count, given, used):
    """And `draws` are those that were judged or fitted on."""
    model, seen = Point([0.3, 1.6]), set()
    rows = torch.tensor(np.random.default_rng(1).normal([1.0, 3.0], size=(2 * count, 2)))

    def closure(z):
        seen.add(z[0, 0].item())
        return model.closure(z)

    multipliers = {"sum": 0.9, "low": 0.1} if given else None
    certificate = lt.certify(model, closure, rows.split(2), CONSTRAINTS, multipliers)
    assert certificate.draws == 2 * used
    assert len(seen) >= used


def test_what_is_not_judged_is_said():
    """Constraints of single training examples; other rows may have any numbers."""
    model = Point([0.3, 1.6])

    def closure(z):
        loss, values = model.closure(z)
        return loss, values | {"each": lt.Indexed(z[:, 0] * model.x[0], torch.arange(len(z)) + 1000)}

    kinds = CONSTRAINTS | {"each": lt.AtMost(0.0, indexed=10)}
    certificate = lt.certify(model, closure, batches(), kinds, population=False)
    assert "not judged: ['each']" in certificate.warnings[-1]


def trained(multipliers, x=(0.0, 2.0)):
    """A model at a point, and an optimizer that has ended with these multipliers."""
    model = Point(list(x))
    opt = lt.QuadraticPenalty([model.x], {"sum": lt.Equal(2.0, samples=None), "low": lt.AtMost(0.5)})
    opt._named_multipliers = lambda: {name: torch.tensor(float(y)) for name, y in multipliers.items()}
    return model, opt


def test_the_multipliers_of_the_optimizer_are_judged_first():
    """(0, 2) solves the problem with multipliers (1, 0): E z is (1, 3), and nothing binds but the sum."""
    own = {"sum": 1.0, "low": 0.0}
    model, opt = trained(own)
    certificate = lt.certify(model, model.closure, batches(), opt)
    assert not certificate.fitted
    assert {name: float(y) for name, y in certificate.multipliers.items()} == own
    assert certificate.stationarity.low == 0


def test_fitted_ones_where_those_of_the_optimizer_are_refuted():
    model, opt = trained({"sum": 1.0, "low": 3.0})
    certificate = lt.certify(model, model.closure, batches(), opt)
    assert certificate.fitted
    assert certificate.stationarity.low == 0
    assert certificate.multipliers["low"] == 0


def test_values_are_judged_on_all_rows():
    model = Point([0.3, 1.6])

    def width(multipliers):
        report = lt.certify(model, model.closure, batches(), CONSTRAINTS, multipliers).constraints["low"]
        return float(report.high - report.low)

    assert width(None) < 1.15 * width({"sum": 0.9, "low": 0.1})


@pytest.mark.long
def test_a_second_call_compiles_nothing(caplog):
    model = torch.nn.Linear(3, 1)  # of a size that no other test has compiled for
    rows = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))

    def compiled():
        caplog.clear()
        with jax.log_compiles():
            lt.certify(model, closure, [rows[i : i + 3] for i in range(0, 48, 3)], {"mean": lt.AtMost(0.1)})
        return [record for record in caplog.records if "Compiling" in record.getMessage()]

    def closure(z):
        values = model(z).squeeze(1)
        return values**2, {"mean": values}

    assert compiled()
    with torch.no_grad():
        model.bias += 0.1
    assert not compiled()


@pytest.mark.long
def test_a_certificate_takes_multipliers_in_the_place_of_an_optimizer():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, 400)
    multipliers = lt.Multipliers({"mean": lt.AtMost(0.3)}, steps=400, parameters=model.parameters())

    def closure(rows):
        out = model(rows).squeeze(1)
        return (out - rows[:, 0] - 1) ** 2, {"mean": out}

    for _ in range(400):
        adam.zero_grad()
        multipliers.lagrangian(*closure(torch.randn(32, 2))).backward()
        adam.step()
        schedule.step()
    certificate = lt.certify(model, closure, torch.randn(64, 64, 2), multipliers)
    assert certificate.constraints["mean"].holds != "violated"
    assert certificate.constraints["mean"].low < 0.35
    assert certificate.constraints["mean"].high > 0.15
