"""A small checkout of its own, for tests that execute a chapter, store records or build something; and quadratics."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from quadratic import Quadratics

from fedlib import federation

PARAMETERS = """\
from fedlib.parameters import Alphas, Edition, Rate, Rounds

edition: Edition = "digits"  # which edition
rounds: Rounds = 2  # communication rounds
lr: Rate = 0.05  # local learning rate
alphas: Alphas = [0.5, 5.0]  # concentrations of the Dirichlet partition
"""
RUNS = """\
from fedlib.experiment import Experiment
from fedlib.models import Linear
from fedlib.partitions import Dirichlet
from fedlib.sweep import sweep

records = sweep(
    Experiment(dataset=edition, train_images=200, clients=2, rounds=rounds, lr=lr, batch_size=20,
               model=Linear(), partition=Dirichlet(alpha=alpha))
    for alpha in alphas
)
"""
RESULT = "[record.last('test_accuracy') for record in records]"


def write_chapter(root: Path, name: str = "small", parameters: str | list[str] = PARAMETERS, *cells: str) -> Path:
    """A source notebook: a heading, the parameter cells, and the other code cells."""
    parameters = [parameters] if isinstance(parameters, str) else parameters
    notebook = new_notebook(
        cells=[
            new_markdown_cell("# A small federation"),
            *(new_code_cell(source, metadata={"tags": ["parameters"]}) for source in parameters),
            *map(new_code_cell, cells or (RUNS, RESULT)),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    path = root / "notebooks" / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


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
