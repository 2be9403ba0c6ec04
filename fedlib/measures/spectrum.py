"""Spectrum of the representations' covariance: dimensional collapse (Shi et al. 2023, "FedDecorr", section 3).

    Sigma = (1 / N) sum_i (z_i - z_mean)(z_i - z_mean)^T,    z_i the representation of test image i, (d,)

Its singular values, in descending order, say over how many directions the representations spread: the paper's figure 2
plots their logarithms against the index, up to 100. One number for the same is the effective rank (Roy and Vetterli
2007), exp(H(p)) with p_k = sigma_k / sum sigma and H the entropy in nats: 1 when all lie on a line, d when they spread
evenly. It is scale-free, which the singular values are not.

Cost in a measured round: one forward pass over `images` and one d x d eigendecomposition, for the global model and,
where `local`, for each client (on its worker).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib.measures.base import Measure, Values
from fedlib.measures.objective import sample
from fedlib.methods.base import Client, Server

if TYPE_CHECKING:
    from fedlib.local import Workspace

DEAD = 1e-8
"""Variance below which a feature counts as constant: what FedDecorr's code adds to it before it divides by its root."""


def representations(space: Workspace, w: Tensor, images: np.ndarray) -> np.ndarray:
    """z of each image under weights `w`, (n, d), in evaluation mode."""
    network = space.at(w)
    with torch.inference_mode():
        return torch.cat([network.features(space.images(x)) for x in torch.from_numpy(images).split(500)]).numpy()


def covariance(z: np.ndarray) -> np.ndarray:
    """Sigma of representations (n, d), divided by n, in double precision: (d, d)."""
    centred = z - z.mean(0, dtype=np.float64)
    return centred.T @ centred / len(z)


def singular_values(symmetric: np.ndarray) -> np.ndarray:
    """Singular values of a covariance matrix (d, d), descending; those below the matrix's numerical rank are 0."""
    values = np.abs(np.linalg.eigvalsh(symmetric))
    values[::-1].sort()
    values[values <= values[0] * len(values) * np.finfo(float).eps] = 0
    return values


def effective_rank(values: np.ndarray) -> float:
    """exp of the entropy of the normalised singular values (Roy and Vetterli 2007), 1 to d; 0 where all are 0."""
    p = values[values > 0] / max(values.sum(), np.finfo(float).tiny)
    return float(np.exp(-(p * np.log(p)).sum())) if len(p) else 0.0


class Spectrum(Measure):
    """Singular values, effective rank and dead features of the representations on test images.

    Series, each for the global model after the round (``_global``) and, as the plain mean over the round's clients,
    for their models before averaging (``_local``): ``spectrum_global`` (the `top` largest singular values, descending;
    a reader takes the logarithm, 0 means below numerical rank), ``effective_rank_global`` (over all d),
    ``dead_features_global`` (number of features whose variance over the images is below 1e-8).
    """

    images: int = Field(2000, ge=2)
    """Test images, drawn once per run; all, where there are fewer."""
    top: int = Field(100, ge=1, le=100)
    """Singular values stored; FedDecorr's figure 2 has 100."""
    local: bool = True
    """Whether to measure the clients' models too."""

    def _measure(self, space: Workspace, setting: Any, w: Tensor) -> Values:
        sigma = covariance(representations(space, w, sample(setting, "test", self.images)[0]))
        values = singular_values(sigma)
        return {
            "spectrum": values[: self.top].tolist(),
            "effective_rank": effective_rank(values),
            "dead_features": int((np.diag(sigma) < DEAD).sum()),
        }

    def client(self, client: Client) -> Values:
        return self._measure(client.space, client.setting, client.w) if self.local else {}

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        result = {f"{name}_global": v for name, v in self._measure(server.space, server.setting, server.w).items()}
        if self.local:
            for name in ("spectrum", "effective_rank", "dead_features"):
                result[f"{name}_local"] = np.mean([values[name] for values in clients.values()], 0).tolist()
        return result
