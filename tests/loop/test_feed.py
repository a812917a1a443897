"""Rows from the host, ahead of who needs them."""

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import lariax as lx
from lariax.loop._begin import _check_dealing
from lariax.loop._feed import Feeder

LENGTH, COUNT = 4, 4


def batches(asked):
    for number in range(20):
        if number == 2:
            asked.set()
        yield np.arange(8.0) + 8 * number


def test_the_next_block_is_read_ahead():
    """In the background; and it is the same block."""
    asked = threading.Event()
    feeder = Feeder((lx.Stream(batches(asked)),))
    (first,), last = feeder.block(0, LENGTH, [COUNT])
    assert last == LENGTH - 1
    assert not asked.is_set()
    feeder.read_ahead(LENGTH, [COUNT])
    assert asked.wait(10)
    (second,), _ = feeder.block(LENGTH, LENGTH, [COUNT])
    np.testing.assert_array_equal(np.concatenate([first, second]).ravel(), np.arange(32.0))
    assert feeder.rows_handed_out() == {0: 32}


def test_a_certificate_sees_the_rows_that_were_read_ahead():
    """Those that no block has had."""
    feeder = Feeder((lx.Stream(batches(threading.Event())),))
    feeder.block(0, LENGTH, [COUNT])
    feeder.read_ahead(LENGTH, [COUNT])
    np.testing.assert_array_equal(feeder.ahead(5)[0], 16 + np.arange(5.0))
    (second,), _ = feeder.block(LENGTH, LENGTH, [COUNT])
    np.testing.assert_array_equal(second.ravel(), 16 + np.arange(16.0))


def test_a_batch_of_a_local_stream_is_dealt_out_evenly():
    stream = lx.Stream([np.ones((8, 2))], mesh=Mesh(np.asarray(jax.devices()), ("rows",)))
    oracle = SimpleNamespace(sources=(None, stream), placement=SimpleNamespace(count=4), batch_size=8)
    _check_dealing(oracle)
    for batch_size in (4, 10):
        oracle.batch_size = batch_size
        with pytest.raises(ValueError, match="a multiple of the 4 devices, and 8 at least"):
            _check_dealing(oracle)
