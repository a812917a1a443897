"""Control of a partial differential equation whose coefficient is random."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jaxtyping import Array, Float, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.problem import Distribution, Equal, Problem


@entry
def diffusion_control(grid: int = 64, weight: float = 1e-3, randomness: float = 0.2) -> Entry:
    """Heating a plate towards a target when its conductivity is random.

        minimise    E[ ||u(xi) - target||^2 ] / 2 + weight / 2 ||q||^2         q: heat, u: temperature
        subject to  - div( a(xi) grad u(xi) ) = q  on the unit square, u(xi) = 0 on its boundary

    The conductivity is a(xi) = 1 + randomness (xi_1 cos(pi s) + xi_2 cos(pi t)) with xi uniform on [-sqrt 3, sqrt 3]^2.
    The temperature depends on xi, to first order: u(xi) = u_0 + xi_1 u_1 + xi_2 u_2, and the equation is to hold when
    tested with the same functions of xi,

        E[ psi_j(xi) ( - div( a(xi) grad u(xi) ) - q ) ] = 0,    psi = (1, xi_1, xi_2)

    (a Galerkin method, or polynomial chaos). In space, five-point differences. The unknowns are coefficients of u_j and
    q with respect to sine functions that have length 1 in the energy norm || grad . || for u_j and in sqrt(2 pi^2)
    times the L2 norm for q, and the equation is tested with those of u_j: so nothing gets worse as the grid gets
    finer. All operators are functions, no matrix is formed.

    Scale: 64 by 64 points: 16,384 unknowns, 12,288 constraints; grows with the square of the grid.
    Check: the moments of xi are known, and with them one sparse linear system for u, q and the multipliers.
    Arguments:
        grid: points inside of the square, in each direction.
        weight: of the heat.
        randomness: of the conductivity, at most 0.28 (above, it could be negative).

    >>> from lariax import gallery
    >>> case = gallery.diffusion_control(grid=8)
    >>> case.options["grid"]
    8
    """
    if not 0 < randomness < 1 / (2 * np.sqrt(3)):
        raise ValueError(f"randomness must be above 0 and below {1 / (2 * np.sqrt(3)):.3f}, found {randomness!r}.")
    plate = _plate(grid, randomness)

    def objective(x: PyTree, xi: Array) -> Array:
        miss = plate.shrink * jnp.tensordot(_psi(xi), x["state"], 1) - plate.target
        return 0.5 * jnp.sum(miss**2) + 0.5 * weight * plate.first * jnp.sum(x["heat"] ** 2)

    def equation(x: PyTree, xi: Array) -> Array:
        psi = _psi(xi)
        temperature = _sines(plate, plate.shrink * jnp.tensordot(psi, x["state"], 1))
        flow = plate.shrink * _sines(plate, _diffuse(plate, psi, temperature))
        missing = flow - jnp.sqrt(plate.first) * plate.shrink * x["heat"]
        return jnp.tensordot(psi, missing, 0).ravel()

    return Entry(
        problem=Problem(objective, samples=Distribution(_conductivity), constraints={"equation": Equal(equation)}),
        x0={"heat": jnp.zeros((grid, grid)), "state": jnp.zeros((3, grid, grid))},
        defaults={"batch_size": 4, "iterations": 2_000},
        solve=partial(_solve, plate, weight),
        draw=partial(_draw, plate),
        measure=partial(_measure, plate),
    )


class _Plate(NamedTuple):
    """A grid and what belongs to it."""

    sine: np.ndarray  # (n, n), symmetric and orthogonal: values of sine functions at the points
    shrink: np.ndarray  # (n, n), 1 / sqrt(eigenvalue) of the Laplacian for each pair of sine functions
    first: float  # its smallest eigenvalue
    target: np.ndarray  # (n, n), in sine functions
    across: np.ndarray  # (3, n + 1, n), the three parts of the conductivity between points, along the first axis
    along: np.ndarray  # (3, n, n + 1), and along the second

    @property
    def step(self) -> float:
        return 1 / (len(self.sine) + 1)


def _plate(n: int, randomness: float) -> _Plate:
    h, k = 1 / (n + 1), np.arange(1, n + 1)
    sine = np.sqrt(2 * h) * np.sin(np.pi * h * np.outer(k, k))
    eigenvalues = 4 / h**2 * np.sin(np.pi * h * k / 2) ** 2
    total = eigenvalues[:, None] + eigenvalues
    points, between = h * k, h * (np.arange(n + 1) + 0.5)

    def parts(s: np.ndarray, t: np.ndarray) -> np.ndarray:
        ones = np.ones((len(s), len(t)))
        cosines = np.cos(np.pi * s)[:, None] * ones, np.cos(np.pi * t) * ones
        return np.stack([ones, randomness * cosines[0], randomness * cosines[1]])

    inside = ((points - 0.4) ** 2)[:, None] + (points - 0.6) ** 2 < 0.25**2
    target = h * sine @ inside.astype(float) @ sine
    return _Plate(sine, 1 / np.sqrt(total), float(total[0, 0]), target, parts(between, points), parts(points, between))


def _conductivity(key: Array) -> Float[Array, "2"]:
    return jax.random.uniform(key, (2,), minval=-np.sqrt(3), maxval=np.sqrt(3))


def _psi(xi: Array) -> Float[Array, "3"]:
    return jnp.concatenate([jnp.ones(1, xi.dtype), xi])


def _sines(plate: _Plate, values: Any) -> Any:
    """From coefficients of sine functions to values at the points, or back (but for the length of a grid cell)."""
    return plate.sine @ values @ plate.sine


def _diffuse(plate: _Plate, psi: Array, u: Array) -> Array:
    """-div(a grad u) by differences, with u = 0 around the grid."""
    framed = jnp.pad(u, 1)
    across = jnp.tensordot(psi, plate.across, 1) * jnp.diff(framed[:, 1:-1], axis=0)
    along = jnp.tensordot(psi, plate.along, 1) * jnp.diff(framed[1:-1], axis=1)
    return -(jnp.diff(across, axis=0) + jnp.diff(along, axis=1)) / plate.step**2


# --- what is known


def _matrices(plate: _Plate) -> list[scipy.sparse.csr_matrix]:
    """-div(a_k grad .) for each of the three parts of the conductivity, on the points in a row."""
    n = len(plate.sine)
    difference = scipy.sparse.diags([np.ones(n), -np.ones(n)], [0, -1], shape=(n + 1, n)) / plate.step
    identity = scipy.sparse.eye(n)
    down, right = scipy.sparse.kron(difference, identity), scipy.sparse.kron(identity, difference)
    return [
        (down.T @ scipy.sparse.diags(a.ravel()) @ down + right.T @ scipy.sparse.diags(b.ravel()) @ right).tocsr()
        for a, b in zip(plate.across, plate.along, strict=True)
    ]


def _solve(plate: _Plate, weight: float) -> Solution:
    """The optimality conditions as one linear system: E psi_i psi_j = [i = j], E xi_k psi_i psi_j = [{i, j} = {0, k}].

    h^2 (u_j - [j = 0] target) + sum_i G_ji y_i = 0,   h^2 weight q - y_0 = 0,   sum_i G_ji u_i - [j = 0] q = 0
    """
    n, h = len(plate.sine), plate.step
    mean, first, second = _matrices(plate)
    operator = scipy.sparse.block_array([[mean, first, second], [first, mean, None], [second, None, mean]])
    unit = scipy.sparse.eye(n * n)
    heat = scipy.sparse.vstack([-unit, scipy.sparse.csr_matrix((2 * n * n, n * n))])
    system = scipy.sparse.block_array(
        [
            [h**2 * scipy.sparse.eye(3 * n * n), None, operator.T],
            [None, h**2 * weight * unit, heat.T],
            [operator, heat, None],
        ]
    ).tocsc()
    target = _on_points(plate, plate.target)
    right = np.zeros(system.shape[0])
    right[: n * n] = h**2 * target.ravel()
    found = scipy.sparse.linalg.spsolve(system, right)
    state, q, dual = np.split(found, [3 * n * n, 4 * n * n])
    u, y = state.reshape(3, n, n), dual.reshape(3, n, n)
    value = h**2 / 2 * (np.sum((u[0] - target) ** 2) + np.sum(u[1:] ** 2) + weight * np.sum(q**2))
    coefficients = {
        "heat": h * _sines(plate, q.reshape(n, n)) / np.sqrt(plate.first),
        "state": h * np.stack([_sines(plate, part) for part in u]) / plate.shrink,
    }
    tested = np.stack([_sines(plate, part) for part in y]) / (h * plate.shrink)
    return Solution(float(value), coefficients, {"equation": tested.ravel()})


# --- what one looks at


def _on_points(plate: _Plate, coefficients: np.ndarray) -> np.ndarray:
    return np.asarray(_sines(plate, coefficients)) / plate.step


def _fields(plate: _Plate, x: PyTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and deviation of the temperature, and the heat, at the points."""
    state = [_on_points(plate, plate.shrink * np.asarray(part, float)) for part in x["state"]]
    heat = _on_points(plate, np.sqrt(plate.first) * np.asarray(x["heat"], float))
    return state[0], np.sqrt(state[1] ** 2 + state[2] ** 2), heat


def _measure(plate: _Plate, x: PyTree) -> dict[str, float]:
    mean, deviation, heat = _fields(plate, x)
    target = _on_points(plate, plate.target)
    fields = {
        "mean temperature from target": mean - target,
        "deviation of the temperature": deviation,
        "heat": heat,
    }
    return {name: float(plate.step * np.linalg.norm(field)) for name, field in fields.items()}


def _draw(plate: _Plate, x: PyTree) -> list[Picture]:
    mean, deviation, heat = _fields(plate, x)
    shown = {
        "Target": _on_points(plate, plate.target),
        "Mean temperature": mean,
        "Standard deviation of the temperature": deviation,
        "Heat": heat,
    }
    return [
        Picture(title, "heatmap", {title: field}, "t", "s", extent=(0.0, 1.0, 0.0, 1.0))
        for title, field in shown.items()
    ]
