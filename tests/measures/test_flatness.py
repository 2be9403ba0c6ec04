"""Trace and top eigenvalue against the whole Hessian of a tiny network, perturbed loss against the known curvature."""

import numpy as np
import pytest
import torch

from fedlib.measures.flatness import Flatness, perturbed, top_eigenvalue, trace
from fedlib.measures.objective import Objective, sample


def test_trace(run, objective, exact):
    estimate, error = trace(objective, run.w, 300, np.random.default_rng(0))
    assert abs(estimate - float(exact[2].trace())) < 4 * error
    assert error < 0.1 * abs(float(exact[2].trace()))


def test_top_eigenvalue(run, objective, exact):
    top = float(torch.linalg.eigvalsh(exact[2])[-1])
    assert top_eigenvalue(objective, run.w, np.random.default_rng(0)) == pytest.approx(top, rel=2e-3)


def test_perturbed_loss_is_half_the_curvature_for_small_radii(smooth):
    """u_b is uniform on a sphere of radius ||w_b||, so E[u^T H u] = sum_b ||w_b||^2 / n_b tr H_bb; for logistic
    regression with probabilities q the blocks' traces are the means of sum_c q_c (1 - q_c), times ||x||^2 for weights.
    """
    s, w, radius = smooth.setting, smooth.w, 0.02
    images, labels = sample(s, "train", 40)
    x = s.space.images(torch.from_numpy(images)).flatten(1)
    weight, bias = s.space.layout.view(w, "head.weight"), s.space.layout.view(w, "head.bias")
    q = (x @ weight.T + bias).softmax(1)
    spread = (q * (1 - q)).sum(1)
    expected = weight.square().sum() / weight.numel() * (spread * x.square().sum(1)).mean()
    expected += bias.square().sum() / 10 * spread.mean()
    value = perturbed(Objective(s.space, images, labels), w, radius, 100, np.random.default_rng(0))
    assert value == pytest.approx(radius**2 / 2 * float(expected), rel=0.05)


def test_the_same_directions_every_time(run):
    server = type("Server", (), {"space": run.setting.space, "setting": run.setting, "w": run.w, "seed": 0})
    measure = Flatness(images=20, probes=2, perturbations=1)
    first, again = (measure.finish({}, run, server, {}) for _ in range(2))
    assert first == again
    assert set(first) == {"hessian_trace", "hessian_trace_error", "hessian_top", "perturbed_loss"}
