"""How flat the minimum is that a run has reached: trace and top eigenvalue of the Hessian, loss under perturbation.

Of the loss L on a sample of all clients' training images, at the global weights w (trained entries only):

    trace          tr H = E[v^T H v], v with independent entries +1 and -1        (Hutchinson 1990)
    top            largest eigenvalue of H, by Lanczos iteration                  (scipy.sparse.linalg.eigsh, ARPACK)
    perturbation   E[L(w + rho u) - L(w)], u_b = ||w_b|| z_b / ||z_b|| for each parameter tensor b, z Gaussian,
                   each u taken with -u, which cancels the slope at w

The last is relative to each tensor's norm, as Li et al. 2018 normalise their directions, because a ReLU network's
tensors can be rescaled against one another without changing its output, which the first two do not survive.

Cost in a measured round, on the server: about 3 (`probes` + 30) gradients of `images` images, and 2 `perturbations`
forward passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib import seeds
from fedlib.measures.base import Measure, Values
from fedlib.measures.objective import Objective, sample
from fedlib.methods.base import Server


def trace(objective: Objective, w: Tensor, probes: int, rng: np.random.Generator) -> tuple[float, float]:
    """Hutchinson's estimate of the Hessian's trace at `w`, and its standard error over the probes."""
    forms = []
    for _ in range(probes):
        v = torch.from_numpy(rng.choice(np.array([-1, 1], np.float32), objective.space.trained))
        forms.append(float(v.double() @ objective.hvp(w, v).double()))
    return float(np.mean(forms)), float(np.std(forms, ddof=1) / np.sqrt(probes))


def top_eigenvalue(objective: Objective, w: Tensor, rng: np.random.Generator, tolerance: float = 1e-3) -> float:
    """The Hessian's largest eigenvalue at `w`, to a relative tolerance; `rng` draws the start vector."""
    from scipy.sparse.linalg import LinearOperator, eigsh  # here, since every run would wait for it otherwise

    size = objective.space.trained
    hessian = LinearOperator((size, size), lambda v: objective.hvp(w, torch.from_numpy(v.ravel())).numpy(), dtype="f4")
    start = rng.standard_normal(size, np.float32)
    return float(eigsh(hessian, 1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False)[0])


def perturbed(objective: Objective, w: Tensor, radius: float, draws: int, rng: np.random.Generator) -> float:
    """Mean rise of the loss when each tensor moves by `radius` times its norm in a random direction."""
    rises, at_w = [], objective.loss(w)
    for _ in range(draws):
        step = torch.zeros_like(w)
        for name in objective.names:
            z = torch.from_numpy(rng.standard_normal(tuple(objective.layout.places[name][1]), np.float32))
            norm = float(objective.layout.view(w, name).norm())
            objective.layout.view(step, name).copy_(z * (radius * norm / z.norm()))
        rises += [objective.loss(w + step) - at_w, objective.loss(w - step) - at_w]
    return float(np.mean(rises))


class Flatness(Measure):
    """Curvature of the loss at the global weights, after the round.

    Series: ``hessian_trace`` with its standard error ``hessian_trace_error``, ``hessian_top`` (largest eigenvalue),
    ``perturbed_loss`` (rise of the loss under perturbation). The Hessian's are per squared unit of the weights.
    """

    images: int = Field(500, ge=1)
    """Training images that the loss is taken on, drawn once per run."""
    probes: int = Field(20, ge=2)
    """Random vectors for the trace."""
    radius: float = Field(0.05, gt=0)
    """rho, size of a perturbation relative to each tensor's norm."""
    perturbations: int = Field(10, ge=1)
    """Pairs of opposite random perturbations."""
    every: int = Field(10, ge=1)
    """Measure in rounds 1, 1 + every, ... and in the last: this is a costly measure."""

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        objective = Objective(server.space, *sample(server.setting, "train", self.images))
        # The same directions in every round and in every run of a seed: differences are then the networks'.
        rngs = [seeds.numpy(server.seed, f"flatness, {what}") for what in ("trace", "top", "perturbation")]
        estimate, error = trace(objective, server.w, self.probes, rngs[0])
        return {
            "hessian_trace": estimate,
            "hessian_trace_error": error,
            "hessian_top": top_eigenvalue(objective, server.w, rngs[1]),
            "perturbed_loss": perturbed(objective, server.w, self.radius, self.perturbations, rngs[2]),
        }
