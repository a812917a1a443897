"""Checkpoints: what is saved comes back to the bit, and nothing that was saved is lost to a fault."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lariax as lx
from conftest import Wells, normal
from lariax.checkpoint import Folder, packed, unpacked
from lariax.checkpoint._archive import MAGIC
from lariax.loop import origin_of
from lariax.loop._saved import classes, saved_in

DATA = Path(__file__).parent / "data"
OPTIONS = {"iterations": 700, "seed": 7, "record_every": 10}


def stop_after(iteration):
    return lambda snapshot: snapshot.iteration >= iteration


def same(a, b):
    """All that a run returns, but for the time it took."""
    jax.tree.map(np.testing.assert_array_equal, (a.x, a.multipliers), (b.x, b.multipliers))
    assert (a.iterations, a.draws, a.evaluations, a.status) == (b.iterations, b.draws, b.evaluations, b.status)
    histories = [{name: h[name] for name in h if name != "seconds"} for h in (a.history, b.history)]
    jax.tree.map(np.testing.assert_array_equal, *histories)


@pytest.fixture
def run(wells, method, tmp_path):
    """A run that was stopped in the middle."""
    lx.solve(wells, Wells.x0, method, **OPTIONS, checkpoint=tmp_path, callback=stop_after(300))
    return tmp_path


@pytest.fixture(scope="module")
def whole(wells, method):
    return lx.solve(wells, Wells.x0, method, **OPTIONS)


class TestResume:
    def test_continues_to_the_same_bits(self, run, wells, whole):
        rest = lx.resume(run, wells)
        same(rest, whole)
        assert (np.diff(rest.history["seconds"]) > 0).all()

    def test_a_finished_run_is_returned(self, run, wells, whole):
        lx.resume(run, wells)
        files = sorted(path.name for path in run.iterdir())
        same(lx.resume(run, wells), whole)
        assert sorted(path.name for path in run.iterdir()) == files

    def test_a_new_budget_counts_from_here(self, run, wells, method):
        result = lx.resume(run, wells, iterations=100)
        assert (result.iterations, result.status) == (400, "budget")
        same(lx.resume(run, wells, draws=300), lx.solve(wells, Wells.x0, method, **OPTIONS | {"iterations": 500}))

    def test_again_and_again(self, run, wells, whole):
        for iteration in (310, 470, 550):
            assert lx.resume(run, wells, callback=stop_after(iteration)).iterations == iteration
        same(lx.resume(run, wells), whole)

    def test_random_output(self, wells, method, tmp_path):
        options = OPTIONS | {"output": "random"}
        lx.solve(wells, Wells.x0, method, **options, checkpoint=tmp_path, callback=stop_after(130))
        same(lx.resume(tmp_path, wells), lx.solve(wells, Wells.x0, method, **options))

    def test_looks(self, wells, method, tmp_path):
        """The best point, its certificate and the number of looks so far are saved."""
        options = {"iterations": 2500, "record_every": 100, "output": "best"}
        expected = lx.solve(wells, Wells.x0, method, **options)
        lx.solve(wells, Wells.x0, method, **options, checkpoint=tmp_path, callback=stop_after(1100))
        rest = lx.resume(tmp_path, wells)
        same(rest, expected)
        assert str(rest.certificate) == str(expected.certificate)
        again = lx.resume(tmp_path, wells)
        same(again, expected)
        assert str(again.certificate) == str(expected.certificate)

    def test_within_the_process_the_problem_is_remembered(self, run, whole):
        same(lx.resume(run), whole)

    def test_a_continued_run(self, wells, method, whole, tmp_path):
        part = lx.solve(wells, Wells.x0, method, **OPTIONS | {"iterations": 200})
        lx.solve(wells, part, iterations=500, record_every=10, checkpoint=tmp_path, callback=stop_after(400))
        same(lx.resume(tmp_path, wells), whole)

    def test_structures_of_ones_own(self, method, tmp_path):
        class Pair(NamedTuple):
            a: jax.Array
            b: jax.Array

        problem = lx.Problem(lambda x, z: jnp.sum((x.a - z) ** 2) + x.b**2, samples=normal(2))
        x0 = Pair(jnp.zeros(2), jnp.array(1.0))
        expected = lx.solve(problem, x0, method, iterations=60)
        lx.solve(problem, x0, method, iterations=60, checkpoint=tmp_path, record_every=10, callback=stop_after(20))
        with pytest.raises(lx.CheckpointError, match="Pass x0="):
            lx.resume(tmp_path, problem)
        jax.tree.map(np.testing.assert_array_equal, lx.resume(tmp_path, problem, x0=x0).x, expected.x)

    def test_the_origin_is_noted(self, wells, method, tmp_path):
        checkpoint = lx.Checkpoint(tmp_path, origin={"gallery": "wells", "options": [1, None]})
        lx.solve(wells, Wells.x0, method, iterations=10, checkpoint=checkpoint)
        assert origin_of(tmp_path) == {"gallery": "wells", "options": [1, None]}


def _distance(x, z):
    return jnp.sum((x - z) ** 2)


def _product(x, z):
    return x[0] * z[1]


class TestStreams:
    @staticmethod
    def problem(stream):
        return lx.Problem(_distance, samples=stream, constraints={"c": lx.Equal(_product)})

    @staticmethod
    def batches(count=100, seed=0):
        return (np.random.default_rng([seed, i]).normal(size=(32, 2)) for i in range(count))

    @pytest.mark.parametrize("stopped", [40, 254, 255, 300])
    def test_are_read_over(self, method, tmp_path, stopped):
        options = {"iterations": 700, "record_every": 1}
        expected = lx.solve(self.problem(lx.Stream(self.batches())), jnp.ones(2), method, **options)
        problem = self.problem(lx.Stream(self.batches()))
        lx.solve(problem, jnp.ones(2), method, **options, checkpoint=tmp_path, callback=stop_after(stopped))
        with pytest.raises(lx.CheckpointError, match="used up"):
            lx.resume(tmp_path, problem)
        same(lx.resume(tmp_path, self.problem(lx.Stream(self.batches()))), expected)

    def test_other_rows_are_noticed(self, method, tmp_path):
        options = {"iterations": 700, "checkpoint": tmp_path, "callback": stop_after(300), "record_every": 10}
        lx.solve(self.problem(lx.Stream(self.batches())), jnp.ones(2), method, **options)
        for rows, words in ((self.batches(seed=1), "rows that it gave before"), (self.batches(3), "ended .* rows")):
            with pytest.raises(ValueError, match=words):
                lx.resume(tmp_path, self.problem(lx.Stream(rows)))

    @pytest.mark.parametrize("repeat", [False, True])
    def test_a_stateful_loader_is_asked(self, method, tmp_path, repeat):
        """It is set to its place, and reads no row again that it has given before."""

        class Loader:
            def __init__(self, log):
                self.place, self.log = 0, log

            def __iter__(self):
                self.place %= 40  # a pass that was begun is gone on with
                return self

            def __next__(self):
                if self.place == 40:
                    raise StopIteration
                self.place += 1
                self.log.append(self.place)
                return np.random.default_rng(self.place).normal(size=(20, 2))

            def state_dict(self):
                return {"place": self.place}

            def load_state_dict(self, state):
                self.place = state["place"]

        def problem(log):
            return self.problem(lx.Stream(Loader(log), repeat=repeat))

        options = {"iterations": 700, "record_every": 10}
        at_once, first, then = [], [], []
        expected = lx.solve(problem(at_once), jnp.ones(2), method, **options)
        assert expected.status == ("budget" if repeat else "source_ended")
        lx.solve(problem(first), jnp.ones(2), method, **options, checkpoint=tmp_path, callback=stop_after(300))
        same(lx.resume(tmp_path, problem(then)), expected)
        assert first + then == at_once

    def test_a_state_that_no_file_can_hold(self, method, tmp_path):
        class Loader(list):
            def state_dict(self):
                return {"lock": object()}

            def load_state_dict(self, state):
                pass

        problem = self.problem(lx.Stream(Loader(self.batches())))
        with pytest.raises(lx.CheckpointError, match=r"found builtins\.object"):
            lx.solve(problem, jnp.ones(2), method, iterations=10, checkpoint=tmp_path)


class TestAnotherProblem:
    @pytest.mark.parametrize(
        ("other", "words"),
        [
            ({"samples": normal(4)}, r"samples= was Distribution of float64\(5,\).* is Distribution of float64\(4,\)"),
            ({"constraints": {}}, "constraint 'c' was Equal of shape .* not there"),
            ({"within": lx.sets.Box(0.1, 0.9)}, "within= or regularizer= was Everything"),
        ],
    )
    def test_is_refused(self, run, other, words):
        parts = {
            "samples": normal(Wells.d),
            "constraints": {"c": lx.Equal(Wells.constraint, samples=normal(2))},
        } | other

        def objective(x, z):
            return jnp.sum(x**2) + jnp.sum(z)

        with pytest.raises(lx.CheckpointError, match=words):
            lx.resume(run, lx.Problem(objective, **parts))

    def test_other_data_are_refused(self, method, tmp_path):
        rows = np.random.default_rng(0).normal(size=(50, 2))

        def problem(rows, epochs=False):
            return lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=lx.Dataset(rows, epochs=epochs))

        lx.solve(problem(rows), jnp.ones(2), method, iterations=10, checkpoint=tmp_path)
        changed = rows.copy()
        changed[17, 1] += 1e-9
        for other in (problem(changed), problem(rows[:-1]), problem(rows, epochs=True)):
            with pytest.raises(lx.CheckpointError, match="samples= was Dataset"):
                lx.resume(tmp_path, other)

    def test_other_code_is_noticed(self, run):
        other = lx.Problem(
            lambda x, xi: Wells.objective(x, 2 * xi),
            samples=normal(Wells.d),
            constraints={"c": lx.Equal(Wells.constraint, samples=normal(2))},
        )
        with pytest.warns(lx.LariaxWarning, match="the objective: the code has changed"):
            lx.resume(run, other, seconds=1e-9)

    def test_another_method_is_refused(self, run, wells):
        with pytest.raises(lx.CheckpointError, match="keeps its method"):
            lx.resume(run, wells, method=lx.QuadraticPenalty(step_size=0.01))

    def test_a_method_that_a_file_cannot_hold_is_given_again(self, wells, tmp_path):
        """And is prepared as it was: the multipliers of `lx.Optax` look ahead to the end of the first run."""
        method, options = lx.Optax(optax.sgd(0.01)), {"iterations": 60, "batch_size": 2, "record_every": 10}
        whole = lx.solve(wells, Wells.x0, method, **options)
        lx.solve(wells, Wells.x0, method, **options, checkpoint=tmp_path, callback=stop_after(20))
        with pytest.raises(lx.CheckpointError, match="pass method="):
            lx.resume(tmp_path, wells)
        same(lx.resume(tmp_path, wells, method=method), whole)


class TestFolder:
    def test_is_never_overwritten(self, run, wells, method):
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        with pytest.raises(lx.CheckpointError, match=r"holds a run already.*lx\.resume"):
            lx.solve(wells, Wells.x0, method, iterations=10, checkpoint=run)
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before

    def test_holds_few_files(self, wells, method, tmp_path):
        checkpoint = lx.Checkpoint(tmp_path, every=0.0, keep=3)
        seen = []

        def look(snapshot):
            seen.append(sum(not path.name.startswith(".") for path in tmp_path.iterdir()))

        lx.solve(wells, Wells.x0, method, iterations=300, record_every=5, checkpoint=checkpoint, callback=look)
        assert max(seen) <= 4  # for a moment, one more than is kept
        names = sorted(path.name for path in tmp_path.iterdir())
        assert len(names) == 3
        assert int(names[-1][11:19]) > 3

    def test_belongs_to_one_run_at_a_time(self, run, wells):
        with Folder(run).locked(), pytest.raises(lx.CheckpointError, match="another run is at work"):
            lx.resume(run, wells)

    def test_half_written_files_are_swept_up(self, run, wells):
        (run / ".checkpoint-00000009.lariax.partial").write_bytes(b"half")
        (run / "notes.txt").write_text("mine")
        lx.resume(run, wells)
        assert not (run / ".checkpoint-00000009.lariax.partial").exists()
        assert (run / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize(
        ("folder", "words"),
        [("/proc/nowhere", "cannot be made"), ("/dev/null/a", "cannot be made"), (3, "takes a folder")],
    )
    def test_must_be_one(self, wells, method, folder, words):
        with pytest.raises((lx.CheckpointError, TypeError), match=words):
            lx.solve(wells, Wells.x0, method, iterations=10, checkpoint=folder)

    def test_nothing_to_resume(self, wells, tmp_path):
        with pytest.raises(lx.CheckpointError, match="no checkpoint"):
            lx.resume(tmp_path, wells)
        with pytest.raises(lx.CheckpointError, match="no folder"):
            lx.resume(tmp_path / "other", wells)


class TestDamage:
    @staticmethod
    def newest(run):
        return max(run.glob("*.lariax"))

    @pytest.mark.parametrize("damage", ["cut", "empty", "changed", "foreign"])
    def test_the_one_before_is_taken(self, run, wells, whole, damage):
        path = self.newest(run)
        file = bytearray(path.read_bytes())
        file[len(file) // 2] ^= 1
        content = {"cut": file[:-40], "empty": b"", "changed": file, "foreign": b"PK\x03\x04" + bytes(100)}[damage]
        path.write_bytes(content)
        with pytest.warns(lx.LariaxWarning, match=f"passed over.*{path.name}"):
            same(lx.resume(run, wells), whole)
        assert path.read_bytes() == content

    def test_all_of_them(self, run, wells):
        for path in run.iterdir():
            path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(lx.CheckpointError, match=r"no checkpoint .* is whole.*cut short"):
            lx.resume(run, wells)

    def test_a_newer_version(self, run, wells):
        path = self.newest(run)
        file = bytearray(path.read_bytes())
        file[len(MAGIC)] = 4
        path.write_bytes(file)
        with pytest.raises(lx.CheckpointError, match="version 4, and this Lariax reads version 3"):
            lx.resume(run, wells)

    @pytest.mark.parametrize("version", [1, 2])
    def test_an_older_version(self, run, wells, version):
        """The first named its records after modules, the second kept the place of a run in several of them."""
        kept = DATA / f"version-{version}.lariax"
        (run / "checkpoint-00000099.lariax").write_bytes(kept.read_bytes())
        with pytest.raises(lx.CheckpointError, match=f"version {version}, which only the Lariax that wrote it can"):
            lx.resume(run, wells)

    def test_the_present_version(self):
        """A file that was kept is read, whatever has been renamed since."""
        saved = saved_in((DATA / "version-3.lariax").read_bytes())
        assert (saved.run.iteration, saved.setup.output, len(saved.run.history.history)) == (50, "best", 5)
        assert isinstance(saved.setup.method, lx.QuadraticPenalty)
        assert saved.leaves[".state.x"].shape == (2,)

    def test_a_moved_class_keeps_its_tag(self, run):
        """Nothing in a file tells where in the code its records live."""
        header = self.newest(run).read_bytes().partition(b'"arrays": [')[0]
        assert b"lariax." not in header.partition(b'"content"')[2]
        assert b'"class": "method ' in header

    def test_another_process_needs_the_problem_and_the_precision(self, run):
        code = f"""
