"""The worker pool: order, bounded memory, errors, threads, and what happens without glibc."""

import functools
import itertools
import os
import platform
import time
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from fedlib import allocator, workers


def square(x):
    time.sleep(0.01 * (x % 3))
    return x * x


def fail(x):
    if x == 3:
        raise ValueError("three")
    return x


def fails_to_enter():
    raise ValueError("not today")


def enter(word):
    os.environ["ENTERED"] = word


def where(_):
    return os.getpid(), torch.get_num_threads()


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_order(count):
    assert list(workers.ordered(square, ((x,) for x in range(10)), count)) == [x * x for x in range(10)]


def test_tasks_are_taken_only_as_needed():
    taken = []

    def tasks():
        for x in range(20):
            taken.append(x)
            yield (x,)

    results = workers.ordered(square, tasks(), 2)
    next(results)
    assert len(taken) <= 5
    results.close()


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_reaches_the_caller_and_the_pool_goes_on(count):
    with pytest.raises(ValueError, match="three"):
        list(workers.ordered(fail, ((x,) for x in range(10)), count))
    assert list(workers.ordered(square, [(2,)], count)) == [4]


def test_every_worker_has_one_thread():
    workers.wait(2)
    found = set(workers.ordered(where, [(x,) for x in range(8)], 2))
    assert {threads for _, threads in found} == {workers.THREADS}
    assert os.getpid() not in {pid for pid, _ in found}


def test_until_the_workers_have_started_this_process_does_the_tasks():
    workers.close()
    found, rows = [], workers.Rows(1, 1000)
    results = workers.ordered(add_one, itertools.repeat((rows, 0)), 2)
    while len({pid for pid, _ in found}) < 2:
        found.append(next(results))
    results.close()
    assert found[0] == (os.getpid(), rows.tensor.data_ptr())
    assert found[-1][0] != os.getpid()
    assert (rows.tensor >= len(found)).all()


def test_a_pool_that_cannot_start_says_so_and_the_next_one_starts():
    workers.close()
    workers.pool(2, fails_to_enter)
    with pytest.raises(BrokenProcessPool):
        list(workers.ordered(square, itertools.repeat((1,)), 2))
    workers.wait(2)
    assert list(workers.ordered(square, [(2,)], 2)) == [4]


def test_what_a_worker_enters_with_is_done_in_each_and_only_when_the_pool_starts():
    workers.close()
    workers.pool(2, functools.partial(enter, "yes"))
    workers.pool(2, functools.partial(enter, "too late"))
    workers.wait(2)
    assert set(workers.ordered(os.getenv, [("ENTERED",)] * 8, 2)) == {"yes"}
    workers.close()


def test_a_single_worker_is_this_process_with_one_thread():
    before = torch.get_num_threads()
    assert list(workers.ordered(where, [(0,)], 1)) == [(os.getpid(), 1)]
    assert torch.get_num_threads() == before


def test_tensors_are_shared_not_lost():
    total = sum(float(t.sum()) for t in workers.ordered(torch.ones, [(1000,)] * 6, 2))
    assert total == 6000


def add_one(rows, index):
    """Add to a row of the memory that this process has mapped; where that lies in it."""
    rows[index] += 1
    return os.getpid(), rows.data_ptr()


def test_shared_rows_are_one_memory_that_a_worker_maps_once_and_never_confuses():
    workers.wait(2)
    for _ in range(3):  # the next one's file may well have the path that the last one's had
        rows = workers.Rows(4, 1000)
        assert not rows.tensor.any()
        places = set(workers.ordered(add_one, [(rows, i % 4) for i in range(8)], 2))
        assert (rows.tensor == 2).all()
        assert len(places) == len({pid for pid, _ in places}) <= 2
        del rows


def test_the_allocator_is_left_alone_without_glibc(monkeypatch):
    assert allocator.configure() is (platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert allocator.configure() is False
