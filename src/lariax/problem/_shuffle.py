"""Random orders of the rows of a data set, computed place by place: nothing is sorted and nothing is kept.

A place is written as two digits (u, v), with u < a, v < b and a b just above the number of rows, and the digits are
shifted in turn by pseudo-random functions of each other (a Feistel network):

    u += F_0(v) mod a        v += F_1(u) mod b        u += F_2(v) mod a        ...

Every such step can be undone, so the whole is a permutation of the a b places. A place that is sent beyond the rows is
sent on until it arrives at one, which makes a permutation of the rows, uniform if the first one is.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

MOST_ROWS = 2**31 - 1
_CANDIDATES = 4096
_BITS = 16  # every two rounds divide what bias is left by the size of a digit, until it is 2^-16
_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: its multiples are far from each other


def shuffled(key: Key[Array, ""], epochs: Int[Array, " n"], places: Int[Array, "n k"], rows: int) -> Int[Array, "n k"]:
    """The rows at some places of the random orders of some epochs: each epoch has every row at exactly one place."""
    a, b = _digits(rows)
    words = jax.vmap(lambda epoch: jax.random.bits(jax.random.fold_in(key, epoch), (2,), jnp.uint32))(epochs)
    first, second = words[:, :1], words[:, 1:]

    def permuted(place: Array) -> Array:
        def two_rounds(i: Array, digits: tuple[Array, Array]) -> tuple[Array, Array]:
            u, v = digits
            salt = first + jnp.uint32(_GOLDEN) * (2 * i).astype(jnp.uint32)
            u = (u + _mixed(v + salt, second)) % a
            v = (v + _mixed(u + salt + jnp.uint32(_GOLDEN), second)) % b
            return u, v

        u, v = jax.lax.fori_loop(0, _rounds(rows) // 2, two_rounds, (place // b, place % b))
        return u * b + v

    return jax.lax.while_loop(
        lambda place: jnp.any(place >= rows),
        lambda place: jnp.where(place >= rows, permuted(place), place),
        permuted(places.astype(jnp.uint32)),
    ).astype(jnp.int32)


@functools.cache
def _digits(rows: int) -> tuple[int, int]:
    """a and b, of about the same size, with a b as little above the number of rows as can be: few places are sent on. a
    is even: shifts by an odd number of places are odd permutations then, without which half of all orders would be out
    of reach."""
    root = math.isqrt(rows - 1) + 1
    root += root % 2
    a = min(range(root, root + min(root // 2, _CANDIDATES), 2), key=lambda a: a * -(-rows // a))
    return a, -(-rows // a)


def _rounds(rows: int) -> int:
    """The smaller a digit, the more rounds it takes: 8 from 100,000 rows on, 36 for a handful."""
    return 2 * (2 + math.ceil(_BITS / math.log2(max(2, _digits(rows)[1]))))


def _mixed(number: Array, word: Array) -> Array:
    """31 bits, to which a digit can be added without overflow. They depend on all bits of the number and on a random
    word: the steps of a well-known hash (lowbias32), with the word in the middle."""
    number = (number ^ (number >> 16)) * jnp.uint32(0x7FEB352D) + word
    number = (number ^ (number >> 15)) * jnp.uint32(0x846CA68B)
    return (number ^ (number >> 16)) >> 1
