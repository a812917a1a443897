"""SciPy's constraint, told by what it bounds: the names of tests must not hold addresses."""

from scipy.optimize import NonlinearConstraint


class ReadableConstraint(NonlinearConstraint):
    def __repr__(self):
        return f"NonlinearConstraint({self.fun.__name__}, {self.lb}, {self.ub})"
