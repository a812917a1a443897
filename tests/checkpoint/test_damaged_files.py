"""Inputs that are wrong in ways that nobody thought of: each is used, or refused in words."""

import contextlib
import copy
import hashlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lariax as lx
from lariax.checkpoint._archive import DIGEST, MAGIC, PREFIX, VERSION
from lariax.loop._resume import restored
from lariax.loop._saved import saved_in

START = len(MAGIC) + PREFIX.size
FORBIDDEN = (
    "compile",
    "exec",
    "import",
    "marshal.loads",
    "open",
    "os.",
    "pickle.",
    "shutil.",
    "socket.",
    "subprocess.",
)

problem = lx.Problem(
    lambda x: jnp.sum(x["a"] ** 2) + x["b"] ** 2, constraints={"sum": lx.Equal(lambda x: x["a"][0], samples=None)}
)
x0 = {"a": jnp.ones(2), "b": jnp.array(2.0)}
method = lx.QuadraticPenalty(step_size=0.1)


class Watch:
    """Notes what the interpreter is made to do, while it is on."""

    def __init__(self):
        self.on, self.seen = False, []
        sys.addaudithook(self._hear)

    def _hear(self, event, arguments):
        if self.on and event.startswith(FORBIDDEN):
            self.seen.append((event, arguments))

    def __enter__(self):
        self.on = True

    def __exit__(self, *_):
        self.on = False
        assert self.seen == []


@pytest.fixture(scope="module")
def watch():
    return Watch()


class Opened:
    """A checkpoint taken apart."""

    def __init__(self, content):
        self.header, self.arrays = parts(content)
        self.paths = list(places(self.header))

    def changed(self, changes):
        """Parts replaced, removed, or put where another was; the checksum is right."""
        header = copy.deepcopy(self.header)
        for kind, where, other, value in changes:
            path = self.paths[1 + where % (len(self.paths) - 1)]
            with contextlib.suppress(KeyError, IndexError, TypeError):  # it has just been removed
                spot, key = at(header, path[:-1]), path[-1]
                if kind == "remove":
                    del spot[key]
                else:
                    new = value if kind == "replace" else at(self.header, self.paths[other % len(self.paths)])
                    spot[key] = copy.deepcopy(new)
        return sealed(header, self.arrays)


@pytest.fixture(scope="module")
def opened(file):
    return Opened(file)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A checkpoint with everything in it: history, looks, a picked point."""
    folder = tmp_path_factory.mktemp("run")
    lx.solve(problem, x0, method, iterations=40, output="best", tolerance=1e-9, checkpoint=folder)
    lx.resume(folder, problem, iterations=1000, callback=lambda s: s.iteration >= 1005)
    content = max(folder.iterdir()).read_bytes()
    assert saved_in(content).run.checks.best is not None
    return content


def sealed(header, data):
    text = json.dumps(header).encode()
    body = MAGIC + PREFIX.pack(VERSION, len(text)) + text + data
    return body + hashlib.sha256(body).digest()


def parts(content):
    length = PREFIX.unpack(content[len(MAGIC) : START])[1]
    return json.loads(content[START : START + length]), content[START + length : -DIGEST]


def places(value, path=()):
    """All paths to something in a value of JSON."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 2**31, 10**30, 0.5, float("nan"), float("inf"), -0.0])
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["os.system", "builtins.eval", "lariax.loop._saved.Saved", "lariax.methods._base.AbstractMethod"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["array", "class", "fields", "dict", "list", "tuple", "scalar", "bytes", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["replace", "remove", "copy"]), st.integers(0), st.integers(0), JSON),
    min_size=1,
    max_size=3,
)


