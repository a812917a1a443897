"""Without matrices: the same answers as with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.inference import _infer, _inference, _krylov, _large
from lariax.inference._samples import Extras, Wanted, sample_of

D, M = 20, 2
RNG = np.random.default_rng(0)
SCALE, TARGET = jnp.asarray(RNG.uniform(0.5, 2, D)), jnp.asarray(RNG.normal(size=D))
ROWS = jnp.asarray(RNG.normal(size=(M, D)) / np.sqrt(D))
NOISE = lx.Dataset(jnp.asarray(RNG.normal(size=(900, D))))


def loss(x, z):
    return 0.5 * jnp.sum(SCALE * (x - TARGET) ** 2) + 0.3 * z @ x + 0.1 * jnp.sum(jnp.cosh(x)) + 0.02 * z[0] * x @ x


def rows(x, z):
    return ROWS @ x * (1 + 0.2 * z[:M]) + 0.5 * z[M : 2 * M]


def problem(**options):
    constraints = {
        "c": lx.Equal(rows, 0.3),
        "in": lx.AtMost(lambda x, z: x[0] + z[0], float(TARGET[0]) - 0.3),
        "out": lx.AtMost(lambda x, z: x[1] + z[1], float(TARGET[1]) + 3),
    }
    return lx.Problem(loss, samples=NOISE, constraints=constraints, **options)


@pytest.fixture
def precise(monkeypatch):
    monkeypatch.setattr(_large, "PRECISE", 1e-10)
    monkeypatch.setattr(_infer, "FAR", np.inf)


LOWER = np.where(np.arange(D) < 2, -5.0, -0.3)
SETS = {"free": None, "box": lx.sets.Box(LOWER, 5.0), "ball": lx.sets.L2Ball(2.0)}  # a ball is curved


@pytest.mark.parametrize("within", SETS)
def test_the_same_as_with_matrices(within, precise, monkeypatch):
    options = {} if within == "free" else {"within": SETS[within]}
    dense = lx.inference(problem(**options), problem(**options).within.project(TARGET))
    covariance = dense.covariance
    monkeypatch.setattr(_infer, "LARGE", 10)
    monkeypatch.setattr(_inference, "LARGE", 10)
    near = dense.x.estimate + np.where(dense.x.law == "fixed", 0, 0.01 * RNG.normal(size=D))
    near = problem(**options).within.project(jnp.asarray(near))
    multipliers = {name: each.estimate for name, each in dense.multipliers.items()}
    large = lx.inference(problem(**options), jnp.asarray(near), multipliers)
    v = np.linspace(-1, 1, D)
    fixed = dense.x.law == "fixed"
    assert fixed.any() == (within == "box")
    if within == "ball":
        assert np.linalg.norm(dense.x.estimate) == pytest.approx(2.0, abs=1e-6)
    np.testing.assert_allclose(large.x.estimate, dense.x.estimate, atol=1e-2 * np.nanmax(dense.x.standard_error))
    for name in ("c", "in", "out"):
        for one, other in ((large.multipliers, dense.multipliers), (large.constraints, dense.constraints)):
            np.testing.assert_allclose(one[name].standard_error, other[name].standard_error, rtol=1e-3, atol=1e-9)
            assert (one[name].law == other[name].law).all()
    np.testing.assert_allclose(large.objective.standard_error, dense.objective.standard_error, rtol=1e-3)
    expected = covariance @ v
    np.testing.assert_allclose(large.covariance @ v, expected, atol=1e-3 * np.abs(expected).max())
    entries = large.of(lambda x: x[:2])
    np.testing.assert_allclose(entries.standard_error, dense.x.standard_error[:2], rtol=1e-3, atol=1e-9)
    assert set(large.x.law) == {"not asked"}


@pytest.fixture
def without_matrices(precise, monkeypatch):
    monkeypatch.setattr(_infer, "LARGE", 10)
    monkeypatch.setattr(_inference, "LARGE", 10)


def test_fewer_samples_than_variables_are_refused(without_matrices):
    flat = lx.Problem(
        lambda x, z: 0.5 * (z @ x - 1) ** 2, samples=lx.Distribution(lambda key: jax.random.normal(key, (D,)))
    )
    with pytest.raises(lx.InferenceError, match="curvature"):
        lx.inference(flat, jnp.zeros(D), draws=10)


def spread_around(kink=0.0):
    """A problem whose solution is the mean of its rows; `kink` is the weight of |x - z|."""

    def distance(x, z):
        return jnp.sum((x - z) ** 2) / 2 + kink * jnp.sum(jnp.abs(x - z))

    return lx.Problem(distance, samples=NOISE)


def test_a_run_that_is_off_is_warned_of_or_refused(without_matrices, monkeypatch):
    monkeypatch.setattr(_infer, "FAR", 100.0)
    at = NOISE.arrays.mean(axis=0)
    error = NOISE.arrays.std(axis=0) / np.sqrt(900)
    everywhere = lx.inference(spread_around(), at + 10 * error)
    assert 7 < everywhere.off < 14  # beside one draw of the noise of 20 entries
    assert "away from the estimate" in everywhere.warnings[0]
    one = lx.inference(spread_around(), at.at[3].add(40 * error[3]))
    assert 10 < one.off < 40
    assert lx.inference(spread_around(), at + 0.5 * error).warnings == ()
    with pytest.raises(lx.InferenceError, match="standard errors away"):
        lx.inference(spread_around(), at + 200 * error)


def test_kinks_are_refused(without_matrices):
    """Newton's method gets lost among many small ones, and the check finds one that is near."""
    at = NOISE.arrays.mean(axis=0)
    with pytest.raises(lx.InferenceError, match="kinks"):
        lx.inference(spread_around(1.0), at)
    error = NOISE.arrays.std(axis=0) / np.sqrt(900)

    def bent(x, z):  # its curvature triples half a standard error away
        return 0.5 * jnp.sum((x - z) ** 2) + jnp.sum(jnp.maximum(x - at - error / 2, 0) ** 2)

    with pytest.raises(lx.InferenceError, match="otherwise than its derivative says"):
        lx.inference(lx.Problem(bent, samples=NOISE), at)


