"""A chapter small enough to execute in a test: two clients, two rounds."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

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
