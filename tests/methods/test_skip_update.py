import pytest
import torch
from examples import BASE, play

from fedlib import federation
from fedlib.methods import SkipUpdate


def client_of(setting):
    return federation.new_client(setting, 0, 1, setting.w_init, {}, {}, 0.1)


@pytest.mark.parametrize("optimizer, momentum", [("sgd", 0.0), ("sgd", 0.9), ("rmsprop", 0.0)])
def test_skip_update_by_hand_with_moments_that_see_every_gradient(quadratics, optimizer, momentum):
    q = quadratics(h=[2.0], a=[[1.0, -2.0, 3.0, 0.5]], sizes=[10])
    method, lr, steps = SkipUpdate(p=0.4, unit="element"), 0.05, 6
    run = q.play(rounds=1, epochs=steps, lr=lr, optimizer=optimizer, momentum=momentum, methods=(method,))
    w, v, s, dropped = torch.zeros(4), torch.zeros(4), torch.zeros(4), 0
    for step in range(steps):
        mask = method.mask(client_of(run.setting), step)
        dropped += int((mask == 0).sum())
        g = 2.0 * (w - q.a[0])
        v, s = momentum * v + g, 0.99 * s + 0.01 * g.square()
        update = g / (s.sqrt() + 1e-8) if optimizer == "rmsprop" else v
        w = w - lr * mask / 0.4 * update
    assert 0 < dropped < 4 * steps
    torch.testing.assert_close(run.w, w)


def test_blocks_dropped_for_the_round_stay_as_received():
    method = SkipUpdate(unit="row", shared=True, redraw="round")
    run = play(BASE.but(rounds=1, methods=(method,)))
    s = run.setting
    kept = method.mask(client_of(s)) == 1
    moved = run.w[: s.space.trained] != s.w_init[: s.space.trained]
    assert not moved[~kept].any() and (~kept).any()
    # Kept weights move, but for those of ReLUs that see nothing and pixels that are always background.
    assert moved[kept].float().mean() > 0.5
