"""Multipliers for a loop with its own optimizer, in plain numbers and in JAX."""

import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lariax as lx
from lariax.tuned import host, pressure
from lariax.tuned.pressure import Kind, emptied, empty, is_full, pooled, pressed, relaxed


def loop(multipliers, steps, noise=0.1, rate=0.01, bound=1.0, seed=0):
    """x relaxes to 2 - y, and E[value] = x: at the solution x = bound and y = 2 - bound."""
    rng, x = np.random.default_rng(seed), 0.0
    for _ in range(steps):
        y = multipliers.update({"c": (x + noise * rng.normal(), noise)}, objective=(1.0, noise))["c"]
        x += rate * (2 - y - x)
    return x, y


@pytest.mark.parametrize("constraint", [lx.AtMost(bound=1.0), lx.Equal(bound=1.0)], ids=["at most", "equal"])
def test_it_comes_to_rest_at_the_solution(constraint):
    x, y = loop(lx.Multipliers({"c": constraint}, steps=2000), 2000)
    assert abs(x - 1) < 0.05
    assert abs(y - 1) < 0.3


def test_without_a_number_of_steps_too():
    x, _ = loop(lx.Multipliers({"c": lx.AtMost(bound=1.0)}), 4000)
    assert abs(x - 1) < 0.1


def test_a_bound_that_holds_by_itself_has_no_multiplier():
    x, y = loop(lx.Multipliers({"c": lx.AtMost(bound=3.0)}, steps=1000), 1000)
    assert y == 0
    assert x > 1.9


def test_signs_of_the_three_kinds():
    kinds = {"most": lx.AtMost(bound=1.0), "least": lx.AtLeast(bound=3.0), "equal": lx.Equal(bound=3.0)}
    multipliers = lx.Multipliers(kinds, steps=300)
    for _ in range(100):
        weights = multipliers.update(dict.fromkeys(kinds, (2.0, 0.1)), objective=(1.0, 0.1))
    assert weights["most"] > 0
    assert weights["least"] < 0
    assert weights["equal"] < 0


def test_what_is_not_significant_moves_little():
    rng = np.random.default_rng(1)
    multipliers = lx.Multipliers({"c": lx.Equal(bound=0.0)}, steps=1000)
    weights = [multipliers.update({"c": (rng.normal(), 1.0)}, objective=(0.0, 1.0))["c"] for _ in range(1000)]
    assert max(np.abs(weights)) < 1.0  # units; a violation of one deviation of a value brings it to its limit


def test_a_violation_while_untrained_does_not_wind_up():
    """A learning curve that will be below the bound in the end, if straight in log k."""
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=2000)
    weights = []
    for k in range(1, 2001):
        value = 5 - 0.65 * math.log(k)  # below the bound from k = 470 on
        weights.append(multipliers.update({"c": (value, 0.05)}, objective=(1.0, 0.05))["c"])
    assert max(weights[300:]) < 0.1
    assert weights[-1] == 0


