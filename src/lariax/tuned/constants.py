"""Every number in the self-tuned method, with its reason, and where it was measured.

"The page" is docs/theory/self-tuned.md. Numbers without a measurement were set by hand: the suite is solved with them,
and they were not varied one by one.
"""

# --- running means, and when something is measured

WINDOW = 100
"""Iterations that a running mean looks back on, at most,"""

FIRST_WINDOW, GROWTH = 2, 5
"""from FIRST_WINDOW in the first iteration on, growing by one every GROWTH iterations."""

MEASURED_FIRST = 256
"""So many iterations measure noise, drift and curvature, each of them. With 64, 5 of 32 seeds of `tanhB` were thrown
far off before the 256th (the page, "Steps, penalty, multipliers")."""

INTERVALS = {
    MEASURED_FIRST: 4,
    4 * MEASURED_FIRST: 16,
    16 * MEASURED_FIRST: 64,
    64 * MEASURED_FIRST: 256,
}
"""From these iterations on, one in so many measures: a measurement costs three more backward passes. On Adult, 132,000
iterations, six seeds kept their constraints to 0.006 by one in 256 (the page)."""

*_, (SETTLED, RARELY) = INTERVALS.items()

CURVATURE_CATCH_UP = 16
"""Running means of drift and curvature forget by iterations, not by measurements, up to this interval: late in a run
they change slowly, and more measurements are averaged."""

NOISE_CATCH_UP = 2
"""Likewise for the gradient's noise, which is averaged for longer. Over twelve measurements it was so uncertain that
good estimates counted as lost: the biased problem ended at 7 times the limit for one seed of 16 (the page)."""

REFRESH_GROWTH = 4
"""The iteration of a refresh grows by one part in so many from one to the next."""

START_SAMPLES, REFRESH_SAMPLES = 16, 64
"""Samples that the start wants to see, and that a refresh looks back on."""

# --- filters

LOST = 3.0
"""An innovation above LOST times the noise, plus P, says that the estimate is lost."""

OUTLIER = 10.0
"""This many times what is usual, or explained, is something else: an innovation, a jump, a gradient, a curvature."""

# --- the curvature

CURVATURE_RATE, SECANT_RATE = 0.1, 0.02
"""Least rates of the running means of ||D||^2 / ||dx||^2, with fixed weights and with weights that follow the step."""

SECANT_SHARE = 0.1
"""The secant bound trusts a mean slope of no less than this share of the root mean square."""

FORGET, FORGET_FAST, SETTLING = 0.5, 5.0, 20
"""A maximum L is forgotten at FORGET / (k + SETTLING) an iteration, at FORGET_FAST where it is an outlier. Jumps and
the path along which they are counted are forgotten at FORGET_FAST too, which is over the last fifth of a run."""

KINKED = 2.0
"""Gradients answer to steps by jumps if what jumps is more than KINKED times what measurements show."""

EIGENVALUE_SHARE = 0.5
"""L is no less than this share of the largest eigenvalue that products with the Hessian show: steps are stable from a
third on. Without it `q1e4` in units of a factor of 4 went from the limit to 1e30 within 256 iterations (the page)."""

LEAST_CURVATURE = 1e-3
"""At the start L is no less than this times ||grad f|| / (1 + ||x||): a step is no longer than a thousand times x."""

PROBE = 100.0
"""The start's probe of the curvature is PROBE sqrt(eps) (1 + ||x||) long: rounding is a hundredth of what it shows."""

REAL_STEP, REAL_ROUNDING = 1e-12, 10.0
"""A step shorter than REAL_STEP, or REAL_ROUNDING eps, times 1 + ||x|| is rounding and shows no curvature."""

# --- penalty, multipliers, steps

MULTIPLIER_LIMIT = 4.0
"""||J^T y|| stays below this many times the recent maximum of ||grad f||. It was 10 before late escapes were traced."""

PENALTY_LIMIT = MULTIPLIER_LIMIT / 2
"""||J^T rho M u|| likewise."""

