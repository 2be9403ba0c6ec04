"""Shared data condensed by gradient matching (DC; Zhao, Mopuri and Bilen 2021, Eq. 9 and Algorithm 1; claim W8).

    min_S  E_theta0 sum_t sum_c  D(grad L(S_c; theta_t), grad L(T_c; theta_t))      T: drawn images, S: as many as sent
    D(a, b) = sum over layers and output rows i of  1 - <a_i, b_i> / (||a_i|| ||b_i||)       (biases and norms left out)

for each of `iterations` fresh networks theta_0: `outer` times, a step on S_c for every class c, then `inner` epochs of
training theta on S. The network is the experiment's own (the paper has a ConvNet of 3 x 128 filters). Departures: S is
kept within the pixel range after each step, for it is sent as 8-bit images. The result is kept in the cache, and a run
does not count its gradients: `iterations` x `outer` times those of `batch` drawn and all shared images of each class.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib import cache, seeds
from fedlib.methods.copies import Copy
from fedlib.methods.shared_set import SharedSet

VERSION = 1
"""Bump it with any change of the numbers: what is cached is then made again."""


def distance(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    """D of two gradients, given per parameter tensor."""
    rows = ((u.flatten(1), v.flatten(1)) for u, v in zip(a, b, strict=True) if u.ndim > 1)
    return sum((1 - (u * v).sum(1) / (u.norm(dim=1) * v.norm(dim=1) + 1e-6)).sum() for u, v in rows)


class Condensed(Copy):
    """Few synthetic images whose gradients are those of many real ones."""

    pool: int = Field(250, ge=1, examples=[20])
    """Images of each class drawn from the holdout and condensed, |T_c|; the paper has the whole training set."""
    batch: int = Field(256, ge=1)
    """Real images of a class in one step; paper 256."""
    iterations: int = Field(200, ge=1, examples=[5])
    """Fresh networks; paper 1000."""
    outer: int = Field(1, ge=1)
    """Steps on S per network; paper 1, 10 and 50 for 1, 10 and 50 images a class. The cost grows in proportion."""
    inner: int = Field(1, ge=0)
    """Epochs of training on S between two of them; paper 1, 50 and 10."""
    lr_image: float = Field(0.1, gt=0)
    """Learning rate of the images (with momentum .5), on normalised pixels; paper .1."""
    lr_net: float = Field(0.01, gt=0)
    """Learning rate of theta; paper .01."""
    init: Literal["noise", "real"] = "noise"
    """S starts as normal noise (paper) or as random images of T."""

    def sources(self, setting: Any, size: int) -> int:
        return max(self.pool, -(-size // setting.classes)) * setting.classes

    def make(self, setting: Any, drawn: SharedSet, size: int) -> SharedSet:
        e = setting.experiment
        key = [VERSION, self.to_dict(), e.model.to_dict(), setting.dataset.fingerprint, e.seed, size]
        content = json.dumps(key).encode() + drawn.x.tobytes() + drawn.y.tobytes()
        x = cache.array("condensed", content, lambda: self.condense(setting, drawn, size))
        y = np.arange(size) % setting.classes
        return SharedSet(x, y, np.array([drawn.poisoned[drawn.y == c].any() for c in y]))

    def condense(self, setting: Any, drawn: SharedSet, size: int) -> np.ndarray:
        """S as uint8 images, the classes taking turns."""
        e, space = setting.experiment, setting.space
        rng, generator = seeds.numpy(e.seed, "condensation"), seeds.torch_(e.seed, "condensation")
        y, real = torch.arange(size) % setting.classes, torch.from_numpy(drawn.y)
        shift, scale = (by_channel.view(-1, 1, 1) for by_channel in (space.shift, space.scale))
        low, high = -shift * scale, (255 - shift) * scale
        s = space.images(torch.from_numpy(drawn.x[:size]))  # drawn in the same order of classes
        if self.init == "noise":
            s = torch.randn(s.shape, generator=generator).clamp(low, high)
        s.requires_grad_()
        images = torch.optim.SGD([s], self.lr_image, momentum=0.5)
        for _ in range(self.iterations):
            network = e.model.initial(drawn.x.shape[1:], setting.classes, rng)
            theta = tuple(network.parameters())
            training = torch.optim.SGD(theta, self.lr_net)
            for step in range(self.outer):
                images.zero_grad()
                for c in range(min(size, setting.classes)):
                    chosen = rng.permutation(torch.nonzero(real == c)[:, 0].numpy())[: self.batch]
                    batch = space.images(torch.from_numpy(drawn.x[chosen]))
                    target = torch.autograd.grad(F.cross_entropy(network(batch), real[chosen]), theta)
                    own = F.cross_entropy(network(s[y == c]), y[y == c])
                    distance(torch.autograd.grad(own, theta, create_graph=True), target).backward(inputs=[s])
                images.step()
                with torch.no_grad():
                    s.clamp_(low, high)
                for _ in range(self.inner if step + 1 < self.outer else 0):
                    for part in torch.from_numpy(rng.permutation(size)).split(256):
                        training.zero_grad()
                        F.cross_entropy(network(s.detach()[part]), y[part]).backward()
                        training.step()
        pixels = s.detach() / scale + shift
        return pixels.permute(0, 2, 3, 1).round().clamp(0, 255).to(torch.uint8).numpy()
