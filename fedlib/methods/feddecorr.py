"""FedDecorr (Shi et al. 2023, section 4), in the paper's scaling and in that of the official code.

loss = cross-entropy + beta L,  K = correlation matrix (d, d) of a batch's representations z (N, d)
paper:     L = (1/d^2) ||K||_F^2
official:  L = N mean_{i != j} K_ij^2,  K = Z^T Z / N

Each column of Z is z centred and divided by sqrt(1e-8 + its unbiased variance over the batch), as in the official code
(bytedance/FedDecorr); the paper's K is Z^T Z / (N - 1), with ones on its diagonal. The official L is about N times the
paper's without its diagonal. A batch of one has no correlations, L = 0.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method


def decorrelation(z: Tensor, scaling: Literal["paper", "official"]) -> Tensor:
    """L of representations z (N, d), N >= 2."""
    n, d = z.shape
    centred = z - z.mean(0)
    z = centred / (1e-8 + centred.square().sum(0) / (n - 1)).sqrt()
    # ||Z^T Z||_F = ||Z Z^T||_F: take the smaller product.
    squares = (z @ z.T if n < d else z.T @ z).square().sum()
    if scaling == "paper":
        return squares / (n - 1) ** 2 / d**2
    diagonal = z.square().sum(0).square().sum()
    return (squares - diagonal) / max(d * (d - 1), 1) / n


class FedDecorr(Method):
    """Decorrelates the dimensions of the representation, against its collapse under heterogeneity."""

    beta: float = Field(0.1, ge=0)
    """Weight of the term, beta; the authors' scripts take 0.1 (CIFAR-10, TinyImageNet) and 0.05 (CIFAR-100) in the
    official scaling. Without BatchNorm such weights can harm; 0 is FedAvg."""
    scaling: Literal["paper", "official"] = "official"
    """As printed in the paper, or as its code computes it: about the batch size times larger. The authors' values of
    beta belong to the code's."""
    layer: str | None = None
    """Name of the layer whose output, flattened, is decorrelated; None: the representation z before the classifier."""

    def check(self, experiment: Any) -> None:
        if self.layer is not None:
            experiment.outline.layer(self.layer)

    def start(self, client: Client) -> None:
        if self.layer is not None:
            client.space.capture(self.layer)

    def loss(self, client: Client, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> Tensor | None:
        if len(y) < 2:
            return None
        if self.layer is not None:
            z = client.space.outputs[self.layer].flatten(1)
        return self.beta * decorrelation(z.float(), self.scaling)
