"""FedAvg against a trajectory worked out by hand."""

import torch


def test_trajectory_on_quadratics_with_unequal_clients(quadratics):
    """After K steps client k is at a_k + (1 - eta h_k)^K (w - a_k); the server weighs by samples."""
    q = quadratics(h=[1.0, 4.0], a=[[1.0, 0.0], [-2.0, 3.0]], sizes=[30, 10])
    lr, steps = 0.1, 3
    w = torch.zeros(2)
    for rounds in range(1, 5):
        keep = (1 - lr * q.h[:, None]) ** steps
        w = q.p @ (q.a + keep * (w - q.a))
        run = q.play(rounds=rounds, epochs=steps, lr=lr)
        torch.testing.assert_close(run.w, w)
    # The recorded loss is the mean over the samples of all steps, each at the weights before the step.
    w, losses = torch.zeros(2), []
    for step in range(steps):
        at = q.a + (1 - lr * q.h[:, None]) ** step * (w - q.a)
        losses.append(float(q.p @ (q.h / 2 * (at - q.a).square().sum(1))))
    assert abs(run.series["train_loss"]["value"][0] - sum(losses) / steps) < 1e-6


def test_momentum_starts_afresh_in_every_round(quadratics):
    q = quadratics(h=[1.0, 2.0], a=[[1.0, 0.0], [0.0, 1.0]], sizes=[10, 10])
    lr, rho, w = 0.1, 0.5, torch.zeros(2)
    for _ in range(3):
        ends = []
        for h, a in zip(q.h, q.a, strict=True):
            y, v = w.clone(), torch.zeros(2)
            for _ in range(4):
                v = rho * v + h * (y - a)
                y = y - lr * v
            ends.append(y)
        w = torch.stack(ends).mean(0)
    torch.testing.assert_close(q.play(rounds=3, epochs=4, lr=lr, momentum=rho).w, w)
