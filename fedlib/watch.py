"""Looking into one run, finished or under way: what each client did, and the signs of trouble (`fedlib show`).

Three signs, after the guide to non-IID federations. It names what to look at, but no sizes, so that the sizes are ours;
claims G2, G4 and G5 of the ledger test whether the effects are there at all. Each is judged on the mean over the last
:data:`LAST` measured rounds in which the client took part:

    drift       local training unlearns what the others hold (G2),
                sum_c [p(c) - p_k(c)]_+ (a_c(w) - a_c(w_k)) > TEN_POINTS
    starvation  the average hardly hears a client and serves it badly (G4): its share n_k / n is below HALF of an equal
                one, and a_k(w) is more than TEN_POINTS below the cohort's mean, weighted by samples
    forgetting  averaging takes from a client what it knew of its own classes (G5),
                sum_c [p_k(c) - p(c)]_+ (a_c(w_k) - a_c(w)) > TEN_POINTS

with w_k client k's model after local training and w the global model made of the round's updates; a_c(v) the accuracy
of model v on test images of class c; p_k(c) and p(c) the part of class c in the samples of the client and of the
cohort; and a_k(v) = sum_c p_k(c) a_c(v), the accuracy on a test set with the client's own label distribution.

Own classes are those of which a client holds more than the cohort, others' those of which it holds less: a step that
makes a model worse or better at everything, as too large a rate does, is neither drift nor forgetting. (The measure
:class:`~fedlib.measures.Forgetting` takes the plain difference a_k(w_k) - a_k(w).)

The distance ||w_k - w||, by which G2 speaks of drift, is shown but is no sign: it has no scale of its own, and IID
clients that train longer move further than skewed ones that train less. What drift does to a model has a scale.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from fedlib import compare
from fedlib.experiment import Experiment
from fedlib.measures import ClientTrace
from fedlib.measures.forgetting import own_accuracy
from fedlib.partitions import Partition
from fedlib.records import Record, Store
from fedlib.spec import InputError, in_words

LAST = 3
"""Measured rounds of a client over which a sign is judged, as many as a final accuracy is averaged over."""

TEN_POINTS = 0.1
"""Difference of accuracies that is a sign: twice the standard error of an accuracy on the about hundred images that a
class of ten has among the 1,000 of :class:`~fedlib.measures.ClientTrace`."""

HALF = 0.5
"""Part of an equal share below which the average hardly hears a client."""

PERIOD = 1.0
"""Seconds between two looks at the state of a run under way."""

BARS = "▁▂▃▄▅▆▇█"


# ---------------------------------------------------------------- what is looked at


@dataclass(frozen=True)
class Watched:
    """A run as it is stored at this moment."""

    experiment: Experiment
    series: dict[str, dict[str, list]]
    round: int
    record: Record | None = None
    """Where the run is finished."""
    trained: bool = False
    """Whether a process trains it now."""

    @classmethod
    def of(cls, record: Record) -> Watched:
        """A finished run."""
        return cls(record.experiment, record.series, record.experiment.rounds, record)

    @property
    def standing(self) -> str:
        """How far the run is, in words."""
        rounds = self.experiment.rounds
        if self.record is not None:
            return f"finished, {rounds} rounds" + (", stale" if self.record.stale else "")
        word = "under way" if self.trained else "not being trained now; the command that trained it goes on from here"
        return f"round {self.round} of {rounds}, {word}"


def find(name: str, store: Store) -> Watched:
    """A record by id or file as `fedlib diff` takes it, or a run under way by id; :class:`InputError` for neither."""
    under_way = [path for path in store.unfinished() if path.stem.startswith(name)]
    finished = [path for path in store.files() if path.stem.startswith(name)]
    if under_way and not finished:
        if len(under_way) > 1:
            raise InputError(f"{len(under_way)} unfinished runs have an id that begins with {name!r} (allowed: one)")
        if seen := _peek(under_way[0], store):
            return seen
        raise InputError(f"the state of run {under_way[0].stem} cannot be read, or is of another version of the code")
    found = compare.find(name, store)
    if not isinstance(found, Record):
        raise InputError(f"{name} is a chapter (allowed: a record, or a run under way)")
    return Watched.of(found)


def _peek(path: Any, store: Store) -> Watched | None:
    peeked = store.peek(path)
    if peeked is None:
        return None
    experiment, state = peeked
    return Watched(experiment, state["series"], state["round"], trained=store.trained_now(experiment))


def under_way(store: Store) -> list[Watched]:
    """The unfinished runs of the store."""
    return [seen for path in store.unfinished() if (seen := _peek(path, store))]


def follow(seen: Watched, store: Store, pause: Callable[[float], None] = time.sleep) -> Iterator[Watched]:
    """The run as it is now, and again each time that more of it is stored, until it is finished or nobody trains it."""
    yield seen
    while seen.record is None and seen.trained:
        pause(PERIOD)
        before, now = seen.round, now_of(seen.experiment, store)
        if now is None:
            return
        seen = now
        if seen.round > before or seen.record is not None or not seen.trained:
            yield seen


def now_of(e: Experiment, store: Store) -> Watched | None:
    """A run as it is stored now; None where nothing of it is left."""
    record = store.get(e)
    if record is not None:
        return Watched.of(record)
    return _peek(store.cache / "runs" / f"{e.id}.pt", store)


def with_trace(experiment: Experiment) -> Experiment:
    """The same run with a measure that shows its clients, in at most about forty rounds. Measures change no number of
    training."""
    if any(isinstance(measure, ClientTrace) for measure in experiment.measures):
        return experiment
    return experiment.but(measures=(*experiment.measures, ClientTrace(every=-(-experiment.rounds // 40))))


# ---------------------------------------------------------------- the clients over the rounds


@dataclass(frozen=True)
class Trace:
    """The clients' trace as arrays over measured rounds and clients, NaN where a client did not take part.

    `rounds` (m,) and `clients` (N,) name the rows and columns; m rounds, N clients, C classes.
    """

    rounds: np.ndarray
    clients: np.ndarray
    n: np.ndarray
    loss: np.ndarray
    distance: np.ndarray
    update_norm: np.ndarray
    cosine: np.ndarray
    """(m, N) each."""
    held: np.ndarray
    """Samples by class, (m, N, C)."""
    accuracy: np.ndarray
    """Of the clients' models by class, (m, N, C)."""
    after: np.ndarray
    """Of the global model by class, (m, C)."""

    @classmethod
    def of(cls, series: dict[str, dict[str, list]]) -> Trace | None:
        """From the series of a run; None where ClientTrace was not measured."""
        if "client_trace" not in series:
            return None
        rows, after = series["client_trace"]["value"], np.array(series["client_trace_global"]["value"], float)
        clients = np.unique(np.concatenate([row["client"] for row in rows]))
        place = {client: i for i, client in enumerate(clients)}

        def table(name: str, *more: int) -> np.ndarray:
            values = np.full((len(rows), len(clients), *more), np.nan)
            for i, row in enumerate(rows):
                values[i, [place[client] for client in row["client"]]] = np.array(row[name], float)  # None is NaN
            return values

        names = ("n", "loss", "distance", "update_norm", "cosine")
        classes = after.shape[1]
        return cls(
            np.array(series["client_trace"]["round"]), clients, **{name: table(name) for name in names},
            held=table("held", classes), accuracy=table("accuracy_per_class", classes), after=after,
        )  # fmt: skip

    def _own(self, accuracy: np.ndarray) -> np.ndarray:
        """a_k of accuracies by class (m, N, C), (m, N)."""
        result = np.full(self.n.shape, np.nan)
        for i, k in np.argwhere(np.isfinite(self.n)):
            result[i, k] = own_accuracy(self.held[i, k], accuracy[i, k])
        return result

    @property
    def own_local(self) -> np.ndarray:
        """Accuracy of the clients' models on their own classes, a_k(w_k), (m, N)."""
        return self._own(self.accuracy)

    @property
    def own_global(self) -> np.ndarray:
        """Accuracy of the global model on the clients' own classes, a_k(w), (m, N)."""
        return self._own(np.broadcast_to(self.after[:, None], self.accuracy.shape))

    @property
    def _more(self) -> np.ndarray:
        """p_k(c) - p(c), (m, N, C)."""
        cohort = np.nansum(self.held, axis=1, keepdims=True)
        return self.held / self.held.sum(2, keepdims=True) - cohort / cohort.sum(2, keepdims=True)

    @property
    def _gained(self) -> np.ndarray:
        """a_c(w_k) - a_c(w), (m, N, C); nothing for classes without test images."""
        after = self.after[:, None]
        return np.where(np.isnan(after), 0, self.accuracy - after)

    @property
    def drift(self) -> np.ndarray:
        """sum_c [p(c) - p_k(c)]_+ (a_c(w) - a_c(w_k)), -1 to 1, (m, N)."""
        return (np.minimum(self._more, 0) * self._gained).sum(2)

    @property
    def forgetting(self) -> np.ndarray:
        """sum_c [p_k(c) - p(c)]_+ (a_c(w_k) - a_c(w)), -1 to 1, (m, N)."""
        return (np.maximum(self._more, 0) * self._gained).sum(2)

    @property
    def share(self) -> np.ndarray:
        """n_k / n in the round's cohort, relative to an equal share: 1 where all are of one size, (m, N)."""
        there = np.isfinite(self.n)
        return self.n / np.nansum(self.n, axis=1, keepdims=True) * there.sum(1, keepdims=True)

    @property
    def behind(self) -> np.ndarray:
        """The cohort's mean of a_k(w), weighted by samples, less the client's own, (m, N)."""
        own = self.own_global
        weights = np.where(np.isfinite(own), self.n, 0)
        return (np.nan_to_num(own) * weights).sum(1, keepdims=True) / weights.sum(1, keepdims=True) - own

    def lately(self, values: np.ndarray) -> np.ndarray:
        """Mean of values (m, N) over each client's last rounds, (N,); NaN where it has had fewer than LAST."""
        result = np.full(len(self.clients), np.nan)
        for k, own in enumerate(values.T):
            known = own[np.isfinite(own)]
            if len(known) >= LAST:
                result[k] = known[-LAST:].mean()
        return result

    @property
    def agreement_by_chance(self) -> np.ndarray:
        """Cosine with the mean update that as many independent updates of one length would have, 1 / sqrt(K), (m,)."""
        return 1 / np.sqrt(np.isfinite(self.n).sum(1))


