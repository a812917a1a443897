"""Rows on disk: every row once a pass, at any place alike, the same after a stop; what it cannot read it says."""

import subprocess
import sys
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import lariax as lx

ROWS = np.random.default_rng(0).normal(size=(1000, 3))


@pytest.fixture
def folder(tmp_path):
    """Ten files of unequal length."""
    cuts = np.cumsum([0, 50, 150, 100, 100, 30, 170, 100, 100, 99, 101])
    for i, (first, last) in enumerate(pairwise(cuts)):
        np.save(tmp_path / f"part{i}.npy", ROWS[first:last])
    return tmp_path


def sorted_rows(batches):
    rows = np.concatenate(batches)
    return rows[np.lexsort(rows.T)]


SORTED = sorted_rows([ROWS])


class TestAPass:
    def test_has_every_row_once(self, folder):
        blocks = lx.Blocks(folder, rows=16, window=4, batch=10)
        assert len(blocks) == 1000
        first, second = list(blocks), list(blocks)
        np.testing.assert_array_equal(sorted_rows(first), SORTED)
        np.testing.assert_array_equal(sorted_rows(second), SORTED)
        assert not np.array_equal(np.concatenate(first), np.concatenate(second))

    def test_depends_on_the_seed_alone(self, folder):
        one, same, other = (np.concatenate(list(lx.Blocks(folder, rows=16, seed=seed))) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_puts_a_row_anywhere_alike(self):
        """Over 2,000 passes of 12 rows: chi-squared with 11 degrees of freedom, false alarms 1 in 10,000."""
        places = [np.concatenate(list(lx.Blocks(np.arange(12), rows=2, window=2, seed=s))) for s in range(2000)]
        counts = np.bincount([int(np.flatnonzero(order == 5)[0]) for order in places], minlength=12)
        assert ((counts - 2000 / 12) ** 2 / (2000 / 12)).sum() < 37.4


class TestFiles:
    def test_a_mapped_array_is_read_where_it_is(self, tmp_path):
        np.save(tmp_path / "rows.npy", ROWS)
        mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
        for part in (mapped, mapped[100:300]):
            np.testing.assert_array_equal(sorted_rows(list(lx.Blocks(part, rows=7))), sorted_rows([np.array(part)]))
        tree = {"a": mapped, "b": mapped[:, 0]}  # one of them is not row after row
        batch = next(iter(lx.Blocks(tree, rows=7)))
        np.testing.assert_array_equal(batch["a"][:, 0], batch["b"])

    @pytest.mark.parametrize("kind", ["parquet", "arrow"])
    def test_tables(self, tmp_path, kind):
        frame = pl.DataFrame({"u": ROWS[:, 0], "v": ROWS[:, 1], "word": ["x"] * 1000})
        getattr(frame, "write_parquet" if kind == "parquet" else "write_ipc")(tmp_path / f"t.{kind}")
        found = list(lx.Blocks(tmp_path / f"t.{kind}", columns=["v", "u"], rows=64, batch=100))
        assert set(found[0]) == {"u", "v"}
        np.testing.assert_array_equal(np.sort(np.concatenate([b["u"] for b in found])), np.sort(ROWS[:, 0]))
        with pytest.raises(ValueError, match=r"no column 'w'.*It has"):
            lx.Blocks(tmp_path / f"t.{kind}", columns=["w"])

    def test_what_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="files of one kind"):
            lx.Blocks(tmp_path)
        with pytest.raises(ValueError, match="share a first axis"):
            lx.Blocks({"a": np.ones(3), "b": np.ones(4)})
        np.save(tmp_path / "object.npy", np.array([{}], object), allow_pickle=True)
        with pytest.raises(ValueError, match="Python objects"):
            lx.Blocks(tmp_path / "object.npy")

    def test_a_file_that_was_cut_off(self, tmp_path):
        np.save(tmp_path / "rows.npy", ROWS)
        blocks = lx.Blocks(tmp_path / "rows.npy", rows=100)
        with (tmp_path / "rows.npy").open("r+b") as file:
            file.truncate(10_000)
        with pytest.raises(OSError, match="has become shorter"):
            list(blocks)


class TestResuming:
    @pytest.mark.parametrize("seen", [0, 3, 17, 40])
    def test_goes_on_at_the_same_row(self, folder, seen):
        blocks = lx.Blocks(folder, rows=16, window=4, batch=25)
        list(blocks)
        second = iter(blocks)
        before = [next(second) for _ in range(seen)]
        state = blocks.state_dict()
        again = lx.Blocks(folder, rows=16, window=4, batch=25)
        again.load_state_dict(state)
        rest, expected = list(again), list(second)
        assert len(rest) == len(expected)
        assert all(map(np.array_equal, rest, expected))
        np.testing.assert_array_equal(sorted_rows(before + rest), SORTED)
        assert all(map(np.array_equal, list(again), list(blocks)))  # and the next pass

    def test_refuses_another_order(self, folder):
        state = lx.Blocks(folder, rows=16).state_dict()
        with pytest.raises(ValueError, match="order of the rows"):
            lx.Blocks(folder, rows=17).load_state_dict(state)

    def test_a_run_goes_on_to_the_same_bits(self, folder, tmp_path_factory):
        def problem():
            stream = lx.Stream(lx.Blocks(folder, rows=16, window=4, batch=25), repeat=True)
            return lx.Problem(lambda x, row: jnp.sum((x - row) ** 2), samples=stream)

        method = lx.QuadraticPenalty(step_size=0.1)
        whole = lx.solve(problem(), jnp.zeros(3), method, iterations=600, batch_size=2)
        place = tmp_path_factory.mktemp("run")
        lx.solve(problem(), jnp.zeros(3), method, iterations=350, batch_size=2, checkpoint=place)
        rest = lx.resume(place, problem(), iterations=250)
        np.testing.assert_array_equal(rest.x, whole.x)


def test_a_pass_that_is_not_finished_ends_in_silence():
    """At the exit of a process, where threads are gone."""
    code = "import numpy as np, lariax as lx; it = iter(lx.Blocks(np.ones((4096, 8)), rows=8, window=4)); next(it)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
