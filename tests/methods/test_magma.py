import pytest
import torch
from examples import BASE

from fedlib import federation
from fedlib.methods import Magma


def client_of(setting, round=1):
    return federation.new_client(setting, 0, round, setting.w_init, {}, {}, 0.1)


def test_magma_by_hand_over_two_rounds(quadratics):
    q = quadratics(h=[2.0], a=[[1.0, -2.0, 3.0]], sizes=[10])
    method, lr, steps = Magma(p=0.6, unit="element", tau=1.5, momentum=0.8), 0.1, 5
    run = q.play(rounds=2, epochs=steps, lr=lr, methods=(method,))
    w, mu, s = torch.zeros(3), torch.zeros(3), torch.full((3,), 0.5)
    for r in (1, 2):
        for step in range(steps):
            g = 2.0 * (w - q.a[0])
            mu = 0.8 * mu + 0.2 * g
            s = 0.9 * s + 0.1 * torch.sigmoid(torch.sign(mu * g) / 1.5)  # the cosine of single numbers
            w = w - lr * s * method.mask(client_of(run.setting, round=r), step) * g
    torch.testing.assert_close(run.w, w)


def test_magma_takes_the_cosine_per_block():
    setting = federation.Setting(BASE)
    method, layout = Magma(), setting.space.layout
    client = client_of(setting)
    client.state.update(method.client_state(setting.w_init, layout.trained))
    generator = torch.Generator().manual_seed(1)
    g1, g2 = torch.randn(2, layout.trained, generator=generator)
    method.correct(client, g1)
    method.correct(client, g2)
    mu = 0.09 * g1 + 0.1 * g2
    for i, name in enumerate(layout.places):
        cosines = [
            1.0,
            float(torch.cosine_similarity(layout.view(mu, name).flatten(), layout.view(g2, name).flatten(), 0)),
        ]
        s = 0.5
        for cosine in cosines:
            s = 0.9 * s + 0.1 * float(torch.sigmoid(torch.tensor(cosine / 2)))
        assert float(client.state["magma_s"][i]) == pytest.approx(s, rel=1e-5)
