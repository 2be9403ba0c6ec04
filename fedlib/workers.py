"""A persistent pool of worker processes, each with one torch thread.

One thread per process is both the fastest layout for small networks on CPUs and the reason why results do not depend
on the number of workers: a second thread would change the order of the sums inside a convolution's backward pass.
Tensors travel through shared memory. A pool takes more than a second to start, most of it to import torch; until it
answers, the tasks are done by this process, which would only wait.
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


def wait(count: int) -> None:
    """Return when the pool with `count` workers has started; one worker is this process, and needs no pool."""
    if count > 1:
        pool(count)
        _pools[count][1].result()


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

    With one worker everything happens in this process, with several what comes before they have started.
    """
    if workers == 1:
        with single_thread():
            for task in tasks:
                yield function(*task)
        return
    waiting: collections.deque = collections.deque()
    executor = pool(workers)
    first = _pools[workers][1]
    try:
        with closing_broken():
            for task in tasks:
                if not (first.done() and first.result()):  # a pool that cannot start raises why
                    with single_thread():
                        result = function(*(item.tensor if isinstance(item, Rows) else item for item in task))
                    yield result
                    continue
                waiting.append(executor.submit(function, *task))
                if len(waiting) >= under_way(workers):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
