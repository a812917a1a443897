"""The streams of random numbers of a run, beside those of its sources, which have the numbers from 0 on."""

import enum

import jax
import numpy as np
from jaxtyping import Array, Key

NEVER = 2**31 - 1
"""An iteration that never comes: the largest number of 32 bits."""


class Randomness(enum.IntEnum):
    PICKS = NEVER
    REFRESHES = NEVER - 1
    CHECKS = NEVER - 2
    VERDICTS = NEVER - 3
    CERTIFICATE = NEVER - 4  # of `result.certificate`, `result.inference` and `result.jac`, which split it further

    def of(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """The key of this stream, for a run with that one."""
        return jax.random.fold_in(key, np.uint32(self))
