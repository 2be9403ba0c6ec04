"""Why label skew lowers the rank of representations, on the one deep network that can be followed: a linear one.

    scores = V W_L ... W_1 x,     Pi = W_L ... W_1 maps an input to its representation, (d, d)

trained by gradient descent on the cross-entropy, W_l balanced at the start (W_{l+1}^T W_{l+1} = W_l W_l^T, which
gradient flow keeps: Arora et al. 2018). Through the head, Pi only feels V^T (softmax - labels) x^T averaged over the
samples: with few classes among the labels that matrix has few large singular values, few of Pi grow, and
representations spread over few directions. Shi et al. 2023 (FedDecorr) argue so; the experiment is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax
from scipy.stats import ortho_group

from fedlib import seeds
from fedlib.spec import InputError


def labelled(fractions: Sequence[float], samples: int, width: int, rng: np.random.Generator) -> tuple:
    """Inputs (width, n) and one-hot labels (classes, n): class c is Gaussian about 3 times the unit vector c.

    A class has its fraction of the samples, rounded; a fraction is a share of 1.
    """
    fractions = np.asarray(fractions, float)
    if fractions.min() < 0 or abs(fractions.sum() - 1) > 1e-9 or len(fractions) > width:
        raise InputError(f"fractions = {fractions.tolist()} (allowed: up to {width} shares of 0 or more that sum to 1)")
    counts = np.diff(np.rint(np.cumsum(fractions) * samples), prepend=0).astype(int)
    labels = np.repeat(np.arange(len(fractions)), counts)
    x = rng.standard_normal((width, len(labels)))
    x[labels, np.arange(len(labels))] += 3
    return x, np.eye(len(fractions))[:, labels]


def train(
    fractions: Sequence[float], seed: int, layers: int = 3, width: int = 16, samples: int = 400, steps: int = 400,
    rate: float = 0.1, start: float = 0.5,
) -> tuple[np.ndarray, list[np.ndarray]]:  # fmt: skip
    """Singular values of Pi before each step and after the last, (steps + 1, width), descending; the final W_1..W_L.

    `fractions` (classes,) are the shares of the classes among the samples. At the start W_l is `start` times a random
    rotation, so all singular values of Pi are ``start ** layers``, and V is small and Gaussian.
    """
    rng = seeds.numpy(seed, "deep linear network")
    x, y = labelled(fractions, samples, width, rng)
    weights = [start * ortho_group.rvs(width, random_state=rng) for _ in range(layers)]
    head = 0.1 * rng.standard_normal((len(y), width))
    history = []
    for step in range(steps + 1):
        below = [np.eye(width)]  # below[l] = W_l ... W_1
        for w in weights:
            below.append(w @ below[-1])
        history.append(np.linalg.svd(below[-1], compute_uv=False))
        if step == steps:
            break
        error = (softmax(head @ below[-1] @ x, axis=0) - y) / y.shape[1]
        above = head.T @ error @ x.T  # gradient of the loss in Pi, then in W_l ... W_1
        head = head - rate * error @ (below[-1] @ x).T
        for i in reversed(range(layers)):
            gradient, above = above @ below[i].T, weights[i].T @ above
            weights[i] = weights[i] - rate * gradient
    return np.array(history), weights
