"""How well each client is served, and how evenly: the clients' own models on the clients' own test images.

    a_k       accuracy of client k's model on its test images
    mean, standard deviation of the a_k over all N clients, each counting once
    worst     mean of the lowest tenth of the a_k, ceil(N / 10) of them
    Jain      (sum_k a_k)^2 / (N sum_k a_k^2), from 1 / N (one client has everything) to 1 (all alike)

A client's model is the global one after what the method does to make it personal. The local test set follows the
client's label distribution and is seen as the client sees its data. Reporting mean, spread and worst clients follows Li
et al. 2021 (Ditto, section 4); the index is that of Jain, Chiu and Hawe 1984.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fedlib import seeds
from fedlib.measures.base import Measure, Values
from fedlib.methods.base import Server
from fedlib.spec import InputError


def jain(values: np.ndarray) -> float:
    """Jain's fairness index of N values that are not negative; 1 where all are zero, which is even too."""
    values = np.asarray(values, float)
    if values.ndim != 1 or not len(values) or (values < 0).any():
        raise InputError(f"values of shape {values.shape} (allowed: one dimension, at least one, none negative)")
    return float(values.sum() ** 2 / (len(values) * (values**2).sum())) if values.any() else 1.0


def worst_decile(values: np.ndarray) -> float:
    """Mean of the lowest tenth of the values, at least one of them."""
    return float(np.sort(values)[: -(-len(values) // 10)].mean())


def worst_by_chance(accuracy: np.ndarray, images: np.ndarray, draws: int = 2000) -> float:
    """How far the worst decile would lie below the mean if all clients were served alike, expected.

    The lowest of noisy numbers lie below their mean whatever they stand for. Client k's accuracy is drawn as the share
    of `images`[k] coins, each with the clients' mean accuracy.
    """
    accuracy, images = np.asarray(accuracy, float), np.asarray(images, np.float64).astype(np.int64)
    shares = seeds.numpy(0, "worst decile by chance").binomial(images, accuracy.mean(), (draws, len(images))) / images
    return float(np.mean([row.mean() - worst_decile(row) for row in shares]))


def halves(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mean of the clients' values over the smaller half of the clients and over the larger half, (2,).

    A middle client counts to the larger half, and so does the later of two of equal size.
    """
    order = np.argsort(np.asarray(sizes), kind="stable")
    values = np.asarray(values, float)[order]
    if len(values) < 2:
        raise InputError(f"{len(values)} client (allowed: at least two, to have a smaller and a larger half)")
    return np.array([values[: len(values) // 2].mean(), values[len(values) // 2 :].mean()])


class PerClient(Measure):
    """Accuracy of every client's model, and its spread over the clients.

    Series: ``client_accuracy`` and ``client_loss`` (lists by client), ``client_sizes`` (their training samples),
    ``client_test_images`` (the images that each accuracy stands on), ``client_accuracy_mean``, ``_std``,
    ``_worst_decile``, ``_jain``, and ``client_gradients``, the sample gradients that making all these models personal
    took. With ``images = "all"`` the names begin with ``all_client_``.
    """

    images: Literal["own", "all"] = "own"
    """Test images: the client's own, or the whole test set, which FD's models without a global one are compared on."""

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        scores = [score for _, score in run.score_clients(server.w, range(server.clients), self.images)]
        accuracy = np.array([score.correct.sum() / score.images for score in scores])
        values = {
            "accuracy": accuracy.tolist(),
            "loss": [score.loss / score.images for score in scores],
            "sizes": server.sizes.tolist(),
            "test_images": [score.images for score in scores],
            "accuracy_mean": float(accuracy.mean()),
            "accuracy_std": float(accuracy.std()),
            "accuracy_worst_decile": worst_decile(accuracy),
            "accuracy_jain": jain(accuracy),
            "gradients": sum(score.gradients for score in scores),
        }
        prefix = "client_" if self.images == "own" else "all_client_"
        return {prefix + name: value for name, value in values.items()}
