"""Sources: what is drawn depends on the key and the iteration alone."""

import itertools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import lariax as lx
from conftest import normal
from lariax.problem._shuffle import shuffled

KEY = jax.random.key(11)
shuffle = jax.jit(shuffled, static_argnums=3)


@eqx.filter_jit  # operation by operation, compiling them takes ten times as long
def compiled(source, iterations, count):
    return jax.vmap(source.fetch)(source.draw(KEY, iterations, count))


def drawn(source, first, n, count):
    return np.asarray(compiled(source, first + jnp.arange(n), count))


@pytest.mark.parametrize(
    "source",
    [
        normal(3),
        lx.Dataset(jnp.arange(10.0)),
        lx.Dataset(jnp.arange(10.0), epochs=True),
        lx.Stratified(jnp.arange(10.0), by=np.arange(10) % 3),
    ],
    ids=["distribution", "dataset", "epochs", "stratified"],
)
def test_blocks_do_not_matter(source):
    whole = drawn(source, 0, 12, 2)
    pieces = np.concatenate([drawn(source, 0, 5, 2), drawn(source, 5, 7, 2)])
    np.testing.assert_array_equal(whole, pieces)


def test_an_epoch_sees_every_row_once():
    rows = drawn(lx.Dataset(jnp.arange(12.0), epochs=True), 0, 8, 3).reshape(2, 12)
    np.testing.assert_array_equal(np.sort(rows, axis=1), np.arange(12.0) * np.ones((2, 1)))
    assert (rows[0] != rows[1]).any()


def test_a_remainder_is_left_out_and_reshuffled():
    rows = drawn(lx.Dataset(jnp.arange(10.0), epochs=True), 0, 30, 3).reshape(
        10, 9
    )  # 3 iterations an epoch, 1 row left
    assert all(len(set(epoch)) == 9 for epoch in rows)
    assert len({*range(10)} - set(rows[0])) == 1
    assert set(rows.ravel()) == set(np.arange(10.0))


def test_rows_are_uniform():
    """Chi-square with 9 degrees of freedom over 20,000 rows; false alarm 1e-4."""
    for epochs in (False, True):
        counts = np.bincount(drawn(lx.Dataset(jnp.arange(10.0), epochs=epochs), 0, 10_000, 2).astype(int).ravel())
        assert np.sum((counts - 2000) ** 2 / 2000) < 33.7


