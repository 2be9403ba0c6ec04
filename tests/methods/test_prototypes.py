import numpy as np
import pytest
import torch
import torch.nn.functional as F
from examples import BASE, ONE_CLASS, play

from fedlib import federation
from fedlib.methods import Prototypes


def test_the_server_sends_the_class_means_of_g_under_the_weights_of_the_round():
    method = Prototypes(beta=0.1)
    run = federation.begin(BASE.but(methods=(method,), rounds=2))
    w = run.w.clone()
    for r, _ in enumerate(federation.play(run), 1):
        s = run.setting
        g = method.reserves(s)
        network, y = s.space.at(w), s.dataset.y_train[g]
        with torch.no_grad():
            z = network.features(s.space.images(torch.from_numpy(s.dataset.x_train[g])))
        expected = torch.stack([z[torch.from_numpy(y == c)].mean(0) for c in range(10)])
        torch.testing.assert_close(run.server["prototypes"], expected)
        # Three clients, 10 means of 16 numbers beside the weights; no image is ever sent.
        assert run.series["bytes_down"]["value"][r - 1] == 3 * 4 * (len(w) + 10 * 16)
        w = run.w.clone()


def test_without_weights_it_is_fedavg_and_each_term_does_something():
    plain = play(ONE_CLASS)
    assert torch.equal(play(ONE_CLASS.but(methods=(Prototypes(lam=0.0, gamma=0.0),))).w, plain.w)
    cnn = BASE.but(rounds=1, methods=())
    ends = [play(cnn.but(methods=(Prototypes(lam=lam, gamma=gamma),))).w for lam, gamma in ((0, 0), (1, 0), (0, 1))]
    assert not torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("lam, gamma", [(0.7, 0.0), (0.0, 0.4), (0.7, 0.4)])
def test_the_term_by_hand(lam, gamma):
    s = federation.setting(BASE)
    client = federation.new_client(s, 0, 1, s.w_init, {}, {}, 0.1)
    rng = torch.Generator().manual_seed(0)
    c, z, y = torch.randn(10, 16, generator=rng), torch.randn(5, 16, generator=rng), torch.tensor([3, 3, 0, 9, 1])
    client.server["prototypes"] = c
    head = s.space.network.head
    expected = lam * sum(float((z[i] - c[y[i]]).square().sum()) / 16 for i in range(5)) / 5
    scores = c @ head.weight.T + head.bias
    expected += gamma * float(-F.log_softmax(scores.detach(), 1)[np.arange(10), np.arange(10)].mean())
    term = Prototypes(lam=lam, gamma=gamma).loss(client, None, y, z, None)
    assert float(term.detach()) == pytest.approx(expected, rel=1e-5)
