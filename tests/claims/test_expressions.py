"""The language of the tests: what it computes, and that nothing else of Python is in it."""

import numpy as np
import pytest

from fedlib.claims import expressions
from fedlib.claims.expressions import Family, NotMeasured, check, evaluate
from fedlib.experiment import Experiment
from fedlib.records import Record
from fedlib.spec import InputError


def record(values, seed=0, **series):
    named = {"test_accuracy": values} | series
    body = {n: {"round": list(range(1, len(v) + 1)), "value": v} for n, v in named.items()}
    return Record(Experiment(rounds=len(values), seed=seed), body, {"numerics": 1, "seconds": 2.5})


A = record(
    [0.1, 0.4, 0.5, 0.6], bytes_up=[1, 2, 3, 4], layers=[{"conv": 1.0, "fc": 10.0}] * 2 + [{"conv": 3.0, "fc": 5.0}] * 2
)
B = record([0.2, 0.2, 0.2, 0.2])
LEVELS = Family({level: record([0.8 - 0.3 * level] * 3) for level in (0.0, 0.5, 1.0)})
TRIED = Family({
    0.1: record([0.4, 0.3, 0.2, 0.5], validation_accuracy=[0.3, 0.2, 0.1, 0.6]),
    0.2: record([0.6, 0.7, 0.8, 0.6], validation_accuracy=[0.5, 0.7, 0.6, 0.7]),
})  # fmt: skip


@pytest.mark.parametrize("expression, value", [
    ("final(a) - final(b)", 0.3),
    ("final(a, count=1) / final(b)", 3.0),
    ('-total(a, "bytes_up") + 2 ** 3', -2.0),
    ('at(a, "layers", 4)[0] / at(a, "layers", 1)[0]', 3.0),
    ('min(log(at(a, "layers", 4) / at(a, "layers", 1)))', np.log(0.5)),
    ("mean(over(a, 'test_accuracy') < 0.45)", 0.5),
    ("rounds_to(a, 0.5, window=1)", 3.0),
    ("rounds_to(b, 0.5)", 4.0),
    ("chosen(tried)[0]", 0.5),
    ("chosen(tried, patience=1)[0]", 0.4),
    ('chosen(tried, by="test_accuracy")[1]', 0.8),
    ("chosen_member(tried)", 0.7),
    ('chosen_member(tried, by="test_accuracy")', 0.8),
    ("seconds(a)", 2.5),
    ("slope(field(levels), final(levels))", -0.3),
    ("rank_correlation(field(levels), final(levels))", -1.0),
    ("interpolate(0.25, field(levels), final(levels))", 0.725),
    ("min(steps([final(a), final(b)]))", 0.3),
    ('column(over(a, "layers"), 1)[2]', 5.0),
    ("halves(field(levels), final(levels))[0] - halves(field(levels), final(levels))[1]", 0.225),
    ("worst_by_chance(1 + 0 * field(levels), 4 + field(levels))", 0.0),
])  # fmt: skip
def test_values(expression, value):
    values = {"a": A, "b": B, "levels": LEVELS, "tried": TRIED}
    assert evaluate(expression, values) == pytest.approx(value)


@pytest.mark.parametrize("expression", [
    "__import__('os').system('true')", "a.experiment", "final.__globals__", "(lambda: 1)()", "[x for x in a]",
    "final(a) if a else 0", "f'{a}'", "a and a", "{'a': a}", "final(a); final(a)", "final(*a)", "exec('1')",
])  # fmt: skip
def test_nothing_else_of_python(expression):
    with pytest.raises(InputError):
        check(expression, {"a"})


@pytest.mark.parametrize("expression, message", [
    ("finale(a)", "did you mean 'final'"),
    ("final(c)", "unknown run 'c'"),
    ("final(a, serie='x')", "unexpected keyword argument"),
    ("final()", "missing a required argument"),
    ("final(a) +", "is not an expression"),
    ("1 < final(a) < 2", "one comparison at a time"),
    ("1 + 1", "run 'a' is selected, but the estimate does not use it"),
])  # fmt: skip
def test_mistakes_are_named(expression, message):
    with pytest.raises(InputError, match=message):
        check(expression, {"a"})


@pytest.mark.parametrize("expression, message", [
    ("over(a, 'test_accuracy')", "one number"),
    ("a", "one number"),
    ("log(0 * final(a))", "finite number"),
    ("final(a, 'test_acuracy')", "did you mean 'test_accuracy'"),
    ("over(a, 'test_accuracy')[9]", "out of bounds"),
    ("evidence('lineer', [1, 2, 3, 4, 5], [final(a), 2, 3, 4, 6])", "did you mean 'linear'"),
])  # fmt: skip
def test_what_is_no_number_is_an_error(expression, message):
    check(expression, {"a"})
    with pytest.raises(InputError, match=message):
        evaluate(expression, {"a": A})


def test_a_run_too_short_is_not_an_error_of_the_test():
    with pytest.raises(NotMeasured, match="round 20 of a run with 4 rounds"):
        evaluate("at(a, 'test_accuracy', 20)", {"a": A})


@pytest.mark.parametrize("seed", range(3))
def test_the_identities_hold_and_their_tests_can_fail(seed, monkeypatch):
    names = ("identity_gap", "diagonal_gap", "gradient_gap")
    assert all(evaluate(f"{name}(seed)", {"seed": seed}) < 1e-10 for name in names)
    # A covariance without z-scoring has neither property.
    monkeypatch.setattr(
        expressions, "_correlation", lambda *shape: np.cov(expressions._representations(*shape), rowvar=False)
    )
    assert all(evaluate(f"{name}(seed)", {"seed": seed}) > 1e-3 for name in names[:2])


def test_the_survival_of_identical_updates_is_their_number():
    assert evaluate("survival_of_identical(seed)", {"seed": 1}) == pytest.approx(10, abs=1e-9)


def test_a_device_tiers_accuracy_is_the_mean_of_its_own_clients():
    from fedlib.methods import StepBudget
    from fedlib.methods.tiers import tiers

    e = Experiment(rounds=2, clients=6, methods=(StepBudget(shares=(0.5, 0.5)),), seed=3)
    weak = tiers(3, 6, (0.5, 0.5)) == 1
    values = [np.where(weak, 0.2, 0.8).tolist(), np.where(weak, 0.4, 0.8).tolist()]
    run = Record(e, {"client_accuracy": {"round": [1, 2], "value": values}}, {"numerics": 1})
    assert evaluate("tier_accuracy(run, 1)", {"run": run}) == pytest.approx(0.3)
    assert evaluate("tier_accuracy(run, 1, count=1)", {"run": run}) == pytest.approx(0.4)
    assert evaluate("tier_accuracy(run, 0)", {"run": run}) == pytest.approx(0.8)
    with pytest.raises(InputError, match="no device tiers"):
        evaluate("tier_accuracy(run, 0)", {"run": A})


def test_placement_saves_less_where_one_device_works_at_a_time():
    calls = ("placement_saving(seed, 4)", "placement_saving(seed, 4, microbatches=1)")
    pipelined, one_by_one = (evaluate(call, {"seed": 0}) for call in calls)
    assert 0 < one_by_one < pipelined < 1
    assert abs(evaluate("placement_saving(seed, 1)", {"seed": 0})) < 0.02  # devices alike: an even split is as good
