"""Errors and commands link to pages that exist."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
import lariax.torch as lt
from lariax import runs
from lariax.sklearn import ConstrainedClassifier, at_least
from lariax.utils import _pages

ROOT = Path(__file__).parents[2]
ROWS = np.eye(6), np.array([0, 1] * 3)


@pytest.mark.parametrize("topic", _pages.PAGES)
def test_pages_exist_with_their_headings(topic):
    path, _, place = _pages.page(topic).partition("#")
    text = (ROOT / path).read_text()
    headings = re.findall("^#+ (.*)", text, re.MULTILINE)
    headings = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
    assert not place or place in headings


@pytest.mark.parametrize(
    ("call", "kind", "topic"),
    [
        (lambda: lx.resume("no-such-folder"), lx.CheckpointError, "resume"),
        (lambda: runs.load("no-such-folder"), runs.RunFolderError, "folders"),
        (lambda: lx.solve(None, 0.0), TypeError, "start"),
        (lambda: lx.certify(lx.Problem(jnp.sum), jnp.zeros(2), on="test"), ValueError, "certificate"),
        (lambda: lx.Problem(jnp.sum, constraints=[lx.Equal(jnp.sum)]), TypeError, "problem"),
        (lambda: lx.Problem(jnp.sum, samples=np.zeros(3)), TypeError, "problem"),
        (lambda: lx.Multipliers({"cost": 1.0}), TypeError, "multipliers"),
        (lambda: lt.Multipliers({"cost": 1.0}), TypeError, "multipliers"),
        (lambda: ConstrainedClassifier({"recal": at_least(0.9)}).fit(*ROWS), ValueError, "promise"),
        (lambda: lx.minimize(jnp.sum, jnp.zeros(2), options={"gtol": 1.0}), TypeError, "scipy"),
    ],
)
def test_errors_name_the_page_that_helps(call, kind, topic):
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.__notes__ == [f"Help: {_pages.page(topic)}"]


def test_errors_of_the_users_functions_are_left_alone():
    def broken(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        lx.solve(lx.Problem(broken), 0.0, iterations=1)
    assert not hasattr(caught.value, "__notes__") or not any("Help" in note for note in caught.value.__notes__)