def swings(steps=1200, noise=0.1, rate=0.02):
    """Deviation from 0, over the last half, of a value whose *rate* follows the multiplier, which 1 balances."""
    rng, x, seen = np.random.default_rng(0), 0.0, []
    multipliers = lx.Multipliers({"c": lx.Equal(bound=0.0)}, steps=steps)
    for _ in range(steps):
        y = multipliers.update({"c": (x + noise * rng.normal(), noise)}, objective=(1.0, noise))["c"]
        x += rate * (1 - y)
        seen.append(x)
    return np.sqrt(np.mean(np.square(seen[steps // 2 :])))


def test_the_part_at_once_damps_what_a_sum_alone_makes_swing(monkeypatch):
    """A chain of two sums has no damping of its own."""
    assert swings() < 0.1
    monkeypatch.setattr(pressure, "PROMPT", 0.0)
    monkeypatch.setattr(pressure, "QUICK", 0.0)
    assert swings() > 0.3


def test_in_a_short_run_a_multiplier_grows_by_steps_not_by_shares_of_itself():
    """An optimizer with momentum answers late: what doubled in the meantime would be far beyond."""
    multipliers, weights = lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=60), []
    multipliers.look("c", (1.0, 1.0), (1.0, 1.0))  # a unit of 1
    for _ in range(60):
        weights.append(multipliers.update({"c": (2.0, 0.1)})["c"])
    later = [after - before for before, after in zip(weights, weights[5:], strict=False) if before > 2]
    assert len(later) > 10
    assert max(later) < 2  # in five steps


def test_a_state_of_another_version_is_refused():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=200)
    with pytest.raises(ValueError, match="version 1"):
        multipliers.load_state_dict({**multipliers.state_dict(), "version": 1})


def test_vectors_under_one_name():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=np.array([1.0, 3.0]))}, steps=200)
    for _ in range(100):
        weights = multipliers.update({"c": (np.array([2.0, 2.0]), np.array([0.1, 0.1]))}, objective=(1.0, 0.1))
    assert weights["c"][0] > 0
    assert weights["c"][1] == 0
    with pytest.raises(ValueError, match="bound has shape"):
        lx.Multipliers({"c": lx.AtMost(bound=np.ones(3))}).update({"c": np.ones(2)})


def test_states_go_through_json_to_the_same_bits():
    one = lx.Multipliers({"c": lx.AtMost(bound=1.0), "d": lx.Equal(bound=0.0)}, steps=500)
    rng = np.random.default_rng(2)
    values = [{"c": (1.2 + rng.normal(), 1.0), "d": rng.normal(size=2)} for _ in range(200)]
    for each in values[:100]:
        one.update(each, objective=(0.0, 1.0))
    other = lx.Multipliers({"c": lx.AtMost(bound=1.0), "d": lx.Equal(bound=0.0)}, steps=500)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for each in values[100:]:
        a, b = one.update(each), other.update(each)
        assert a["c"] == b["c"]
        assert (a["d"] == b["d"]).all()
    assert one.state_dict() == other.state_dict()
    with pytest.raises(ValueError, match="use the same names"):
        lx.Multipliers({"e": lx.AtMost(bound=1.0)}).load_state_dict(one.state_dict())


@pytest.mark.filterwarnings("ignore:the multiplier of 'b' has been at its limit")  # these values answer to nothing
@pytest.mark.parametrize("steps", [200, 900])
def test_jax_and_numpy_give_the_same_numbers(steps):
    kinds = {"a": lx.AtMost(bound=1.0), "b": lx.Equal(bound=np.array([0.0, 0.5])), "c": lx.AtLeast(bound=0.2)}
    rng = np.random.default_rng(0)
    multipliers, rule = lx.Multipliers(kinds, steps=steps), lx.multiplier_rule(kinds, steps=steps)
    state, update = rule.init({"a": 0.0, "b": np.zeros(2), "c": 0.0}), jax.jit(rule.update)
    errors = {"a": 0.1, "b": np.array([0.1, 0.2]), "c": 0.05}
    for k in range(200):
        values = {"a": 1.5 - 0.004 * k, "b": np.array([0.3, 0.4]), "c": 0.1}
        values = {name: value + errors[name] * rng.normal(size=np.shape(value)) for name, value in values.items()}
        if k % 50 == 0:
            multipliers.look("a", (1.0 + k, 0.5), (2.0 + k, 0.7))
        looks = {"a": ((1.0 + k, 0.5), (2.0 + k, 0.7))} if k % 50 == 0 else None
        expected = multipliers.update({name: (values[name], errors[name]) for name in values}, objective=(1.0, 0.1))
        squares = {name: np.square(error) for name, error in errors.items()}
        found, state = update(state, values, squares, 0.01, looks)
        for name in kinds:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("exact", [False, True], ids=["random", "exact"])
