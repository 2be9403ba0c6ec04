import pytest
import torch
import torch.nn.functional as F
from examples import BASE

from fedlib import federation
from fedlib.methods import FedCurv
from fedlib.methods.fedcurv import fisher
from fedlib.models import CNN, ResNet
from fedlib.partitions import Iid


def client_of(experiment, index=0, round=1):
    s = federation.setting(experiment)
    return federation.new_client(s, index, round, s.w_init, {}, {}, experiment.lr)


@pytest.mark.parametrize("model", [CNN(channels=(4, 8), dense=(16,), norm="batch"), ResNet(blocks=(1, 1), width=4)])
def test_fisher_is_the_mean_squared_gradient_of_single_samples(model):
    """Against one backward pass a sample, in evaluation mode; for BatchNorm, and GroupNorm with shortcuts."""
    client = client_of(
        BASE.but(train_images=40, clients=1, per_round=None, batch_size=10, partition=Iid(), model=model)
    )
    space, w = client.space, client.w_start + 0.01
    layout = space.layout
    found = fisher(client, w)
    assert client.gradients == client.n > 32
    copy, g = w.clone(), torch.zeros(layout.trained)
    network = space.at(w)
    layout.attach(network, copy, g)
    expected = torch.zeros(layout.trained)
    for x, y in zip(client.x, client.y, strict=True):
        g.zero_()
        F.cross_entropy(network(space.images(x[None])), y[None]).backward()
        expected += g.square() / client.n
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-8)


def test_the_penalty_is_the_sum_over_the_other_clients_of_the_last_round():
    """The added gradient against finite differences of the penalty as the paper writes it, round after round."""
    lam = 0.3
    experiment = BASE.but(rounds=3, per_round=3, methods=(FedCurv(lam=lam),))
    run = federation.begin(experiment)
    s = run.setting
    last: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    outsiders = 0
    for _ in federation.play(run):
        seen = [k for k in run.clients if int(run.clients[k]["fedcurv_round"]) == run.round]
        assert len(seen) == 3
        last = {k: (run.clients[k]["fedcurv_F"], run.clients[k]["fedcurv_Fw"]) for k in seen}
        for k in range(experiment.clients):
            client = federation.new_client(
                s, k, run.round + 1, run.w, federation.client_state(run, k), run.broadcast, experiment.lr
            )
            client.w.add_(0.01)  # as if a few steps into the round
            g = torch.zeros(s.space.trained)
            experiment.methods[0].correct(client, g)
            w = client.w[: len(g)].double()
            others = [(Fj.double(), Fw.double()) for j, (Fj, Fw) in last.items() if j != k]
            outsiders += len(others) == 3

            def penalty(w, others=others):
                kept = [(Fj, torch.where(Fj > 0, Fw / Fj, 0.0)) for Fj, Fw in others]
                return lam * sum((Fj * (w - wj).square()).sum() for Fj, wj in kept)

            direction = torch.randn(len(g), generator=torch.Generator().manual_seed(k), dtype=torch.float64)
            slope = (penalty(w + 1e-5 * direction) - penalty(w - 1e-5 * direction)) / 2e-5
            assert float(g.double() @ direction) == pytest.approx(float(slope), rel=1e-3)
    assert outsiders  # clients that were not in the last round, whose old part must not be taken out
