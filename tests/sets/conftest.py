from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """float64 is at hand in every test here, so a set that raises float32 to it is caught."""
    with jax.enable_x64(True):
        yield
