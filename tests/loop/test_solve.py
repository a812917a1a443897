"""The loop: same seed, same bits; budgets; continuation; tracing; divergence."""

import dataclasses
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import Wells, normal


def same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def reference(wells, method):
    return lx.solve(wells, Wells.x0, method, iterations=700, seed=7)


class TestSameBits:
    @pytest.mark.parametrize("record_every", [1, 7, 256, 10_000])
    def test_whatever_is_recorded(self, wells, method, reference, record_every):
        result = lx.solve(wells, Wells.x0, method, iterations=700, seed=7, record_every=record_every)
        same_bits((result.x, result.multipliers), (reference.x, reference.multipliers))

    def test_whether_anybody_looks(self, wells, method, reference, capfd):
        result = lx.solve(
            wells, Wells.x0, method, iterations=700, seed=7, progress=True, callback=lambda snapshot: None
        )
        same_bits(result.x, reference.x)
        assert "iterations" in capfd.readouterr().err

    @pytest.mark.parametrize("first", [1, 255, 256, 300])
    def test_in_pieces(self, wells, method, reference, first):
        part = lx.solve(wells, Wells.x0, method, iterations=first, seed=7)
        rest = lx.solve(wells, part, iterations=700 - first)
        same_bits((rest.x, rest.multipliers), (reference.x, reference.multipliers))
        assert (rest.iterations, rest.draws, rest.evaluations) == (700, reference.draws, reference.evaluations)

    def test_random_output_in_pieces(self, wells, method):
        whole = lx.solve(wells, Wells.x0, method, iterations=500, seed=7, output="random")
        part = lx.solve(wells, Wells.x0, method, iterations=123, seed=7, output="random")
        rest = lx.solve(wells, part, iterations=377)
        same_bits((rest.x, rest.multipliers), (whole.x, whole.multipliers))

    def test_another_seed_gives_another_run(self, wells, method, reference):
        other = lx.solve(wells, Wells.x0, method, iterations=700, seed=8)
        assert (np.asarray(other.x) != np.asarray(reference.x)).any()


class TestCompilation:
    def test_a_second_solve_compiles_nothing(self, wells, method, reference):
        """Other hyperparameters, start, seed, length, recording interval: the same program."""
        start = Wells.x0 + 0.01
        with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
            compiled = []
            patch.setattr("jax._src.dispatch.log_elapsed_time", _spy(compiled))
            other = lx.QuadraticPenalty(step_size=0.04, penalty=2.0)
            lx.solve(wells, start, other, iterations=312, seed=9, record_every=13)
        assert compiled == []

    def test_functions_are_traced_a_fixed_number_of_times(self, method):
        traces = []

        def objective(x, z):
            traces.append(1)
            return jnp.sum((x - z) ** 2)

        problem = lx.Problem(objective, samples=normal(2))
        lx.solve(problem, jnp.zeros(2), method, iterations=10)
        first = len(traces)
        lx.solve(problem, jnp.zeros(2), method, iterations=1000)
        assert len(traces) == first


def _spy(compiled):
    from contextlib import contextmanager

    @contextmanager
    def log(fmt, fun_name="", event=None, **kwargs):
        if "compil" in fmt.lower():
            compiled.append(fun_name)
        yield

    return log


class TestTracing:
    def test_vmap_over_seeds(self, wells, method):
        many = jax.vmap(lambda seed: lx.solve(wells, Wells.x0, method, iterations=300, seed=seed))(jnp.arange(3))
        for seed in range(3):
            one = lx.solve(wells, Wells.x0, method, iterations=300, seed=seed)
            np.testing.assert_allclose(many.x[seed], one.x, rtol=1e-9)
            np.testing.assert_allclose(many.multipliers["c"][seed], one.multipliers["c"], rtol=1e-6)
        assert list(many.status) == ["budget"] * 3
        assert many.history["objective"].shape[0] == 3
        np.testing.assert_allclose(many.fun[2], one.fun, rtol=1e-9)

    @pytest.mark.long
    def test_vmap_over_step_sizes_and_penalties(self, wells):
        def run(step_size, penalty):
            return lx.solve(wells, Wells.x0, lx.QuadraticPenalty(step_size, penalty), iterations=300).x

        steps, penalties = jnp.array([0.01, 0.05]), jnp.array([1.0, 2.0])
        many = jax.vmap(run)(steps, penalties)
        for i in range(2):
            np.testing.assert_allclose(many[i], run(float(steps[i]), float(penalties[i])), rtol=1e-9)

    @pytest.mark.long
    def test_vmap_over_a_bound_and_a_start(self):
        def run(bound, start):
            problem = lx.Problem(
                lambda x: (x - 3.0) ** 2,
                constraints={"cap": lx.AtMost(lambda x: x, bound, samples=None)},
                within=lx.sets.Box(0.5, 10.0),
            )
            return lx.solve(problem, start, iterations=300).x

        many = jax.vmap(run)(jnp.array([1.0, 2.0]), jnp.array([-5.0, 1.0]))  # the first start is outside the box
        np.testing.assert_allclose(many, [1.0, 2.0], atol=1e-3)

    def test_vmap_over_what_functions_close_over(self):
        def run(ridge):
            problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2) + ridge * jnp.sum(x**2))
            return lx.solve(problem, jnp.zeros(2), lx.QuadraticPenalty(step_size=0.1), iterations=300).x

        many = jax.vmap(run)(jnp.array([0.0, 1.0]))
        np.testing.assert_allclose(many, [run(0.0), run(1.0)], rtol=1e-9)

    def test_what_cannot_be_traced_is_refused(self, wells, method):
        with pytest.raises(ValueError, match="inside jit or vmap"):
            jax.vmap(lambda s: lx.solve(wells, Wells.x0, method, seconds=1.0, seed=s).x)(jnp.arange(2))


