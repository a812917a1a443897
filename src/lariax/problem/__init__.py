"""What is to be solved."""

from lariax.problem._blocks import Blocks
from lariax.problem._columns import fetched
from lariax.problem._constraints import SHARED, AbstractConstraint, AtLeast, AtMost, Equal, Proxy
from lariax.problem._describe import describe_shape, first_nonfinite, visible
from lariax.problem._linear import Linear, LinearSystem
from lariax.problem._meshes import (
    Axes,
    Home,
    RowShards,
    at_home,
    automatic,
    automatic_axes,
    cut_alike,
    home_of,
    is_sharded,
    mesh_of,
    on_mesh,
    splits_of,
)
from lariax.problem._modules import arrays_of, closed, opened
from lariax.problem._precision import narrowed, warn_of_float32
from lariax.problem._problem import Problem
from lariax.problem._sources import AbstractSource, Dataset, Distribution, Stratified, as_key, leading_axis
from lariax.problem._stream import Stream
from lariax.problem._units import probes, units

__all__ = [
    "SHARED",
    "AbstractConstraint",
    "AbstractSource",
    "AtLeast",
    "AtMost",
    "Axes",
    "Blocks",
    "Dataset",
    "Distribution",
    "Equal",
    "Home",
    "Linear",
    "LinearSystem",
    "Problem",
    "Proxy",
    "RowShards",
    "Stratified",
    "Stream",
    "arrays_of",
    "as_key",
    "at_home",
    "automatic",
    "automatic_axes",
    "closed",
    "cut_alike",
    "describe_shape",
    "fetched",
    "first_nonfinite",
    "home_of",
    "is_sharded",
    "leading_axis",
    "mesh_of",
    "narrowed",
    "on_mesh",
    "opened",
    "probes",
    "splits_of",
    "units",
    "visible",
    "warn_of_float32",
]
