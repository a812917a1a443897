"""Every entry, small: solved by the default method, certified, and held against what is known of its solution."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import lariax as lx
from lariax import gallery

RNG = np.random.default_rng(0)
needs_sif2jax = pytest.mark.skipif(
    importlib.util.find_spec("sif2jax") is None,
    reason="sif2jax is not installed, so the entry 'cutest' goes untested: pip install 'lariax[cutest]'",
)

# entry, its options, the run, how far x (relative), multipliers (relative) and the certificate's upper ends may be off
SMALL = [
    ("chance_constraint", {"products": 4}, (8, 3000), 0.02, 0.05, 0.2),
    ("consensus", {"agents": 4, "graph": "path"}, (8, 1500), 0.05, 0.1, 0.05),
    ("diffusion_control", {"grid": 6}, (4, 1500), 0.005, 0.01, 0.01),
    ("neyman_pearson", {}, (64, 2000), 0.1, 0.02, 0.05),
    ("neyman_pearson_multiclass", {}, (32, 2000), 0.2, 0.05, 0.1),
    ("portfolio", {"assets": 5}, (32, 3000), 0.1, 0.1, 0.05),
    ("resource_sharing", {"users": 10, "resources": 2}, (8, 2000), 0.05, 0.02, 0.05),
    ("splitting", {"weight": 0.1}, (64, 2000), 0.1, 0.1, 0.1),
    pytest.param("cutest", {"problem": "HS71"}, (2, 5000), 1e-3, 1e-3, 0.02, marks=needs_sif2jax),
]


@pytest.mark.long_but("consensus-options1-run1-0.05-0.1-0.05")
@pytest.mark.parametrize(("name", "options", "run", "x_off", "y_off", "at_most"), SMALL)
def test_entries_reach_what_is_known(name, options, run, x_off, y_off, at_most):
    case = gallery.load(name, **options)
    result = lx.solve(case.problem, case.x0, batch_size=run[0], iterations=run[1])
    known = case.solution
    x, exact = (np.asarray(ravel_pytree(tree)[0]) for tree in (result.x, known.x))
    assert np.linalg.norm(x - exact) < x_off * np.linalg.norm(exact)
    for constraint, y in known.multipliers.items():
        assert np.linalg.norm(result.multipliers[constraint] - y) < y_off * max(np.linalg.norm(y), 1e-3)
    certificate = lx.certify(case.problem, result.x, result.multipliers, draws=40_000)
    assert certificate.within(at_most), str(certificate)
    looks_right(case.pictures(result.x))
    assert all(np.isfinite(value) for value in case.measures(result.x).values())


def looks_right(pictures):
    """Pictures hold what their kind wants."""
    assert pictures
    for picture in pictures:
        assert picture.title
        for values in picture.series.values():
            assert np.all(np.isfinite(values))
            shape = np.shape(values)
            if picture.kind == "bars":
                assert shape == (len(picture.categories),)
            elif picture.kind == "heatmap":
                assert len(shape) == 2
            else:
                assert shape[1] == 2


def test_principal_components_are_eigenvectors():
    case = gallery.principal_components(components=2)
    result = lx.solve(case.problem, case.x0, batch_size=64, iterations=3000)
    np.testing.assert_allclose(result.multipliers["orthonormal"], case.solution.multipliers["orthonormal"], atol=0.01)
    cosines = list(case.measures(result.x).values())
    assert cosines[0] > 0.999
    assert cosines[1] > 0.95  # the second eigenvalue is hardly larger than the third
    certificate = lx.certify(case.problem, result.x, result.multipliers, draws=40_000)
    assert certificate.exact
    assert certificate.within(0.02)
    np.testing.assert_allclose(certificate.objective.estimate, case.solution.value, rtol=1e-3)
    looks_right(case.pictures(result.x))


@pytest.fixture(scope="module")
def loss_gap():
    case = gallery.fairness(bound=0.02)
    return case, lx.solve(case.problem, case.x0, batch_size=64, iterations=3000)


def test_fairness_keeps_its_gap(loss_gap):
    case, result = loss_gap
    certificate = lx.certify(case.problem, result.x, draws=40_000)
    assert certificate.exact
    assert certificate.feasibility.high < 0.005
    assert certificate.stationarity.high < 0.02
    assert certificate.heldout.population
    net = case.solution.multipliers["loss gap"] @ [1, -1]
    assert abs(result.multipliers["loss gap"] @ jnp.asarray([1.0, -1.0]) - net) < 0.05
    assert abs(certificate.objective.estimate - case.solution.value) < 0.003
    free = gallery.fairness(bound=10.0).solution
    assert free.value < case.solution.value - 0.005  # the bound costs something
    looks_right(case.pictures(result.x))
    numbers = case.measures(result.x)
    assert abs(numbers["loss gap, training"]) < 0.025
    assert numbers["area under ROC, test"] > 0.8


@pytest.mark.long_but("demographic parity")
@pytest.mark.parametrize("criterion", ["demographic parity", "equalised odds"])
def test_other_criteria_at_their_solution(criterion):
    """The exact solution of each: its gaps by plain counting, and feasible and stationary for the certificate."""
    case = gallery.fairness(criterion=criterion, bound=0.01)
    x = jnp.asarray(case.solution.x)
    certificate = lx.certify(case.problem.without_heldout(), x, case.solution.multipliers, draws=None)
    assert certificate.within(1e-6)
    gaps = [abs(value) for name, value in case.measures(x).items() if name.endswith("gap, training")]
    assert max(gaps) == pytest.approx(0.01, abs=1e-6)


def test_a_network_with_rows_of_its_own_for_the_constraint():
    case = gallery.fairness(model="network", data="german_credit", own_rows=0.5)
    problem, gap = case.problem, case.problem.constraints["loss gap"]
    together = gallery.fairness(model="network", data="german_credit").problem
    sizes = [len(source) for source in problem.sources]
    assert min(sizes) > 300
    assert sum(sizes) == len(together.samples)
    assert len(gap.heldout) == len(problem.heldout) == 1000 - sum(sizes)
    values = jax.vmap(gap.fun, (None, 0))(case.x0, gap.heldout.arrays).mean(axis=0)
    np.testing.assert_allclose(values, [1, -1] * np.asarray(case.measures(case.x0)["loss gap, test"]), atol=1e-12)
    joint = jax.vmap(together.objective, (None, 0))(case.x0, together.heldout.arrays)[1]["loss gap"].mean(axis=0)
    np.testing.assert_allclose(joint, values, atol=1e-12)


def test_consensus_on_a_graph_with_cycles():
    """More constraints than independent ones: the model is agreed on, and fitted multipliers find it stationary."""
    case = gallery.consensus(agents=9)
    x = jnp.asarray(case.solution.x)
    assert case.solution.multipliers is None
    assert lx.certify(case.problem, x).within(1e-5)
    rows = case.problem.samples.arrays.reshape(-1, x.shape[1])
    pull = jnp.mean(-jax.nn.sigmoid(-rows @ x[0])[:, None] * rows, axis=0) + 0.01 * x[0]
    np.testing.assert_allclose(pull, 0, atol=1e-10)


@pytest.fixture
def archives(tmp_path):
    """Two kinds of small images: digits are bright in one of two halves, outsiders are bright all over."""
    paths = []
    for name in ("inside", "outside"):
        parts = {}
        for part, rows in (("train", 400), ("test", 200)):
            label = RNG.integers(0, 2, rows)
            images = RNG.integers(0, 60, (rows, 4, 4))
            for half in (0, 1):
                images[(label == half) | (name == "outside"), 2 * half : 2 * half + 2] += 150
            parts |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": label.astype(np.uint8)}
        paths.append(tmp_path / f"{name}.npz")
        np.savez(paths[-1], **parts)
    return paths


@pytest.mark.long
def test_outsiders_are_found(archives):
    case = gallery.out_of_distribution(*archives, hidden=(4,))
    result = lx.solve(case.problem, case.x0, batch_size=16, iterations=3000)
    certificate = lx.certify(case.problem, result.x, result.multipliers, tolerance=0.01)
    assert all(report.holds == "surely" for report in certificate.constraints.values()), str(certificate)
    numbers = case.measures(result.x)
    assert numbers["area under ROC, test"] > 0.95
    assert numbers["wrong digits, test"] < 0.05
    looks_right(case.pictures(result.x))


@pytest.mark.long
def test_a_network_of_stocks_is_that_of_the_linear_program():
    """Its rows are all there is: the program's answer is exact, and its cost is seen by plain counting."""
    case = gallery.newsvendor_network()
    solution = case.solution
    assert case.measures(solution.x)["cost"] == pytest.approx(solution.value, rel=1e-9)
    assert case.measures(solution.x)["lost sales"] == pytest.approx(0.3, abs=1e-9)
    result = lx.solve(case.problem, case.x0, batch_size=16, iterations=5000)
    numbers = case.measures(result.x)
    assert numbers["cost"] == pytest.approx(solution.value, rel=0.02)
    assert numbers["lost sales"] < 0.33
    assert float(result.multipliers["lost"]) == pytest.approx(float(solution.multipliers["lost"]), rel=0.2)
    looks_right(case.pictures(result.x))


