"""Workers, each with one torch thread: this process, and a persistent pool of others.

One thread per process is both the fastest layout for small networks on CPUs and the reason why results do not depend
on the number of workers: a second thread would change the order of the sums inside a convolution's backward pass.
Tensors travel through shared memory. A pool takes more than a second to start, most of it to import torch; until it
answers, this process does all tasks.
"""

from __future__ import annotations

import atexit
import collections
import functools
import itertools
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch
import torch.multiprocessing  # registers the passing of tensors through shared memory

from fedlib.spec import InputError

PRELOAD = ["fedlib.federation"]
"""Modules that the server from which workers are forked imports, once for all of them."""

THREADS = 1
"""Torch threads of every worker."""

VARIABLE = "FEDLIB_WORKERS"
"""Environment variable with the number of worker processes."""

_pools: dict[int, tuple[ProcessPoolExecutor, Future]] = {}
"""By the number of workers: the pool, and a first task of it, which is done once it has started."""


def cores() -> int:
    """Processes that train side by side: ``FEDLIB_WORKERS`` if it is set, else the cores that this process may use."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        if not (given.isascii() and given.isdigit() and int(given) >= 1):
            raise InputError(f"{VARIABLE} = {given!r} (allowed: a whole number of at least 1)")
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def follow_parent() -> None:
    """Have this process end at once when the one that started it does, which may have been killed."""
    parent = multiprocessing.parent_process()

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _enter_worker(enter: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once and without a traceback
    torch.set_num_threads(THREADS)
    follow_parent()
    if enter is not None:
        enter()


def pool(count: int, enter: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """The process pool with `count` workers; its first use has it start in the background, and it is kept.

    `enter` is called once in every worker of a pool that starts now.
    """
    if count not in _pools:
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(PRELOAD)
        executor = ProcessPoolExecutor(count, mp_context=context, initializer=_enter_worker, initargs=(enter,))
        starter = ThreadPoolExecutor(1)  # since to submit the first task takes as long as the import
        _pools[count] = executor, starter.submit(lambda: executor.submit(os.getpid).result())
        starter.shutdown(wait=False)
    return _pools[count][0]


def others(count: int) -> tuple[ProcessPoolExecutor, Future]:
    """The pool of the other workers where this process is one of `count`, and the task that is done once it started."""
    pool(count - 1)
    return _pools[count - 1]


def wait(count: int) -> None:
    """Return when all of `count` workers, of which this process is one, have started."""
    if count > 1:
        others(count)[1].result()


@atexit.register
def close() -> None:
    """Stop all pools."""
    while _pools:
        executor, _ = _pools.popitem()[1]
        executor.shutdown(cancel_futures=True)


@contextmanager
def closing_broken() -> Iterator[None]:
    """Close the pools when a worker was killed or Ctrl-C has ended them all, so that their next use starts new ones."""
    try:
        yield
    except (KeyboardInterrupt, BrokenProcessPool):
        close()
        raise


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute in this process as a worker would."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def under_way(workers: int) -> int:
    """How many tasks of :func:`ordered` can be given out while the caller is not done with their results."""
    return 2 * workers


class Rows:
    """A float32 tensor (rows, size) in memory that this process and its workers share, sent as no more than a name.

    A worker finds the tensor in its place, and maps it when the first task brings it. Torch's own sharing hands over a
    file descriptor with every task, which takes longer than to copy a small model's update.
    """

    _numbers = itertools.count()

    def __init__(self, rows: int, size: int) -> None:
        if hasattr(os, "memfd_create"):  # goes with the last process that maps it, however they end
            self._file = open(os.memfd_create("fedlib"), "r+b")
            path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        else:
            self._file = tempfile.NamedTemporaryFile(prefix="fedlib-")
            path = self._file.name
        self._file.truncate(rows * size * torch.float32.itemsize)
        self._key = (path, next(self._numbers), rows, size)  # a number, since a later file can have the same path
        self.tensor = _mapped.__wrapped__(*self._key)  # only workers keep it beyond its last use

    def __reduce__(self) -> tuple:
        return _mapped, self._key


@functools.lru_cache(maxsize=1)
def _mapped(path: str, number: int, rows: int, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=rows * size).view(rows, size)


def ordered(function: Callable[..., Any], tasks: Iterable[tuple], workers: int) -> Iterator[Any]:
    """``function(*task)`` for each task, results in the tasks' order, at most two tasks a worker under way.

    This process is one of the workers: a process that only handed out tasks would take its time from those that train.
    Once the others have started, it does a task of its own whenever each of them has two.
    """
    if workers == 1:
        with single_thread():
            for task in tasks:
                yield function(*task)
        return
    waiting: collections.deque[Future] = collections.deque()
    executor, started = others(workers)
    try:
        with closing_broken():
            for task, is_last in _and_whether_last(tasks):
                undone = sum(not future.done() for future in waiting)
                # The last is this process's own: another one might have to finish something before. A pool that cannot
                # start raises why.
                if not is_last and undone < 2 * (workers - 1) and started.done() and started.result():
                    waiting.append(executor.submit(function, *task))
                else:
                    waiting.append(_done_here(function, task))
                while waiting and (waiting[0].done() or len(waiting) == under_way(workers)):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _and_whether_last(tasks: Iterable[tuple]) -> Iterator[tuple[tuple, bool]]:
    tasks = iter(tasks)
    following = next(tasks, None)
    while following is not None:
        task, following = following, next(tasks, None)
        yield task, following is None


def _done_here(function: Callable[..., Any], task: tuple) -> Future:
    """A task's result, or its error for the time when its turn comes."""
    future: Future = Future()
    try:
        with single_thread():
            future.set_result(function(*(item.tensor if isinstance(item, Rows) else item for item in task)))
    except Exception as error:
        future.set_exception(error)
    return future
