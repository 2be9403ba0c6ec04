import pytest
import torch

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.methods import PerFedAvg
from fedlib.models import Linear
from fedlib.spec import InputError

H, A, SIZES = [1.0, 3.0], [[1.0, 2.0], [-1.0, 0.0]], [20, 10]


@pytest.mark.parametrize("variant, power", [("HF", 2), ("FO", 1)])
def test_the_gradient_of_a_quadratic(quadratics, variant, power):
    """grad F_k(w) = (1 - alpha h_k) h_k (1 - alpha h_k) (w - a_k), the first factor from the Hessian; two steps."""
    q, alpha, beta = quadratics(H, A, SIZES), 0.2, 0.1
    w = torch.zeros(2, 2)
    for _ in range(2):
        w -= beta * (q.h * (1 - alpha * q.h) ** power)[:, None] * (w - q.a)
    run = q.play(rounds=1, epochs=2, lr=beta, methods=(PerFedAvg(alpha=alpha, variant=variant, delta=0.01),))
    torch.testing.assert_close(run.w, q.p @ w, rtol=1e-4, atol=1e-5)


def test_converges_to_the_minimum_of_its_own_objective(quadratics):
    """sum_k p_k f_k(w - alpha grad f_k(w)) weighs client k by p_k h_k (1 - alpha h_k)^2: not FedAvg's minimum."""
    q, alpha = quadratics(H, A, SIZES), 0.2
    own = q.balance(q.p * q.h * (1 - alpha * q.h) ** 2)
    run = q.play(rounds=200, lr=0.2, methods=(PerFedAvg(alpha=alpha, delta=0.01),))
    torch.testing.assert_close(run.w, own, rtol=1e-3, atol=1e-3)
    assert (own - q.optimum).norm() > 0.1


def test_evaluated_after_steps_on_the_own_samples(quadratics):
    q, alpha = quadratics(H, A, SIZES), 0.2
    method = PerFedAvg(alpha=alpha, steps=3)
    setting = federation.setting(q.experiment(methods=(method,)))
    w = torch.tensor([0.3, -0.2])
    for k in (0, 1):
        client = federation.new_client(setting, k, 1, w, {}, {}, 0.1)
        method.personal(client)
        torch.testing.assert_close(client.w, q.a[k] + (1 - alpha * q.h[k]) ** 3 * (w - q.a[k]))
        assert client.gradients == 3 * SIZES[k]


def test_the_gradient_of_a_network_is_autograds():
    """With full batches D = D' = D'', so that HF is the gradient of w -> f(w - alpha grad f(w)). (Where the network has
    kinks, as ReLU does, the two differ: autograd's Hessian does not see them.)"""
    e = Experiment(train_images=40, clients=2, batch_size=None, model=Linear())
    s, alpha = federation.setting(e), 0.05
    client = federation.new_client(s, 1, 1, s.w_init, {}, {}, 0.1)
    x, y = s.space.images(client.x), client.y
    weights = [s.space.layout.view(s.w_init.double(), name).requires_grad_() for name in ("head.weight", "head.bias")]

    def f(weights):
        return torch.nn.functional.cross_entropy(x.flatten(1).double() @ weights[0].T + weights[1], y)

    gradient = torch.autograd.grad(f(weights), weights, create_graph=True)
    moved = f([w - alpha * g for w, g in zip(weights, gradient, strict=True)])
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(moved, weights)]).float()
    error = {}
    for variant in ("HF", "FO"):
        method = PerFedAvg(alpha=alpha, variant=variant)
        loss = method.gradient(client, lambda x, y: s.space.gradient(client, x, y, []), x, y)
        assert float(loss) == pytest.approx(moved.item(), rel=1e-4)
        assert torch.equal(client.w, s.w_init)
        error[variant] = float((s.space.g - exact).norm() / exact.norm())
    assert error["HF"] < 1e-3 < 0.5 < error["FO"]


@pytest.mark.parametrize("variant, batches", [("FO", 2), ("HF", 4)])
def test_gradients_are_counted(quadratics, variant, batches):
    q = quadratics(H, A, SIZES)
    run = q.play(rounds=1, epochs=3, batch_size=5, methods=(PerFedAvg(variant=variant),))
    assert run.series["gradients"]["value"] == [3 * batches * sum(SIZES)]
    assert run.series["bytes_up"]["value"] == run.series["bytes_down"]["value"] == [2 * 4 * 2]


def test_bf16_is_refused(quadratics):
    q = quadratics(H, A, SIZES)
    with pytest.raises(InputError, match="precision = 'bf16'"):
        federation.check(q.experiment(precision="bf16", methods=(PerFedAvg(),)))
