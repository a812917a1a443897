"""What a run returns: the answer, how it ended, what it cost, and its history."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from lariax.certificate import DRAWS, Certificate, certify, certify_run, draws_for_run, judged_risks
from lariax.inference import Inference, InferenceError, RandomScaling, infer_run
from lariax.loop._gradient import objective_gradient
from lariax.loop._history import History
from lariax.loop._randomness import Randomness
from lariax.loop._state import RunState
from lariax.loop._table import Rows, as_html, as_rich, as_text, summary
from lariax.problem import Problem, Stream, arrays_of
from lariax.risk import Lift
from lariax.utils import page

STATUSES = {
    "stationary": "The point is certified to be feasible and stationary within the tolerance.",
    "budget": "The budget is spent. Continue with lx.solve(problem, result, iterations=...) if you want more accuracy.",
    "interrupted": "The run was stopped from outside. Continue it with lx.solve(problem, result, iterations=...).",
    "source_ended": "The Stream gives no more rows. Give it more, or repeat=True, and start again from result.x.",
    "infeasible_stationary": "The constraints cannot all hold near x: no step lowers their violation, and no point "
    "that was tried around x has a lower one. Relax a bound, drop a constraint, or start elsewhere.",
    "unbounded": "The objective falls without end in the direction of x, as far as it was followed. Bound x by "
    "within=, or add the constraint that is missing.",
    "stalled": "The run no longer gets on, and more iterations will not help. Start from another point, take a larger "
    "batch_size, or scale the functions to order one.",
    "diverged": "The iterates left the range of floating point; x is the last sound point. Lower the step size or the "
    "penalty, scale the constraints to order one, or bound x by within=.",
}
"""How a run can end, and what to do next."""

FAILURES = ("infeasible_stationary", "unbounded", "stalled", "diverged")
"""The ends after which more of the same will not help."""

_ORDER = tuple(STATUSES)


def outcome(status: str) -> int:
    return _ORDER.index(status)


class Result(eqx.Module):
    """The answer of `solve`.

    Attributes:
        x: the point, in the structure of x0; of a module, the module with its new arrays.
        multipliers: by constraint name, with L = f + sum y . c: >= 0 for `AtMost`, <= 0 for `AtLeast`.
        status, message: how the run ended, one of `lariax.STATUSES`, and what to do next.
        doubt: of a run whose budget is spent, what its end says against x, of constraints, the gradient of the
            Lagrangian, multipliers or a way on; "" where it says nothing. It is part of the message.
        success: whether the run ended as it should. With tolerance=: the point is certified to be that good. Without:
            nothing ended the run but its budget, its rows or its user, there is no `doubt`, and the certificate finds
            no fault with the point (`certificate.fault`): no constraint is surely violated, on samples or held out, and
            the point is not surely away from a solution. Asking for it makes the certificate. Never true of a point
            that is not finite, nor of one that is surely infeasible, nor where no certificate can be made.
        nit, nfev, jac: for those who come from SciPy: iterations, evaluations, and the gradient of the objective at x
            (with samples its mean over 4,096 fresh ones, or over all rows of a data set that has no more).
        fun: the objective at x: that of the certificate made during the run, or the mean over the last tenth of the
            history, at points near x. `certificate.objective` has an interval.
        iterations, draws, evaluations, seconds: what it cost. Draws count every sample once, evaluations every call of
            a function on a sample, seconds all the time from the call to the answer, compiling included (and of the
            runs that this one continues).
        history: a table, see `History`.
        risk: by name, of an objective or constraint that is a risk (`lx.risk`), what was found beside x: the value at
            risk of a CVaR, say. The objective's name is "objective".
        error: what a `Stream` raised, if that is what ended the run; the answer so far is returned all the same.
        certificate: what is known of x, see `Certificate`. With tolerance= or output="best" it is the one made during
            the run; otherwise it is made when first asked for, and kept: from all rows of a data set that has no more
            than the run has drawn, else from fresh draws, a quarter as many as the run's (10,000 at least), which are
            not counted. The run's own multipliers are judged, and fitted ones only where those are refuted. A bad point
            has one like any other, which says so. There is none, and a ValueError that says what to do, where there is
            nothing to judge by: of a run that was traced, and of a `Stream` without rows left.

    >>> import jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> result = lx.solve(problem, jnp.zeros(2), iterations=200)
    >>> result.x.round(2).tolist(), round(float(result.multipliers["sum"]), 2), result.status
    ([0.5, 0.5], 1.0, 'budget')
    """

    x: PyTree[Array]
    multipliers: dict[str, Array]
    iterations: Any
    draws: Any
    evaluations: Any
    seconds: Any
    history: History
    outcome: Any
    choice: str = eqx.field(static=True)
    continuation: RunState | None = eqx.field(static=True)
    certified: Certificate | None = eqx.field(static=True, default=None)
    remarks: tuple[str, ...] = eqx.field(static=True, default=())
    error: Exception | None = eqx.field(static=True, default=None)
    has_tolerance: bool = eqx.field(static=True, default=False)
    doubt: str = eqx.field(static=True, default="")
    risk: dict[str, dict[str, Array]] = eqx.field(default_factory=dict)
    lifted: PyTree[Array] | None = None  # x with the numbers that its risks need
    lift: Lift | None = eqx.field(static=True, default=None)  # what these are

    def with_risks(self, lift: Lift) -> "Result":
        """In the words of a problem with risks."""
        words = dataclasses.replace(self, x=self.x["x"], risk=lift.told(self.x), lifted=self.x)
        if self.continuation is None:
            return words
        return dataclasses.replace(words, lift=lift, remarks=(*self.remarks, *lift.doubts(words.x)))

    @property
    def point(self) -> PyTree[Array]:
        """All that was sought: x, and with risks the numbers beside it."""
        return self.x if self.lifted is None else self.lifted

    @cached_property
    def certificate(self) -> Certificate:
        if self.continuation is None:
            raise ValueError("a run that was traced (jit, vmap) has no certificate. Use lx.certify(problem, result.x).")
        problem, key = self.continuation.oracle.problem, Randomness.CERTIFICATE.of(self.continuation.loop.key)
        draws = draws_for_run(problem, int(self.draws))
        if self.certified is None:
            found = certify_run(self._unseen(problem, draws), self.point, self.multipliers, draws, seed=key).certificate
            return found if self.lift is None else judged_risks(found, self.lift, self.x, draws, key)
        if not problem.has_heldout:
            return self.certified
        beside = certify(problem, self.point, self.certified.multipliers, draws, seed=key, on="heldout")
        return dataclasses.replace(self.certified, heldout=beside)

    def inference(
        self, confidence: float = 0.95, draws: int | None = None, method: str | RandomScaling = "sandwich"
    ) -> Inference:
        """Error bars for the answer and for the multipliers, see `lx.inference`.

        Arguments:
            confidence: of each interval.
            draws: how many samples of each source to look at; by default all rows of a data set, and of a distribution
                as many fresh ones as the run has drawn (10,000 at least), which are not counted.
            method: "sandwich", or an `lx.RandomScaling` that was the run's callback.
        """
        if self.continuation is None:
            raise ValueError("a run that was traced (jit, vmap) keeps no problem. Use lx.inference(problem, result.x).")
        if self.status in FAILURES:
            raise InferenceError(f"there are no error bars for a run that ended as {self.status!r}: {self.message}")
        problem, key = self.continuation.oracle.problem, Randomness.CERTIFICATE.of(self.continuation.loop.key)
        unseen = self._unseen(problem, DRAWS if draws is None else draws)
        return infer_run(unseen, self.point, self.multipliers, int(self.draws), draws, confidence, key, method)

    def _unseen(self, problem: Problem, draws: int) -> Problem:
        """The problem on samples that the run has not seen. The rows of a stream stay there, for the run to go on."""
        assert self.continuation is not None
        if any(isinstance(source, Stream) and source.repeat for source in problem.sources):
            return problem  # there are none; the certificate says what it is about
        unseen = self.continuation.setup.feeder.problem_ahead(problem, draws, give_up=lambda: False)
        if unseen is None:
            raise ValueError(
                "the Stream has too few rows left for a certificate. Give it more, or judge on other rows: "
                "lx.certify(another_problem, result.x)."
            )
        return unseen

    @property
    def fun(self) -> Any:
        if self.certified is not None:
            return self.certified.objective.estimate
        objective = self.history["objective"]
        mean = objective[..., -max(1, objective.shape[-1] // 10) :].mean(axis=-1)
        return float(mean) if isinstance(mean, np.floating) else mean

    @property
    def status(self) -> Any:
        if isinstance(self.outcome, jax.core.Tracer):
            raise ValueError(
                "the status is not known while the run is being traced; look at it outside of vmap and jit."
            )
        if np.ndim(self.outcome):
            return np.asarray(_ORDER)[np.asarray(self.outcome)]
        return _ORDER[int(self.outcome)]

    @property
    def message(self) -> str:
        help_ = f"Help: {page('ends')}." if self.status in FAILURES else ""
        return " ".join(part for part in (STATUSES[self.status], self.doubt, *self.remarks, self.choice, help_) if part)

    @property
    def success(self) -> bool:
        if np.ndim(self.outcome) or self.status in (*FAILURES, "stationary"):
            return bool(np.all(self.status == "stationary"))
        if self.has_tolerance or self.error is not None or self.doubt:
            return False
        try:
            return self.certificate.fault is None
        except ValueError:  # there is nothing to judge by
            return False

    @property
    def nit(self) -> Any:
        return self.iterations

    @property
    def nfev(self) -> Any:
        return self.evaluations

    @cached_property
    def jac(self) -> PyTree[Array]:
        if self.continuation is None:
            raise ValueError("a run that was traced (jit, vmap) keeps no problem: use jax.grad on the objective.")
        key = Randomness.CERTIFICATE.of(self.continuation.loop.key)
        slope = objective_gradient(self.continuation.oracle.problem, arrays_of(self.point), key)
        return slope if self.lifted is None else slope["x"]

    def plot(self, against: str = "draws") -> Any:
        """A matplotlib figure of the history against draws, seconds or iterations: the charts of `lariax report`. The
        certificate is in it if it has been made."""
        return _front_end["plot"](self, against)

    @property
    def headline(self) -> str:
        """How it ended and what it cost; of runs under vmap, how many ended how."""
        if np.ndim(self.outcome):
            counts = Counter(np.ravel(self.status).tolist())
            return ", ".join(f"{count} of {np.size(self.outcome)} runs: {status}" for status, count in counts.items())
        return f"{self.status} after {self.iterations:,} iterations, {self.draws:,} draws, {self.seconds:.2f} s"

    def _rows(self) -> Rows:
        leaves = jax.tree_util.tree_leaves_with_path(arrays_of(self.x))
        answer = [("x", jax.tree_util.keystr(path), summary(leaf)) for path, leaf in leaves]
        return answer + [("multipliers", name, summary(y)) for name, y in self.multipliers.items()]

    def _notes(self) -> list[str]:
        return [] if np.ndim(self.outcome) else [self.message]

    def __repr__(self) -> str:
        return as_text(self.headline, self._rows())

    def __rich__(self) -> Any:
        return as_rich(self.headline, self._rows(), *self._notes())

    def _repr_html_(self) -> str:
        return as_html(self.headline, self._rows(), *self._notes())


_front_end: dict[str, Callable[..., Any]] = {}


def plot_by(plot: Callable[[Result, str], Any]) -> None:
    """How `result.plot()` draws: told by `lariax` itself, since this layer knows no front end."""
    _front_end["plot"] = plot
