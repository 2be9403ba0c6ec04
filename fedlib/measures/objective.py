"""The loss on a fixed sample of images as a function of the flat weights, with its first and second derivatives.

    L(w) = (1 / N) sum_i l(f(x_i; w), y_i)

in fp32, by the network in evaluation mode: BatchNorm uses the running statistics in w, which are constants here, so
derivatives are with respect to the trained entries alone. Hessian-vector products are exact (Pearlmutter 1994), by
differentiating g(w) . v a second time; the Hessian itself is never formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib import seeds

if TYPE_CHECKING:
    from fedlib.local import Workspace
    from fedlib.models import Network

CHUNK = 250
"""Images differentiated at a time, which bounds the memory that the graph takes."""


def sample(setting: Any, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The same `count` images (n, H, W, C) and labels (n,) of "train" (all clients' together) or "test" in every round.

    Drawn without replacement; all of them where there are fewer.
    """
    data = setting.dataset
    images, labels = (data.x_train, data.y_train) if split == "train" else (data.x_test, data.y_test)
    index = setting.train if split == "train" else np.arange(len(labels))
    if count < len(index):
        rng = seeds.numpy(setting.experiment.seed, f"sample of {split}")
        index = np.sort(rng.choice(index, count, replace=False))
    return images[index], labels[index]


class Objective:
    """L(w) over images uint8 (n, H, W, C) and labels (n,), computed with the spare network of a workspace."""

    def __init__(self, space: Workspace, images: np.ndarray | Tensor, labels: np.ndarray | Tensor) -> None:
        self.space, self.layout = space, space.layout
        self.x, self.y = torch.as_tensor(images), torch.as_tensor(labels)
        self.names = [name for name, (offset, _) in self.layout.places.items() if offset < space.trained]
        """Names of the trained tensors, in the order of the network's parameters."""

    def loss(self, w: Tensor) -> float:
        """L(w)."""
        network, total = self.space.at(w), 0.0
        with torch.inference_mode():
            for x, y in zip(self.x.split(CHUNK), self.y.split(CHUNK), strict=True):
                total += float(F.cross_entropy(network(self.space.images(x)).double(), y, reduction="sum"))
        return total / len(self.y)

    def gradient(self, w: Tensor, training: bool = False) -> Tensor:
        """dL/dw, (trained,). In `training` mode BatchNorm takes the statistics of each chunk, as local training does of
        each batch; `w` is left as it is."""
        network = self.space.at(w.clone() if training else w).train(training)
        g = torch.zeros(self.space.trained)
        for loss in self._losses(network):
            self._add(g, torch.autograd.grad(loss, list(network.parameters())))
        network.eval()
        return g

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """The Hessian at `w` times `v`, both (trained,)."""
        network, product = self.space.at(w), torch.zeros(self.space.trained)
        parameters = list(network.parameters())
        parts = self._parts(v)
        for loss in self._losses(network):
            g = torch.autograd.grad(loss, parameters, create_graph=True)
            self._add(product, torch.autograd.grad(g, parameters, parts))
        return product

    def block_forms(self, w: Tensor, v: Tensor) -> dict[str, float]:
        """v_b^T H_bb v_b for each trained tensor b: the Hessian's diagonal blocks at `w` as quadratic forms of `v`."""
        network = self.space.at(w)
        parameters = list(network.parameters())
        parts, forms = self._parts(v), dict.fromkeys(self.names, 0.0)
        for loss in self._losses(network):
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            for name, parameter, g, part in zip(self.names, parameters, gradients, parts, strict=True):
                (product,) = torch.autograd.grad(g, parameter, part, retain_graph=True)
                forms[name] += float((product.double() * part).sum())
        return forms

    def _losses(self, network: Network) -> Iterator[Tensor]:
        """Terms that add up to L, one a chunk."""
        for x, y in zip(self.x.split(CHUNK), self.y.split(CHUNK), strict=True):
            yield F.cross_entropy(network(self.space.images(x)), y, reduction="sum") / len(self.y)

    def _parts(self, v: Tensor) -> list[Tensor]:
        return [self.layout.view(v, name) for name in self.names]

    def _add(self, v: Tensor, parts: tuple[Tensor, ...]) -> None:
        for name, part in zip(self.names, parts, strict=True):
            self.layout.view(v, name).add_(part)
