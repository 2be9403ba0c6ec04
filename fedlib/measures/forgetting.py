"""What a client loses when its model is averaged: accuracy on its own classes before and after aggregation.

    forgetting = mean_k [ a_k(w_k) - a_k(w) ],    a_k(v) = sum_c p_k(c) a_c(v)

w_k is client k's model after local training, w the global model that the server makes of them in the same round,
a_c(v) the accuracy of model v on test images of class c and p_k(c) the share of class c in what the client trained on.
So a_k is the accuracy on a test set with the client's own label distribution, without drawing one. Where the partition
changes what a client sees of its test images (feature skew, concept drift), both models see them so.

The definition is ours; the effect is that of catastrophic forgetting in federated learning (Shoham et al. 2019).

Cost in a measured round: one forward pass over `images` images per client on its worker, and on the server one, or one
per client where clients see different test images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from fedlib.measures.base import Measure, Values
from fedlib.measures.objective import sample
from fedlib.methods.base import Client, Server
from fedlib.partitions import Partition


def accuracy_per_class(setting: Any, w: Tensor, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Accuracy of weights `w` on the images of each class, (classes,); NaN for a class without images."""
    total = np.bincount(labels, minlength=setting.classes)
    right = setting.scores(w, images, labels)[1]
    return np.divide(right, total, out=np.full(setting.classes, np.nan), where=total > 0)


def own_accuracy(held: np.ndarray, accuracy: np.ndarray) -> float:
    """a_k from the client's samples by class and the accuracies by class; classes without test images are left out."""
    known = ~np.isnan(accuracy)
    return float(np.average(accuracy[known], weights=held[known])) if held[known].any() else float("nan")


class Forgetting(Measure):
    """Accuracy of the clients on their own classes: their local models against the new global model.

    Series, means over the round's clients: ``own_accuracy_local``, ``own_accuracy_global`` and their difference
    ``forgetting``, -1 to 1, above 0 where averaging took away what the clients knew; ``forgetting_clients``, the
    difference by client.
    """

    images: int = Field(2000, ge=1)
    """Test images, drawn once per run; all, where there are fewer."""

    def _seen(self, setting: Any, client: int, round: int) -> tuple[np.ndarray, np.ndarray]:
        """The test images and labels as the client sees them."""
        e = setting.experiment
        return e.partition.view_test(*sample(setting, "test", self.images), client, e.clients, round)

    def client(self, client: Client) -> Values:
        setting = client.setting
        held = np.bincount(client.y.numpy(), minlength=setting.classes)
        accuracy = accuracy_per_class(setting, client.w, *self._seen(setting, client.index, client.round))
        return {"held": held.tolist(), "local": own_accuracy(held, accuracy)}

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        setting = server.setting
        kind = type(setting.experiment.partition)
        alike = kind.view is Partition.view and kind.view_test is Partition.view_test
        local, after, accuracy = {}, {}, None
        for k, values in clients.items():
            if accuracy is None or not alike:
                accuracy = accuracy_per_class(setting, server.w, *self._seen(setting, k, server.round))
            mean = own_accuracy(np.array(values["held"]), accuracy)
            if not np.isnan(mean):  # none of its classes among the test images
                local[k], after[k] = values["local"], mean
        if not local:
            return {}
        drops = {str(k): local[k] - after[k] for k in local}
        return {
            "own_accuracy_local": float(np.mean(list(local.values()))),
            "own_accuracy_global": float(np.mean(list(after.values()))),
            "forgetting": float(np.mean(list(drops.values()))),
            "forgetting_clients": drops,
        }