import lariax as lx
for problem, words in ((None, "pass the problem"), (lx.Problem(lambda x: x @ x), "64-bit mode is off")):
    try:
        lx.resume({str(run)!r}, problem)
    except lx.CheckpointError as error:
        assert words in str(error), error
    else:
        raise SystemExit("no error")
"""
        subprocess.run([sys.executable, "-c", code], check=True)


class TestDisk:
    def test_full_at_the_start(self, wells, method, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "fsync", _full)
        with pytest.raises(lx.CheckpointError, match=r"cannot be written to.*No space left"):
            lx.solve(wells, Wells.x0, method, iterations=10, checkpoint=tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_full_on_the_way(self, wells, method, whole, tmp_path, monkeypatch):
        """The run goes on, the answer says so, and the checkpoint before is good."""

        def fill_at(snapshot):
            if snapshot.iteration == 300:
                monkeypatch.setattr(os, "fsync", _full)

        checkpoint = lx.Checkpoint(tmp_path, every=0.0)
        with pytest.warns(lx.LariaxWarning, match=r"could not be written.*No space left.*intact"):
            result = lx.solve(wells, Wells.x0, method, **OPTIONS, checkpoint=checkpoint, callback=fill_at)
        same(result, whole)
        assert "could not be saved" in result.message
        monkeypatch.undo()
        assert not [path for path in tmp_path.iterdir() if path.suffix == ".partial"]
        same(lx.resume(tmp_path, wells), whole)

    def test_a_file_that_may_not_grow(self, tmp_path):
        """A limit of the operating system, met while writing."""
        code = f"""