LINEAR_CURVATURE = 1.0
"""L is no less than this many times ||grad f|| over the length of x: linear functions have no curvature, and were L
forgotten, steps would grow for ever and rho would vanish. With 0.1, 26 of 32 linear programs were solved, now 31."""

FARTHEST = 1e6
"""From this length of x on, steps along a linear function no longer grow with it."""

SLOPE_SHARE = 1e-2
"""The gradient of a row counts for at least this part of the longest that the row has had of late: where it vanishes,
as that of x.x at 0, neither penalty nor multiplier has anything to press on, however large it is."""

LEAST_PENALTY = 0.02
"""rho is at least this share of f's curvature at the start: a start at a minimum of f has no gradient to measure by,
and has to be left. It is this share of it where f is constant, and L forgotten."""

GRADIENT_MEMORY = 0.8
"""What is left, from refresh to refresh, of the maximum of ||grad f||^2."""

KAPPA = 0.1
"""The noise that a penalty or a step may add, relative to the noise that averaging leaves. It costs a factor of
1 / (1 - kappa) in variance, 5 % of the error."""

EARLY_NOISE, EARLY = 4.0, 1000
"""In the first EARLY iterations, about, steps may be noisier by this many times KAPPA more: arriving comes before
averaging."""

MOST_SIGNAL = 1e6
"""A gradient or violation that stands out from its error by more counts for no more."""

SIGNAL_ERRORS = 4.0
"""A violation stands out if its square is more than so many variances."""

FIRST_THETA, THETA_RATE = 0.1, 0.02
"""theta starts small, and changes by at most 2 % an iteration."""

LEAST_THETA, REFUSED_THETA = 1e-4, 1e-8
"""theta as long as steps are taken, and after refused ones."""

BACK_OFF = 4.0
"""What theta is divided by when a step is refused."""

LAG = 4.0
"""With one backward pass the gradient's mean may lag behind the steps by no more than 1 / (LAG theta) of them."""

ONE_BACKWARD_POWER = -2 / 3
"""and theta <= (1 + k / WINDOW)^this: noise that is not averaged away moves x."""

RARE = 0.1
"""Adam's metric: entries with less than this share of the mean rms move alike, since a rare gradient bends the more
when it comes."""

# --- the shape of the penalty

WHITEN_ROWS, WHITEN_ENTRIES = 256, 2**24
"""With more constraint rows than this, or a Jacobian of more entries, the shape is diagonal and matrix-free."""

SMALL = 16
"""Matrices of up to so many rows are multiplied entry by entry, which a compiler fuses with what is around."""

REDUNDANT = 1e-3
"""Eigenvalue of the row-scaled Gram matrix below which rows count as dependent: no multiplier acts along them."""

PIVOT = 1e-3
"""What is added to a Gram matrix before it is factored, in units of REDUNDANT."""

EIGENVALUE_NOISE = 4.0
"""Eigenvalues count for at least so many times their noise."""

MOVED = 4.0
"""A Jacobian that differs from its average by more than so many variances has moved, and the average is opened."""

CERTAIN = 1e-14
"""A Jacobian row whose variance is below this share of its square is known exactly."""

SURE = 3.0
"""Standard errors by which a multiplier stands out from 0, or a value is below its bound, to be sure of it."""

FACE_REACH = 1e-3
"""A step of this part of the length of x shows which face of a set x is on."""

FACE_SHARE = 1e-2
"""On a face of a set, rows of J count for what is left of them along it, and for this part of their squares, lest one
that is all but across it be pressed without end. Without, two circles on simplexes were circled around for ever
(fuzz 1/252, 20/302)."""

PSEUDOINVERSE = {"float64": 1e-10, "float32": 1e-5}
"""Relative singular values that count as 0 in the Schur complement."""

PROBES = 8
"""Random directions, and power steps, behind a diagonal shape."""

# --- units of x

BALANCING_ROUNDS = 4
"""Rounds of balancing at the start, each from what the one before it left: errors of 1e6 are gone after three."""

UNIT_OFF = 2.0
"""Later on a scale is changed only if it is off by more than this: every change disturbs what is averaged."""