class TestBudgets:
    def test_draws(self, wells, method):
        result = lx.solve(wells, Wells.x0, method, draws=1000)
        assert result.iterations == 332  # 3 for the start and 3 an iteration: 999
        assert result.draws == 999
        again = lx.solve(wells, result, draws=100)
        assert again.draws == 999 + 99

    def test_seconds(self, wells, method):
        result = lx.solve(wells, Wells.x0, method, seconds=0.5)
        assert result.status == "budget"
        assert 0.4 < result.seconds < 5.0
        assert result.iterations > 0

    def test_seconds_of_slow_iterations(self):
        """Half a second an iteration: the clock is looked at after each."""

        def slow(x, z):
            return jax.lax.fori_loop(0, 3_000_000, lambda _, s: s + jnp.sin(s) * 1e-9, x @ x) + z @ x

        result = lx.solve(lx.Problem(slow, samples=normal(2)), jnp.ones(2), lx.QuadraticPenalty(1e-3), seconds=0.2)
        assert result.iterations < 20

    @staticmethod
    def slow_to_compile():
        """Half a second and more to trace; the iterations are fast."""

        def objective(x, z):
            time.sleep(0.1)
            return jnp.sum((x - z) ** 2)

        return lx.Problem(objective, samples=normal(2))

    def test_seconds_count_from_the_first_iteration(self, method):
        """Compiling takes longer than the run has; what the run took is all of it."""
        began = time.perf_counter()
        result = lx.solve(self.slow_to_compile(), jnp.ones(2), method, seconds=0.2, record_every=1)
        took = time.perf_counter() - began
        assert (result.status, result.iterations > 50) == ("budget", True)
        assert 0.7 < result.seconds < took
        assert result.history["seconds"][0] > 0.5
        assert 0.15 < np.ptp(result.history["seconds"]) < result.seconds - 0.5

    def test_seconds_of_a_resumed_run_count_its_iterations(self, method, tmp_path):
        """Neither the first process nor the second spends the run's seconds on compiling."""
        x0, options = jnp.ones(2), {"seconds": 1.0, "record_every": 10, "checkpoint": tmp_path}
        part = lx.solve(self.slow_to_compile(), x0, method, **options, callback=lambda now: now.iteration == 20)
        assert (part.status, part.iterations) == ("interrupted", 20)
        rest = lx.resume(tmp_path, self.slow_to_compile())
        assert (rest.status, rest.iterations > 50) == ("budget", True)
        assert rest.seconds > part.seconds + 0.5
        assert lx.resume(tmp_path, self.slow_to_compile()).iterations == rest.iterations  # they are spent
        assert lx.resume(tmp_path, self.slow_to_compile(), seconds=0.1).iterations > rest.iterations

    def test_any_seconds_let_an_iteration_run(self, wells, method):
        part = lx.solve(wells, Wells.x0, method, seconds=1e-9)
        assert part.iterations == 1
        assert lx.solve(wells, part, seconds=1e-9).iterations == 2

    def test_seconds_of_a_stream_that_is_slow_to_begin(self, method):
        """The first rows, without which nothing can be compiled, are waited for as long as the run has."""

        def batches():
            for _ in range(100):
                time.sleep(0.02)
                yield np.ones((256, 2))

        result = lx.solve(
            lx.Problem(lambda x, z: x @ z, samples=lx.Stream(batches())), jnp.ones(2), method, seconds=0.3
        )
        assert result.iterations > 256
        assert result.status == "budget"

    def test_draws_for_no_iteration_are_refused(self, wells, method, tmp_path):
        """3 for the start and 3 an iteration."""
        with pytest.raises(ValueError, match=r"draws=5 .* the start of QuadraticPenalty takes 3 and an iteration 3"):
            lx.solve(wells, Wells.x0, method, draws=5)
        with pytest.raises(ValueError, match="draws=5 "):
            jax.vmap(lambda seed: lx.solve(wells, Wells.x0, method, draws=5, seed=seed).x)(jnp.arange(2))
        part = lx.solve(wells, Wells.x0, method, draws=6, checkpoint=tmp_path)
        assert (part.iterations, part.draws) == (1, 6)
        with pytest.raises(ValueError, match=r"draws=2 .* an iteration takes 3"):
            lx.solve(wells, part, draws=2)
        with pytest.raises(ValueError, match=r"draws=2 .* an iteration takes 3"):
            lx.resume(tmp_path, wells, draws=2)
        with pytest.raises(ValueError, match=r"draws=2,053 leaves 2,050 .* 2,051"):
            lx.solve(wells, Wells.x0, method, draws=2053, output="best")
        assert lx.solve(wells, Wells.x0, method, draws=2054, output="best").iterations == 1

    def test_a_stream_for_no_iteration_is_refused(self, wells, method):
        with pytest.raises(ValueError, match="ended within the first rows"):
            lx.solve(lx.Problem(lambda x, z: x @ z, samples=lx.Stream([np.ones((1, 2))])), jnp.ones(2), method, draws=9)

    def test_the_first_one_counts(self, wells, method):
        assert lx.solve(wells, Wells.x0, method, iterations=10, draws=10**6, seconds=60.0).iterations == 10

    def test_draws_alone_do_not_end_a_deterministic_run(self):
        with pytest.raises(ValueError, match="nothing in this problem is random"):
            lx.solve(lx.Problem(lambda x: x @ x), jnp.ones(2), draws=100)