import resource, jax.numpy as jnp, lariax as lx
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
problem = lx.Problem(lambda x: x @ x)
try:
    lx.solve(problem, jnp.ones(10_000), lx.QuadraticPenalty(), iterations=3, checkpoint={str(tmp_path)!r})
except lx.CheckpointError as error:
    assert "cannot be written to" in str(error), error
else:
    raise SystemExit("no error")
"""

        subprocess.run([sys.executable, "-c", code], check=True)
        assert list(tmp_path.iterdir()) == []


def _full(handle):
    raise OSError(28, "No space left on device")


def test_values_keep_their_types():
    """Also numbers of NumPy, which are numbers of Python and arrays at the same time."""
    problem = lx.Problem(lambda x: x @ x, constraints={"c": lx.Equal(jnp.sum, samples=None)})
    value = {
        "plain": [None, True, 3, 0.1, float("inf"), "text", b"bytes", ("a", 1)],
        "scalars": [np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True)],
        "arrays": [
            np.float64(0.1) * np.ones(()),
            np.arange(6).reshape(2, 3),
            np.zeros((0, 3)),
            jnp.ones(2, jnp.bfloat16),
        ],
        "certificate": lx.certify(problem, jnp.ones(2)),
    }
    found = unpacked(b"".join(map(bytes, packed(value, classes()))), classes())
    assert [type(part) for part in found["plain"]] == [type(part) for part in value["plain"]]
    assert found["plain"] == value["plain"]
    assert [(type(part), part) for part in found["scalars"]] == [(type(part), part) for part in value["scalars"]]
    for one, other in zip(found["arrays"], value["arrays"], strict=True):
        assert (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, np.asarray(other).tobytes())
    assert str(found["certificate"]) == str(value["certificate"])


def test_bytes_of_a_file_do_not_depend_on_who_writes(run):
    """Read, and written again: the same file."""
    file = max(run.glob("*.lariax")).read_bytes()
    assert b"".join(map(bytes, packed(saved_in(file), classes()))) == file
