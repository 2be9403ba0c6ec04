"""One line per client and round: what each client of a run did, for looking into a single run.

For client k, in the order of the round's cohort: n_k; the mean loss over the samples it saw in training;
||Delta_k||, the norm of the update as sent; ||w_k - w||, the distance its local training moved, which differs from the
former where a method changes the update; and the accuracy of w_k on test images of each class. Norms are over trained
weights.

Cost in a measured round: one forward pass over `images` images per client, on its worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from fedlib.measures.base import Measure, Values
from fedlib.measures.drift import distance
from fedlib.measures.forgetting import accuracy_per_class
from fedlib.measures.objective import sample
from fedlib.methods.base import Client, Server

DIGITS = 4
"""Significant digits kept of every number, which is what a table shows."""


def rounded(value: float) -> float | None:
    """To DIGITS significant digits; NaN (a class without test images) becomes None, which JSON can hold."""
    return None if np.isnan(value) else float(f"{value:.{DIGITS}g}")


class ClientTrace(Measure):
    """The series ``client_trace``: per round a dictionary of equally long lists, one entry a client: ``client`` (its
    index), ``n``, ``loss``, ``update_norm``, ``distance`` and ``accuracy_per_class`` (a list of `classes` numbers)."""

    images: int = Field(1000, ge=1)
    """Test images, drawn once per run; all, where there are fewer."""

    def client(self, client: Client) -> Values:
        accuracy = accuracy_per_class(client.setting, client.w, *sample(client.setting, "test", self.images))
        return {
            "n": client.n,
            "loss": rounded(client.loss),
            "update_norm": rounded(float(client.delta[: client.space.trained].norm())),
            "distance": rounded(distance(client)),
            "accuracy_per_class": [rounded(a) for a in accuracy],
        }

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        columns = {name: [values[name] for values in clients.values()] for name in next(iter(clients.values()))}
        return {"client_trace": {"client": list(clients)} | columns}