class TestHistory:
    def test_how_it_stands(self):
        """Nothing is random here, so the method's own feasibility and stationarity are exact."""
        target, seen = np.array([2.0, -1.0, 0.5]), []
        problem = lx.Problem(
            lambda x: jnp.sum((x - target) ** 2) / 2,
            constraints={
                "sum": lx.Equal(lambda x: jnp.sum(x), 1.0, samples=None),
                "top": lx.AtMost(lambda x: x[:2], jnp.array([0.5, 3.0]), samples=None),
            },
            within=lx.sets.NonNegative(),
        )
        method = lx.QuadraticPenalty(step_size=0.1, penalty=2.0)
        result = lx.solve(
            problem, jnp.full(3, 0.2), method, iterations=50, record_every=50, callback=lambda shot: seen.append(shot.x)
        )
        (x,), y = seen, {name: np.asarray(value) for name, value in result.multipliers.items()}
        violation = np.array([x.sum() - 1, max(x[0] - 0.5, 0), max(x[1] - 3, 0)])
        np.testing.assert_allclose(result.history["feasibility"], [np.linalg.norm(violation)], rtol=1e-9)
        slope = x - target + (51 / 50) ** 0.25 * (y["sum"] + np.append(y["top"], 0))  # the penalty of the next step
        assert x[1] == 0
        assert slope[1] > 0
        np.testing.assert_allclose(result.history["stationarity"], [np.hypot(slope[0], slope[2])], rtol=1e-9)

    def test_rows(self, wells, method):
        history = lx.solve(wells, Wells.x0, method, iterations=100, record_every=30).history
        np.testing.assert_array_equal(history["iteration"], [30, 60, 90])
        np.testing.assert_array_equal(history["draws"], [93, 183, 273])
        assert history["constraints"]["c"].shape == history["multipliers"]["c"].shape == (3, 2)
        np.testing.assert_allclose(history["penalty"], 1.5 * np.array([30, 60, 90]) ** 0.2)
        assert (np.diff(history["seconds"]) > 0).all()
        table = history.to_pandas()
        assert list(table.columns[:4]) == ["iteration", "draws", "seconds", "objective"]
        assert list(table.columns[4:7]) == ["feasibility", "stationarity", "constraints.c[0]"]
        with pytest.raises(KeyError, match="there are iteration, draws"):
            history["loss"]

    def test_grows_when_continued(self, wells, method):
        part = lx.solve(wells, Wells.x0, method, iterations=60, record_every=30)
        history = lx.solve(wells, part, iterations=60, record_every=20).history
        np.testing.assert_array_equal(history["iteration"], [30, 60, 80, 100, 120])
        assert (np.diff(history["seconds"]) > 0).all()


