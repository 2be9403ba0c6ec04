import torch

from fedlib.methods import FedProx


def test_many_steps_solve_the_proximal_problem(quadratics):
    """argmin F_k(w) + mu/2 ||w - w_t||^2 is (h_k a_k + mu w_t) / (h_k + mu), in the second round too."""
    q = quadratics(h=[1.0, 3.0], a=[[1.0, 2.0], [-1.0, 0.0]], sizes=[20, 10])
    mu, w = 0.7, torch.zeros(2)
    for rounds in (1, 2):
        w = q.p @ ((q.h[:, None] * q.a + mu * w) / (q.h[:, None] + mu))
        run = q.play(rounds=rounds, epochs=100, lr=0.2, methods=(FedProx(mu=mu),))
        torch.testing.assert_close(run.w, w)
