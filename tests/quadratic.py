"""Clients with quadratic objectives, trained by the real loops: what a method must do there can be worked out by hand.

Client k has F_k(w) = h_k/2 ||w - a_k||^2 and sizes[k] samples, each of which is labelled k and gives that loss; the
network's scores are its weight vector, which starts at 0.
"""

import numpy as np
import torch
from torch import Tensor, nn

from fedlib import datasets, federation, local
from fedlib.experiment import Experiment
from fedlib.models import Model
from fedlib.partitions import BySite, Iid


class WeightVector(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def features(self, x: Tensor) -> Tensor:
        return self.vector.expand(len(x), -1)

    def head(self, z: Tensor) -> Tensor:
        return z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class Vector(Model):
    width: int

    def build(self, shape: tuple[int, int, int], classes: int) -> WeightVector:
        return WeightVector(self.width)


del Model.family["Vector"]  # of these tests only


class Quadratics:
    """Replaces the data set and the loss, through pytest's `monkeypatch`."""

    def __init__(self, monkeypatch, h: list[float], a: list[list[float]], sizes: list[int]) -> None:
        self.h, self.a = torch.tensor(h), torch.tensor(a)
        self.sizes = np.array(sizes)
        self.p = torch.tensor(self.sizes / self.sizes.sum(), dtype=torch.float32)
        clients = len(h)
        y = np.repeat(np.arange(clients), self.sizes)
        x = np.zeros((len(y), 1, 1, 1), np.uint8)
        data = datasets.Dataset(
            name="quadratics", x_train=x, y_train=y, x_test=x, y_test=y % self.a.shape[1], site_train=y, site_test=y,
            classes=tuple(map(str, range(clients))), fingerprint="", mean=(0.0,), std=(1.0,),
        )  # fmt: skip
        monkeypatch.setattr(datasets, "load", lambda name: data)
        monkeypatch.setattr(local, "criterion", self.criterion)
        federation.setting.cache_clear()

    def criterion(self, scores: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        return getattr(self.h[y] / 2 * (scores - self.a[y]).square().sum(1), reduction)()

    @property
    def optimum(self) -> Tensor:
        """The minimum of sum_k p_k F_k."""
        return self.balance(self.p * self.h)

    def balance(self, weights: Tensor) -> Tensor:
        """The mean of the a_k with these weights: where sum_k weights_k (a_k - w) = 0."""
        return weights @ self.a / weights.sum()

    def experiment(self, **fields) -> Experiment:
        """Full batches, so that `epochs` are the local steps, unless `fields` say otherwise."""
        common = dict(
            dataset="quadratics", clients=len(self.h), partition=BySite() if len(self.h) > 1 else Iid(),
            model=Vector(width=self.a.shape[1]), batch_size=None, evaluate_every=1000,
        )  # fmt: skip
        return Experiment(**common | fields)

    def play(self, **fields) -> federation.Run:
        run = federation.begin(self.experiment(**fields))
        for _ in federation.play(run):
            pass
        return run