@pytest.mark.long
def test_power_plants_keep_their_chances_and_their_prices():
    case = gallery.dispatch()
    solution = case.solution
    result = lx.solve(case.problem, case.x0, **case.defaults)
    numbers = case.measures(result.x)
    assert numbers["cost"] == pytest.approx(solution.value, rel=0.005)
    assert numbers["largest P(short of power)"] < 0.055
    assert numbers["to spare on calm days"] > 0.09
    for name in ("hour 3", "calm"):
        assert float(result.multipliers[name]) == pytest.approx(float(solution.multipliers[name]), rel=0.1)
    looks_right(case.pictures(result.x))


@pytest.mark.long
def test_a_suspension_is_that_of_quadrature():
    """The chance by quadrature is what plain counting shows, and a run finds spring, damper and price."""
    case = gallery.suspension()
    solution = case.solution
    assert case.measures(solution.x)["P(stop is hit)"] == pytest.approx(0.05, abs=1e-6)
    event = case.problem.constraints["stop"].fun.fun
    hits = jax.jit(jax.vmap(lambda z: event(jnp.asarray(solution.x), z) > 0))
    share = float(jnp.mean(hits(jax.random.normal(jax.random.key(0), (100_000, 2)))))
    assert share == pytest.approx(0.05, abs=0.0027)  # four standard errors
    result = lx.solve(case.problem, case.x0, **case.defaults)
    numbers = case.measures(result.x)
    assert numbers["mean square acceleration"] == pytest.approx(solution.value, rel=0.03)
    assert numbers["P(stop is hit)"] == pytest.approx(0.05, abs=0.006)
    looks_right(case.pictures(result.x))
