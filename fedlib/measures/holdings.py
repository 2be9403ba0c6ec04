"""Who holds what: the table behind a partition, and four numbers about it.

No single number sees every kind of non-IID data, so a partition is described by four:

    EMD             sum_k (n_k / n) sum_i |p_k(y = i) - p(y = i)| over what the clients hold: label skew
    EMD in a round  the same for what they train on in one round, against what all hold: order in time
    size ratio      samples that the largest client holds over those of the smallest: quantity skew
    client share    omega squared: which part of the variance of the images of one class is explained by the client that
                    has them (Hays 1963, an analysis of variance over pixels with classes as blocks): feature skew, and
                    labels that mean other things to other clients. 0 up to noise where the clients' images are alike.

Cost in a measured round: what the clients train on is put together once more, and two passes over its pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedlib import partitions
from fedlib.measures.base import Measure, Values
from fedlib.measures.emd import mean_emd
from fedlib.methods.base import Server, overriding
from fedlib.spec import InputError


def client_share(images: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> float:
    """Omega squared of the client in the pixels of the images of one class, below 1; about 0 where clients are alike.

    `images` (N, H, W, C), `labels` (N,), `clients` (N,). With cells of the images that share class and client, and d
    and r the degrees of freedom between a class's cells and within cells, it is
    (SS_between - d MS_within) / (SS_between + SS_within + MS_within); the correction makes it zero in expectation where
    clients do not differ, so that it can come out below 0. It is 0 where no class is at two clients. Raises
    :class:`InputError` for lengths that differ and where every cell has one image.
    """
    if not len(images) == len(labels) == len(clients):
        raise InputError(f"{len(images)} images, {len(labels)} labels, {len(clients)} clients (allowed: one each)")
    between = within = 0.0
    cells = 0
    classes = np.unique(labels)
    for label in classes:
        of_class = labels == label
        x = images[of_class].reshape(of_class.sum(), -1).astype(np.float32) / 255
        mean, owners = x.mean(0), clients[of_class]
        for client in np.unique(owners):
            own = x[owners == client]
            between += len(own) * float(np.square(own.mean(0) - mean).sum())
            within += float(np.square(own - own.mean(0)).sum())
            cells += 1
    if cells == len(images):
        raise InputError("every image is the only one of its class at its client (allowed: two or more somewhere)")
    if cells == len(classes):
        return 0.0
    spread = within / (len(images) - cells)
    return (between - (cells - len(classes)) * spread) / (between + within + spread)


class Holdings(Measure):
    """What every client trains on in a round, whether it takes part in it or not, and how far from IID that is.

    Series: ``holdings``, a list by client of its samples of each class, methods and drift included; ``emd_in_a_round``,
    0 to 2, of this table against the classes of all that the clients hold, weighted by its samples; ``client_share``,
    about 0 to 1, of the images behind it; and of what the clients hold over all rounds ``emd``, 0 to 2, and
    ``size_ratio``, 1 or more. Only what the clients train on can change from round to round, and does so where the
    partition has a view by round or a method changes the data: the EMD in a round of a run is the mean of its series,
    measured in every round. Raises :class:`InputError` in a round in which every client has at most one image a class.
    """

    def check(self, experiment: Any) -> None:
        if by_weights := overriding(experiment.methods, "samples"):
            raise InputError(
                f"Holdings with {type(by_weights[0]).__name__}, where the weights decide what a client trains on "
                "(allowed: methods that do not depend on them)"
            )

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        s = run.setting
        seen = [s.samples(k, server.round) for k in range(server.clients)]
        images, labels = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        owners = np.repeat(np.arange(server.clients), [len(y) for _, y in seen])
        table = np.stack([np.bincount(y, minlength=s.classes) for _, y in seen])
        held = partitions.counts(s.dataset.y_train, s.shards, s.classes)
        return {
            "holdings": table.tolist(),
            "emd_in_a_round": mean_emd(table, held.sum(0) / held.sum()),
            "client_share": client_share(images, labels, owners),
            "emd": mean_emd(held),
            "size_ratio": float(server.sizes.max() / server.sizes.min()),
        }
