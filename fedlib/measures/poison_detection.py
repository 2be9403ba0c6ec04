"""How well clients find poisoned shared samples (:class:`~fedlib.methods.poison_check.PoisonCheck`, claim W13).

    detection rate = poisoned samples left out / poisoned samples     false alarms = good ones left out / good ones

over all samples that the round's clients had received.
"""

from __future__ import annotations

from typing import Any

from fedlib.measures.base import Measure, Values
from fedlib.methods.base import Client, Server
from fedlib.spec import InputError


class PoisonDetection(Measure):
    """``poison_detection_rate`` and ``poison_false_alarms``, 0 to 1; absent where nothing was to be found or lost."""

    def check(self, experiment: Any) -> None:
        if not any(type(method).__name__ == "PoisonCheck" for method in experiment.methods):
            raise InputError("PoisonDetection needs the method PoisonCheck")

    def client(self, client: Client) -> Values:
        return {"counts": client.state["poison_check"].tolist() if "poison_check" in client.state else [0.0] * 4}

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        found, bad, wrong, good = (sum(column) for column in zip(*(v["counts"] for v in clients.values()), strict=True))
        rates = {"poison_detection_rate": (found, bad), "poison_false_alarms": (wrong, good)}
        return {name: part / whole for name, (part, whole) in rates.items() if whole}
