"""Which bits are equal under what: the table of docs/survival.md, row by row.

The run is the same; what differs is who watches it and where it is cut. The tests run with JAX's 64-bit mode on;
without it, in a process of its own: `python tests/loop/test_determinism.py off float32` prints what its runs computed.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pairwise import pairwise

CHOICES = {
    "record_every": (1, 37, 5000),
    "progress": (False, True),
    "checkpoint_every": (None, 0.0, 3600.0),
    "resume_after": (None, 1, 256, 299),
}
ITERATIONS = 400


def digests(precision, cases):
    """What a run computes: for each case, a checksum of the answer."""
    import jax
    import jax.numpy as jnp

    import lariax as lx

    problem = lx.Problem(
        lambda x, z: jnp.sum((x - 1 - z) ** 2 / (1 + x**2)),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (3,), precision)),
        constraints={"sum": lx.AtMost(lambda x, z: jnp.sum(x) + z[0], 1.0)},
    )
    method, x0 = lx.DualPenalty(step_size=0.02, dual_step=0.1), jnp.zeros(3, precision)

    def answer(record_every, progress, checkpoint_every, resume_after):
        options = {"iterations": ITERATIONS, "seed": 3, "record_every": record_every, "progress": progress}
        with tempfile.TemporaryDirectory() as folder:
            if checkpoint_every is not None:
                options["checkpoint"] = lx.Checkpoint(folder, every=checkpoint_every)
            if resume_after is None:
                result = lx.solve(problem, x0, method, **options)
            elif checkpoint_every is None:
                part = lx.solve(problem, x0, method, **options | {"iterations": resume_after})
                result = lx.solve(problem, part, iterations=ITERATIONS - resume_after)
            else:
                lx.solve(problem, x0, method, **options | {"iterations": resume_after})
                result = lx.resume(folder, problem, iterations=ITERATIONS - resume_after)
        leaves = jax.tree.leaves((result.x, result.multipliers, result.continuation.loop.state))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype(precision)}
        return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()

    return {str(case): answer(*case) for case in cases}


def in_a_process(x64, precision):
    command = [sys.executable, __file__, x64, precision]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(("x64", "precision"), [("on", "float64"), ("on", "float32"), ("off", "float32")])
def test_the_answer_has_one_set_of_bits(x64, precision):
    """Over recording interval, progress, checkpoint interval and resume point, every pair of choices at least once."""
    cases = list(pairwise(*CHOICES.values()))
    assert len(cases) >= 12
    found = digests(precision, cases) if x64 == "on" else in_a_process(x64, precision)
    assert len(found) == len(cases)
    assert len(set(found.values())) == 1, found


if __name__ == "__main__":
    import jax as _jax

    _jax.config.update("jax_enable_x64", sys.argv[1] == "on")
    print(json.dumps(digests(sys.argv[2], pairwise(*CHOICES.values()))))
