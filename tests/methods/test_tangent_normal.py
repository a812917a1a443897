"""Steps within linearised constraints against closed forms, solutions against known ones, and the statistical limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import normal
from lariax.methods import _face, _nearest, fitted, nearest
from lariax.methods._face import bent
from lariax.methods._nearest import Bounds, Linearized, ridge

METHOD = lx.TangentNormal()


def rows_of(matrix, inequality=None, plain=False):
    matrix = jnp.asarray(matrix)
    inequality = jnp.zeros(matrix.shape[0], bool) if inequality is None else jnp.asarray(inequality)
    size = jnp.ones(matrix.shape[0])
    return Linearized(
        lambda v: matrix @ v,
        lambda y: y @ matrix,
        lambda *question: _nearest.dense(matrix, *question),
        None,
        matrix,
        size,
        size,
        size > 0,
        inequality,
        plain,
    )


# --- the linear algebra


def test_nearest_is_the_projection_on_the_simplex():
    """The simplex as one equality and bounds; its projection is known by another way (a sort)."""
    rows = rows_of(jnp.ones((1, 6)) / 6**0.5)
    bounds = Bounds(jnp.zeros(6), jnp.full(6, jnp.inf))
    targets = 3 * jax.random.normal(jax.random.key(0), (50, 6))
    one = jnp.array([-1 / 6**0.5])
    found = jax.jit(jax.vmap(lambda target: nearest(rows, one, target, bounds, jnp.zeros(1))))(targets)
    np.testing.assert_allclose(found.step, jax.vmap(lx.sets.Simplex().project)(targets), atol=1e-10)
    np.testing.assert_array_equal(found.free, found.step > 0)


def test_nearest_is_the_projection_on_a_wedge():
    """d_1 <= 0 and d_1 + d_2 <= 0, written with a dependent third row: a corner, either side, or the point itself."""
    unit = jnp.array([[1.0, 0.0], [0.5**0.5, 0.5**0.5], [1.0, 0.0]])
    rows, bounds = rows_of(unit, [True] * 3), Bounds(jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf))
    targets = jnp.array([[1.0, 2.0], [1.0, -3.0], [3.0, 0.5], [-1.0, 0.5]])
    found = jax.jit(jax.vmap(lambda target: nearest(rows, jnp.zeros(3), target, bounds, jnp.zeros(3))))(targets)
    np.testing.assert_allclose(found.step, [[-0.5, 0.5], [0.0, -3.0], [0.0, 0.0], [-1.0, 0.5]], atol=1e-7)
    assert (found.weights >= 0).all()


def test_dependent_rows_change_nothing():
    matrix = np.random.default_rng(0).normal(size=(2, 5))
    matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    target, r = np.arange(5.0), np.array([0.3, -0.2])
    free = Bounds(np.full(5, -np.inf), np.full(5, np.inf))

    @jax.jit
    def step(matrix, r):
        return nearest(rows_of(matrix, plain=True), r, target, free, jnp.zeros(len(r))).step

    once, same = step(matrix, r), step(np.concatenate([matrix, matrix]), np.tile(r, 2))
    exact = target - np.linalg.pinv(matrix) @ (matrix @ target + r)
    np.testing.assert_allclose(once, exact, atol=1e-12)
    np.testing.assert_allclose(same, exact, atol=1e-9)


def test_what_cannot_hold_is_met_by_least_squares():
    rows = rows_of(jnp.array([[1.0, 0.0], [1.0, 0.0]]), plain=True)
    free = Bounds(jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf))
    step = nearest(rows, jnp.array([0.0, -1.0]), jnp.zeros(2), free, jnp.zeros(2)).step
    np.testing.assert_allclose(step, [0.5, 0.0], atol=100 * ridge(jnp.float64) ** 0.5)


@pytest.mark.parametrize("kind", ["polytope", "bands", "cone", "twice", "bounded"])
def test_nearest_meets_its_conditions_with_more_rows_than_entries(kind):
    """d = clip(target - J^T y),  J d + r <= 0,  y >= 0,  y . (J d + r) = 0: then it is the projection.

    From no guess at y, with 40 rows for 10 entries: through the origin (a degenerate vertex), opposite (narrow bands),
    each twice, with three equalities and bounds.
    """
    rng = np.random.default_rng(0)
    count, size = 40, 10
    most = 0.3 if kind == "bounded" else np.inf

    def question():
        matrix, r = rng.normal(size=(count, size)), -np.ones(count)
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        inside = 0.1 * rng.normal(size=size)
        if kind in ("bands", "twice"):
            matrix[count // 2 :] = (-1 if kind == "bands" else 1) * matrix[: count // 2]
        if kind == "bands":
            r = -matrix @ inside - 1e-3
        if kind == "cone":
            matrix[:, 0], r = abs(matrix[:, 0]), np.zeros(count)
        if kind == "bounded":
            r[:3] = -matrix[:3] @ inside
        return matrix, r, 5 * rng.normal(size=size)

    inequality = jnp.arange(count) >= (3 if kind == "bounded" else 0)
    bounds = Bounds(jnp.full(size, -most), jnp.full(size, most))
    matrices, rs, targets = map(jnp.asarray, map(np.stack, zip(*(question() for _ in range(20)), strict=True)))

    def answer(matrix, r, target):
        near = nearest(rows_of(matrix, inequality), r, target, bounds, jnp.zeros(count))
        return near.step, near.weights

    steps, weights = jax.jit(jax.vmap(answer))(matrices, rs, targets)
    values = jnp.einsum("nij,nj->ni", matrices, steps) + rs
    pulled = jnp.clip(targets - jnp.einsum("nij,ni->nj", matrices, weights), -most, most)
    np.testing.assert_allclose(steps, pulled, atol=1e-12)
    np.testing.assert_allclose(jnp.where(inequality, jnp.maximum(values, 0), values), 0, atol=1e-8)
    np.testing.assert_allclose(jnp.where(inequality, weights * values, 0), 0, atol=1e-7)
    assert (jnp.where(inequality, weights, 0) >= 0).all()


def test_the_model_learns_what_noise_does_not_explain():
    model, step, change = np.eye(3), np.array([1.0, 2.0, 0.0]), np.array([3.0, 1.0, 1.0])
    learnt = jax.jit(lambda change, noise: bent(model, step, change, noise))
    np.testing.assert_allclose(learnt(change, 0.0) @ step, change)  # the secant equation
    gap = np.sum((change - step) ** 2)
    np.testing.assert_array_equal(learnt(change, gap), model)
    np.testing.assert_allclose(learnt(change, gap / 2) @ step, (step + change) / 2)
    negative = np.asarray(learnt(-change, 0.0))
    np.testing.assert_allclose(step @ negative @ step, 0.2 * step @ step)  # damped
    assert (np.linalg.eigvalsh(negative) > 0).all()
    beside = np.array([-2.0, 1.0, 5.0])  # beside . step = 0, as at a saddle
    across = np.asarray(learnt(beside, 0.0))
    assert np.linalg.eigvalsh(across)[-1] < 200 * np.linalg.norm(beside) / np.linalg.norm(step)


# --- exact problems


def circle(x):
    return x @ x - 1


def squared(x):
    return x @ x


def steep(x):
    return 100 * circle(x) - x[0]


def on_circle(square):
    """Problems that differ in a number are compiled once."""
    circles = {"c": lx.Equal(squared, square, samples=None)}
    return lx.Problem(steep, samples=None, constraints=circles)


def test_nearly_degenerate_circle():
    """BT1: f = 100 c - x_1, so all curvature but 1/200 of it cancels; started near the centre, where J is small."""
    result = lx.solve(on_circle(1.0), jnp.array([0.08, 0.06]), METHOD, iterations=60)
    np.testing.assert_allclose(result.x, [1.0, 0.0], atol=1e-8)
    np.testing.assert_allclose(result.multipliers["c"], -99.5, atol=1e-6)


@pytest.mark.parametrize("start", [[0.0, 0.0], [0.005, 0.0], [0.0, 1.0]], ids=["no J", "no gradient", "feasible"])
def test_awkward_starts(start):
    """Where the constraint has no gradient, where the objective has none, and a quarter of the way round."""
    result = lx.solve(on_circle(1.0), jnp.array(start), METHOD, iterations=60)
    np.testing.assert_allclose(result.x, [1.0, 0.0], atol=1e-7)


def test_infeasible_is_said():
    result = lx.solve(on_circle(-1.0), jnp.array([0.5, 0.4]), METHOD, iterations=60)
    assert result.status == "infeasible_stationary"
    np.testing.assert_allclose(result.x, 0, atol=1e-2)


NEARLY_PARALLEL = lx.Problem(
    lambda x, z: -(1 + 0.3 * z) @ x,
    samples=normal(3),
    constraints={
        "spheres": lx.Equal(lambda x: jnp.stack([x @ x, (x - jnp.eye(3)[0]) @ (x - jnp.eye(3)[0])]), 9.0, samples=None)
    },
)
"""Two spheres meet in the circle x_1 = 1/2, x_2^2 + x_3^2 = 8.75; the best point of it is on x_2 = x_3."""


@pytest.mark.long_but("far")
@pytest.mark.parametrize("start", [[5.0, 1e-4, -1e-4], [5.0, 0.0, 0.0], [1e4, 1.0, -3.0]], ids=["near", "on", "far"])
def test_nearly_parallel_gradients_hold_nothing_up(start):
    """On the line through the centres the gradients are parallel, and beside it Gauss and Newton's step is endless."""

    def solved(seed):
        return lx.solve(NEARLY_PARALLEL, jnp.array(start), METHOD, iterations=1000, seed=seed).x

    found = jax.vmap(solved)(jnp.arange(6))
    np.testing.assert_allclose(found[:, 0], 0.5, atol=1e-9)
    np.testing.assert_allclose(jnp.sum(found[:, 1:] ** 2, axis=1), 8.75, rtol=1e-9)
    # the noise along the circle is 0.3, that of its mean 0.3 / sqrt(2000), over a curvature of 2 / 2.96: six of them
    np.testing.assert_allclose(found[:, 1], 4.375**0.5, atol=6 * 0.3 / 2000**0.5 * 2.96 / 2**0.5)


