"""What newcomers would write, each script beside an answer that was found without Lariax."""

import runpy
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from typer.testing import CliRunner

from lariax import runs
from lariax.cli._app import app

FOLDER = Path(__file__).parents[2] / "examples" / "newcomers"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


def of(name):
    return runpy.run_path(str(FOLDER / f"{name}.py"))


def slsqp(fun, x0, constraints, **more):
    """SciPy's answer for constraints fun(x) >= 0."""
    said = [{"type": "ineq", "fun": each} for each in constraints]
    found = scipy.optimize.minimize(fun, x0, constraints=said, method="SLSQP", options={"ftol": 1e-12}, **more)
    assert found.success
    return found


def test_there_are_eight_and_each_is_short():
    assert len(SCRIPTS) == 8
    assert all(len((FOLDER / name).read_text().splitlines()) <= 40 for name in SCRIPTS)


@pytest.mark.long
class TestAnswers:
    def test_engineer(self):
        """Stress and deflection are linear in the load, so its mean decides."""
        script = of("engineer")
        load = 1000 * np.exp(0.3**2 / 2)
        at = lambda x: {"w": x[0], "h": x[1]}  # noqa: E731
        found = slsqp(
            lambda x: x[0] * x[1] / 10,
            [5.0, 8.0],
            [lambda x: 1 - script["stress"](at(x), load), lambda x: 1 - script["deflection"](at(x), load)],
            bounds=[(1, 12)] * 2,
        )
        x = script["main"]().x
        np.testing.assert_allclose([x["w"], x["h"]], found.x, rtol=0.02)

    def test_econometrician(self):
        """Restricted least squares: output - labour on (1, capital - labour)."""
        script = of("econometrician")
        firms = script["firms"]().astype(float)
        design = np.stack([np.ones(len(firms)), firms["capital"] - firms["labour"]], axis=1)
        found, *_ = np.linalg.lstsq(design, firms["output"] - firms["labour"], rcond=None)
        result = script["main"]()
        np.testing.assert_allclose([result.x["constant"], result.x["a"]], found, atol=0.01)
        residuals = firms["output"] - firms["labour"] - design @ found
        errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * residuals.var())
        np.testing.assert_allclose(result.inference().x.standard_error["a"], errors[1], rtol=0.1)

    def test_data_scientist(self):
        script = of("data_scientist")
        frame = script["customers"]()
        rows = {name: jnp.asarray(frame[name].to_numpy(), float) for name in frame}
        small = np.asarray(frame["small"]) == 1

        def losses(x):
            return script["loss"](jnp.asarray(x, float), rows)

        free = scipy.optimize.minimize(lambda x: losses(x).mean(), np.zeros(4))
        assert losses(free.x)[small].mean() > script["LIMIT"] + 0.01  # the bound is felt
        found = slsqp(lambda x: losses(x).mean(), np.zeros(4), [lambda x: script["LIMIT"] - losses(x)[small].mean()])
        result = script["main"]()
        assert losses(result.x).mean() < found.fun + 1e-3
        assert losses(result.x)[small].mean() < script["LIMIT"] + 1e-3

    def test_physicist(self):
        """By finite differences on a fine grid."""
        points, step = np.linspace(-6, 6, 1201, retstep=True)
        diagonal = 1 / step**2 + points**2 / 2 + points**4 / 10
        (exact,) = scipy.linalg.eigvalsh_tridiagonal(
            diagonal, np.full(1200, -0.5 / step**2), select="i", select_range=(0, 0)
        )
        result = of("physicist")["main"]()
        np.testing.assert_allclose(result.certificate.objective.estimate, exact, rtol=0.02)
        np.testing.assert_allclose(-result.multipliers["norm"], exact, rtol=0.05)

    def test_reinforcement_learner(self):
        script = of("reinforcement_learner")
        reward, cost = np.asarray(script["REWARD"]), np.asarray(script["COST"])

        def mean(p, table):
            return np.mean((1 - p) * table[:, 0] + p * table[:, 1])

        def value(p):
            entropy = -np.mean(p * np.log(p) + (1 - p) * np.log(1 - p))
            return -mean(p, reward) - script["ENTROPY"] * entropy

        found = slsqp(value, [0.5, 0.5], [lambda p: script["LIMIT"] - mean(p, cost)], bounds=[(0.01, 0.99)] * 2)
        p = 1 / (1 + np.exp(-np.asarray(script["main"]().x)))
        np.testing.assert_allclose(p, found.x, atol=0.05)

    def test_scipy_user(self):
        script = of("scipy_user")
        result = script["main"]()
        said = {"constraints": script["CONSTRAINTS"], "bounds": script["BOUNDS"], "method": "trust-constr"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy's, of constraints that are linear
            found = scipy.optimize.minimize(script["rosenbrock"], script["START"], args=(100.0,), **said)
        assert result.success
        np.testing.assert_allclose(result.x, found.x, atol=1e-3)
        assert result.fun < found.fun + 1e-6

    def test_command_line(self, tmp_path):
        """Beside SLSQP on two hundred thousand demands."""
        script = of("command_line")
        demand = np.array([4.0, 6.0, 2.0]) * np.random.default_rng(0).gamma(4.0, size=(200_000, 3)) / 4
        price, cost = np.asarray(script["PRICE"]), np.asarray(script["COST"])

        def sold(x):
            return np.minimum(x, demand).mean(axis=0)

        found = slsqp(
            lambda x: np.sum(cost * x - price * sold(x)), [4.0, 6.0, 2.0], [lambda x: 2 - np.sum(x - sold(x))]
        )
        order = ["solve", str(FOLDER / "command_line.py"), "--iterations", "20000", "--batch-size", "8"]
        outcome = CliRunner().invoke(app, [*order, "--folder", str(tmp_path / "run")])
        assert outcome.exit_code == 0, outcome.output
        np.testing.assert_allclose(runs.load(tmp_path / "run").x["x"], found.x, atol=0.15)

    def test_teacher(self):
        """min ||x - 2||^2 / 2 with x1 + 2 x2 = 4: x = (1.6, 1.2), multiplier 0.4."""
        found = of("teacher")
        np.testing.assert_allclose(found["result"].x, [1.6, 1.2], atol=0.03)
        np.testing.assert_allclose(found["result"].multipliers["line"], 0.4, atol=0.03)
        np.testing.assert_allclose(found["change"], -0.4, atol=0.05)