# ---------------------------------------------------------------- the signs


class Kind(StrEnum):
    DRIFT = "drift"
    STARVATION = "starvation"
    FORGETTING = "forgetting"


SHAPES = {Kind.DRIFT: "↗", Kind.STARVATION: "▽", Kind.FORGETTING: "↺"}
"""The shape that goes with each word."""


@dataclass(frozen=True)
class Sign:
    """Something that a client shows."""

    kind: Kind
    client: int
    value: float
    """The difference of accuracies, above TEN_POINTS."""
    words: str

    def __str__(self) -> str:
        return f"{SHAPES[self.kind]} {self.kind}"


def signs(trace: Trace) -> list[Sign]:
    """All signs of a run, the strongest of each kind first."""
    now = {name: trace.lately(getattr(trace, name)) for name in ("drift", "forgetting", "behind", "share")}
    moved, local, after = (trace.lately(v) for v in (trace.distance, trace.own_local, trace.own_global))
    found = []
    for k, client in enumerate(map(int, trace.clients)):
        if now["drift"][k] > TEN_POINTS:
            words = f"local training moves it by {moved[k]:.2g} and costs {now['drift'][k]:.2f} on what others hold"
            found.append(Sign(Kind.DRIFT, client, now["drift"][k], words))
        if now["share"][k] < HALF and now["behind"][k] > TEN_POINTS:
            words = (
                f"has {now['share'][k]:.2f} of an equal share in the average, and is served {now['behind'][k]:.2f} "
                f"worse than the mean"
            )
            found.append(Sign(Kind.STARVATION, client, now["behind"][k], words))
        if now["forgetting"][k] > TEN_POINTS:
            words = (
                f"averaging costs {now['forgetting'][k]:.2f} on what it holds most; its own test images, before and "
                f"after: {local[k]:.2f}, {after[k]:.2f}"
            )
            found.append(Sign(Kind.FORGETTING, client, now["forgetting"][k], words))
    return sorted(found, key=lambda sign: (list(Kind).index(sign.kind), -sign.value))


