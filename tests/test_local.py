"""The local loop's own optimiser is PyTorch's, and a run does not load what it does not need."""

import subprocess
import sys

import pytest
import torch

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.local import SGD
from fedlib.measures.objective import Objective, sample
from fedlib.methods.base import Method
from fedlib.models import CNN


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-4, 0.3])
def test_sgd_is_pytorch_s_to_the_bit(momentum, weight_decay):
    generator = torch.Generator().manual_seed(0)
    w, g = torch.randn(10_007, generator=generator), torch.zeros(10_007)
    parameter = torch.nn.Parameter(w.clone())
    parameter.grad = g
    own = SGD(w, g, 0.05, momentum, weight_decay)
    theirs = torch.optim.SGD([parameter], 0.05, momentum, weight_decay=weight_decay)
    for _ in range(10):
        g.copy_(torch.randn(10_007, generator=generator))
        before = g.clone()
        own.step()
        theirs.step()
        assert torch.equal(w, parameter.data) and torch.equal(g, before)


class LooksAtTheGradient(Method):
    """Changes nothing, but has the gradient brought into one vector."""

    def correct(self, client, g):
        assert bool(g.any())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stepping_layer_by_layer_is_stepping_in_one_vector_to_the_bit(precision):
    e = Experiment(
        train_images=200, clients=2, batch_size=16, rounds=2, precision=precision,
        model=CNN(channels=(4, 8), dense=(8,), norm="batch"),
    )  # fmt: skip
    runs = [federation.begin(one) for one in (e, e.but(methods=(LooksAtTheGradient(),)))]
    for run in runs:
        list(federation.play(run))
    assert torch.equal(runs[0].w, runs[1].w)


def test_a_second_network_first_asked_for_in_inference_mode_can_be_differentiated():
    """Whoever asks first, the same tensors serve measures that take gradients."""
    e = Experiment(train_images=100, clients=2, batch_size=10, model=CNN(channels=(4,), dense=(8,), norm="batch"))
    fresh, s = federation.Setting(e), federation.Setting(e)
    with torch.inference_mode():
        scores = s.space.at(s.w_init)(s.space.images(torch.from_numpy(s.dataset.x_test[:5])))
    assert scores.is_inference()
    images = sample(s, "train", 50)
    found, expected = (Objective(one.space, *images).gradient(one.w_init) for one in (s, fresh))
    assert torch.equal(found, expected) and found.norm() > 0


def test_the_second_network_has_the_ordinary_layers_which_can_be_differentiated_twice():
    e = Experiment(train_images=100, clients=2, batch_size=10, model=CNN(channels=(16, 32), dense=(600,)))
    s = federation.Setting(e)
    x = s.space.images(torch.from_numpy(s.dataset.x_train[:4]))
    assert s.space.network.body.fc1.first_order and not s.space.at(s.w_init).body.fc1.first_order
    (g,) = torch.autograd.grad(s.space.at(s.w_init)(x).sum(), s.space.at(s.w_init).body.fc1.weight, create_graph=True)
    assert g.requires_grad
    assert torch.autograd.grad(g.square().sum(), s.space.at(s.w_init).head.weight)[0].norm() > 0


def test_a_run_loads_neither_pytorch_s_compiler_nor_scipy():
    code = """
import sys
from fedlib import federation
from fedlib.experiment import Experiment
for run in federation.play(federation.begin(Experiment(rounds=1, clients=2, train_images=40, batch_size=10))):
    pass
print(sorted({"torch._dynamo", "scipy", "pandas", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "starting a run now takes longer"