class TestShuffle:
    """The order of an epoch is computed place by place. False alarms of all chi-square tests together: 1e-3."""

    @staticmethod
    def orders(rows, epochs, seed=11):
        places = jnp.broadcast_to(jnp.arange(rows), (epochs, rows))
        return np.asarray(shuffle(jax.random.key(seed), jnp.arange(epochs), places, rows))

    @staticmethod
    def are_equally_likely(counts, tests):
        counts = np.asarray(counts).ravel()
        expected = counts.sum() / counts.size
        statistic = np.sum((counts - expected) ** 2) / expected
        return statistic < chi2.isf(2e-4 / tests, counts.size - 1)

    @pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 9, 15, 16, 17, 97, 100, 1000, 1021, 65_537, 1_000_003])
    def test_every_row_has_one_place(self, rows):
        for order in self.orders(rows, 3):
            np.testing.assert_array_equal(np.sort(order), np.arange(rows))

    def test_the_largest_number_of_rows(self):
        rows = 2**31 - 1
        places = jnp.concatenate([jnp.arange(50_000), rows - 1 - jnp.arange(50_000)])
        for order in shuffle(KEY, jnp.arange(2), jnp.stack([places, places]), rows):
            assert order.dtype == jnp.int32
            assert len(np.unique(order)) == 100_000
            assert order.min() >= 0
            assert order.max() < rows
            assert self.are_equally_likely(np.bincount(np.asarray(order, np.int64) * 100 // rows), 2)

    @pytest.mark.parametrize("rows", [2, 3, 4, 5, 6])
    def test_all_orders_are_equally_likely(self, rows):
        orders = self.orders(rows, 60_000)
        counts = np.zeros((rows,) * rows, int)
        np.add.at(counts, tuple(orders.T), 1)
        assert self.are_equally_likely([counts[order] for order in itertools.permutations(range(rows))], 5)

    @pytest.mark.parametrize("rows", [10, 37])
    def test_places_neighbours_and_epochs_are_independent(self, rows):
        """Each place over the rows; pairs of neighbours, and of places that differ in one digit of the network; and the
        same place in one epoch and the next."""
        orders, apart = self.orders(rows, 40_000), ~np.eye(rows, dtype=bool)
        for place in range(rows):
            assert self.are_equally_likely(np.bincount(orders[:, place], minlength=rows), 2 * rows)
        for lag in (1, 3, 5, 8):
            counts = np.zeros((rows, rows), int)
            np.add.at(counts, (orders[:, 0], orders[:, lag]), 1)
            assert not counts[~apart].any()
            assert self.are_equally_likely(counts[apart], 8)
        counts = np.zeros((rows, rows), int)
        np.add.at(counts, (orders[:-1, 0], orders[1:, 0]), 1)
        assert self.are_equally_likely(counts, 2)

    def test_takes_no_more_than_the_rows_of_a_block(self):
        """Neither a sort nor anything as large as the data: an iteration costs the same for any number of rows."""
        source = lx.Dataset(jnp.arange(100_000.0), epochs=True)
        program = jax.make_jaxpr(lambda key, k: source.draw(key, k, 4))(KEY, jnp.arange(64))
        text = str(program)
        assert "sort" not in text
        assert "100000]" not in text


class TestPrecision:
    """Without JAX's 64-bit mode: what does not survive 32 bits is refused, what loses digits is said once a source."""

    OWNERS: ClassVar = {
        "Dataset": lambda rows: lx.Dataset({"id": rows}),
        "Stratified": lambda rows: lx.Stratified({"id": rows}, by=np.zeros(len(rows))),
        "a batch of the Stream": lambda rows: solved(lx.Stream([{"id": rows}] * 200)),
    }

    @pytest.fixture(autouse=True)
    def _single(self):
        with jax.enable_x64(False):
            yield

    @pytest.mark.parametrize("owner", OWNERS)
    @pytest.mark.parametrize(
        ("rows", "kind"),
        [
            (np.array([1, 2**40, 2**40 + 1]), "int32"),
            (np.array([1, -(2**31) - 1]), "int32"),
            (np.array([1, 2**32], np.uint64), "uint32"),
            (np.array([1.0, -1e39]), "float32"),
        ],
    )
    def test_numbers_that_do_not_fit_are_refused(self, owner, rows, kind):
        with pytest.raises(ValueError, match=f"which does not fit into {kind}.*jax_enable_x64") as caught:
            self.OWNERS[owner](rows)
        assert str(caught.value).startswith(f"{owner}['id'] holds {rows[1]} at index (1,)")

    @pytest.mark.parametrize("owner", OWNERS)
    @pytest.mark.parametrize(
        "rows",
        [
            np.array([2**31 - 1, -(2**31)]),
            np.array([2**32 - 1, 0], np.uint64),
            np.array([True, False]),
            np.float32([1, 2]),
        ],
        ids=["int64", "uint64", "bool", "float32"],
    )
    def test_numbers_that_fit_are_kept_in_silence(self, owner, rows):
        source = self.OWNERS[owner](rows)
        if owner != "a batch of the Stream":
            np.testing.assert_array_equal(source.arrays["id"], rows)

    @pytest.mark.parametrize("owner", OWNERS)
    def test_floats_that_lose_digits_are_told_of_once(self, owner):
        with pytest.warns(lx.LariaxWarning) as seen:
            self.OWNERS[owner](np.array([0.1, 0.2]))
        assert len(seen) == 1
        assert str(seen[0].message).startswith(f"{owner}['id'] is float64, but JAX's 64-bit mode is off")
        assert seen[0].filename == __file__  # the line of the user, not one of ours

    def test_a_certificate_on_a_stream_tells_of_it_too(self):
        problem = lx.Problem(_distance, samples=lx.Stream([{"id": np.ones(300)}]))
        with pytest.warns(lx.LariaxWarning, match="a batch of the Stream.* is float64") as seen:
            lx.certify(problem, jnp.zeros(()), draws=200)
        assert len(seen) == 1

    def test_a_later_batch_that_does_not_fit_ends_the_run(self):
        batches = [{"id": np.full(100, 2**40 if i == 8 else i)} for i in range(20)]
        with pytest.warns(lx.LariaxWarning, match="The Stream failed with ValueError.* holds 1099511627776"):
            result = solved(lx.Stream(batches), iterations=3000)
        assert result.status == "source_ended"
        assert isinstance(result.error, ValueError)

    def test_a_start_that_does_not_fit_is_refused(self):
        for x0 in (1e300, np.array(1e300)):
            with pytest.raises(ValueError, match=r"x0 holds 1e\+300 at index \(\), which does not fit into float32"):
                lx.solve(lx.Problem(lambda x: x**2), x0, iterations=5)

    def test_arrays_of_jax_are_as_they_are(self):
        rows = jnp.asarray(np.array([0.1, 0.2]))
        assert lx.Dataset(rows).arrays is rows


def _distance(x, row):
    return (x - row["id"]) ** 2


def solved(source, iterations=20):
    return lx.solve(
        lx.Problem(_distance, samples=source), jnp.zeros(()), lx.QuadraticPenalty(1e-3), iterations=iterations
    )


def test_more_rows_than_can_be_counted_are_refused():
    with pytest.raises(ValueError, match=r"up to 2\^31 - 1 rows, found 2,147,483,648"):
        lx.Dataset(np.broadcast_to(np.int8(0), 2**31))


def test_stratified_rows_come_group_by_group():
    groups = np.array(["b", "a", "b", "c", "b", "a"])
    source = lx.Stratified(jnp.arange(6), by=groups)
    rows = drawn(source, 0, 50, 4)
    assert source.groups == ("a", "b", "c")
    assert rows.shape == (50, 4, 3)
    for i, group in enumerate(source.groups):
        assert set(groups[rows[..., i].ravel()]) == {group}
        assert set(rows[..., i].ravel()) == set(np.flatnonzero(groups == group))


class TestStream:
    @staticmethod
    def problem(source):
        return lx.Problem(
            lambda x, z: jnp.sum((x - z) ** 2), samples=source, constraints={"c": lx.Equal(lambda x, z: x[0] * z[1])}
        )

    def test_equals_a_data_set_that_yields_the_same_rows(self):
        """The rows that a run draws from a data set, sent through a stream in batches of odd sizes, for two blocks."""
        data = lx.Dataset(jax.random.normal(jax.random.key(3), (50, 2)))
        method = lx.QuadraticPenalty(step_size=0.01)
        expected = lx.solve(self.problem(data), jnp.ones(2), method, iterations=300, seed=4, batch_size=2)
        tickets = data.draw(jax.random.fold_in(jax.random.key(4), 0), jnp.arange(301), 4)
        rows = np.asarray(data.arrays)[np.asarray(tickets).ravel()]
        sizes = np.cumsum([1, 7, 64, 3, 500])
        stream = lx.Stream(np.split(rows, sizes))
        result = lx.solve(self.problem(stream), jnp.ones(2), method, iterations=300, batch_size=2)
        np.testing.assert_allclose(result.x, expected.x, rtol=1e-12)  # another program: equal up to rounding
        np.testing.assert_allclose(result.multipliers["c"], expected.multipliers["c"], rtol=1e-12)
        assert result.draws == expected.draws

    def test_continues_in_the_middle_of_a_block(self):
        def stream():
            return lx.Stream(np.random.default_rng(i).normal(size=(32, 2)) for i in range(100))

        problem, method = self.problem(stream()), lx.QuadraticPenalty(step_size=0.01)
        whole = lx.solve(self.problem(stream()), jnp.ones(2), method, iterations=400)
        part = lx.solve(problem, jnp.ones(2), method, iterations=150)
        rest = lx.solve(problem, part, iterations=250)
        np.testing.assert_array_equal(rest.x, whole.x)
        with pytest.raises(ValueError, match="read further"):
            lx.solve(problem, part, iterations=250)

    def test_ends_when_the_rows_end(self):
        stream = lx.Stream([np.ones((9, 2)), np.ones((2, 2))])
        result = lx.solve(self.problem(stream), jnp.ones(2), lx.QuadraticPenalty(step_size=0.01), iterations=100)
        assert result.status == "source_ended"
        assert result.iterations == 4  # 11 rows: 2 for the start, 2 an iteration, 1 left over
        assert not result.success

    def test_an_interrupt_loses_no_rows(self):
        rows = np.random.default_rng(0).normal(size=(700, 2))

        class Loader:
            """Interrupted once, in the middle."""

            def __init__(self, interrupt_at):
                self.at, self.interrupt_at = 0, interrupt_at

            def __iter__(self):
                return self

            def __next__(self):
                if self.at == self.interrupt_at:
                    self.interrupt_at = None
                    raise KeyboardInterrupt
                if self.at >= len(rows):
                    raise StopIteration
                self.at += 10
                return rows[self.at - 10 : self.at]

        method = lx.QuadraticPenalty(step_size=0.01)
        whole = lx.solve(self.problem(lx.Stream(Loader(None))), jnp.ones(2), method, iterations=340)
        problem = self.problem(lx.Stream(Loader(600)))
        part = lx.solve(problem, jnp.ones(2), method, iterations=340)
        assert part.status == "interrupted"
        rest = lx.solve(problem, part, iterations=340 - part.iterations)
        np.testing.assert_array_equal(rest.x, whole.x)

    def test_repeats_when_asked(self):
        stream = lx.Stream([np.ones((9, 2))], repeat=True)
        result = lx.solve(self.problem(stream), jnp.ones(2), lx.QuadraticPenalty(step_size=0.01), iterations=100)
        assert result.status == "budget"

    def test_refuses_rows_that_change(self):
        stream = lx.Stream([np.ones((4, 2)), np.ones((4, 3))])
        with pytest.raises(ValueError, match=r"rows of float64\(3,\), the first had float64\(2,\)"):
            lx.solve(self.problem(stream), jnp.ones(2), iterations=100)