def test_a_saddle_of_the_violation_is_left():
    """The centre of a sphere, for an objective that has no gradient there either and nothing random: x stays unless it
    is moved."""
    shape = jnp.array([1.0, 2.0, 3.0])
    sphere = {"sphere": lx.Equal(squared, 9.0, samples=None)}
    problem = lx.Problem(lambda x: x @ (shape * x) / 2, samples=None, constraints=sphere)
    result = lx.solve(problem, jnp.zeros(3), METHOD, iterations=60)
    np.testing.assert_allclose(abs(result.x), [3.0, 0.0, 0.0], atol=1e-6)


def test_steps_find_their_length_again():
    """From 1e8 away, where steps of that length follow the sphere, to where they must be of length 1."""
    result = lx.solve(on_circle(1.0), jnp.array([-1e8, 3e7]), METHOD, iterations=100)
    np.testing.assert_allclose(result.x, [1.0, 0.0], atol=1e-7)


@pytest.mark.long
def test_constraints_that_contradict_each_other_end_between_them():
    """Two spheres of radius 3 with centres 7 apart: the middle, whatever the objective wants."""
    centre = 7 * jnp.eye(3)[0]
    spheres = lx.Equal(lambda x: jnp.stack([x @ x, (x - centre) @ (x - centre)]), 9.0, samples=None)
    problem = lx.Problem(lambda x, z: -(1 + 0.3 * z) @ x, samples=normal(3), constraints={"spheres": spheres})
    result = lx.solve(problem, jnp.array([5.0, 0.1, -0.1]), METHOD, iterations=300)
    np.testing.assert_allclose(result.x, centre / 2, atol=1e-2)
    assert result.status in ("infeasible_stationary", "stalled")


