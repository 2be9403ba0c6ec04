"""Every method with two clients of ten, in an order that is not that of their numbers."""

import pytest
import torch
from examples import experiments

from fedlib import federation
from fedlib.methods.base import overriding


@pytest.mark.parametrize("name", experiments())
def test_sampled_clients(name, monkeypatch):
    cohorts = {1: [7, 3], 2: [3, 9], 3: [7, 3]}
    monkeypatch.setattr(federation, "uniform", lambda experiment, round: list(cohorts[round]))
    experiment = experiments()[name].but(clients=10, per_round=2, rounds=3, evaluate_every=3)
    run = federation.begin(experiment)
    for _ in federation.play(run):
        assert torch.isfinite(run.w).all()
        took_part = {k for r in range(1, run.round + 1) for k in cohorts[r]}
        if not overriding(experiment.methods, "select"):
            assert run.clients.keys() <= took_part
            if overriding(experiment.methods, "client_state"):
                assert run.clients.keys() == took_part
    assert run.clients or not torch.equal(run.w, run.setting.w_init)  # federated distillation averages no weights
    assert run.series["train_loss"]["round"] == [1, 2, 3]
