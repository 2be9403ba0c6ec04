"""Shared images under differential privacy: the Gaussian mechanism (Dwork and Roth 2014, appendix A; claim W9).

    v = x / 255 - 1/2,   v <- v min(1, C / ||v||)                 x: an image, C: clipping norm
    r = (1/m) sum of m images v of one class + N(0, sigma^2 I)    sigma = z 2C / m
    sent: r min(1, 1/(4 sigma)) back on the scale 0 to 255        post-processing, free of privacy cost

z is the least noise multiplier for (epsilon, delta) at sensitivity 1 (Balle and Wang 2018), from the library
dp-accounting. Two sets are neighbours when one image of the holdout is replaced by another of its class: that moves one
r by at most 2C/m, and as the groups are disjoint the whole release is (epsilon, delta)-private. It is made once,
so rounds and clients do not add up. Labels are not protected, nor are images of the holdout used elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from fedlib import seeds
from fedlib.methods.copies import Copy
from fedlib.methods.shared_set import SharedSet


class Private(Copy):
    """Clipped images, averaged in groups of one class if so wished, with Gaussian noise."""

    first = True  # in a copy of copies one image of the holdout could be in many

    epsilon: float = Field(0.3, gt=0)
    """Privacy loss; the claim's .3 is strict."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """Probability that the loss is larger; well below one over the images of the holdout."""
    clip: float = Field(10.0, gt=0)
    """C, the largest norm of an image about mid-grey (digits have about 13, CIFAR-10 images 14); smaller is darker."""
    group: int = Field(1, ge=1)
    """m, images averaged into each one sent: noise falls as 1/m, and m times the images are drawn. At epsilon .3 a
    single image (m = 1) drowns in noise."""

    def noise(self) -> float:
        """sigma, standard deviation on the scale of images from -1/2 to 1/2."""
        from dp_accounting import get_sigma_gaussian  # takes a second to import

        return get_sigma_gaussian(self.epsilon, self.delta) * 2 * self.clip / self.group

    def sources(self, setting: Any, size: int) -> int:
        return self.group * -(-size // setting.classes) * setting.classes

    def make(self, setting: Any, drawn: SharedSet, size: int) -> SharedSet:
        # Classes take turns in what was drawn, and so they do in the groups.
        order = np.concatenate([np.flatnonzero(drawn.y == c).reshape(-1, self.group) for c in np.unique(drawn.y)])
        groups = order[np.argsort(order[:, 0], kind="stable")][:size]
        v = drawn.x.reshape(len(drawn.x), -1) / 255 - 0.5
        v *= np.minimum(1, self.clip / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12))
        sigma = self.noise()
        rng = seeds.numpy(setting.experiment.seed, "private sharing")
        r = v[groups].mean(1) + sigma * rng.standard_normal((len(groups), v.shape[1]))
        sent = np.clip(r * min(1, 0.25 / sigma) + 0.5, 0, 1)
        x = np.rint(255 * sent).astype(np.uint8).reshape(len(groups), *drawn.x.shape[1:])
        return SharedSet(x, drawn.y[groups[:, 0]], drawn.poisoned[groups].any(1))