WEDGE = {
    "c": lx.Equal(lambda x: jnp.stack([x[0] + x[1] + x[2] - 1, 2 * (x[0] + x[1] + x[2]) - 2]), samples=None),
    "q": lx.AtMost(lambda x: x[1] ** 2, 0.01, samples=None),
    "r": lx.AtLeast(lambda x: x[0], -5.0, samples=None),
}


def test_a_polygon_of_more_sides_than_entries():
    """The nearest point to (2, 2) in one of 12 sides, of which two meet there."""
    angles = jnp.arange(12) * jnp.pi / 6
    sides = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - 2 - 0.1 * z) ** 2),
        samples=normal(2),
        constraints={"sides": lx.AtMost(lambda x: sides @ x, 1.0, samples=None)},
    )
    result = lx.solve(problem, jnp.zeros(2), method=METHOD, iterations=500)
    np.testing.assert_allclose(result.x, np.full(2, np.sqrt(3) - 1), atol=1e-6)
    assert result.status == "budget"


@pytest.fixture(scope="module")
def mixed():
    """min (x - (0, 2, -1))^2 / 2 with a redundant equality, an active and an idle inequality, and an active bound.

    x_3 = 0 is its bound and x_2 = 0.1, so x_1 = 0.9 with multiplier y = -0.9; then -1.9 - 0.9 + 0.2 q = 0.
    """
    problem = lx.Problem(
        lambda x: jnp.sum((x - jnp.array([0.0, 2.0, -1.0])) ** 2) / 2,
        samples=None,
        constraints=WEDGE,
        within=lx.sets.Box(0.0, jnp.inf),
    )
    return problem, lx.solve(problem, jnp.array([0.3, 0.2, 0.4]), METHOD, iterations=60)