def test_the_rule_is_the_same_entry_by_entry_and_by_numbers(exact):
    kind, rng = Kind(True, exact), np.random.default_rng(3)
    states = [(host, relaxed(0.0), empty(0.0)), (np, relaxed(np.zeros(2)), empty(np.zeros(2)))]
    for _ in range(300):
        value = rng.normal() + 0.5
        for i, (xp, state, pool) in enumerate(states):
            residual = value if i == 0 else np.full(2, value)
            pool = pooled(xp, pool, residual, math.nan)
            if is_full(xp, pool, kind, 400.0):
                state, pool = pressed(xp, state, pool, kind, 400.0, 1.0, 3.0), emptied(pool)
            states[i] = xp, state, pool
    (_, numbers, _), (_, arrays, _) = states
    assert numbers.multiplier > 0
    for one, other in zip(numbers, arrays, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12)


def _after(value, haste, monkeypatch):
    """The multiplier after 400 values around `value`, of noise 0.1, and before them 100 around 0.1."""
    monkeypatch.setattr(pressure, "HASTE", haste)
    rng, multipliers = np.random.default_rng(5), lx.Multipliers({"c": lx.AtMost(bound=0.0)}, steps=1000)
    multipliers.look("c", (1.0, 1.0), (1.0, 1.0))
    for level in [0.1] * 100 + [value] * 400:
        multipliers.update({"c": (level + 0.1 * rng.normal(), 0.1)})
    return multipliers["c"]


def test_what_many_batches_have_shown_drives_a_multiplier_up_though_it_is_a_small_part_of_a_band(monkeypatch):
    usual = pressure.HASTE
    assert _after(0.03, usual, monkeypatch) > 1.5 * _after(0.03, 0.0, monkeypatch)


def test_a_multiplier_comes_down_without_haste(monkeypatch):
    usual = pressure.HASTE
    assert 0 < _after(-0.03, usual, monkeypatch) == _after(-0.03, 0.0, monkeypatch)


def test_an_exact_violation_is_weighed_at_once_as_an_augmented_lagrangian_does():
    """weight = multiplier + penalty r, penalty r = 3 units where r is as large as ever, from a tenth of the run on."""
    multipliers = lx.Multipliers({"c": lx.Equal(bound=0.0, samples=None)}, steps=1000)
    multipliers.look("c", (4.0, 1.0), (4.0, 1.0))  # a unit of 2
    for _ in range(30):
        multipliers.update({"c": 0.5})
    before, penalty, _ = multipliers.exactly("c")
    assert 0.5 * penalty == pytest.approx(3 * 2.0 * 30 / 100)
    multipliers.update({"c": 0.1})
    multiplier, penalty, _ = multipliers.exactly("c")
    assert multiplier == pytest.approx(before + penalty * 0.1 / (0.05 * 1000))  # as much for good after a twentieth
    assert multipliers["c"] == pytest.approx(multiplier + 0.1 * penalty)
    multipliers.steps = 60
    multipliers.update({"c": 0.5})
    assert 0.5 * multipliers.exactly("c")[1] == pytest.approx(3 * 2.0, rel=0.1)


@pytest.mark.parametrize("swing", [0.0, 0.5])
def test_what_swings_is_foreseen_less_well_than_noise_says(swing):
    rng, multipliers = np.random.default_rng(6), lx.Multipliers({"c": lx.AtMost(bound=0.0)}, steps=1000)
    for i in range(400):
        multipliers.update({"c": (swing * np.sin(i / 8) + 0.05 * rng.normal(), 0.05)})
    assert (multipliers.observe()["c/standard_error_ahead"] > 0.03) == (swing > 0)


def test_a_new_unit_does_not_move_a_multiplier():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=500)
    multipliers.look("c", (1.0, 1.0), (1.0, 1.0))
    for _ in range(100):
        before = multipliers.update({"c": (1.5, 0.1)})["c"]
    for _ in range(20):
        multipliers.look("c", (100.0, 1.0), (100.0, 1.0))
    assert multipliers["c"] == before > 0


