"""What every entry promises, and the words around it."""

import sys
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lariax import gallery

NAMES = gallery.names()


@pytest.mark.parametrize("name", NAMES)
def test_entries_state_what_they_are(name):
    function = getattr(gallery, name)
    assert name in gallery.__all__
    for section in ("Scale:", "Check:"):
        assert section in function.__doc__


def test_unknown_names_and_options_are_explained():
    with pytest.raises(ValueError, match=r"no entry 'fairnes'. Did you mean 'fairness'\?"):
        gallery.load("fairnes")
    with pytest.raises(TypeError, match=r"portfolio has no option 'asset'. Did you mean 'assets'\?"):
        gallery.load("portfolio", asset=3)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("cutest", "out_of_distribution")])
def test_entries_come_in_the_precision_of_jax(name):
    """Without its 64-bit mode: in float32, and without a warning."""
    with jax.enable_x64(False):
        case = gallery.load(name)
        assert {leaf.dtype for leaf in jax.tree.leaves(case.x0)} == {jnp.dtype("float32")}


def test_hyphens_are_as_good():
    assert gallery.load("chance-constraint").name == "chance_constraint"


def test_adult_is_whole():
    from lariax.gallery._tables import embedded

    table = embedded("adult")
    training = table["split"] == "train"
    assert (training.sum(), (~training).sum()) == (32_561, 16_281)
    np.testing.assert_allclose(table["income_gt_50k"][training].mean(), 7841 / 32_561)  # as the repository says


CSV = """age,colour,score,name
30,red,1,a
,blue,0,b
50,red,0,c
41,blue,1,d
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(CSV + "".join(f"{20 + i},{'red' if i % 3 else 'blue'},{i % 2},x\n" for i in range(60)))
    return path


def test_a_table_of_ones_own(table):
    case = gallery.fairness(data=table, target="score", sensitive="colour", group="red", without=("name",))
    rows = case.problem.samples.arrays
    assert len(rows["label"]) + len(case.problem.heldout) == 64
    np.testing.assert_allclose(rows["contrast"].mean(axis=0), 0, atol=1e-12)  # a gap of a constant is 0
    age = gallery.fairness(data=table, target="score", sensitive="score", group=1, without=("name", "age"))
    assert age.problem.samples.arrays["input"].shape[1] == 3  # two colours and the intercept


WRONG = {
    "no such file": ({"data": "nowhere.csv", "target": "a", "sensitive": "b", "group": "c"}, "no file nowhere.csv"),
    "columns not named": ({"data": "people.csv"}, "give target=, sensitive=, group="),
    "no such criterion": ({"criterion": "parity"}, "one of 'demographic parity'"),
    "no such model": ({"model": "forest"}, "'linear' or 'network'"),
    "all rows for the constraint": ({"own_rows": 1.0}, "below 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_explained(case):
    options, words = WRONG[case]
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        gallery.fairness(**options)


def test_wrong_tables_are_explained(table):
    with pytest.raises(ValueError, match="has no column 'sex'; it has age, colour"):
        gallery.fairness(data=table, target="score", sensitive="sex", group="f")
    with pytest.raises(ValueError, match="every one, is in group 'green'"):
        gallery.fairness(data=table, target="score", sensitive="colour", group="green")
    table.write_text("a,b\n1\n")
    with pytest.raises(ValueError, match="row 2 has 1 entries, the header has 2"):
        gallery.fairness(data=table, target="a", sensitive="b", group=1)


def test_missing_images_and_problems_are_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a NumPy archive"):
        gallery.out_of_distribution(tmp_path / "mnist.npz")
    np.savez(tmp_path / "half.npz", x_train=np.zeros(3))
    with pytest.raises(ValueError, match="lacks y_train, x_test, y_test"):
        gallery.out_of_distribution(tmp_path / "half.npz")
    with pytest.raises(ValueError, match="graph must be 'grid'"):
        gallery.consensus(agents=7)
    with pytest.raises(ValueError, match=r"randomness must be above 0 and below 0\.289"):
        gallery.diffusion_control(randomness=0.3)


@pytest.mark.skipif(find_spec("sif2jax") is None, reason="sif2jax is not installed: pip install 'lariax[cutest]'")
def test_problems_of_cutest_are_imported_one_by_one():
    assert gallery.cutest("hs6").x0.shape == (2,)
    assert "sif2jax" not in sys.modules  # importing all of it takes a minute
    with pytest.raises(ValueError, match="offers no problem 'NOSUCH'"):
        gallery.cutest("NOSUCH")
    with pytest.raises(ValueError, match="offers no problem"):
        gallery.cutest("../evil")


def test_cutest_without_its_package_is_explained(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install sif2jax"):
        gallery.cutest()
