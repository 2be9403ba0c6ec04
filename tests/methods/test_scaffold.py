import pytest
import torch

from fedlib import federation
from fedlib.methods import SCAFFOLD
from fedlib.spec import InputError

UNLIKE = dict(h=[1.0, 8.0], a=[[1.0, 2.0], [-1.0, 0.5]], sizes=[30, 10])


@pytest.mark.parametrize("method", [SCAFFOLD(), SCAFFOLD(option="I"), SCAFFOLD(eta_g=0.7)])
def test_converges_to_the_optimum_where_fedavg_does_not(quadratics, method):
    q = quadratics(**UNLIKE)
    fields = dict(rounds=150, epochs=10, lr=0.05)
    assert (q.play(**fields).w - q.optimum).norm() > 0.2
    torch.testing.assert_close(q.play(**fields, methods=(method,)).w, q.optimum, rtol=0, atol=1e-5)


def test_converges_with_sampled_clients(quadratics):
    q = quadratics(h=[1.0, 4.0, 2.0, 0.5], a=[[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0], [2.0, 0.0]], sizes=[20, 10, 15, 15])
    fields = dict(rounds=500, epochs=5, lr=0.05, per_round=2)
    assert (q.play(**fields).w - q.optimum).norm() > 0.1
    torch.testing.assert_close(q.play(**fields, methods=(SCAFFOLD(),)).w, q.optimum, rtol=0, atol=1e-3)


def test_option_two_is_the_formula_with_k_steps_over_all_epochs(quadratics):
    """30 samples in batches of 10 over 4 epochs are K = 12 steps, 10 samples are 4."""
    q = quadratics(**UNLIKE)
    lr = 0.01
    run = q.play(rounds=1, epochs=4, lr=lr, batch_size=10, methods=(SCAFFOLD(),))
    for k, steps in enumerate([12, 4]):
        end = q.a[k] * (1 - (1 - lr * q.h[k]) ** steps)  # from x = 0
        torch.testing.assert_close(run.clients[k]["scaffold_c_i"], (0 - end) / (steps * lr))


def test_option_one_is_the_gradient_at_the_received_weights(quadratics):
    q = quadratics(**UNLIKE)
    first, second = (q.play(rounds=r, epochs=3, lr=0.05, methods=(SCAFFOLD(option="I"),)) for r in (1, 2))
    for k in range(2):
        torch.testing.assert_close(second.clients[k]["scaffold_c_i"], q.h[k] * (first.w - q.a[k]))
    assert second.series["gradients"]["value"] == [40 * 4, 40 * 4]  # three steps and one more pass


@pytest.mark.parametrize("option", ["I", "II"])
def test_c_is_the_weighted_mean_of_the_c_i_under_full_participation(quadratics, option):
    q = quadratics(**UNLIKE)
    run = federation.begin(q.experiment(rounds=5, epochs=3, lr=0.05, methods=(SCAFFOLD(option=option),)))
    for _ in federation.play(run):
        mean = sum(p * run.clients[k]["scaffold_c_i"] for k, p in enumerate(q.p))
        torch.testing.assert_close(run.server["scaffold_c"], mean)


def test_momentum_and_adaptive_steps_are_refused(quadratics):
    q = quadratics(**UNLIKE)
    with pytest.raises(InputError, match=r"momentum = 0\.9 \(allowed: momentum = 0, or option = 'I'\)"):
        federation.check(q.experiment(momentum=0.9, methods=(SCAFFOLD(),)))
    with pytest.raises(InputError, match="optimizer = 'sgd', given 'rmsprop'"):
        federation.check(q.experiment(optimizer="rmsprop", methods=(SCAFFOLD(option="I"),)))
    q.play(rounds=2, lr=0.01, momentum=0.9, methods=(SCAFFOLD(option="I"),))
