"""What goes wrong outside of a run ends it in a status of the list or in a clear error, with the answer so far."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import Wells, normal
from lariax.loop import _begin, _history


def _distance(x, z):
    return jnp.sum((x - z) ** 2)


class Loader:
    """Batches of 20 rows that come to a bad end: after some of them, `fault` is called."""

    def __init__(self, fault, after):
        self.at, self.fault, self.after = 0, fault, after

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.after:
            self.after = None  # once
            self.fault()
        self.at += 1
        return np.random.default_rng(self.at).normal(size=(20, 2))


def broken():
    raise ConnectionError("the bucket is gone")


def problem_on(loader):
    return lx.Problem(_distance, samples=lx.Stream(loader))


class TestStream:
    def test_an_exception_keeps_the_answer(self, method, tmp_path):
        """It comes with the result; going on, and resuming, lose no row."""
        whole = lx.solve(problem_on(Loader(broken, None)), jnp.ones(2), method, iterations=1000)
        problem = problem_on(Loader(broken, 30))
        with pytest.warns(lx.LariaxWarning, match="ConnectionError: the bucket is gone"):
            part = lx.solve(problem, jnp.ones(2), method, iterations=1000, checkpoint=tmp_path)
        assert part.status == "source_ended"
        assert isinstance(part.error, ConnectionError)
        assert "the bucket is gone" in part.message
        assert part.iterations == 511
        assert np.isfinite(part.x).all()
        rest = lx.solve(problem, part, iterations=1000 - part.iterations)
        np.testing.assert_array_equal(rest.x, whole.x)
        assert rest.error is None
        resumed = lx.resume(tmp_path, problem_on(Loader(broken, None)))
        np.testing.assert_array_equal(resumed.x, whole.x)

    def test_an_exception_at_the_start_is_raised(self, method):
        with pytest.raises(ConnectionError, match="the bucket is gone"):
            lx.solve(problem_on(Loader(broken, 0)), jnp.ones(2), method, iterations=1000)

    def test_a_stall_does_not_outlast_the_budget(self, method, tmp_path):
        gate = threading.Event()
        whole = lx.solve(problem_on(Loader(broken, None)), jnp.ones(2), method, iterations=1000)
        problem = problem_on(Loader(gate.wait, 30))
        began = time.monotonic()
        part = lx.solve(problem, jnp.ones(2), method, iterations=1000, seconds=3.0, checkpoint=tmp_path)
        assert part.status == "budget"
        assert part.iterations == 511
        assert 2.9 < time.monotonic() - began < 20.0
        gate.set()  # the rows come after all, and none is lost
        rest = lx.solve(problem, part, iterations=1000 - part.iterations)
        np.testing.assert_array_equal(rest.x, whole.x)

    def test_a_stall_at_the_start(self, method):
        gate = threading.Event()
        with pytest.raises(TimeoutError, match="gave no row"):
            lx.solve(problem_on(Loader(gate.wait, 0)), jnp.ones(2), method, seconds=0.2)
        gate.set()

    def test_a_stall_while_resuming(self, method, tmp_path):
        """Reading over the rows that the run has had takes no longer than the run has, and loses no checkpoint."""
        lx.solve(problem_on(Loader(broken, None)), jnp.ones(2), method, iterations=600, checkpoint=tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.glob("*.lariax")}
        gate = threading.Event()
        for after in (0, 10, 30):  # at the first row, on the way, in the block of the checkpoint
            with pytest.raises(TimeoutError, match=r"gave no row|checkpoint is intact.*seconds="):
                lx.resume(tmp_path, problem_on(Loader(gate.wait, after)), seconds=0.3)
        gate.set()
        assert {path.name: path.read_bytes() for path in tmp_path.glob("*.lariax")} == before
        whole = lx.solve(problem_on(Loader(broken, None)), jnp.ones(2), method, iterations=1000)
        rest = lx.resume(tmp_path, problem_on(Loader(broken, None)), iterations=400)
        np.testing.assert_array_equal(rest.x, whole.x)

    def test_ctrl_c_during_a_stall(self, method):
        gate = threading.Event()

        def stall():
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            gate.wait(60)

        part = lx.solve(problem_on(Loader(stall, 30)), jnp.ones(2), method, iterations=1000)
        assert (part.status, part.iterations) == ("interrupted", 511)
        gate.set()

    def test_a_row_that_is_no_number_is_told(self, method):
        rows = np.ones((1000, 2))
        rows[700, 1] = np.nan
        with pytest.warns(lx.LariaxWarning, match="row 700 of the Stream holds nan"):
            part = lx.solve(problem_on([rows]), jnp.ones(2), method, iterations=900)
        assert (part.status, part.iterations) == ("diverged", 699)
        assert np.isfinite(part.x).all()

    def test_an_end_is_saved(self, method, tmp_path):
        def end():
            raise StopIteration

        part = lx.solve(problem_on(Loader(end, 30)), jnp.ones(2), method, iterations=1000, checkpoint=tmp_path)
        assert (part.status, part.iterations) == ("source_ended", 599)
        whole = lx.solve(problem_on(Loader(end, None)), jnp.ones(2), method, iterations=1000)
        resumed = lx.resume(tmp_path, problem_on(Loader(end, None)))  # now there are more
        np.testing.assert_array_equal(resumed.x, whole.x)


STUCK = """
import ctypes
import jax.numpy as jnp
import lariax as lx
from lariax.loop import _drive