def test_bounds_inequalities_and_dependent_rows(mixed):
    problem, result = mixed
    np.testing.assert_allclose(result.x, [0.9, 0.1, 0.0], atol=1e-8)
    assert result.x[2] == 0  # on the bound, not beside it
    np.testing.assert_allclose(result.multipliers["c"] @ jnp.array([1.0, 2.0]), -0.9, atol=1e-6)
    np.testing.assert_allclose(result.multipliers["q"], 14.0, atol=1e-5)
    assert result.multipliers["r"] == 0
    certificate = lx.certify(problem, result.x)
    assert max(certificate.stationarity.high, certificate.feasibility.high, certificate.complementarity.high) < 1e-6


def test_products_with_the_jacobian_do_the_same(mixed, monkeypatch):
    """Beyond the dense limit the same steps come from conjugate gradients, with one number for the curvature."""
    monkeypatch.setattr(_face, "is_whitened", lambda *_: False)
    monkeypatch.setattr("lariax.methods._tangent_normal.is_whitened", lambda *_: False)
    problem = lx.Problem(
        lambda x: jnp.sum((x - jnp.array([0.0, 2.0, -1.0])) ** 2) / 2,
        samples=None,
        constraints=WEDGE,
        within=lx.sets.Box(0.0, jnp.inf),
    )
    result = lx.solve(problem, jnp.array([0.3, 0.2, 0.4]), METHOD, iterations=300)
    assert result.continuation.loop.state.model.ndim == 0
    np.testing.assert_allclose(result.x, mixed[1].x, atol=1e-6)


# --- through noise


@pytest.mark.long
def test_statistical_limit_on_a_sphere():
    """min E||x - a - z||^2 / 2 on the unit sphere: tangential gradient noise sqrt(d - 1), divided by sqrt(K).

    16 seeds: the rms of the ratio has a standard error of 6 %; it is asked to be within 30 %.
    """
    d, draws = 9, 4000
    a = jnp.arange(1.0, d + 1) / 8
    problem = lx.Problem(
        lambda x, z: jnp.sum((x - a - z) ** 2) / 2,
        samples=normal(d),
        constraints={"sphere": lx.Equal(circle, samples=None)},
    )
    x0 = jnp.ones(d) / 3

    def error(seed):
        result = lx.solve(problem, x0, METHOD, draws=draws, seed=seed)
        x, slope = result.x, result.x - a
        return jnp.linalg.norm(slope - (slope @ x) * x), jnp.abs(circle(x)), result.evaluations, result.iterations

    errors, violations, evaluations, iterations = jax.vmap(error)(jnp.arange(16))
    ratio = jnp.sqrt(jnp.mean(errors**2) * draws / (d - 1))
    assert 0.7 < ratio < 1.3
    assert violations.max() < 1e-9
    # a step: two points for two samples, the constraint four times outside of loops, and the trials of the loops
    assert (evaluations >= 6 * iterations).all()