def judged(seen: Watched, trace: Trace | None) -> str:
    """Why a run's signs cannot be told, in words; empty where they can."""
    kind = type(seen.experiment.partition)
    if trace is None:
        return "it was trained without ClientTrace, which looks at every client"
    if kind.view is not Partition.view or kind.view_test is not Partition.view_test:
        return f"with {kind.__name__} clients see their data changed, the trace's test images are unchanged"
    if not np.isfinite(trace.lately(trace.n)).any():
        return f"no client has been measured in {LAST} rounds yet"
    return ""


def summary(seen: Watched) -> tuple[list[Sign], str]:
    """The signs of a run and what they say together, or why there are none to tell."""
    trace = Trace.of(seen.series)
    if reason := judged(seen, trace):
        return [], f"No signs can be told: {reason}."
    found = signs(trace)
    told = int(np.isfinite(trace.lately(trace.n)).sum())
    counts = {kind: sum(sign.kind is kind for sign in found) for kind in Kind}
    parts = [f"{SHAPES[kind]} {kind} at {count}" for kind, count in counts.items() if count]
    return found, f"Of {told} clients that can be judged: {', '.join(parts) or 'no sign of trouble'}."


def missing(seen: Watched) -> str:
    """What a run without ClientTrace does not show, and the command that trains one that does; else empty."""
    if "client_trace" in seen.series:
        return ""
    return (
        "Not measured in this run: each client's loss, its distance to the global model, the norm and the agreement of "
        "its updates, its accuracy by class, and so the signs of drift, starvation and forgetting. "
        f"This trains the same run with them: fedlib show {seen.experiment.id} --trace"
    )


