"""Parameters of neural network libraries as x, as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx

pytestmark = pytest.mark.long  # the packages come with `make test-long`

ROWS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
TARGETS = ROWS @ np.array([1.0, -2.0, 0.5], np.float32) + 0.3


def fitted(predict, x0):
    """Least squares with a bound on the mean prediction, and the prediction that it ends with."""
    problem = lx.Problem(
        lambda x, row: (predict(x, row["x"]) - row["y"]) ** 2,
        samples=lx.Dataset({"x": ROWS, "y": TARGETS}),
        constraints={"mean": lx.AtMost(lambda x, row: predict(x, row["x"]), 0.0)},
    )
    result = lx.solve(problem, x0, iterations=3000, batch_size=8)
    assert jax.tree.structure(result.x) == jax.tree.structure(x0)
    return np.array([predict(result.x, row) for row in ROWS[:20]])


def expected():
    """The bias takes all of the bound: the linear part has a mean of its own, which the shift keeps at 0."""
    design = np.column_stack([ROWS, np.ones(len(ROWS))]).astype(float)
    mean = design.mean(axis=0)
    kkt = np.block([[2 * design.T @ design / len(ROWS), mean[:, None]], [mean[None], np.zeros((1, 1))]])
    solution = np.linalg.solve(kkt, np.append(2 * design.T @ TARGETS / len(ROWS), 0.0))[:4]
    return design[:20] @ solution


def test_linen():
    from flax import linen

    model = linen.Dense(1)
    x0 = model.init(jax.random.key(0), jnp.zeros(3))
    np.testing.assert_allclose(fitted(lambda x, row: model.apply(x, row)[0], x0), expected(), atol=0.05)


def test_nnx():
    from flax import nnx

    graph, x0 = nnx.split(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    np.testing.assert_allclose(fitted(lambda x, row: nnx.merge(graph, x)(row)[0], x0), expected(), atol=0.05)


def test_nnx_module():
    """As it is, with the counts of its random numbers."""
    from flax import nnx

    model = nnx.Sequential(nnx.Dropout(0.5, rngs=nnx.Rngs(1)), nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    model.eval()
    np.testing.assert_allclose(fitted(lambda x, row: x(row)[0], model), expected(), atol=0.05)


def test_haiku():
    import haiku as hk

    model = hk.without_apply_rng(hk.transform(lambda row: hk.Linear(1)(row)[0]))
    x0 = model.init(jax.random.key(0), jnp.zeros(3))
    np.testing.assert_allclose(fitted(model.apply, x0), expected(), atol=0.05)
