"""Programs are compiled once, soon, and kept where the user wants them."""

import os
import stat
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import lariax as lx
from lariax.compilation import _compiled, compiled, keep_programs

DONE = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def programs():
    """How many programs have been compiled since."""
    found = []

    def note(name, seconds, **_):
        if name == DONE:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def test_a_second_solve_compiles_nothing(programs):
    problem = lx.Problem(
        lambda x, z: jnp.sum((x - z) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (3,))),
        constraints={"sum": lx.Equal(lambda x, z: jnp.sum(x) - 1)},
    )
    method = lx.QuadraticPenalty(step_size=0.01, penalty=1.0, pairs=True)
    lx.solve(problem, jnp.zeros(3), method, iterations=10, batch_size=2)
    first = len(programs)
    assert 0 < first <= 8
    lx.solve(problem, jnp.ones(3), method, iterations=30, batch_size=2, seed=4)
    assert len(programs) == first


FIRST = """
import jax, jax.numpy as jnp, lariax as lx
from scipy.optimize import LinearConstraint
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **of: compiled.append(of["fun_name"]) if name.endswith("backend_compile_duration") else 0
)
problem = lx.Problem(
    lambda x, z: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
    samples=lx.Distribution(jax.random.normal),
    constraints={"line": lx.Equal(lambda x, z: x[0] + x[1] - 1 + 2 * z * (x[0] - x[1]))},
)
x0 = jnp.zeros(2)
compiled.clear()
result = lx.solve(problem, x0, iterations=500, batch_size=8)
print(*compiled)
compiled.clear()
result.certificate
print(*compiled)
compiled.clear()
other = lx.solve(problem, jnp.ones(2), iterations=700, batch_size=8, seed=3)
other.certificate
lx.solve(problem, other, iterations=100)
print(*compiled)
compiled.clear()
rows = [[1.0, 2.0], [0.5, -1.0], [2.0, 1.0]]
lx.minimize(lambda x: (x - 1) @ (x - 1), [0.0, 0.0], constraints=LinearConstraint(rows, ub=1.0), iterations=50)
print(*compiled)
"""


def test_the_programs_of_a_first_answer():
    """In a new process: the start, the loop, the answer, and two for the seed; no scraps of a few operations."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    solve, certificate, again, minimize = (line.split() for line in done.stdout.split("\n")[:4])
    assert [name for name in solve if "stage" not in name and "seed" not in name] == [
        "jit(begin)",
        "jit(advance)",
        "jit(_conclude)",
    ]
    assert len(solve) <= 5
    assert certificate.count("jit(_estimate)") in (1, 2)  # of the run's own multipliers, or of fitted ones too
    assert len(certificate) <= 5
    assert set(again) <= {"jit(_estimate)", "jit(fit)"}  # if it is the other way round
    programs = {"jit(begin)", "jit(advance)", "jit(_conclude)", "jit(_estimate)", "jit(fit)"}
    assert {name for name in minimize if "stage" not in name} <= programs


def test_a_certificate_of_all_rows_is_one_program_for_given_and_for_fitted_multipliers(programs):
    rows = lx.Dataset(jnp.arange(60.0).reshape(20, 3))
    constraint = lx.Equal(lambda x, row: jnp.sum(x) - 0.1 * row[0])
    problem = lx.Problem(lambda x, row: jnp.sum((x - row) ** 2), samples=rows, constraints={"sum": constraint})
    lx.certify(problem, jnp.zeros(3), {"sum": 1.0})
    before = len(programs)
    assert lx.certify(problem, jnp.zeros(3)).fitted
    assert len(programs) == before + 1, "the fit alone"


def test_options_do_not_keep_a_function_out_of_other_programs():
    class Vector(eqx.Module):
        values: jax.Array

        @property
        def dimension(self):
            return self.values.size

    def double(x):
        return compiled()(lambda vector: 2 * vector.values)(Vector(x))

    assert float(double(jnp.ones(3)).sum()) == 6
    assert float(jax.jit(lambda x: double(x) + 1)(jnp.ones(3)).sum()) == 9
    assert jax.vmap(double)(jnp.arange(3.0)).tolist() == [0, 2, 4]


SCRIPT = """
import jax
from pathlib import Path
from lariax.compilation import keep_programs
folder = keep_programs({folder!r})
print(folder)
"""


def kept(folder, **environment):
    """Where a new process keeps its programs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    script = SCRIPT.format(folder=folder)
    run = subprocess.run(
        [sys.executable, "-c", script], env=clean | environment, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_programs_are_kept_for_the_user_alone(tmp_path):
    place = tmp_path / "new" / "programs"
    assert kept(str(place)) == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_the_users_own_choice_stays(tmp_path):
    assert kept(None, JAX_COMPILATION_CACHE_DIR=str(tmp_path)) == str(tmp_path)


def test_without_a_place_programs_are_compiled_as_ever(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert kept(str(blocked / "programs")) == "None"


def test_the_default_is_the_users_cache(tmp_path):
    assert kept(None, XDG_CACHE_HOME=str(tmp_path)).startswith(str(tmp_path / "lariax" / "programs-"))


def test_it_is_idempotent():
    assert keep_programs() == keep_programs()


def test_options_that_xla_has_forgotten_are_left_out(monkeypatch):
    options = {"xla_no_such_option": True, "xla_backend_optimization_level": 1}
    monkeypatch.setattr(_compiled, "SOON", options)
    monkeypatch.setattr(_compiled, "FORGOTTEN", set())
    doubled = compiled(briefly=True)(lambda x: 2 * x)
    assert doubled(jnp.ones(2)).tolist() == [2, 2]
    assert {"xla_no_such_option"} == _compiled.FORGOTTEN
    assert doubled(jnp.ones(3)).tolist() == [2, 2, 2]
