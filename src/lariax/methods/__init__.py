"""The methods, one file a family."""

from lariax.methods._base import AbstractMethod, Answer, State
from lariax.methods._quadratic_penalty import QuadraticPenalty

__all__ = ["AbstractMethod", "Answer", "QuadraticPenalty", "State"]
