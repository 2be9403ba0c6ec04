"""What can be measured in a run, and when: the hooks of :class:`Measure`.

Every value lands in the record as a series over rounds. Values are numbers, or lists and dictionaries of numbers.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Server
from fedlib.spec import Spec

Values = dict[str, Any]


class Measure(Spec):
    """Family of measures. One object serves one run: what it accumulates in a round it keeps in `scratch`."""

    family = {}

    every: int = Field(1, ge=1)
    """Measure in rounds 1, 1 + every, 1 + 2 every, ... and in the last round."""

    def due(self, round: int, rounds: int) -> bool:
        return (round - 1) % self.every == 0 or round == rounds

    def check(self, experiment: Any) -> None:
        """Raise InputError if the experiment cannot be measured so."""

    def needs(self, experiment: Any) -> tuple[Any, ...]:
        """Other experiments whose weights, round by round, this measure compares with."""
        return ()

    def begin(self, run: Any) -> dict[str, Any]:
        """Before a round of training: a fresh scratch dictionary. `run` is the :class:`fedlib.federation.Run`."""
        return {}

    def client(self, client: Client) -> Values:
        """In the worker, after a client's training: its own values, before the update is sent."""
        return {}

    def observe(self, scratch: dict[str, Any], index: int, weight: float, delta: Tensor, values: Values) -> None:
        """On the server, as the update of client `index` arrives, in the order of the cohort.

        `weight` is the client's in the average, before division by the sum of all: n_k unless a method changes it.

        `values` are what :meth:`client` returned. They are kept until the end of the round, and clients can be many:
        take tensors out of it here.
        """

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        """After the server's step: the round's values. `clients` has what :meth:`client` returned."""
        return {}
