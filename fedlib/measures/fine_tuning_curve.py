"""Whether fine-tuning over-fits: accuracy on what a client trains on and on its own test images, epoch by epoch.

    v_0 = the weights the client received,   v_j = v_(j-1) after one more epoch on the client's own samples

Over-fitting is what the words say: the accuracy on the training samples goes on rising while that on unseen images of
the same distribution stays or falls. The steps are those of :class:`~fedlib.methods.FineTuning` with the round's rate;
only the order of the batches is another one. Nothing of it is kept or sent, and the run's count of gradients is without
it.

Cost in a measured round, on each client's worker: `epochs` epochs of training and `epochs` + 1 forward passes over its
training samples and its test images.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedlib.measures.base import Measure, Values
from fedlib.methods.base import Client, Server
from fedlib.methods.fine_tuning import tune


class FineTuningCurve(Measure):
    """Accuracies of the round's clients over epochs of fine-tuning the global model that they received.

    Series, each (epochs + 1, clients), with "head" or "whole" before it: ``_tuned_train_accuracy`` on the client's own
    training samples, ``_tuned_accuracy`` on its own test images; ``_tuned_sizes``, the clients' training samples.
    """

    part: Literal["head", "whole"] = "whole"
    """Layers to train: the last one, or all."""
    epochs: int = Field(20, ge=1)
    """Epochs to follow."""
    every: int = Field(10, ge=1)
    """Measure in rounds every, 2 every, ... and in the last: the first round's model is hardly one yet."""

    def due(self, round: int, rounds: int) -> bool:
        return round % self.every == 0 or round == rounds

    def client(self, client: Client) -> Values:
        setting, e = client.setting, client.setting.experiment
        own, data = setting.client_tests[client.index], setting.dataset
        unseen = e.partition.view_test(data.x_test[own], data.y_test[own], client.index, e.clients, client.round)
        layers = ("head",) if self.part == "head" else ("*",)
        v, gradients, curve = client.w_start, client.gradients, []
        for epoch in range(self.epochs + 1):
            if epoch:
                v = tune(client, v, layers, 1, f"fine-tuning curve {epoch}")
            curve.append([
                setting.scores(v, x, y)[1].sum() / len(y)
                for x, y in ((client.x.numpy(), client.y.numpy()), unseen)
            ])  # fmt: skip
        client.gradients = gradients  # what was measured is not the run's work
        return {"curve": curve, "size": client.n}

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        curves = np.array([values["curve"] for values in clients.values()])  # (clients, epochs + 1, 2)
        return {
            f"{self.part}_tuned_train_accuracy": curves[:, :, 0].T.tolist(),
            f"{self.part}_tuned_accuracy": curves[:, :, 1].T.tolist(),
            f"{self.part}_tuned_sizes": [values["size"] for values in clients.values()],
        }
