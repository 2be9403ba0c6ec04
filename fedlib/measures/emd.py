"""How far the clients' label distributions are from the population's: EMD, as Zhao et al. 2018 use the word.

It is the L1 distance of two label distributions, 0 to 2 (Proposition 3.1, Remark 3.4); half of it is the earth mover's
distance for the ground cost "same class 0, other class 1". It is not a transport distance over class numbers.
"""

from __future__ import annotations

import numpy as np

from fedlib.spec import InputError


def emd(counts: np.ndarray, population: np.ndarray | None = None) -> np.ndarray:
    """EMD of each client, (clients,): sum_i |p_k(y = i) - p(y = i)|, p of all clients' samples together.

    `counts` (clients, classes): samples of each class that each client holds, none negative. `population` (classes,):
    another distribution p to compare with. Raises :class:`InputError` for another shape, negative counts and a client
    without a sample.
    """
    counts = _checked(counts)
    population = counts.sum(0) / counts.sum() if population is None else population
    return np.abs(counts / counts.sum(1, keepdims=True) - population).sum(1)


def mean_emd(counts: np.ndarray, population: np.ndarray | None = None) -> float:
    """The clients' :func:`emd` weighted by their samples, sum_k (n_k / n) EMD_k, as in the bound of Proposition 3.1."""
    counts = _checked(counts)
    return float(np.average(emd(counts, population), weights=counts.sum(1)))


def expected_emd(alpha: float, classes: int) -> float:
    """Expected EMD to the uniform distribution of label distributions drawn from Dirichlet(alpha, ..., alpha).

    Each share is Beta(a, b) with a = alpha, b = (classes - 1) alpha, and its mean absolute deviation is
    2 a^a b^b / (B(a, b) (a + b)^(a + b + 1)) (Johnson, Kotz and Balakrishnan 1995, chapter 25); the EMD is `classes`
    times that. It goes to 2 (1 - 1 / classes) for alpha to 0. A partition of finite size only comes near it: clients
    share one stock of samples. Raises :class:`InputError` for alpha <= 0 or fewer than two classes.
    """
    if not (alpha > 0 and np.isfinite(alpha)):
        raise InputError(f"alpha = {alpha} (allowed: > 0)")
    if classes < 2:
        raise InputError(f"classes = {classes} (allowed: 2 or more)")
    from scipy.special import betaln  # here, since every run would wait for it otherwise

    a, b = alpha, (classes - 1) * alpha
    logarithm = a * np.log(a) + b * np.log(b) - betaln(a, b) - (a + b + 1) * np.log(a + b)
    return float(2 * classes * np.exp(logarithm))


def _checked(counts: np.ndarray) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.ndim != 2 or (counts < 0).any() or (counts.sum(1) == 0).any():
        raise InputError(f"counts of shape {counts.shape} (allowed: clients x classes, none negative, each client "
                         f"with a sample)")
    return counts
