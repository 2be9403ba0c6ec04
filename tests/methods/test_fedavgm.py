import pytest
import torch
from examples import BASE, play

from fedlib.methods import FedAvgM
from fedlib.models import CNN


@pytest.mark.parametrize("form, gain", [("undamped", 1.0), ("damped", 0.4)])
def test_server_momentum_on_quadratics(quadratics, form, gain):
    q = quadratics(h=[1.0, 2.0], a=[[1.0, 0.0], [0.0, 1.0]], sizes=[30, 10])
    lr, beta, w, v = 0.1, 0.6, torch.zeros(2), torch.zeros(2)
    for _ in range(6):
        delta = lr * (q.p * q.h) @ (w - q.a)  # one full-batch step each
        v = beta * v + gain * delta
        w = w - v
    torch.testing.assert_close(q.play(rounds=6, lr=lr, methods=(FedAvgM(beta=beta, form=form),)).w, w)


def test_running_statistics_have_no_momentum():
    """With weights that stay where they are, they are the clients' mean: as without momentum."""
    batchnorm = BASE.but(model=CNN(channels=(4, 8), norm="batch"), rounds=4, lr=1e-12)
    plain, momentum = play(batchnorm), play(batchnorm.but(methods=(FedAvgM(beta=0.9),)))
    trained = plain.setting.space.trained
    assert not torch.equal(plain.w[trained:], plain.setting.w_init[trained:])
    torch.testing.assert_close(momentum.w[trained:], plain.w[trained:], rtol=1e-4, atol=1e-5)