class TestCallback:
    def test_can_stop_the_run(self, wells, method):
        result = lx.solve(
            wells, Wells.x0, method, iterations=1000, record_every=50, callback=lambda s: s.iteration >= 200
        )
        assert (result.status, result.iterations) == ("interrupted", 200)
        assert lx.solve(wells, result, iterations=10).status == "budget"

    def test_ctrl_c_returns_what_there_is(self, wells, method):
        def press(snapshot):
            raise KeyboardInterrupt

        result = lx.solve(wells, Wells.x0, method, iterations=1000, record_every=50, callback=press)
        assert (result.status, result.iterations) == ("interrupted", 50)


class TestDivergence:
    def test_is_found_and_survived(self):
        problem = lx.Problem(lambda x, z: jnp.sum(x**4) + z @ x, samples=normal(2))
        result = lx.solve(problem, jnp.ones(2), lx.QuadraticPenalty(step_size=10.0), iterations=10_000)
        assert result.status == "diverged"
        assert not result.success
        assert np.isfinite(result.x).all()
        assert result.iterations < 256
        assert "step size" in result.message
        with pytest.raises(ValueError, match="diverged run cannot go on"):
            lx.solve(problem, result, iterations=10)

    def test_the_last_finite_point_is_returned(self):
        """x_{k+1} = x_k + 1 / sqrt(k + 1), until the square root of a negative number at x > 20."""
        problem = lx.Problem(lambda x: -jnp.sum(x) + 0 * jnp.sum(jnp.sqrt(20.0 - x)))
        method = lx.QuadraticPenalty(step_size=1.0)
        result = lx.solve(problem, jnp.zeros(1), method, iterations=100_000, record_every=10)
        x = np.cumsum((np.arange(1, 1000) + 1.0) ** -0.5)
        steps = int(np.sum(x < 20.0))
        assert result.status == "diverged"
        assert result.iterations == steps
        np.testing.assert_allclose(result.x, x[steps - 1], rtol=1e-12)
        assert result.history["iteration"][-1] == steps // 10 * 10
        assert np.isfinite(result.history["objective"]).all()

    def test_in_pieces(self):
        problem = lx.Problem(lambda x: -jnp.sum(x**2))
        method = lx.QuadraticPenalty(step_size=1.0)
        whole = lx.solve(problem, jnp.ones(1), method, iterations=100_000)
        part = lx.solve(problem, jnp.ones(1), method, iterations=300)
        rest = lx.solve(problem, part, iterations=100_000)
        assert whole.status == rest.status == "diverged"
        same_bits((rest.x, rest.iterations), (whole.x, whole.iterations))


class TestPrecision:
    def test_float32_stays_float32(self, wells, method):
        result = lx.solve(wells, Wells.x0.astype(jnp.float32), method, iterations=300)
        assert result.x.dtype == result.multipliers["c"].dtype == jnp.float32
        double = lx.solve(wells, Wells.x0, method, iterations=300)
        np.testing.assert_allclose(result.x, double.x, atol=2e-4)
        leaves = jax.tree.leaves((result.continuation.loop.state, result.history["objective"]))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}

    def test_without_x64(self):
        code = """
import warnings, numpy as np, jax, jax.numpy as jnp, lariax as lx
problem = lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=lx.Distribution(lambda k: jax.random.normal(k, (2,))),
                     constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    result = lx.solve(problem, np.zeros(2), iterations=1000)
assert any("float32" in str(w.message) and issubclass(w.category, lx.LariaxWarning) for w in seen), seen
assert result.x.dtype == jnp.float32
with warnings.catch_warnings():
    warnings.simplefilter("error")
    again = lx.solve(problem, jnp.zeros(2), iterations=1000)
assert (again.x == result.x).all()
"""
        subprocess.run([sys.executable, "-c", code], check=True)


