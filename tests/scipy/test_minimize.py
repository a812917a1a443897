"""SciPy's words for a problem, and SciPy's own answers beside ours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.tree_util import Partial
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint

import lariax as lx
from conftest import normal
from lariax.scipy._minimize import _constraints, _within

# --- eight problems of Hock and Schittkowski whose functions are quadratic, so that they differ in numbers and are
#     compiled once: 4 entries, 2 equalities, 3 inequalities >= 0, the rest padded


def quadratic(curved, linear, constant, x):
    return x @ (curved @ x) / 2 + linear @ x + constant


def quadratics(curved, linear, constant, x):
    return jnp.stack([quadratic(*row, x) for row in zip(curved, linear, constant, strict=True)])


def form(terms, size=4):
    """{(): c, (i,): l_i, (i, j): coefficient of x_i x_j} as matrix, vector and number."""
    curved, linear = np.zeros((size, size)), np.zeros(size)
    for key, value in terms.items():
        if len(key) == 1:
            linear[key] += value
        elif len(key) == 2:
            curved[key] += value
            curved[key[::-1]] += value
    return curved, linear, float(terms.get((), 0))


HS35 = {(): 9, (0,): -8, (1,): -6, (2,): -4, (0, 0): 2, (1, 1): 2, (2, 2): 1, (0, 1): 2, (0, 2): 2}
HS43 = {(0, 0): 1, (1, 1): 1, (2, 2): 2, (3, 3): 1, (0,): -5, (1,): -5, (2,): -21, (3,): 7}
IN43 = [
    {(): 8, (0, 0): -1, (1, 1): -1, (2, 2): -1, (3, 3): -1, (0,): -1, (1,): 1, (2,): -1, (3,): 1},
    {(): 10, (0, 0): -1, (1, 1): -2, (2, 2): -1, (3, 3): -2, (0,): 1, (3,): 1},
    {(): 5, (0, 0): -2, (1, 1): -1, (2, 2): -1, (0,): -2, (1,): 1, (3,): 1},
]
HS76 = {(0, 0): 1, (1, 1): 0.5, (2, 2): 1, (3, 3): 0.5, (0, 2): -1, (2, 3): 1, (0,): -1, (1,): -3, (2,): 1, (3,): -1}
IN76 = [
    {(): 5, (0,): -1, (1,): -2, (2,): -1, (3,): -1},
    {(): 4, (0,): -3, (1,): -1, (2,): -2, (3,): 1},
    {(): -1.5, (1,): 1, (2,): 4},
]
FROM21 = {(): 5, (0,): -4, (1,): -2, (0, 0): 1, (1, 1): 1}  # (x_1 - 2)^2 + (x_2 - 1)^2
WIDE, POSITIVE = (-10.0, 10.0), (0.0, 10.0)
PROBLEMS = {
    # objective, equalities, inequalities >= 0, start, bounds
    "HS10": ({(0,): 1, (1,): -1}, [], [{(): 1, (0, 0): -3, (0, 1): 2, (1, 1): -1}], [-10.0, 10.0], WIDE),
    "HS14": (FROM21, [{(0,): 1, (1,): -2, (): 1}], [{(): 1, (0, 0): -0.25, (1, 1): -1}], [2.0, 2.0], WIDE),
    "HS21": ({(0, 0): 0.01, (1, 1): 1}, [], [{(): -10, (0,): 10, (1,): -1}], [2.0, 1.0], ([2.0, -50.0], 50.0)),
    "HS22": (FROM21, [], [{(): 2, (0,): -1, (1,): -1}, {(0, 0): -1, (1,): 1}], [2.0, 2.0], WIDE),
    "HS28": (
        {(0, 0): 1, (1, 1): 2, (2, 2): 1, (0, 1): 2, (1, 2): 2},
        [{(): -1, (0,): 1, (1,): 2, (2,): 3}],
        [],
        [-4.0, 1.0, 1.0],
        WIDE,
    ),
    "HS35": (HS35, [], [{(): 3, (0,): -1, (1,): -1, (2,): -2}], [0.5] * 3, POSITIVE),
    "HS43": (HS43, [], IN43, [0.0] * 4, WIDE),
    "HS76": (HS76, [], IN76, [0.5] * 4, POSITIVE),
}


def stacked(rows, count, padding):
    forms = [form(row) for row in rows] + [form({(): padding})] * (count - len(rows))
    return Partial(quadratics, *(jnp.asarray(np.stack(part)) for part in zip(*forms, strict=True)))


@pytest.mark.long_but("HS14", "HS21", "HS28", "HS35")
@pytest.mark.parametrize("name", PROBLEMS)
def test_beside_slsqp(name):
    objective, equalities, inequalities, start, (low, high) = PROBLEMS[name]
    used = np.arange(4) < len(start)
    x0 = np.concatenate([start, np.zeros(4 - len(start))])
    bounds = Bounds(*(np.where(used, np.resize(end, 4), 0.0) for end in (low, high)))
    fun = Partial(quadratic, *map(jnp.asarray, form(objective)))
    eq, geq = stacked(equalities, 2, 0.0), stacked(inequalities, 3, 1.0)
    said = [NonlinearConstraint(eq, 0, 0), NonlinearConstraint(geq, 0, np.inf)]
    result = lx.minimize(fun, jnp.asarray(x0), constraints=said, bounds=bounds)
    pairs = [{"type": "ineq", "fun": geq, "jac": jax.jacobian(geq)}]
    pairs += [{"type": "eq", "fun": lambda x: eq(x)[:1], "jac": lambda x: jax.jacobian(eq)(x)[:1]}] * len(equalities)
    reference = scipy.optimize.minimize(
        fun, x0, jac=jax.grad(fun), method="SLSQP", bounds=bounds, constraints=pairs, options={"ftol": 1e-12}
    )
    assert result.success
    assert result.iterations <= 1000
    np.testing.assert_allclose(float(fun(result.x)), reference.fun, rtol=1e-6, atol=1e-6)
    assert float(jnp.abs(eq(result.x)).max()) < 1e-8
    assert float(geq(result.x).min()) > -1e-8


# --- the words


def test_rows_are_told_apart():
    matrix = np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 2.0]])
    found = _constraints([LinearConstraint(matrix, [1, -np.inf, 0], [1, 3, 4])], jnp.zeros(2))
    assert list(found) == ["c0 equal", "c0 lower", "c0 upper"]
    assert isinstance(found["c0 equal"], lx.Linear)
    x = jnp.array([2.0, 0.5])
    np.testing.assert_allclose(found["c0 equal"].fun(x), [2.5])
    np.testing.assert_allclose(found["c0 lower"].fun(x), [1.0])
    np.testing.assert_allclose(found["c0 upper"].fun(x), [1.5, 1.0])
    np.testing.assert_allclose(found["c0 upper"].bound, [3.0, 4.0])
    alone = _constraints(NonlinearConstraint(lambda x: x @ x, -np.inf, 2.0), jnp.zeros(2))
    assert list(alone) == ["c0"]
    assert isinstance(alone["c0"], lx.AtMost)
    mine = {"mine": lx.Equal(jnp.sum, samples=None)}
    assert _constraints(mine, jnp.zeros(2)) == mine
    assert _constraints({"mine": lx.Equal(jnp.sum)}, jnp.zeros(2)) == mine  # nothing is random


def test_where_nothing_is_random_a_constraint_need_not_say_so():
    on_circle = {"circle": lx.Equal(lambda x: x @ x, 1.0)}
    result = lx.minimize(lambda x: x[0] + x[1], [1.0, 0.5], constraints=on_circle)
    assert result.success
    np.testing.assert_allclose(result.x, [-(0.5**0.5)] * 2, atol=1e-5)
    np.testing.assert_allclose(result.multipliers["circle"], 0.5**0.5, rtol=1e-4)
    with pytest.raises(ValueError, match="uses the problem's samples, but the problem has samples=None"):
        lx.minimize(lambda x: x @ x, [1.0], constraints={"line": lx.Equal(lambda x, z: x[0] - z)})


def test_bounds():
    x = jnp.zeros(2)
    assert _within(None, x) is None
    pairs = _within([(0, None), (None, 1)], x)
    np.testing.assert_array_equal(pairs.project(jnp.array([-1.0, 2.0])), [0.0, 1.0])
    same = _within(Bounds(-1, 1), x)
    np.testing.assert_array_equal(same.project(jnp.array([-3.0, 2.0])), [-1.0, 1.0])
    with pytest.raises(ValueError, match="there are 3 bounds for 2 entries of x"):
        _within(Bounds([0, 0, 0], [1, 1, 1]), x)
    with pytest.raises(TypeError, match=r"bounds= takes scipy.optimize.Bounds"):
        _within(3.0, x)


def test_what_jax_cannot_look_into_is_said():
    with pytest.raises(TypeError, match=r"fun cannot be traced by JAX .* Write it with jax.numpy"):
        lx.minimize(lambda x: float(x[0]) ** 2, [1.0])
    bad = NonlinearConstraint(lambda x: np.sin(x), 0, 1)
    with pytest.raises(TypeError, match="the function of constraint 'c0' cannot be traced"):
        lx.minimize(lambda x: x @ x, [1.0, 2.0], constraints=bad)
    with pytest.raises(TypeError, match=r"'type' \('eq' or 'ineq'\) and 'fun', found \{'type': 'equal'"):
        lx.minimize(lambda x: x @ x, [1.0, 2.0], constraints={"type": "equal", "fun": lambda x: x[0]})
    with pytest.raises(TypeError, match=r"found Equal. Constraints of Lariax go by name: constraints=\{'name'"):
        lx.minimize(lambda x: x @ x, [1.0, 2.0], constraints=[lx.Equal(jnp.sum, samples=None)])
    with pytest.raises(ValueError, match="every lb must be at most its ub"):
        lx.minimize(lambda x: x @ x, [1.0], constraints=NonlinearConstraint(lambda x: x, 1, 0))


def shifted(x, z, middle):
    return jnp.sum((x - z - middle) ** 2)


def test_with_samples():
    """The mean of (x - z)^2 on a line, z about (1, 3): (0, 2) is nearest. A spent budget is success where the
    certificate finds no fault with the point, and only there."""
    line = LinearConstraint([[1.0, 1.0]], 2.0, 2.0)
    result = lx.minimize(shifted, [0.0, 0.0], samples=normal(2), constraints=line, args=jnp.array([1.0, 3.0]))
    assert result.status == "budget"
    assert result.certificate.fault is None
    assert result.success
    assert (result.nit, result.nfev) == (result.iterations, result.evaluations)
    np.testing.assert_allclose(result.jac, [-2.0, -2.0], atol=0.2)  # of f alone; the line's multiplier is 2
    np.testing.assert_allclose(result.x, [0.0, 2.0], atol=0.05)
    assert abs(result.x.sum() - 2) < 1e-12
    assert result.iterations == 10_000


# --- success, whatever the units


def distance(units, unit, x):
    return unit * 0.5 * jnp.sum((x / units - jnp.array([2.0, 3.0], x.dtype)) ** 2)


def total(units, unit, x):
    return unit * jnp.sum(x / units)


def in_units(units, unit=1.0, row=1.0, start=(1.0, 1.0), dtype=jnp.float64):
    """The point of x1 + x2 <= 4 that is nearest to (2, 3), all in other units; and how far it is from (1.5, 2.5)."""
    units, unit, row = (jnp.asarray(value, dtype) for value in (units, unit, row))
    half = NonlinearConstraint(Partial(total, units, row), -np.inf, 4 * row)
    result = lx.minimize(Partial(distance, units, unit), jnp.asarray(start, dtype) * units, constraints=half)
    return result, np.abs(np.asarray(result.x / units, float) - [1.5, 2.5]).max()


@pytest.mark.parametrize("seed", range(4))
def test_success_does_not_depend_on_units(seed):
    rng = np.random.default_rng(seed)
    plain, _ = in_units(np.ones(2))
    other, error = in_units(10 ** rng.uniform(-2, 2, 2), *10 ** rng.uniform(-3, 3, 2))
    assert plain.success
    assert other.success
    assert error < 1e-6


@pytest.mark.parametrize("seed", [8, 9, 10])
def test_success_is_not_said_where_a_variable_is_wrong(seed):
    """Its gradient is small beside that of the other, and in single precision nobody comes near the solution."""
    rng = np.random.default_rng(seed)
    units, others, start = 10 ** rng.uniform(-3, 3, 2), 10 ** rng.uniform(-3, 3, 2), rng.choice([0.0, 1.0], 2)
    result, error = in_units(units, others[1], others[0], start, jnp.float32)
    assert result.success == (error < 1e-2)


def test_the_default_tolerance_is_of_the_precision_that_jax_takes():
    """A start in double precision, as NumPy makes it, is taken in single: nothing is known there to 1e-6."""
    rows = np.random.default_rng(0).normal(size=(30, 5))
    with jax.enable_x64(False), pytest.warns(lx.LariaxWarning, match="x0 is float64"):
        result = lx.minimize(lambda x: jnp.sum((x - 2) ** 2), np.zeros(5), constraints=LinearConstraint(rows, ub=1.0))
    assert result.success
    assert result.nit == 1000  # at the first certificate
    found = scipy.optimize.minimize(
        lambda x: np.sum((x - 2) ** 2), np.zeros(5), constraints=LinearConstraint(rows, ub=1.0), method="SLSQP"
    )
    np.testing.assert_allclose(result.x, found.x, atol=1e-3)


# --- SciPy's habits


def rosenbrock(x, steep):
    return (1 - x[0]) ** 2 + steep * (x[1] - x[0] ** 2) ** 2


def test_habits_of_scipy_are_taken():
    """args=, tol=, options= and constraints in dictionaries; the answer beside SciPy's."""
    said = [
        {"type": "ineq", "fun": lambda x, most: most - x @ x, "args": (1.5,)},
        {"type": "eq", "fun": lambda x: x[0] - 2 * x[1] + 0.5},
    ]
    start = np.array([0.1, 0.3])
    result = lx.minimize(rosenbrock, start, (10.0,), constraints=said, tol=1e-8, options={"maxiter": 3000})
    reference = scipy.optimize.minimize(rosenbrock, start, (10.0,), constraints=said, tol=1e-12)
    np.testing.assert_allclose(result.x, reference.x, atol=1e-5)
    np.testing.assert_allclose(result.fun, reference.fun, atol=1e-6)
    np.testing.assert_allclose(result.jac, jax.grad(rosenbrock)(result.x, 10.0), rtol=1e-10)
    assert result.success
    assert list(result.multipliers) == ["c0", "c1"]
    assert result.nit <= 3000


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"jac": True}, "jac= is not needed: JAX differentiates fun"),
        ({"hess": jnp.sin}, "hess= is not needed"),
        ({"method": "SLSQP"}, "method='SLSQP' is not of Lariax. Leave it out"),
        ({"options": {"ftol": 1e-9}}, r"options= takes 'maxiter', 'disp', found 'ftol'. Accuracy is tol="),
        ({"options": {"maxiter": 5}, "iterations": 6}, "and iterations= are the same"),
        ({"tol": 1e-3, "samples": normal(1)}, "tol= is relative.* Use tolerance="),
        ({"maxiter": 5}, "solve has no option 'maxiter'"),
    ],
)
def test_what_is_not_taken_is_answered(more, words):
    with pytest.raises(TypeError, match=words):
        lx.minimize(lambda x, *z: x @ x, [1.0], **more)