@pytest.mark.long
def test_the_units_of_x_do_not_matter():
    """min E||x / S - (2, 3) - z / 10||^2 / 2 with sum(x / S) = 4: for any units S, x / S is as accurate as for S = 1.

    The same samples, 8 seeds: errors differ only by the paths to the solution.
    """

    def error(units, seed):
        problem = lx.Problem(
            lambda x, z: jnp.sum((x / units - jnp.array([2.0, 3.0]) - z / 10) ** 2) / 2,
            samples=normal(2),
            constraints={"sum": lx.Equal(lambda x: jnp.sum(x / units), 4.0, samples=None)},
        )
        x = lx.solve(problem, jnp.zeros(2), METHOD, iterations=500, seed=seed).x
        return jnp.sum((x / units - jnp.array([1.5, 2.5])) ** 2)

    units = jnp.array([[1.0, 1.0], [1e-2, 1e2], [1e3, 1e-3], [1e-3, 0.1], [5.0, 0.2]])
    errors = jax.vmap(jax.vmap(error, (None, 0)), (0, None))(units, jnp.arange(8))
    rms = jnp.sqrt(jnp.mean(errors, axis=1))
    assert rms[0] < 3 * 0.1 / 1000**0.5  # the noise of the mean along the line is 0.1 / sqrt(1000)
    assert (rms[1:] < 1.3 * rms[0]).all()


def curve(strength, x):
    return x[1] - strength * x[0] ** 2


@pytest.mark.long
def test_trials_are_counted():
    """A straight line takes three evaluations a step; on a narrow curve each halving is one more."""

    def solved(strength):
        along = lx.Equal(jax.tree_util.Partial(curve, jnp.asarray(strength)), samples=None)
        problem = lx.Problem(valley, samples=None, constraints={"curve": along})
        return lx.solve(problem, jnp.zeros(2), METHOD, iterations=10)

    straight, curved = solved(0.0), solved(100.0)
    trials = [int(result.continuation.loop.state.extra_evaluations) for result in (straight, curved)]
    assert trials[0] == 3 * 10  # normal, tangential, corrected
    assert trials[1] > trials[0]
    assert curved.evaluations - straight.evaluations == trials[1] - trials[0]


def valley(x):
    return (x[0] - 1) ** 2 + x[1]


# --- who it is for


def chosen(problem, x):
    """What `solve` does before it compiles anything."""
    return fitted(problem, x, (None,), "auto", batch_size=2)[1:]


def test_auto_says_what_it_took(mixed):
    sphere = {"sphere": lx.Equal(circle, samples=None)}
    method, said = chosen(lx.Problem(lambda x: x[0], samples=None, constraints=sphere), jnp.ones(2))
    assert isinstance(method, lx.TangentNormal)
    assert said == 'method="auto" took TangentNormal: all constraints are deterministic, and it keeps to them.'
    many = {"rows": lx.Linear(jnp.eye(300, 400), 1.0)}
    method, said = chosen(lx.Problem(lambda x: x @ x, samples=None, constraints=many), jnp.ones(400))
    assert isinstance(method, lx.TrackedLagrangian)
    assert "300 constraint rows on 400 entries of x are many for TangentNormal" in said
    rows = {"rows": lx.Linear(jnp.eye(20, 300), 1.0)}
    method, said = chosen(lx.Problem(lambda x: x @ x, samples=None, constraints=rows), jnp.ones(300))
    assert isinstance(method, lx.TrackedLagrangian)
    assert "20 constraint rows on 300 entries of x are many for TangentNormal" in said
    ball = lx.Problem(lambda x: x[0], samples=None, constraints=sphere, within=lx.sets.L2Ball(2.0))
    method, said = chosen(ball, jnp.ones(2))
    assert isinstance(method, lx.TrackedLagrangian)
    assert "the set L2Ball ties entries of x together" in said
    assert "took TangentNormal" in lx.solve(mixed[0], jnp.array([0.3, 0.2, 0.4]), iterations=1).message


def test_random_constraints_are_refused():
    problem = lx.Problem(lambda x, z: x @ x, samples=normal(2), constraints={"line": lx.Equal(lambda x, z: x @ z - 1)})
    with pytest.raises(ValueError, match=r"the constraints 'line' are random. Use lx.TrackedLagrangian\(\)"):
        lx.solve(problem, jnp.ones(2), METHOD, iterations=1)
