"""Who `method="auto"` is: one answer for one problem, whoever asks."""

import jax.numpy as jnp
import optax
import pytest

import lariax as lx
from conftest import normal
from lariax.methods import fitted

PROBLEMS = {
    "nothing is random": (lambda x: x @ x, {}, "TangentNormal: nothing is random"),
    "samples, no constraints": (lambda x, z: x @ z + x @ x, {"samples": normal(2)}, "TrackedLagrangian: there are no"),
    "a set that ties entries": (lambda x: x @ x, {"bounds": lx.sets.L2Ball(1.0)}, "TrackedLagrangian: the set L2Ball"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_minimize_and_solve_take_the_same_method(name, monkeypatch):
    fun, options, said = PROBLEMS[name]
    asked = []
    monkeypatch.setattr("lariax.scipy._minimize.solve", lambda problem, x, method, **_: asked.append((problem, method)))
    lx.minimize(fun, jnp.ones(2), **options)
    ((problem, method),) = asked
    structure = (jnp.ones(2) if problem.samples is not None else None,)
    chosen = fitted(problem, jnp.ones(2), structure, method, batch_size=2)
    assert chosen.choice.startswith(f'method="auto" took {said}')
    assert type(chosen.method).__name__ == said.partition(":")[0]


def test_one_oracle_serves_whoever_is_taken():
    """It is made before the choice, which depends on the number of rows."""
    one, other = lx.TangentNormal().needs, lx.TrackedLagrangian().needs
    assert (one.slacks, one.copies, one.smallest_batch) == (other.slacks, other.copies, other.smallest_batch)


def test_what_is_no_method_is_refused():
    for wrong in ("best", None, lx.TrackedLagrangian):
        with pytest.raises(TypeError, match='method must be "auto" or a method such as'):
            fitted(lx.Problem(lambda x: x @ x), jnp.ones(2), (None,), wrong, batch_size=1)
    with pytest.raises(TypeError, match=r"Wrap an optimizer of optax: lx.Optax\(optimizer\)"):
        fitted(lx.Problem(lambda x: x @ x), jnp.ones(2), (None,), optax.adam(0.1), batch_size=1)
