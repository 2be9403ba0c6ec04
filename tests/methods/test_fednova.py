import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlib import federation
from fedlib.methods import FedNova, FedProx
from fedlib.methods.fednova import norm
from fedlib.spec import InputError

STEPS = st.integers(1, 200)


@given(STEPS, st.floats(0, 0.99), st.floats(1e-6, 0.99))
def test_norms_are_the_papers(tau, rho, alpha):
    assert norm(tau) == tau
    momentum = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert norm(tau, rho=rho) == pytest.approx(momentum, rel=1e-9)
    assert norm(tau, alpha=alpha) == pytest.approx((1 - (1 - alpha) ** tau) / alpha, rel=1e-9)


@pytest.mark.parametrize("rho, mu", [(0.0, 0.0), (0.9, 0.0), (0.0, 2.0), (0.5, 2.0)])
def test_the_norm_is_how_far_the_local_loop_goes_under_a_constant_gradient(quadratics, rho, mu):
    """h tiny and a far: the gradient is -h a everywhere, so that Delta = -eta ||a||_1 h a."""
    q = quadratics(h=[1e-6, 1e-6], a=[[1e6, 0.0]] * 2, sizes=[10, 10])
    run = q.play(rounds=1, epochs=7, lr=0.01, momentum=rho, methods=(FedProx(mu=mu),))
    assert float(run.w[0]) == pytest.approx(0.01 * norm(7, rho, 0.01 * mu), rel=1e-4)


@pytest.mark.parametrize("rho, mu", [(0.0, 0.0), (0.8, 0.0), (0.0, 2.0)])
def test_removes_the_bias_of_unequal_steps(quadratics, rho, mu):
    """Clients of 40 and 10 samples take 4 and 1 steps a round: FedAvg minimises an objective that weighs the first
    about 4 times too much, FedNova the true one, up to the step size."""
    q = quadratics(h=[1.0, 1.0], a=[[1.0, 0.0], [0.0, 1.0]], sizes=[40, 10])
    fields = dict(lr=0.01, epochs=1, batch_size=10, momentum=rho, rounds=300)
    prox = (FedProx(mu=mu),) if mu else ()
    biased = (q.play(**fields, methods=prox).w - q.optimum).norm()
    nova = (q.play(**fields, methods=(*prox, FedNova())).w - q.optimum).norm()
    assert biased > 0.1
    assert nova < 0.1 * biased


def test_fixed_points_on_quadratics(quadratics):
    """Where sum_k p_k (1 - (1 - eta h)^tau_k) / n_k (a_k - w) = 0, n_k = tau_k for FedNova and 1 for FedAvg."""
    q = quadratics(h=[1.0, 1.0], a=[[1.0, 0.0], [0.0, 1.0]], sizes=[40, 10])
    tau, lr = torch.tensor([4.0, 1.0]), 0.1
    moved = q.p * (1 - (1 - lr) ** tau)
    fields = dict(lr=lr, batch_size=10, rounds=100)
    torch.testing.assert_close(q.play(**fields).w, q.balance(moved))
    torch.testing.assert_close(q.play(**fields, methods=(FedNova(),)).w, q.balance(moved / tau))


def test_effective_steps_as_norms_or_as_steps(quadratics):
    """Under momentum they differ by the factor sum p_i ||a_i|| / sum p_i tau_i, and in nothing else."""
    q = quadratics(h=[1.0, 1.0], a=[[1.0, 0.0], [0.0, 1.0]], sizes=[40, 10])
    fields = dict(lr=0.01, batch_size=10, momentum=0.9, rounds=1)
    norms, steps = (q.play(**fields, methods=(FedNova(tau_eff=name),)).w for name in ("norms", "steps"))
    factor = np.dot([0.8, 0.2], [norm(4, 0.9), norm(1, 0.9)]) / np.dot([0.8, 0.2], [4, 1])
    torch.testing.assert_close(norms, steps * factor)


def test_adaptive_steps_are_refused(quadratics):
    q = quadratics(h=[1.0, 1.0], a=[[1.0], [0.0]], sizes=[1, 1])
    with pytest.raises(InputError, match="FedNova knows a_i only of optimizer = 'sgd'"):
        federation.check(q.experiment(optimizer="rmsprop", methods=(FedNova(),)))
