import math

import pytest
import torch
from examples import BASE

from fedlib import federation
from fedlib.methods import MOON


def spy(monkeypatch, method_class):
    """Every value of the method's loss, as (round, client, step, value, z)."""
    seen = []
    original = method_class.loss

    def loss(self, client, x, y, z, scores):
        value = original(self, client, x, y, z, scores)
        seen.append((client.round, client.index, client.step, float(value.detach()), x, z.detach().clone()))
        return value

    monkeypatch.setattr(method_class, "loss", loss)
    return seen


def test_the_loss_is_the_formula(monkeypatch):
    """In a client's first round l_con is log 2; in its second it is Eq. 3, written out."""
    mu, tau = 3.0, 0.7
    seen = spy(monkeypatch, MOON)
    experiment = BASE.but(clients=2, per_round=None, rounds=2, methods=(MOON(mu=mu, tau=tau),))
    run = federation.begin(experiment)
    rounds = federation.play(run)
    next(rounds)
    w_glob, previous = run.w.clone(), {k: run.clients[k]["moon_previous"].clone() for k in (0, 1)}
    next(rounds)
    first = [value for r, *_, value, _, _ in seen if r == 1]
    assert first == pytest.approx([mu * math.log(2)] * len(first), rel=1e-6)
    second = [entry for entry in seen if entry[0] == 2]
    assert {k for _, k, *_ in second} == {0, 1} and max(step for _, _, step, *_ in second) > 1
    space = run.setting.space
    for _, k, _, value, x, z in second:
        with torch.no_grad():
            z_glob, z_prev = space.at(w_glob).features(x), space.at(previous[k]).features(x)

        def similarity(other, z=z):
            return (z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1))

        glob, prev = (torch.exp(similarity(other) / tau) for other in (z_glob, z_prev))
        assert value == pytest.approx(mu * float(-(glob / (glob + prev)).log().mean()), rel=1e-4)


def test_what_a_client_keeps_is_its_own_last_model():
    run = federation.begin(BASE.but(clients=2, per_round=None, rounds=1, methods=(MOON(),)))
    next(federation.play(run))
    p = torch.tensor(run.setting.sizes / run.setting.sizes.sum(), dtype=torch.float32)
    mean = sum(p[k] * run.clients[k]["moon_previous"] for k in (0, 1))
    torch.testing.assert_close(mean, run.w)
    assert not torch.equal(run.clients[0]["moon_previous"], run.clients[1]["moon_previous"])
