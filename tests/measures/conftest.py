"""A federation small enough to know everything about, and its loss in double precision without any of the measures."""

import pytest
import torch
import torch.nn.functional as F

from fedlib import federation, workers
from fedlib.experiment import Experiment
from fedlib.measures.objective import Objective, sample
from fedlib.models import CNN, Linear
from fedlib.partitions import Dirichlet

TINY = Experiment(
    model=CNN(channels=(1, 2), dense=(3,)), partition=Dirichlet(alpha=0.5), clients=8, train_images=400, rounds=2
)


@pytest.fixture(scope="session")
def run():
    """A run of the tiny experiment after two rounds."""
    run = federation.begin(TINY)
    for _ in federation.play(run):
        pass
    return run


@pytest.fixture(scope="session")
def smooth():
    """The same without a ReLU: a loss whose Taylor series holds however far one goes."""
    run = federation.begin(TINY.but(model=Linear()))
    for _ in federation.play(run):
        pass
    return run


@pytest.fixture
def objective(run):
    with workers.single_thread():
        yield Objective(run.setting.space, *sample(run.setting, "train", 40))


@pytest.fixture(scope="session")
def exact(run):
    """The same loss as a function of the flat trained weights in float64, its gradient and its Hessian at run.w."""
    space = run.setting.space
    images, labels = sample(run.setting, "train", 40)
    x, y = space.images(torch.from_numpy(images)).double(), torch.from_numpy(labels)
    network = federation.Setting(TINY).space.network.double()

    def loss(w):
        tensors = {name: space.layout.view(w, name) for name in space.layout.places}
        return F.cross_entropy(torch.func.functional_call(network, tensors, x), y)

    w = run.w.double()
    return loss, torch.func.grad(loss)(w), torch.func.jacrev(torch.func.jacrev(loss))(w)