# ---------------------------------------------------------------- the terminal

OVERALL = (
    "test_accuracy", "validation_accuracy", "train_loss", "drift", "update_cosine", "forgetting",
    "client_accuracy_mean", "client_accuracy_worst_decile",
)  # fmt: skip
"""Series of single numbers that are shown where a run has them."""

ROWS = 40
"""Clients in the terminal's table at most; those with signs come first."""


def sparkline(values: Any, width: int = 30) -> str:
    """Values as a row of bars from the smallest to the largest, at most `width` of them; a gap where there is none."""
    values = np.array(values, float)
    if len(values) > width:
        values = values[np.linspace(0, len(values) - 1, width).round().astype(int)]
    known = values[np.isfinite(values)]
    if not len(known):
        return ""
    height = np.ptp(known) or 1.0
    places = np.nan_to_num((values - known.min()) / height * (len(BARS) - 1)).round().astype(int)
    return "".join(BARS[p] if np.isfinite(v) else " " for p, v in zip(places, values, strict=True))


def headline(seen: Watched) -> str:
    """What the run is: the data set, and every field that is not as it is by default."""
    e = seen.experiment
    parts = [
        f"{name.replace('_', ' ')} {in_words(getattr(e, name))}" for name, field in type(e).model_fields.items()
        if name in ("dataset", "partition", "methods", "rounds", "seed")
        or name != "measures" and getattr(e, name) != field.default
    ]  # fmt: skip
    return ", ".join(parts)


def report(seen: Watched) -> RenderableType:
    """The run for a terminal: what it is, its curves, a line a client, the signs."""
    parts: list[RenderableType] = [
        f"[bold]{seen.experiment.id}[/bold]: {escape(seen.standing)}\n{escape(headline(seen))}\n"
    ]
    curves = Table("over the rounds", "", "first", "last", box=None)
    for name in OVERALL:
        if values := seen.series.get(name, {}).get("value"):
            curves.add_row(name, sparkline(values), f"{values[0]:.4g}", f"{values[-1]:.4g}")
    parts.append(curves)
    found, words = summary(seen)
    trace = Trace.of(seen.series)
    if trace is not None:
        parts += ["", _clients(trace, found)]
    parts += ["", f"[bold]{escape(words)}[/bold]"]
    parts += [f"{sign}, client {sign.client}: {sign.words}" for sign in found[:ROWS]]
    if note := missing(seen):
        parts += [escape(note)]
    return Group(*parts)


def _clients(trace: Trace, found: list[Sign]) -> RenderableType:
    order = np.argsort([-sum(sign.client == client for sign in found) for client in trace.clients], kind="stable")
    table = Table(
        "client", "samples", "loss", "", "distance", "update", "cosine", "own classes: local", "global", "signs",
        box=None, title=f"Clients, mean of their last {LAST} measured rounds", title_justify="left",
    )  # fmt: skip
    columns = [
        trace.lately(v) for v in (
            trace.n, trace.loss, trace.distance, trace.update_norm, trace.cosine, trace.own_local, trace.own_global,
        )
    ]  # fmt: skip
    for k in order[:ROWS]:
        cells = [f"{column[k]:.3g}" if np.isfinite(column[k]) else "" for column in columns]
        own = [str(sign) for sign in found if sign.client == trace.clients[k]]
        table.add_row(
            str(trace.clients[k]), *cells[:2], sparkline(trace.loss[:, k], 16), *cells[2:], ", ".join(own)
        )
    more = len(order) - ROWS
    return Group(table, f"and {more} more clients; --html FILE has all of them") if more > 0 else table


def listing(runs: list[Watched]) -> RenderableType:
    """The unfinished runs."""
    if not runs:
        return "no run is under way; `fedlib records` lists the finished ones"
    table = Table("run", "standing", "what it is", box=None)
    for seen in runs:
        table.add_row(seen.experiment.id, escape(seen.standing), escape(headline(seen)))
    return table