def test_several_calls_at_once_have_the_bits_of_one_after_the_other():
    kinds = {"a": lx.AtMost(bound=1.0), "b": lx.Equal(bound=np.array([0.0, 0.5])), "c": lx.Equal(samples=None)}
    one, other = (lx.Multipliers(kinds, steps=700) for _ in range(2))
    rng, at = np.random.default_rng(4), 0
    values = {"a": rng.normal(size=800) + 1, "b": rng.normal(size=(800, 2)), "c": rng.normal(size=800)}
    while at < 800:
        count = min(int(rng.integers(1, 6)), 800 - at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # call 701 of 700
            for i in range(at, at + count):
                told = {name: (each[i], np.zeros(()) if name == "c" else math.nan) for name, each in values.items()}
                one.update(told)
            other.advance_by(count, {name: each[at : at + count] for name, each in values.items()})
        at += count
    assert one.state_dict() == other.state_dict()


def test_a_multiplier_moves_once_in_a_two_hundredth_of_all_calls():
    """The rule's arithmetic costs as much as ten calls that only add up."""
    multipliers, rng = lx.Multipliers({"c": lx.AtMost(bound=0.0)}, steps=2000), np.random.default_rng(7)
    found = [multipliers.update({"c": (1 + rng.normal(), 1.0)}, objective=(0.0, 1.0))["c"] for _ in range(600)]
    moves = np.flatnonzero(np.diff(found))
    assert (np.diff(moves) == 10).all()
    assert len(moves) > 50
    short = lx.Multipliers({"c": lx.AtMost(bound=0.0)}, steps=100)
    found = [short.update({"c": (1 + rng.normal(), 1.0)}, objective=(0.0, 1.0))["c"] for _ in range(40)]
    assert (np.diff(found)[20:] != 0).all()


# --- rough use


def test_what_is_not_finite_is_left_out_with_a_word():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=300)
    for _ in range(100):
        before = multipliers.update({"c": (2.0, 0.1)}, objective=(1.0, 0.1))
    with pytest.warns(RuntimeWarning, match="was not finite"):
        after = multipliers.update({"c": (math.nan, 0.1)})
    assert after == before
    assert multipliers.update({"c": (2.0, math.inf)}) == multipliers.update({"c": (1e200, 0.1)}) == before
    rule = lx.multiplier_rule({"c": lx.AtMost(bound=1.0)}, steps=300)
    state = rule.init({"c": 0.0})
    for _ in range(100):
        before, state = rule.update(state, {"c": 2.0}, {"c": 0.01})
    for mean, variance in ((jnp.nan, 0.01), (2.0, jnp.inf)):
        after, state = rule.update(state, {"c": mean}, {"c": variance})
        assert after["c"] == before["c"]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(state))


def test_a_constraint_that_nobody_measures_is_named():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0), "d": lx.AtMost(bound=1.0)})
    for _ in range(99):
        multipliers.update({"c": 0.5})
    with pytest.warns(RuntimeWarning, match="'d' has not been measured"):
        multipliers.update({"c": 0.5})
    assert multipliers["d"] == 0
    assert math.isnan(multipliers.values["d"].level)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_value_of_another_shape_is_refused(shape):
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0)})
    multipliers.update({"c": [0.5, 2.0]})
    with pytest.raises(ValueError, match="had values of shape"):
        multipliers.update({"c": np.full(shape, 0.5)})


def test_a_rare_class_that_no_look_at_gradients_has_met_does_not_blow_up_its_multiplier():
    """Where batches have no row of it, its constraint has no gradient: nothing is known of its length yet."""
    rng, multipliers = np.random.default_rng(0), lx.Multipliers({"c": lx.AtMost(bound=0.0)}, steps=1000)
    for k in range(600):
        if k in (0, 4, 8, 12, 18, 27, 41):
            multipliers.look("c", (1.0, 0.0), (1.2, 0.0))
        weight = multipliers.update({"c": 0.05 * (rng.uniform() < 0.05)})["c"]
    assert 0 < weight < 1e4
    multipliers.look("c", (1.0, 0.01), (1.2, 0.01))
    assert multipliers.observe()["c/unit"] < 40.0


