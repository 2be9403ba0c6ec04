import pytest
import torch
from examples import play

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.methods import Ditto
from fedlib.models import CNN
from fedlib.partitions import Dirichlet

E = Experiment(
    train_images=300, clients=4, per_round=2, rounds=3, batch_size=20, partition=Dirichlet(alpha=0.5),
    model=CNN(channels=(4,), dense=(8,)), evaluate_every=3,
)  # fmt: skip


@pytest.mark.parametrize("lam", [0.0, 0.7, 20.0])
def test_many_steps_solve_the_personal_problem(quadratics, lam):
    """argmin F_k(v) + lambda/2 ||v - w_t||^2 is (h_k a_k + lambda w_t) / (h_k + lambda), in the second round too."""
    q = quadratics(h=[1.0, 3.0], a=[[1.0, 2.0], [-1.0, 0.0]], sizes=[20, 10])
    for rounds in (1, 2):
        received = q.play(rounds=1, lr=0.05).w if rounds == 2 else torch.zeros(2)
        run = q.play(rounds=rounds, lr=0.05, methods=(Ditto(lam=lam, epochs=300),))
        for k in (0, 1):
            solution = (q.h[k] * q.a[k] + lam * received) / (q.h[k] + lam)
            torch.testing.assert_close(run.clients[k]["ditto_v"], solution, rtol=1e-4, atol=1e-4)


def test_the_global_model_is_fedavgs_and_the_price_is_stated():
    run, plain = play(E.but(methods=(Ditto(),))), play(E)
    assert torch.equal(run.w, plain.w)
    for name in ("bytes_up", "bytes_down"):
        assert run.series[name] == plain.series[name]
    assert run.series["gradients"]["value"] == [2 * g for g in plain.series["gradients"]["value"]]
    kept = run.series["client_state_bytes"]["value"]
    assert kept[-1] == len(run.clients) * 4 * len(run.w) and plain.series["client_state_bytes"]["value"] == [0] * 3


def test_clients_are_evaluated_with_their_own_model():
    e = E.but(methods=(Ditto(),))
    run = play(e)
    k = next(iter(run.clients))
    client = federation.new_client(run.setting, k, 4, run.w, run.clients[k], {}, 0.1)
    e.methods[0].personal(client)
    assert torch.equal(client.w, run.clients[k]["ditto_v"]) and not torch.equal(client.w, run.w)