STEEP = 1e3
"""An entry whose gradient is so much larger than others, in balanced units, has too little curvature to go by."""

SILENT = 1e-20
"""A variance that is less than this part of the mean square is rounding."""

FLAT_SLOPE, FLAT_DIAGONAL = 100.0, 10.0
"""A gradient, and an entry of the Hessian's diagonal, below this many eps of the largest is rounding."""

HELD_PULL = 1.0
"""At an entry that a bound holds, no constraint that presses pulls more than so many times as much as at all that are
free: pressure there moves nothing, and would use up what multipliers may bring (MULTIPLIER_LIMIT, which this has to be
well below). With a flat variable at a side of a box a run ended 9 away from the solution."""

DIAGONAL_LOOKS = 8
"""Looks over which the diagonal is averaged: an entry that few samples move is not seen at each."""

DIAGONAL_FALL = 30.0
"""By which it may fall at once: far from the solution the curvature may have been of another order."""

# --- kinks

JUMPY_SAMPLES, MOST_JUMPY = 3.0, 16.0
"""Of the samples of the last refreshes, so many whose gradients jump are no accident: iterates are averaged. More than
MOST_JUMPY count for no more, and are forgotten after eight refreshes."""

STILL_JUMPY = 1.0
"""As long as there are so many, an average goes on: a few refreshes may see few jumps by chance."""

FIRST_JUMP = 0.1
"""Of the length of x, over which the start looks for jumps; over all of it where the objective has no curvature at all,
and is linear, or made of linear pieces."""

JUMP_STEPS, JUMP_PART, JUMP_RATIO = 4.0, 8.0, 4.0
"""A gradient jumps if over so many steps it changes by JUMP_PART * JUMP_RATIO times more than over a JUMP_PART of that:
a smooth one would change by JUMP_PART times more."""

JUMP_ROUNDING = 1e3
"""Changes of gradients below so many eps of them are rounding."""

CURVATURE_LOOKS = 5
"""L is the mean over so many looks, about, of the largest eigenvalue."""

MIXED, MIXED_EARLY, MIXING_RATE = 0.5, 0.25, 2.0
"""Steps are so long that x is called back 2 / MIXED times within a run: few enough to cross little of what is not
linear, enough to forget where it came from; 2 / MIXED_EARLY times in the first EARLY iterations, about. theta follows
like k^MIXING_RATE, and up to 1 + ARRIVING_POWER times as fast where x goes one way. With 0.25 and 0.1 a CVaR portfolio
ended at 3.6 limits after 10,000 draws, 3.2 of them bias, since a convex constraint is larger in the mean of the
iterates than at their mean; with 0.5 and 0.25 at 2.1."""

OFF = 4.0
"""In variances of a mean of that many iterates: where averages violate the constraints by more, multipliers are on
their way, and steps grow, however often x comes back. A bounded chance stood still at 15 limits in one run of 8."""

AVERAGE_POWER, ARRIVING_POWER = 0.5, 4.0
"""Iterate j has the weight j^AVERAGE_POWER in an average, which costs 1/8 of the variance where iterates are
independent. On the way to a solution the power is higher by up to ARRIVING_POWER. With 2 instead of 0.5 a bad beginning
is forgotten sooner, but more noise is left: the least CVaR ends at 1.68 [3.8] limits instead of 2.06 [5.7] after 10,000
draws in batches of 4, and at 1.70 [3.0] instead of 1.41 [3.3] after 100,000 in batches of 16 (32 seeds)."""

# --- what is told

VIOLATED_ERRORS, VIOLATED_LENGTH = 5.0, 1e-3
"""A constraint is violated if it is off by so many standard errors, and by this share of the run's length."""

AT_LIMIT = 0.9
"""Multipliers of this share of MULTIPLIER_LIMIT are at it: then constraints are looked at more closely."""

KINK_GAIN, KINK_JUMPS = 30, 3
"""Jumps are worth a remark from KINK_JUMPS on, where k alpha, which is about 1 if all samples are averaged, is this."""