def test_a_direction_without_curvature_is_refused(without_matrices):
    flat = lx.Problem(lambda x, z: 0.5 * jnp.sum((x - z)[1:] ** 2) + x[0] * z[0], samples=NOISE)
    with pytest.raises(lx.InferenceError, match="curvature"):
        lx.inference(flat, jnp.zeros(D))


def test_symmlq_solves_indefinite_systems():
    """Beside a dense solver, with a row that is not active."""
    rng = np.random.default_rng(4)
    a = rng.normal(size=(D, D))
    hessian = jnp.asarray(a @ a.T / D + np.diag(np.where(np.arange(D) < 3, -4.0, 0.0)))
    rows = jnp.asarray(rng.normal(size=(3, D)))
    constraints = {"c": lx.Equal(lambda x: rows @ x, 0.0, samples=None)}
    stated = lx.Problem(lambda x, z: 0.5 * x @ hessian @ x, samples=NOISE, constraints=constraints)
    sample = sample_of(stated, jnp.zeros(D), Wanted(None, 900), 0, Extras())
    active = jnp.array([True, False, True])
    system = _krylov.System(sample, jnp.zeros(D), jnp.zeros(3), None, active)
    right = _krylov.Both(jnp.asarray(rng.normal(size=D)), jnp.array([1.0, 0.0, -2.0]))
    found = _krylov.symmlq(system, right, 1e-12, 200)
    own = np.asarray(rows)[np.asarray(active)]
    matrix = np.block([[np.asarray(hessian), own.T], [own, np.zeros((2, 2))]])
    expected = np.linalg.solve(matrix, np.append(right.z, [1.0, -2.0]))
    np.testing.assert_allclose(found.z, expected[:D], atol=1e-8)
    np.testing.assert_allclose(found.y, [expected[D], 0, expected[D + 1]], atol=1e-8)
    start = _krylov.Both(jnp.ones(D), jnp.array([1.0, 0.0, 1.0]))
    product = system.times(found, start)
    np.testing.assert_allclose(product.z, right.z + 1, atol=1e-8)
    np.testing.assert_allclose(product.y, right.y + start.y, atol=1e-8)


def test_a_regularizer_is_refused(without_matrices):
    with pytest.raises(lx.InferenceError, match="regularizer has no error bars"):
        lx.inference(lx.Problem(loss, samples=NOISE, regularizer=lx.prox.L1(0.1)), TARGET)


def test_symmlq_writes_over_its_vectors():
    """A step takes the place of the Lanczos vector before the last, a sum that of the vector added to."""
    vector = _krylov.Both(jnp.arange(4.0), jnp.ones(2))
    found = _krylov._combined((jnp.asarray(2.0), ((jnp.asarray(3.0), _krylov.Both(jnp.ones(4), jnp.ones(2))),)), vector)
    np.testing.assert_allclose(found.z, [3, 5, 7, 9])
    np.testing.assert_allclose(found.y, [5, 5])
    assert vector.z.is_deleted()
