"""The language of the tests: arithmetic over one seed's records, and nothing else of Python.

An expression is evaluated once per seed and gives one number. In it stand the names of the test's runs, numbers, texts,
``+ - * / **``, comparisons, ``x[0]`` and the functions of :data:`FUNCTIONS`. A run is one record, or a
:class:`Family` of records over the values of one field (the ``vary`` of its selection); what is asked of a family is
answered by an array, in ascending order of the values. To add a function, write it here under ``@function``.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import stats

from fedlib import statistics
from fedlib.measures import convergence
from fedlib.records import LAST, Record
from fedlib.spec import InputError, unknown


class NotMeasured(InputError):
    """A run is too short for what a test asks of it."""


class Family(dict[float, Record]):
    """Records of one seed by the value of the field in which they differ, ascending."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name) for name in ("min", "max", "mean", "median", "sum", "abs", "sqrt", "log", "exp", "diff")
}
"""What an expression can call, by name."""


def function(f: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function of the language under its name."""
    FUNCTIONS[f.__name__] = f
    return f


def of_record(f: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a function of one record, which is asked of each member when it is given a family."""

    def asked(run: Record | Family, *rest: Any, **named: Any) -> Any:
        if isinstance(run, Family):
            return np.array([f(record, *rest, **named) for record in run.values()])
        return f(run, *rest, **named)

    asked.__doc__, asked.__signature__ = f.__doc__, inspect.signature(f)
    FUNCTIONS[f.__name__] = asked
    return asked


def _array(value: Any) -> Any:
    """Numbers of a series' value: those by layer or client become an array, in the order of the record."""
    if isinstance(value, dict):
        return np.array(list(value.values()), float)
    return np.array(value, float) if isinstance(value, list) else value


@of_record
def final(run: Record, series: str = "test_accuracy", count: int = LAST) -> Any:
    """Mean of the last `count` values of a series (fewer where there are fewer)."""
    return np.mean([_array(value) for value in run.values(series)[-count:]], axis=0)


@of_record
def at(run: Record, series: str, round: int) -> Any:
    """Value of a series after a round (from 1)."""
    if round > run.experiment.rounds:
        raise NotMeasured(f"round {round} of a run with {run.experiment.rounds} rounds")
    return _array(run.at(series, round))


@of_record
def over(run: Record, series: str, last: int | None = None) -> np.ndarray:
    """All values of a series, (m, ...), or the `last` ones."""
    values = np.array([_array(value) for value in run.values(series)], float)
    return values if last is None else values[-last:]


@of_record
def rounds(run: Record, series: str) -> np.ndarray:
    """The rounds in which a series was measured, (m,)."""
    return run.rounds(series)


@of_record
def total(run: Record, series: str) -> float:
    """Sum of a series over all rounds: ``bytes_up``, ``bytes_down``, ``gradients``."""
    return float(np.sum(run.values(series)))


@of_record
def seconds(run: Record) -> float:
    """Seconds that the run took where it was trained; compare only runs of one machine."""
    return float(run.provenance["seconds"])


@of_record
def rounds_to(run: Record, target: float, series: str = "test_accuracy", window: int = LAST) -> float:
    """First round whose mean of `window` values reaches `target`; the last one where it never does (a lower bound)."""
    measured = run.rounds(series)
    return float(convergence.rounds_to(measured, run.values(series), target, min(window, len(measured))).round)


@of_record
def when(run: Record, series: str, other: str) -> np.ndarray:
    """Values of a series in those of its rounds in which `other` was measured too."""
    common = np.isin(run.rounds(series), run.rounds(other))
    return np.array([_array(value) for value in run.values(series)], float)[common]


@of_record
def chosen(
    run: Record, by: str = "validation_accuracy", series: str = "test_accuracy", patience: int | None = None
) -> float:
    """Value of a series in the round that the best value of another one chooses, the first where several are best.

    With `patience` only the rounds until training would have stopped, after so many values without a better one.
    """
    return float(run.at(series, convergence.best_round(run.rounds(by), run.values(by), patience)))


@function
def chosen_member(family: Family, by: str = "validation_accuracy", series: str = "test_accuracy") -> float:
    """Value of a series in the member and the round of a family that the best value of another one chooses."""
    best = max(family.values(), key=lambda run: max(run.values(by)))
    return float(best.at(series, convergence.best_round(best.rounds(by), best.values(by))))


@of_record
def tier_accuracy(run: Record, tier: int, count: int = LAST) -> float:
    """Mean accuracy of one device tier's clients (0 the strongest) on their own test images, last `count` measured."""
    from fedlib.methods.tiers import tiers

    e = run.experiment
    shares = [method.shares for method in e.methods if hasattr(method, "shares")]
    if not shares:
        raise InputError(f"tier_accuracy of run {run.id}, whose methods know no device tiers")
    members = tiers(e.seed, e.clients, shares[0]) == tier
    return float(np.mean([_array(value)[members].mean() for value in run.values("client_accuracy")[-count:]]))


@function
def halves(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mean of the clients' values over the smaller half of the clients (first) and over the larger half."""
    from fedlib.measures.fairness import halves as by_size

    return by_size(sizes, values)


@function
def worst_by_chance(accuracy: np.ndarray, images: np.ndarray) -> float:
    """Mean less worst tenth that clients served alike would show, their accuracies measured on so many images."""
    from fedlib.measures.fairness import worst_by_chance as expected

    return expected(accuracy, images)


@function
def decay(spectrum: np.ndarray, k: int) -> float:
    """log(sigma_1 / sigma_k) of singular values in descending order; those below 1e-7 sigma_1 count as that."""
    return float(np.log(spectrum[0] / max(spectrum[k - 1], 1e-7 * spectrum[0])))


@function
def flat(values: np.ndarray) -> np.ndarray:
    """All values of a table in one row."""
    return np.ravel(values)


@function
def survival_of_identical(seed: int, clients: int = 10) -> float:
    """Survival of equal random updates of so many clients, by the measure's own sums."""
    import torch

    from fedlib import seeds
    from fedlib.measures.survival import Sums
    from fedlib.models import CNN, Layout

    layout = Layout(CNN(channels=(4,), dense=(8,)).build((28, 28, 1), 10))
    sums, delta = Sums(layout), torch.randn(layout.size, generator=seeds.torch_(seed, "identical updates"))
    for _ in range(clients):
        sums.add(100, delta)
    return sums.values()["survival"]


@function
def placement_saving(
    seed: int, slowest: float, layers: int = 160, devices: int = 64, microbatches: int | None = None
) -> float:
    """Share of an even split's time that placement by speed saves, simulated: equal layers, devices drawn per seed.

    There are as many micro-batches as devices unless given; with one, no two devices work at once.
    """
    from fedlib.placement import alike, draw_devices, saving

    return saving(alike(layers), draw_devices(devices, slowest, seed), microbatches or devices)


@function
def field(family: Family) -> np.ndarray:
    """The values of the field in which the members of a family differ, ascending."""
    return np.array(list(family), float)


@function
def column(table: np.ndarray, index: int) -> np.ndarray:
    """Column of a table (m, columns): of a series with one value a layer, that layer's values over the rounds."""
    return np.asarray(table)[:, index]


@function
def mean_of(table: np.ndarray) -> np.ndarray:
    """Mean of each row of a table: of a family's series, the mean over rounds of each member."""
    return np.mean(table, axis=1)


@function
def roughness(table: np.ndarray) -> np.ndarray:
    """Standard deviation of the changes from one value to the next, of each row of a table."""
    return np.std(np.diff(table, axis=1), axis=1, ddof=1)


@function
def std(values: np.ndarray) -> float:
    """Standard deviation of some values."""
    return float(np.std(values, ddof=1))


@function
def steps(values: list) -> np.ndarray:
    """Falls from each value to the next: all positive where the values fall in the order in which they are given."""
    return -np.diff(np.asarray(values, float), axis=0)


@function
def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's, -1 to 1; 0 where either does not vary."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(stats.spearmanr(x, y).statistic)


@function
def worst_rank_correlation(x: np.ndarray, table: np.ndarray) -> float:
    """The smallest rank correlation of x (m,) with a column of a table (m, layers)."""
    return min(rank_correlation(x, column) for column in np.asarray(table).T)


@function
def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of the least-squares line through (x, y)."""
    return float(stats.linregress(x, y).slope)


@function
def break_point(x: np.ndarray, y: np.ndarray) -> float:
    """Where a broken line fitted to (x, y) bends, see :func:`fedlib.statistics.break_point`."""
    return statistics.break_point(x, y)


@function
def bend(x: np.ndarray, y: np.ndarray) -> float:
    """Change of slope at the break point: negative where y falls faster beyond it."""
    return statistics.broken_line(x, y).bend


@function
def evidence(law: str, t: np.ndarray, y: np.ndarray) -> float:
    """Akaike weight of "linear", "power" or "exponential" growth, 0 to 1, see :func:`fedlib.statistics.growth`."""
    weights = statistics.growth(t, y)
    if law not in weights:
        raise unknown("law", law, weights)
    return weights[law]


@function
def interpolate(x: float, xs: np.ndarray, ys: np.ndarray) -> float:
    """y at x on the line through the points (xs, ys); an x outside of them is an InputError."""
    if not min(xs) <= x <= max(xs):
        raise InputError(f"value at {x:g} from runs at {', '.join(f'{v:g}' for v in xs)} (allowed: between them)")
    return float(np.interp(x, xs, ys))


@function
def identity_gap(seed: int, samples: int = 64, features: int = 24) -> float:
    """Relative gap of sum (lambda_i - mean)^2 and ||K||_F^2 - d (Shi et al. 2023, Proposition 1), double precision."""
    k = _correlation(seed, samples, features)
    values = np.linalg.eigvalsh(k)
    left, right = np.sum((values - values.mean()) ** 2), np.sum(k**2) - features
    return float(abs(left - right) / right)


@function
def diagonal_gap(seed: int, samples: int = 64, features: int = 24) -> float:
    """Largest distance from 1 on the diagonal of the covariance of z-scored representations."""
    return float(np.max(np.abs(np.diag(_correlation(seed, samples, features)) - 1)))


@function
def gradient_gap(seed: int, samples: int = 64, features: int = 24) -> float:
    """Relative gap of the gradients of the eigenvalue penalty and of the Frobenius penalty in the representations."""
    import torch

    z = torch.from_numpy(_representations(seed, samples, features)).requires_grad_()
    scored = (z - z.mean(0)) / z.std(0)
    k = scored.T @ scored / (samples - 1)
    values = torch.linalg.eigvalsh(k)
    (one,) = torch.autograd.grad(((values - values.mean()) ** 2).sum(), z, retain_graph=True)
    (other,) = torch.autograd.grad((k**2).sum(), z)
    return float((one - other).norm() / other.norm())


def _representations(seed: int, samples: int, features: int) -> np.ndarray:
    """Random representations of unequal scale and strong correlation, (samples, features)."""
    from fedlib import seeds

    rng = seeds.numpy(seed, "identities of the correlation matrix")
    mixing = rng.standard_normal((features, features)) * np.logspace(0, -2, features)
    return np.maximum(rng.standard_normal((samples, features)) @ mixing, -0.5) + rng.standard_normal(features)


def _correlation(seed: int, samples: int, features: int) -> np.ndarray:
    """Covariance of z-scored representations, (features, features)."""
    z = _representations(seed, samples, features)
    scored = (z - z.mean(0)) / z.std(0, ddof=1)
    return np.cov(scored, rowvar=False)


# ---------------------------------------------------------------- the language

_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}


def check(expression: str, names: set[str]) -> None:
    """Raise InputError unless `expression` is of the language, calls its functions rightly and names only `names`."""
    used = set()
    for node in ast.walk(_parse(expression)):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name):
                raise InputError(f"{ast.unparse(node)!r} (allowed: a call of one of {', '.join(sorted(FUNCTIONS))})")
            if node.func.id not in FUNCTIONS:
                raise unknown("function", node.func.id, FUNCTIONS)
            _check_call(node)
            used.add(id(node.func))
        elif isinstance(node, ast.Name) and id(node) not in used and node.id not in names:
            raise unknown("run", node.id, names)
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            raise InputError(f"{ast.unparse(node)!r} (allowed: one comparison at a time)")
        elif not isinstance(node, _ALLOWED):
            given = ast.unparse(node) or type(node).__name__
            raise InputError(f"{given!r} is not of the language of tests")
    for name in names - {"seed"}:
        if not any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(_parse(expression))):
            raise InputError(f"run {name!r} is selected, but the estimate does not use it")


_ALLOWED = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.USub, ast.Compare, ast.List,
    ast.Subscript, ast.Call, ast.keyword, *_BINARY, *_COMPARE,
)  # fmt: skip


def _check_call(node: ast.Call) -> None:
    f = FUNCTIONS[node.func.id]
    if f.__module__ and f.__module__.startswith("numpy") or isinstance(f, np.ufunc):
        if node.keywords:
            raise InputError(f"{ast.unparse(node)!r}: {node.func.id} has no named arguments here")
        return
    try:
        inspect.signature(f).bind(*node.args, **{keyword.arg: keyword.value for keyword in node.keywords})
    except TypeError as error:
        raise InputError(f"{ast.unparse(node)!r}: {error} (allowed: {node.func.id}{inspect.signature(f)})") from None


def _parse(expression: str) -> ast.Expression:
    try:
        return ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise InputError(f"{expression!r} is not an expression: {error.msg}") from None


def evaluate(expression: str, values: Mapping[str, Any]) -> float:
    """The number that a checked expression gives with these runs."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Expression():
                return value(node.body)
            case ast.Constant():
                return node.value
            case ast.Name():
                return values[node.id]
            case ast.List():
                return [value(item) for item in node.elts]
            case ast.UnaryOp():
                return -value(node.operand)
            case ast.BinOp():
                return _BINARY[type(node.op)](value(node.left), value(node.right))
            case ast.Compare():
                return _COMPARE[type(node.ops[0])](value(node.left), value(node.comparators[0]))
            case ast.Subscript():
                return np.asarray(value(node.value))[value(node.slice)]
            case ast.Call():
                named = {keyword.arg: value(keyword.value) for keyword in node.keywords}
                return FUNCTIONS[node.func.id](*map(value, node.args), **named)

    try:
        with np.errstate(all="ignore"):
            result = value(_parse(expression))
    except (IndexError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{expression!r}: {error}") from None
    if not np.ndim(result) == 0 or isinstance(result, str | Record | Family):
        raise InputError(
            f"{expression!r} gives {type(result).__name__} of shape {np.shape(result)} (allowed: one number)"
        )
    if not np.isfinite(result):
        raise InputError(f"{expression!r} gives {result} (allowed: a finite number)")
    return float(result)