def test_low_precision_leaves_keep_small_steps():
    """Steps below the resolution of bfloat16 add up in the run's own precision, and an x0 of halves runs in single."""
    problem = lx.Problem(lambda x: jnp.sum((x["a"].astype(jnp.float32) - 1.0) ** 2) + (x["b"] - 1.0) ** 2)
    x0 = {"a": jnp.zeros(2, jnp.bfloat16), "b": jnp.array(0.0, jnp.float32)}
    result = lx.solve(problem, x0, lx.QuadraticPenalty(step_size=2e-3), iterations=20_000)
    np.testing.assert_allclose(np.asarray(result.x["a"], np.float32), float(result.x["b"]), atol=0.01)
    half = lx.solve(lx.Problem(lambda x: (x - 1.0) ** 2), jnp.array(0.0, jnp.float16), iterations=100)
    assert half.x.dtype == jnp.float16
    np.testing.assert_allclose(half.x, 1.0, atol=0.01)


def test_any_pytree(method):
    problem = lx.Problem(
        lambda x, z: jnp.sum((x["w"] - z) ** 2) + x["b"][0] ** 2,
        samples=normal(2, 3),
        constraints={"c": lx.Equal(lambda x: jnp.sum(x["w"]) + x["b"][0], 1.0, samples=None)},
        within=lx.sets.Product({"w": lx.sets.L2Ball(1.0), "b": [lx.sets.NonNegative()]}),
    )
    x0 = {"w": jnp.zeros((2, 3)), "b": [jnp.array(0.5, jnp.float32)]}
    result = lx.solve(problem, x0, method, iterations=500)
    assert jax.tree.structure(result.x) == jax.tree.structure(x0)
    assert result.x["b"][0].dtype == jnp.float32
    assert bool(problem.within.contains(result.x))


def test_fun_is_the_objective_at_x():
    """E f = 1 at the mean, and the standard error of a tenth of the records is 1 / sqrt(64 x 20)."""
    problem = lx.Problem(lambda x, z: 0.5 * jnp.sum((x - z) ** 2), samples=normal(2))
    run = {"iterations": 2000, "batch_size": 64}
    result = lx.solve(problem, jnp.ones(2), **run, record_every=10)
    assert isinstance(result.fun, float)
    assert abs(result.fun - 1) < 5 / (64 * 20) ** 0.5
    certified = lx.solve(problem, jnp.ones(2), **run, tolerance=1e-9)
    assert certified.fun == certified.certificate.objective.estimate


def test_a_result_speaks(reference):
    text = repr(reference)
    assert text.startswith("budget after 700 iterations, 2,103 draws")
    assert "multipliers  c: [" in text
    assert reference.message.startswith(lx.STATUSES["budget"])
    layer = repr(dataclasses.replace(reference, x={"weight": jnp.ones((8, 3))}, multipliers={})).splitlines()
    assert layer[1:] == ["  x            ['weight']: float64(8, 3), from 1 to 1, of length 4.899"], "a line a leaf"


class TestMeasuringSteps:
    """Iterations in which `measuring_step` takes the place of `step`: in each of the first 4, then in one of 4."""

    class Diary(lx.AbstractMethod):
        """Writes down what was called in iteration k: 1 for a step, 2 for a measuring one, which sees f twice."""

        needs = lx.Needs(measuring_interval=lambda k: jnp.where(k < 4, 1, 4))

        def init(self, oracle, point, batches):
            return jnp.zeros(64, oracle.dtype), jnp.zeros((), oracle.dtype)

        def step(self, oracle, state, k, batch, kind=1):
            pages, seen = state
            for _ in range(kind):
                seen += jnp.sum(oracle.objective_gradient(pages[:2], batch))
            return pages.at[k.astype(int)].add(kind), seen

        def measuring_step(self, oracle, state, k, batch):
            return self.step(oracle, state, k, batch, kind=2)

        def answer(self, oracle, state, k):
            return lx.Answer(state[0][:2], jnp.zeros(0), jnp.zeros(0))

    problem = lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=normal(2))

    @pytest.mark.parametrize("options", [{}, {"record_every": 1}, {"record_every": 3}, {"seed": 5, "record_every": 64}])
    @pytest.mark.parametrize("first", [1, 4, 7, 30])
    def test_come_when_due_wherever_the_run_is_cut(self, options, first):
        part = lx.solve(self.problem, jnp.zeros(2), self.Diary(), iterations=first, batch_size=1, **options)
        result = lx.solve(self.problem, part, iterations=30 - first) if first < 30 else part
        pages = result.continuation.loop.state[0]
        np.testing.assert_array_equal(pages[:31], [0, 2, 2, 2, 2, *[1, 1, 1, 2] * 6, 1, 1])

    def test_count_what_they_look_at(self):
        plain, more = (
            lx.solve(self.problem, jnp.zeros(2), self.Diary(), iterations=n, batch_size=1).evaluations for n in (27, 30)
        )
        assert more - plain == 2 + 1 + 1  # iterations 28, which measures, 29 and 30
