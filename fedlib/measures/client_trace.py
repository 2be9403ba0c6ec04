"""One line per client and round: what each client of a run did, for looking into a single run (`fedlib show`).

For client k, in the order of the round's cohort: n_k and how many samples of each class are among them; the mean loss
over the samples it saw in training; ||Delta_k||, the norm of the update as sent; ||w_k - w||, the distance its local
training moved, which differs from the former where a method changes the update; the cosine of Delta_k with the cohort's
mean update sum_j n_j Delta_j / n; and the accuracy of w_k on test images of each class. Beside them stands the accuracy
by class of the global model that the server makes of these updates, on the same images. Norms and cosines are over
trained weights.

So that no update need be kept, the cosine is that of count sketches (Charikar et al. 2002), in which each weight goes
with a random sign to one of :data:`SKETCH` places: sketches add up as updates do, and the cosine of two of them has a
standard error of at most about 1 / sqrt(SKETCH) = .004. A smaller network is its own sketch, and its cosine is exact.

Cost in a measured round: one forward pass over `images` images per client, on its worker, and one on the server; a pass
over each update, of which at most 512 KiB are kept until the end of the round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib import seeds
from fedlib.measures.base import Measure, Values
from fedlib.measures.drift import distance
from fedlib.measures.forgetting import accuracy_per_class
from fedlib.measures.objective import sample
from fedlib.methods.base import Client, Server

DIGITS = 4
"""Significant digits kept of every number, which is what a table shows."""

SKETCH = 2**16
"""Places of a sketch."""


def rounded(value: float) -> float | None:
    """To DIGITS significant digits; NaN (a class without test images) becomes None, which JSON can hold."""
    return None if np.isnan(value) else float(f"{value:.{DIGITS}g}")


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of two vectors; NaN where one is zero."""
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(a @ b) / norms if norms else float("nan")


class Sketches:
    """Count sketches of updates with `trained` weights; all with the same places and signs."""

    def __init__(self, trained: int, rng: torch.Generator) -> None:
        self.trained = trained
        if trained > SKETCH:
            self.places = torch.randint(SKETCH, (trained,), generator=rng)
            self.signs = torch.randint(2, (trained,), generator=rng).mul_(2).sub_(1).float()

    def of(self, delta: Tensor) -> np.ndarray:
        """The sketch of one update, float64 (min(trained, SKETCH),)."""
        delta = delta[: self.trained]
        if self.trained > SKETCH:
            delta = torch.zeros(SKETCH).index_add_(0, self.places, self.signs * delta)
        return delta.numpy().astype(float)


class ClientTrace(Measure):
    """The series ``client_trace``: per round a dictionary of equally long lists, one entry a client: ``client`` (its
    index), ``n``, ``held`` (samples by class), ``loss``, ``update_norm``, ``distance``, ``cosine`` (-1 to 1; none for
    an update of zero) and ``accuracy_per_class`` (a list of `classes` numbers). The series ``client_trace_global``: the
    accuracy by class of the global model after the round."""

    images: int = Field(1000, ge=1)
    """Test images, drawn once per run; all, where there are fewer."""

    def begin(self, run: Any) -> dict[str, Any]:
        rng = seeds.torch_(run.experiment.seed, "sketches of updates")
        return {"sketches": Sketches(run.setting.space.trained, rng), "mean": 0.0}

    def client(self, client: Client) -> Values:
        accuracy = accuracy_per_class(client.setting, client.w, *sample(client.setting, "test", self.images))
        return {
            "n": client.n,
            "held": np.bincount(client.y.numpy(), minlength=client.setting.classes).tolist(),
            "loss": rounded(client.loss),
            "update_norm": rounded(float(client.delta[: client.space.trained].norm())),
            "distance": rounded(distance(client)),
            "accuracy_per_class": [rounded(a) for a in accuracy],
        }

    def observe(self, scratch: dict[str, Any], index: int, weight: float, delta: Tensor, values: Values) -> None:
        values["sketch"] = scratch["sketches"].of(delta)
        scratch["mean"] = scratch["mean"] + weight * values["sketch"]

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        for values in clients.values():
            values["cosine"] = rounded(cosine(values.pop("sketch"), scratch["mean"]))
        columns = {name: [values[name] for values in clients.values()] for name in next(iter(clients.values()))}
        after = accuracy_per_class(run.setting, server.w, *sample(run.setting, "test", self.images))
        return {
            "client_trace": {"client": list(clients)} | columns,
            "client_trace_global": [rounded(a) for a in after],
        }