mutex, lock = (ctypes.c_char * 64)(), ctypes.CDLL(None).pthread_mutex_lock

def stuck(*args):
    lock(mutex)
    print("compiling", flush=True)
    lock(mutex)

_drive.advance = stuck
lx.solve(lx.Problem(lambda x: jnp.sum(x**2)), jnp.ones(2), lx.QuadraticPenalty(step_size=0.1), iterations=10)
"""


class TestInterrupts:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_end_the_run_in_order(self, wells, method, tmp_path, number):
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

        def press(snapshot):
            if snapshot.iteration == 300:
                os.kill(os.getpid(), number)

        options = {"iterations": 700, "record_every": 50}
        part = lx.solve(wells, Wells.x0, method, **options, callback=press, checkpoint=tmp_path)
        assert (part.status, part.iterations) == ("interrupted", 300)
        assert f"lx.resume({str(tmp_path)!r}, problem)" in part.message
        assert {each: signal.getsignal(each) for each in before} == before
        whole = lx.solve(wells, Wells.x0, method, **options)
        np.testing.assert_array_equal(lx.resume(tmp_path, wells).x, whole.x)

    def test_asked_twice(self, wells, method, tmp_path):
        """The second Ctrl-C does not wait for the block, and still nothing is lost."""

        def press(snapshot):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            lx.solve(wells, Wells.x0, method, iterations=700, record_every=50, callback=press, checkpoint=tmp_path)
        assert lx.resume(tmp_path, wells, iterations=1).iterations == 51

    def test_a_handler_of_the_program_is_left_alone(self, wells, method):
        heard = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        try:
            result = lx.solve(
                wells,
                Wells.x0,
                method,
                iterations=100,
                record_every=50,
                callback=lambda s: signal.raise_signal(signal.SIGTERM),
            )
        finally:
            signal.signal(signal.SIGTERM, before)
        assert result.status == "budget"
        assert heard == [signal.SIGTERM] * 2

    def test_in_another_thread(self, wells, method, tmp_path):
        results = []
        options = {"iterations": 100, "checkpoint": tmp_path}
        thread = threading.Thread(target=lambda: results.append(lx.solve(wells, Wells.x0, method, **options)))
        thread.start()
        thread.join()
        assert results[0].status == "budget"

    def test_while_a_program_is_compiled(self):
        """Python takes up no signal then. Native code that never ends stands in for the compiler."""
        with subprocess.Popen(
            [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "compiling\n"
            time.sleep(0.5)  # until the main thread is in native code
            process.terminate()
            said = process.stderr.readline()
            assert said.startswith("lariax: SIGTERM has come, but a program is being compiled: the run ends after that")
            assert "Once more ends the process at once." in said
            assert process.poll() is None
            process.terminate()
            assert process.wait(20) == 128 + signal.SIGTERM

    def test_before_the_first_iteration(self, wells, method, monkeypatch, capsys):
        made = _begin.begin

        def begin(*args):
            signal.raise_signal(signal.SIGTERM)
            return made(*args)

        monkeypatch.setattr(_begin, "begin", begin)
        result = lx.solve(wells, Wells.x0, method, iterations=100)
        assert (result.status, result.iterations) == ("interrupted", 0)
        assert "SIGTERM has come, but a program is being compiled" in capsys.readouterr().err

    def test_an_error_in_a_callback_is_raised_and_nothing_lost(self, wells, method, tmp_path):
        def fail(snapshot):
            if snapshot.iteration == 300:
                raise RuntimeError("the plot failed")

        with pytest.raises(RuntimeError, match="the plot failed"):
            lx.solve(wells, Wells.x0, method, iterations=700, record_every=50, callback=fail, checkpoint=tmp_path)
        assert lx.resume(tmp_path, wells, iterations=1).iterations == 301


def sometimes_nan(key):
    """One sample in 500."""
    bad = jax.random.uniform(jax.random.fold_in(key, 1)) < 2e-3
    return jnp.where(bad, jnp.nan, jax.random.normal(key, (2,)))


class TestOneBadSample:
    problem = lx.Problem(
        lambda x, z: jnp.sum((x - 1 - z) ** 2),
        samples=lx.Distribution(sometimes_nan),
        constraints={"sum": lx.Equal(lambda x, z: x[0] + x[1] + z[0] - 1)},
    )

    def test_is_refused_by_the_default_method(self):
        """x = (1/2, 1/2), multiplier 1, in spite of some 40 samples that are not numbers."""
        result = lx.solve(self.problem, jnp.zeros(2), iterations=20_000)
        assert result.status == "budget"
        assert result.history["backed_off"][-1] > 10
        np.testing.assert_allclose(result.x, [0.5, 0.5], atol=0.05)
        np.testing.assert_allclose(result.multipliers["sum"], 1.0, atol=0.1)

    def test_ends_a_method_without_a_guard(self, tmp_path):
        method = lx.QuadraticPenalty(step_size=0.01)
        result = lx.solve(self.problem, jnp.zeros(2), method, iterations=20_000, checkpoint=tmp_path)
        assert result.status == "diverged"
        assert np.isfinite(result.x).all()
        assert f"constraint 'sum' is not finite on the samples of iteration {result.iterations + 1}" in result.message
        again = lx.resume(tmp_path, self.problem)
        assert (again.status, again.message) == ("diverged", result.message)
        np.testing.assert_array_equal(again.x, result.x)
        with pytest.raises(ValueError, match="diverged run cannot go on"):
            lx.resume(tmp_path, self.problem, iterations=10)

    def test_steps_that_are_too_long_are_told_from_it(self):
        problem = lx.Problem(lambda x, z: jnp.sum(x**4) + z @ x, samples=normal(2))
        result = lx.solve(problem, jnp.ones(2), lx.QuadraticPenalty(step_size=10.0), iterations=10_000)
        assert result.status == "diverged"
        assert "not finite on the samples" not in result.message


def test_out_of_memory_is_explained():
    """More than a terabyte."""

    def huge(x, z):
        matrix = jnp.ones((400_000, 400_000)) * x[0]
        return jnp.sum(matrix @ jnp.sin(matrix)) + z @ x

    with pytest.raises(MemoryError, match=r"not enough memory.*batch_size"):
        lx.solve(lx.Problem(huge, samples=normal(2)), jnp.ones(2), lx.QuadraticPenalty(), iterations=3)


@pytest.mark.long
def test_killed_runs_come_to_the_same_bits():
    """The short version of `make kill`: processes killed at random moments, resumed by others."""
    command = [sys.executable, "-m", "benchmarks.kill", "--runs", "4", "--case", "penalty on a stream"]
    root = Path(__file__).parents[2]
    run = subprocess.run([*command, "--case", "dual on data"], capture_output=True, text=True, cwd=root, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    total = run.stdout.splitlines()[-1].split("|")
    killed, finished, equal = (int(total[i]) for i in (2, 5, 6))
    assert killed >= 4  # each at least once
    assert finished == equal == 4


class TestLongRuns:
    def test_history_stays_within_bounds(self, wells, method, monkeypatch):
        """Evenly spaced, and the same whether it is made in one call, in pieces or resumed."""
        monkeypatch.setattr(_history, "MOST_ROWS", 50)
        whole = lx.solve(wells, Wells.x0, method, iterations=3000, record_every=7)
        np.testing.assert_array_equal(whole.history["iteration"], np.arange(112, 3000, 112))
        watched = lx.solve(wells, Wells.x0, method, iterations=3000, record_every=7, callback=lambda s: None)
        np.testing.assert_array_equal(watched.history["iteration"], whole.history["iteration"])
        np.testing.assert_array_equal(watched.history["objective"], whole.history["objective"])

    def test_and_so_does_that_of_a_continued_run(self, wells, method, monkeypatch):
        monkeypatch.setattr(_history, "MOST_ROWS", 50)
        part = lx.solve(wells, Wells.x0, method, iterations=400, record_every=10)
        rest = lx.solve(wells, part, iterations=400, record_every=20)
        iterations = rest.history["iteration"]
        assert len(iterations) <= 50
        np.testing.assert_array_equal(iterations, [*range(10, 400, 20), *range(440, 801, 40)])

    def test_a_callback_sees_every_record(self, wells, method, monkeypatch):
        monkeypatch.setattr(_history, "MOST_ROWS", 20)
        seen = []
        options = {"iterations": 500, "record_every": 10}
        lx.solve(
            wells,
            Wells.x0,
            method,
            **options,
            callback=lambda s: seen.append((s.iteration, int(s.record["iteration"]))),
        )
        assert seen == [(k, k) for k in range(10, 501, 10)]
