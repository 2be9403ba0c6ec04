"""A small checkout of its own, for tests that execute a chapter, store records or build something; and quadratics."""

import multiprocessing
from multiprocessing import forkserver

import pytest
import torch
from hypothesis import settings
from quadratic import Quadratics
from small_chapter import write_chapter

from fedlib import federation, workers

torch.set_num_threads(1)  # as workers do; a second thread only waits where the machine is busy
settings.register_profile("repeatable", derandomize=True, deadline=None)  # a slow machine is no failure
settings.load_profile("repeatable")


LONGEST = ("test_sweep.py", "test_cli.py")


def pytest_collection_modifyitems(items):
    """The files that take longest come first, or one of several processes would be left with them at the end."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def fork_server():
    """Starts the server from which workers are forked: they have its environment, which must be no single test's."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload(workers.PRELOAD)
        forkserver.ensure_running()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """An empty checkout with the chapter `small`, in which the test then works."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data" / "claims").mkdir(parents=True)
    (tmp_path / "_config.yml").touch()
    write_chapter(tmp_path)
    (tmp_path / "notebooks" / "editions.yml").write_text("small: {digits: {}, cifar10: {rounds: 30}}\n")
    monkeypatch.chdir(tmp_path)
    for variable in ("FEDLIB_PROGRESS", "FEDLIB_WORKERS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def quadratics(monkeypatch):
    """Makes :class:`quadratic.Quadratics` for one test."""
    yield lambda h, a, sizes: Quadratics(monkeypatch, h, a, sizes)
    federation.setting.cache_clear()