def test_a_loss_that_has_no_gradient_leaves_a_multiplier_to_press():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=0.0)}, steps=200)
    multipliers.look("c", (0.0, 1.0), (0.0, 1.0))
    assert [multipliers.update({"c": (1.0, 0.1)})["c"] for _ in range(100)][-1] > 1


def test_a_bound_out_of_reach_is_said_with_the_multiplier_at_its_limit():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=2000)
    with pytest.warns(RuntimeWarning, match="at its limit"):
        weights = [multipliers.update({"c": (2.0, 0.1)}, objective=(1.0, 0.1))["c"] for _ in range(2000)]
    assert weights[-1] == pytest.approx(30.0)


def test_an_exact_violation_that_stays_keeps_its_weight_when_the_loss_is_learnt():
    """The multiplier goes by the unit as it is, a hundredth of the old one: gates that have shut hardly move by it."""
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=0.0, samples=None)}, steps=1000)
    multipliers.look("c", (1e4, 1.0), (1e4, 1.0))
    for k in range(200):
        if k in (100, 110, 120, 130, 140):
            multipliers.look("c", (1e-4, 1.0), (1e-4, 1.0))
        weight = multipliers.update({"c": 1.0})["c"]
    multiplier, penalty, _ = multipliers.exactly("c")
    assert multiplier <= 10 * multipliers.observe()["c/unit"]
    assert weight == pytest.approx(multiplier + penalty)
    assert weight > 2 * multiplier


@pytest.mark.parametrize(
    ("late", "said"), [(1.2, True), (1.0, False), (0.8, False)], ids=["missed", "just kept", "kept"]
)
def test_a_bound_that_is_missed_at_the_end_is_said(late, said):
    """Which may have been kept until then; by chance that is said once in 700 times."""
    rng, multipliers = np.random.default_rng(0), lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=400)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for k in range(400):
            mean = late if k > 250 else 0.8
            multipliers.update({"c": (mean + 0.1 * rng.normal(), 0.1)}, objective=(1.0, 0.1))
    words = [str(each.message) for each in told]
    assert len(words) == said
    assert all("'c' is not <= its bound: it is 1.2" in each for each in words)


def test_more_calls_than_steps_are_said_and_go_on():
    multipliers = lx.Multipliers({"c": lx.AtMost(bound=1.0)}, steps=50)
    for _ in range(50):
        multipliers.update({"c": (2.0, 0.1)})
    with pytest.warns(RuntimeWarning, match="call 51 of steps=50"):
        multipliers.update({"c": (2.0, 0.1)})
    assert multipliers.update({"c": (2.0, 0.1)})["c"] > 0


def test_few_values_serve_too():
    """A metric once an epoch."""
    multipliers = lx.Multipliers({"recall": lx.AtLeast(bound=0.9)}, steps=20)
    weights = [multipliers.update({"recall": (0.8, 0.01)})["recall"] for _ in range(20)]
    assert weights[5] < 0
    assert weights[-1] < weights[5]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: lx.Multipliers({}), TypeError, "at least one"),
        (lambda: lx.Multipliers({"c": 1.0}), TypeError, "must be Equal, AtMost or AtLeast"),
        (lambda: lx.Multipliers({"c": lx.Equal()}, steps=0), ValueError, "number of calls"),
        (lambda: lx.Multipliers({"c": lx.Equal()}).update({"d": 1.0}), ValueError, "unknown"),
        (lambda: lx.Multipliers({"c": lx.Equal()}).update({"c": "high"}), TypeError, "mean or"),
        (lambda: lx.Multipliers({"c": lx.Equal()})["d"], KeyError, "no constraint"),
        (lambda: lx.Optax("adam"), TypeError, "optax.adamw"),
    ],
)
def test_wrong_use_is_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


