"""What every entry promises, and the words around it."""

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


def test_hyphens_are_as_good():
    assert gallery.load("chance-constraint").name == "chance_constraint"


def test_adult_is_whole():
    from lariax.gallery._tables import embedded

    table = embedded("adult")
    training = table["split"] == "train"
    assert (training.sum(), (~training).sum()) == (32_561, 16_281)
    np.testing.assert_allclose(table["income_gt_50k"][training].mean(), 7841 / 32_561)  # as the repository says
