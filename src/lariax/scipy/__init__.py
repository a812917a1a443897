"""A front end for problems said in SciPy's words."""

from lariax.scipy._minimize import minimize

__all__ = ["minimize"]