class TestCheckpoints:
    def test_any_bytes_changed(self, file, watch, random_inputs):
        @random_inputs(200)
        @given(where=st.integers(0), drop=st.integers(0, 50), insert=st.binary(max_size=20), cut=st.booleans())
        def check(where, drop, insert, cut):
            place = where % len(file)
            content = file[:place] + insert + (b"" if cut else file[place + drop :])
            with watch, contextlib.suppress(lx.CheckpointError):
                saved_in(bytes(content))
                assert bytes(content) == file

        check()

    def test_any_bytes(self, watch, random_inputs):
        @random_inputs(60)
        @given(content=st.binary(max_size=200), begins=st.booleans())
        def check(content, begins):
            with watch, pytest.raises(lx.CheckpointError):
                saved_in(MAGIC + content if begins else content)

        check()

    def test_any_content_changed_by_one_who_knows_the_format(self, opened, watch, random_inputs):
        @random_inputs(200)
        @given(changes=CHANGES)
        def check(changes):
            content = opened.changed(changes)
            with watch, contextlib.suppress(lx.CheckpointError):
                saved_in(content)

        check()

    def test_what_can_be_read_fits_the_problem_or_is_refused(self, opened, random_inputs):
        """As far as the start of the run; numbers that are only other numbers (a budget) are taken."""

        @random_inputs(40)
        @given(changes=CHANGES)
        def check(changes):
            content = opened.changed(changes)
            with contextlib.suppress(lx.CheckpointError, lx.LariaxWarning):
                run = restored(saved_in(content), problem, None, None)
                assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.loop.state))
                assert len(run.history.history) == len(run.history.history["iteration"])

        check()

    def test_deep_nesting_is_no_way_in(self, file):
        header, arrays = parts(file)
        text = json.dumps(header).replace('"content": {', '"content": ' + '{"list": [' * 20_000 + "{", 1)
        body = text.encode()
        body = MAGIC + PREFIX.pack(VERSION, len(body)) + body + arrays
        with pytest.raises(lx.CheckpointError, match="makes no sense"):
            saved_in(body + hashlib.sha256(body).digest())

    def test_a_shape_cannot_ask_for_memory(self, file):
        header, arrays = parts(file)
        for shape in ([2**40, 2**40], [2**62], [-1, -8], [True], ["3"], [0, 2**63]):
            header["arrays"][0]["shape"] = shape
            with pytest.raises(lx.CheckpointError):
                saved_in(sealed(header, arrays))


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 3, 2**31, 10**30, 0.0, -0.5, 0.5, float("nan"), float("inf"), 1e-300, "", "3", "last"]),
    st.sampled_from([np.int64(2), np.float32(0.5), np.ones(2), [1], {}, (1, 2), b"x", object(), jnp.ones(2), len]),
    st.text(max_size=4),
)
BUDGETS = ("iterations", "draws", "seconds")
OPTIONS = st.dictionaries(
    st.sampled_from(
        ["batch_size", "seed", "output", "tolerance", "confidence", "record_every", "method", "checkpoint"]
    ),
    JUNK,
    max_size=3,
)


def is_clear(error):
    """In the words of Lariax: a sentence, and not what Python says of an operand."""
    text = str(error)
    return text.endswith(".") and len(text) > 20


class TestSettings:
    def test_of_a_run(self, tmp_path_factory, random_inputs):
        """Three iterations, or an error that can be understood."""

        @random_inputs(120)
        @given(options=OPTIONS, budgets=st.dictionaries(st.sampled_from(BUDGETS), JUNK, max_size=2))
        def check(options, budgets):
            budgets = {name: value for name, value in budgets.items() if not _is_long(value)} | {"iterations": 3}
            if isinstance(options.get("checkpoint"), str | bytes):
                options["checkpoint"] = tmp_path_factory.mktemp("run")
            try:
                result = lx.solve(problem, x0, **{"method": method} | options | budgets)
            except (TypeError, ValueError) as error:
                if not is_clear(error):
                    raise
            else:
                assert result.iterations <= 3

        check()

    def test_of_a_checkpoint(self, random_inputs):
        @random_inputs(60)
        @given(every=JUNK, keep=JUNK, folder=JUNK)
        def check(every, keep, folder):
            try:
                made = lx.Checkpoint(folder, every=every, keep=keep)
            except (TypeError, ValueError) as error:
                if not is_clear(error):
                    raise
            else:
                assert made.every >= 0
                assert made.keep >= 1

        check()


def _is_long(value):
    return isinstance(value, int | float) and value > 100
