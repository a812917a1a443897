"""Two-step GMM as a problem of means, beside the formulas of the textbook."""

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx

N = 3000
RNG = np.random.default_rng(3)
Z, SKILL = RNG.normal(size=(N, 3)), RNG.normal(size=N)
X = Z[:, :2] + 0.5 * Z[:, 2:] + np.outer(SKILL, [0.5, 0.3])
Y = X @ [0.7, 0.3] + 0.5 * SKILL + (0.2 + 0.2 * np.abs(Z[:, 0])) * RNG.normal(size=N)
G, MEAN = Z.T @ X / N, Z.T @ Y / N
RESTRICTION = np.ones(2)


def gmm(weight, **theory):
    rows = lx.Dataset({"z": jnp.asarray(Z), "x": jnp.asarray(X), "y": jnp.asarray(Y)})
    means = lx.Equal(lambda x, row: row["z"] * (row["y"] - row["x"] @ x["b"]) - x["s"], samples=rows)
    weight = jnp.asarray(weight)
    problem = lx.Problem(lambda x: 0.5 * x["s"] @ weight @ x["s"], constraints={"moments": means, **theory})
    return lx.inference(problem, {"b": jnp.array([0.7, 0.3]), "s": jnp.zeros(3)})


def covariance_of_moments(b):
    return np.cov((Z * (Y - X @ b)[:, None]).T, bias=True)


def test_estimates_and_standard_errors_are_the_textbooks():
    first = np.linalg.solve(G.T @ G, G.T @ MEAN)
    weight = np.linalg.inv(covariance_of_moments(first))
    bread = np.linalg.inv(G.T @ weight @ G)
    b = bread @ G.T @ weight @ MEAN
    found = gmm(weight)
    np.testing.assert_allclose(gmm(np.eye(3)).x.estimate["b"], first, rtol=1e-8)
    np.testing.assert_allclose(found.x.estimate["b"], b, rtol=1e-8)
    meat = G.T @ weight @ covariance_of_moments(b) @ weight @ G
    expected = np.sqrt(np.diag(bread @ meat @ bread) / N)
    np.testing.assert_allclose(found.x.standard_error["b"], expected, rtol=0.03)  # up to the order of 1 / sqrt(N)
    theory = {"returns": lx.Equal(lambda x: x["b"].sum(), 1.0, samples=None)}
    tied = gmm(weight, **theory)
    price = (RESTRICTION @ b - 1) / (RESTRICTION @ bread @ RESTRICTION)
    np.testing.assert_allclose(tied.x.estimate["b"], b - bread @ RESTRICTION * price, rtol=1e-8)
    np.testing.assert_allclose(tied.multipliers["returns"].estimate, price, rtol=1e-6)
    assert tied.x.standard_error["b"][0] < found.x.standard_error["b"][0]


@pytest.mark.parametrize("mean", [0.3, 6.0], ids=["near 0", "far from 0"])
def test_the_objective_of_a_square_near_zero_is_not_normal(mean):
    """s^2 / 2 with s = E z: to first order it moves by s z, to second order by z^2 / 2. `mean`: standard errors."""
    z = RNG.normal(size=400)
    z += mean / 20 * z.std() - z.mean()
    held = lx.Equal(lambda x, z: z - x, samples=lx.Dataset(jnp.asarray(z)))
    found = lx.inference(lx.Problem(lambda x: 0.5 * x**2, constraints={"mean": held}), jnp.asarray(z.mean()))
    variance = z.var() / 400
    objective, first, second = found.objective, abs(z.mean()) * np.sqrt(variance), variance
    np.testing.assert_allclose(objective.estimate, (z.mean() ** 2 - variance) / 2, rtol=1e-6)
    if mean > 1:
        assert objective.law == "normal"
        np.testing.assert_allclose(objective.standard_error, first, rtol=1e-6)
        return
    assert objective.law == "conservative"
    assert np.isnan(objective.standard_error)
    assert any("not normal" in note for note in found.warnings)
    reach = 1.959964 * first + (5.02389 - 1) / 2 * second  # 5.02 is the 97.5 % point of one square
    np.testing.assert_allclose(objective.high - objective.estimate, reach, rtol=1e-4)
    assert objective.low < 0 < objective.high
