"""Who holds what, in numbers and drawn: the table behind a partition.

No single number sees every kind of non-IID data, so a partition is described by four:

    EMD             sum_k (n_k / n) sum_i |p_k(y = i) - p(y = i)| over what the clients hold: label skew
    EMD in a round  the same for what they train on in one round, against what all hold; mean over rounds: order in time
    size ratio      samples of the largest client over those of the smallest: quantity skew
    client share    omega squared: which part of the variance of the images of one class is explained by the client that
                    has them (Hays 1963, an analysis of variance over pixels with classes as blocks): feature skew, and
                    labels that mean other things to other clients. 0 up to noise where the clients' images are alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from fedlib import federation, plots
from fedlib.experiment import Experiment
from fedlib.measures.emd import mean_emd
from fedlib.partitions import counts
from fedlib.spec import InputError


def seen(e: Experiment, round: int = 1) -> np.ndarray:
    """Samples of each class that each client trains on in a round, (clients, classes): methods and drift included."""
    s = federation.setting(e)
    labels = (s.samples(k, round)[1] for k in range(e.clients))
    return np.stack([np.bincount(y, minlength=s.classes) for y in labels])


def client_share(images: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> float:
    """Omega squared of the client in the pixels of the images of one class, below 1; about 0 where clients are alike.

    `images` (N, H, W, C), `labels` (N,), `clients` (N,). With cells of the images that share class and client, and d
    and r the degrees of freedom between a class's cells and within cells, it is
    (SS_between - d MS_within) / (SS_between + SS_within + MS_within); the correction makes it zero in expectation where
    clients do not differ, so that it can come out below 0. It is 0 where no class is at two clients. Raises
    :class:`InputError` for lengths that differ and where every cell has one image.
    """
    x = np.asarray(images, np.float32).reshape(len(images), -1) / 255
    if not len(x) == len(labels) == len(clients):
        raise InputError(f"{len(x)} images, {len(labels)} labels, {len(clients)} clients (allowed: one each)")
    between = within = 0.0
    cells = 0
    classes = np.unique(labels)
    for label in classes:
        of_class = labels == label
        mean = x[of_class].mean(0)
        for client in np.unique(clients[of_class]):
            own = x[of_class & (clients == client)]
            between += len(own) * float(np.square(own.mean(0) - mean).sum())
            within += float(np.square(own - own.mean(0)).sum())
            cells += 1
    if cells == len(x):
        raise InputError("every image is the only one of its class at its client (allowed: two or more somewhere)")
    if cells == len(classes):
        return 0.0
    spread = within / (len(x) - cells)
    return (between - (cells - len(classes)) * spread) / (between + within + spread)


@dataclass(frozen=True)
class Profile:
    """The four numbers of a partition."""

    emd: float
    """0 to 2."""
    emd_in_a_round: float
    """0 to 2."""
    size_ratio: float
    """1 or more."""
    client_share: float
    """About 0 to 1."""


def profile(e: Experiment) -> Profile:
    """What an experiment's partition is like, without training: all rounds for the labels, the last for the images."""
    s = federation.setting(e)
    held = counts(s.dataset.y_train, s.shards, s.classes)
    population = held.sum(0) / held.sum()
    in_rounds = []
    for round in range(1, e.rounds + 1 if e.partition.view_by_round else 2):
        table = seen(e, round)
        shares = table / table.sum(1, keepdims=True)
        in_rounds.append(np.average(np.abs(shares - population).sum(1), weights=table.sum(1)))
    parts = [s.samples(k, e.rounds) for k in range(e.clients)]
    owner = np.repeat(np.arange(e.clients), [len(y) for _, y in parts])
    share = client_share(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), owner)
    return Profile(mean_emd(held), float(np.mean(in_rounds)), float(s.sizes.max() / s.sizes.min()), share)


# ---------------------------------------------------------------- drawing


def draw_counts(axes: Axes, table: np.ndarray, index: int = 0) -> None:
    """Circles whose area is the number of samples: `table` (columns, classes), a column per client or per round."""
    columns, classes = np.nonzero(table)
    size = table[columns, classes]
    axes.scatter(columns, classes, s=150 * size / table.max(), color=plots.COLOURS[index % len(plots.COLOURS)])
    axes.set(xlim=(-0.7, len(table) - 0.3), ylim=(-0.7, table.shape[1] - 0.3), xticks=range(len(table)))
    axes.set(yticks=range(0, table.shape[1], max(1, table.shape[1] // 5)), ylabel="class")


def draw_images(axes: Axes, images: list[np.ndarray]) -> None:
    """Images (H, W, C) side by side, at the places 0, 1, ... of the horizontal axis."""
    for place, image in enumerate(images):
        shown = image[..., 0] if image.shape[-1] == 1 else image
        axes.imshow(shown, extent=(place - 0.45, place + 0.45, -0.45, 0.45), cmap="gray", vmin=0, vmax=255)
    axes.set(xlim=(-0.7, len(images) - 0.3), ylim=(-0.5, 0.5), xticks=range(len(images)), yticks=[], aspect="equal")
    axes.grid(False)
