"""The gradient of every loss and correction that a method adds, against finite differences in double precision, at the
second batch of the second round: whatever a method keeps from batch to batch or from round to round is then in use.
"""

from dataclasses import replace

import pytest
import torch
from examples import experiments, play

from fedlib import local
from fedlib.methods import SCAFFOLD, FedProx, published
from fedlib.methods.base import Method, overriding

STEP = 1e-6
LOSSES = [name for name, e in experiments().items() if overriding(e.methods, "loss")]


def at_second_batch(monkeypatch, experiment, check):
    """Run the experiment's first two rounds, calling check(space, client, x, y) before those gradients."""
    original, checked = local.Workspace.gradient, []

    def gradient(space, client, x, y, methods, **how):
        if client.round == 2 and client.step == 1 and client.index not in checked:
            checked.append(client.index)
            check(space, client, x, y)
        return original(space, client, x, y, methods, **how)

    monkeypatch.setattr(local.Workspace, "gradient", gradient)
    play(experiment.but(rounds=2))
    assert checked


def direction(size):
    v = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return v / v.norm()


def doubles(state):
    """A copy in double precision; what a loss keeps there does not count for the run."""
    return {name: t.double() if t.is_floating_point() else t.clone() for name, t in state.items()}


@pytest.mark.parametrize("name", LOSSES)
def test_added_losses(name, monkeypatch):
    experiment = experiments()[name]
    methods = overriding(experiment.methods, "loss")

    def check(space, client, x, y):
        w = space.w.double()
        base, g, v = w.clone(), torch.zeros(space.trained, dtype=torch.float64), direction(space.trained)

        def added(shift):
            w.copy_(base)
            w[: space.trained] += shift * v
            z = space.network.features(x.double())
            scores = space.network.head(z)
            precise = replace(
                client, w_start=client.w_start.double(), state=doubles(client.state), server=doubles(client.server)
            )
            return sum(t for m in methods if (t := m.loss(precise, x.double(), y, z, scores)) is not None)

        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            torch.set_default_dtype(torch.float64)
            space.layout.attach(space.network, w, g)
            try:
                added(0.0).backward()
                with torch.no_grad():
                    slope = float(added(STEP) - added(-STEP)) / (2 * STEP)
            finally:
                torch.set_default_dtype(torch.float32)
                space.layout.attach(space.network, space.w, space.g)
        found.append((float(g @ v), slope))

    found = []
    at_second_batch(monkeypatch, experiment, check)
    for gradient, slope in found:
        assert gradient == pytest.approx(slope, rel=1e-4, abs=1e-7)
    assert any(abs(slope) > 1e-6 for _, slope in found)


POTENTIALS = {
    FedProx: lambda m, client, w: m.mu / 2 * (w - client.w_start[: len(w)]).square().sum(),
    SCAFFOLD: lambda m, client, w: (client.server["scaffold_c"] - client.state["scaffold_c_i"]).double() @ w,
}
"""What the corrections are the gradients of; FedCurv's is in test_fedcurv.py, Magma changes no gradient."""


@pytest.mark.parametrize("method", [FedProx(mu=0.3), SCAFFOLD()])
def test_corrections(method, monkeypatch):
    potential, found = POTENTIALS[type(method)], []

    def check(space, client, x, y):
        g, w, v = torch.zeros(space.trained), space.w[: space.trained].double(), direction(space.trained)
        method.correct(client, g)
        slope = (potential(method, client, w + STEP * v) - potential(method, client, w - STEP * v)) / (2 * STEP)
        found.append((float(g.double() @ v), float(slope)))

    at_second_batch(monkeypatch, experiments()["FedAvg"].but(methods=(method,)), check)
    for gradient, slope in found:
        assert gradient == pytest.approx(slope, rel=1e-4) and abs(slope) > 1e-6


def test_every_correction_is_checked():
    corrected = {name for name, method in published().items() if method.correct is not Method.correct}
    assert corrected == {m.__name__ for m in POTENTIALS} | {"FedCurv", "Magma"}
