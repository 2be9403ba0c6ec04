"""From experiments to their records: what is stored is read, what is missing is trained."""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, as_completed

import numpy as np
import torch
from torch import Tensor

from fedlib import federation, local, progress, workers
from fedlib.experiment import NUMERICS, Experiment
from fedlib.records import LAST, Record, Store, provenance
from fedlib.spec import InputError, unknown

SAVE_EVERY = 2.0
"""Seconds between two stored states of a run, so that storing costs little of a short round."""


def obtain(experiment: Experiment, store: Store, processes: int = 1, keep_weights: bool = False) -> Record:
    """The experiment's record, trained if it is missing, from the last stored round on if there is one.

    `keep_weights` also leaves the global weights after every round in the store's cache.
    """
    with store.lock(experiment):
        last = store.weights(experiment, experiment.rounds)
        record = store.get(experiment)
        if record is not None and (not keep_weights or last.exists()):
            return record
        state = store.load_state(experiment)
        if (
            keep_weights
            and state
            and not all(store.weights(experiment, r).exists() for r in range(1, state["round"] + 1))
        ):
            state = None
        seconds = state.pop("seconds") if state else 0.0
        compare = lambda other: trajectory(other, store)  # noqa: E731
        run = federation.begin(experiment, state, processes, compare)
        start = saved = time.perf_counter()
        for _ in _named(experiment, federation.play(run)):
            if keep_weights:
                store.save_weights(experiment, run.round, run.w)
            now = time.perf_counter()
            if now - saved > SAVE_EVERY and run.round < experiment.rounds:
                store.save_state(experiment, run.state | {"seconds": seconds + now - start, "numerics": NUMERICS})
                saved = now
            progress.report(experiment.id, run.round, experiment.rounds)
        if record is None:
            fingerprint = federation.setting(experiment).dataset.fingerprint
            seconds += time.perf_counter() - start
            origin = provenance(experiment, fingerprint, seconds, processes, workers.THREADS, str(run.device or "cpu"))
            record = store.put(Record(experiment, run.series, origin))
        store.drop_state(experiment)
        return record


def _named(experiment: Experiment, rounds: Iterator[federation.Run]) -> Iterator[federation.Run]:
    """The rounds; a failure of training then also says which run it was."""
    try:
        yield from rounds
    except local.Diverged as error:
        parts = ", ".join(type(part).__name__ for part in (experiment.partition, *experiment.methods))
        raise local.Diverged(
            f"run {experiment.id} ({experiment.dataset}, {parts}, seed {experiment.seed}), {error}"
        ) from None


def trajectory(experiment: Experiment, store: Store) -> Callable[[int], Tensor]:
    """The global weights of an experiment's run by round (from 1), trained if they are not in the cache."""
    if not store.weights(experiment, experiment.rounds).exists():
        obtain(experiment, store, keep_weights=True)
    return lambda round: torch.load(store.weights(experiment, round), weights_only=True)


def _obtain(experiment: Experiment, store: Store, keep_weights: bool) -> None:
    obtain(experiment, store, keep_weights=keep_weights)


def sweep(
    experiments: Iterable[Experiment],
    store: Store | None = None,
    processes: int | None = None,
    executor: Executor | None = None,
) -> list[Record]:
    """The records of all experiments, in order; missing ones are trained side by side, one process each.

    `processes` defaults to the cores of this machine. Any executor of the :mod:`concurrent.futures` kind may be given
    instead, for example one that submits to a cluster's scheduler; its workers must share the store's file system.
    When a single run is missing, its clients are trained side by side instead. A run that fails stops the sweep after
    the others under way have finished and been stored.
    """
    store, experiments = store or Store(), list(dict.fromkeys(experiments))
    processes = processes or workers.cores()
    missing = [e for e in experiments if store.get(e) is None]
    if len(missing) > 1 and processes > 1 and executor is None:
        workers.pool(processes)  # starts meanwhile
    for e in missing:
        federation.check(e)
    needed = {
        other: measure for e in missing for measure in e.measures for other in measure.needs(e)
        if not store.weights(other, other.rounds).exists()
    }  # fmt: skip
    for e, measure in needed.items():
        try:
            federation.check(e)
        except InputError as error:
            raise InputError(f"{type(measure).__name__} compares with another run, which cannot be: {error}") from None
    progress.plan({e.id: e.rounds for e in (*missing, *needed)})
    for batch, keep in ((list(needed), True), ([e for e in missing if e not in needed], False)):
        if len(batch) == 1 and executor is None:
            obtain(batch[0], store, processes, keep)
        elif batch and processes == 1 and executor is None:
            for e in batch:
                obtain(e, store, 1, keep)
        elif batch:
            side_by_side = executor or workers.pool(processes)
            futures = [side_by_side.submit(_obtain, e, store, keep) for e in batch]
            try:
                with workers.closing_broken():
                    for future in as_completed(futures):
                        future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
    records = [store.get(e) for e in experiments]
    progress.used((record.id, record.path) for record in records)
    return records


class Runs(UserDict[Hashable, list[Record]]):
    """The records of some settings by name, those of each in the order of its seeds, and what chapters ask of them."""

    def of(self, names: Iterable[Hashable]) -> list[Record]:
        """All records of some settings."""
        return [record for name in names for record in self[name]]

    def all(self) -> list[Record]:
        """The records of all settings."""
        return self.of(self)

    def last(self, name: Hashable, series: str) -> np.ndarray:
        """The last value of a series, of each seed, (seeds, ...)."""
        return np.array([record.last(series) for record in self[name]])

    def final(self, name: Hashable, series: str = "test_accuracy") -> np.ndarray:
        """The mean of the last :data:`~fedlib.records.LAST` values of a series, of each seed, (seeds, ...)."""
        return np.array([record.last(series, LAST) for record in self[name]])

    def halfway(self, name: Hashable, series: str = "test_accuracy") -> np.ndarray:
        """The same as :meth:`final` of the first half of what was measured."""
        values = self.curve(name, series)[1]
        return values[:, : (values.shape[1] + 1) // 2][:, -LAST:].mean(1)

    def curve(self, name: Hashable, series: str) -> tuple[np.ndarray, np.ndarray]:
        """The rounds in which a series was measured, (m,), and its values for each seed, (seeds, m, ...)."""
        return self[name][0].rounds(series), np.array([record.values(series) for record in self[name]])

    def traffic(self, name: Hashable) -> np.ndarray:
        """Bytes that the server and all clients send in a whole run, up and down, of each seed, (seeds,)."""
        return np.array([np.sum(r.values("bytes_up")) + np.sum(r.values("bytes_down")) for r in self[name]])


def over_seeds(
    settings: Mapping[Hashable, Experiment], seeds: int, more: Mapping[Hashable, int] | None = None,
    store: Store | None = None,
) -> Runs:
    """The records of each named setting, for the seeds 0 to n - 1 in this order.

    n is `seeds`, or the number that `more` has for the setting, if that is larger. Raises
    :class:`~fedlib.spec.InputError` where `more` names a setting that is not there.
    """  # fmt: skip
    more = more or {}
    for name in more:
        if name not in settings:
            raise unknown("setting", str(name), settings)
    experiments = {
        name: [e.but(seed=seed) for seed in range(max(seeds, more.get(name, seeds)))] for name, e in settings.items()
    }
    every = [e for group in experiments.values() for e in group]
    found = dict(zip(dict.fromkeys(every), sweep(every, store), strict=True))
    return Runs({name: [found[e] for e in group] for name, group in experiments.items()})