# --- lx.Optax

PROBLEM = lx.Problem(
    lambda x, z: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
    samples=lx.Distribution(jax.random.normal),
    constraints={"line": lx.Equal(lambda x, z: x[0] + x[1] - 1 + 2 * z * (x[0] - x[1]))},
)
ADAM = optax.adam(optax.cosine_decay_schedule(0.05, 4000))


def test_optax_solves_without_the_bias_of_a_batch():
    result = lx.solve(PROBLEM, jnp.zeros(2), method=lx.Optax(ADAM), iterations=4000, batch_size=8)
    np.testing.assert_allclose(result.x, [-0.5, 1.5], atol=0.1)
    np.testing.assert_allclose(result.multipliers["line"], 0.5, atol=0.3)


def test_optax_continues_to_the_same_bits():
    whole = lx.solve(PROBLEM, jnp.zeros(2), method=lx.Optax(ADAM, steps=400.0), iterations=400, batch_size=8)
    half = lx.solve(PROBLEM, jnp.zeros(2), method=lx.Optax(ADAM, steps=400.0), iterations=150, batch_size=8)
    assert (lx.solve(PROBLEM, half, iterations=250).x == whole.x).all()


def test_optax_keeps_to_a_box_and_refuses_other_sets():
    boxed = lx.Problem(PROBLEM.objective, samples=PROBLEM.samples, within=lx.sets.Box(0.0, 1.0))
    result = lx.solve(boxed, jnp.zeros(2), method=lx.Optax(ADAM), iterations=2000, batch_size=8)
    np.testing.assert_allclose(result.x, [0.0, 1.0], atol=1e-6)
    for refused in (
        {"within": lx.sets.L2Ball(1.0)},
        {"regularizer": lx.prox.L1(0.1)},
    ):
        problem = lx.Problem(PROBLEM.objective, samples=PROBLEM.samples, **refused)
        with pytest.raises(ValueError, match="metric of its optimizer"):
            lx.solve(problem, jnp.zeros(2), method=lx.Optax(ADAM), iterations=10, batch_size=8)


@pytest.mark.long
def test_optax_takes_a_network_as_it_is():
    def net(x, row):
        return jnp.tanh(row @ x["first"]) @ x["second"]

    rows = jax.random.normal(jax.random.key(0), (256, 4))
    problem = lx.Problem(
        lambda x, row: (net(x, row) - jnp.sin(row[0])) ** 2,
        samples=lx.Dataset(rows),
        constraints={"size": lx.AtMost(lambda x: jnp.sum(x["second"] ** 2), 0.2, samples=None)},
    )
    keys = jax.random.split(jax.random.key(1))
    x0 = {"first": jax.random.normal(keys[0], (4, 8)), "second": jax.random.normal(keys[1], (8,))}
    method = lx.Optax(optax.adamw(optax.cosine_decay_schedule(0.02, 1500)))
    result = lx.solve(problem, x0, method=method, iterations=1500, batch_size=16)
    assert float(jnp.sum(result.x["second"] ** 2)) < 0.22
    assert float(result.multipliers["size"]) > 0


def test_tracked_lagrangian_starts_from_given_multipliers():
    start, near = jnp.array([-0.5, 1.5]), {}
    for given in (None, {"line": 0.5}):
        method = lx.TrackedLagrangian(multipliers=given)
        result = lx.solve(PROBLEM, start, method=method, iterations=100, batch_size=8, record_every=10)
        near[given is None] = np.abs(result.history.columns["multipliers"]["line"] - 0.5).max()
    assert near[False] < 0.3 * near[True]
    with pytest.raises(ValueError, match="multipliers= has the unknown"):
        lx.solve(PROBLEM, start, method=lx.TrackedLagrangian(multipliers={"x": 1.0}), iterations=10, batch_size=8)
