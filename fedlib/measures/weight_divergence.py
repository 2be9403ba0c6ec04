"""Weight divergence from centralised training (Zhao et al. 2018, Eq. 1).

    WD_l = ||w_l - w_l^SGD|| / ||w_l^SGD||      for each layer l

w is the global model after a round; w^SGD comes from the centralised twin: the same start, learning rate and data, one
client that holds what the N clients hold together, and batches N times larger, so that both take as many steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlib.measures.base import Measure, Values
from fedlib.methods.base import Server
from fedlib.partitions import Iid, Pooled

if TYPE_CHECKING:
    from fedlib.experiment import Experiment


def centralised(e: Experiment) -> Experiment:
    """The centralised twin of an experiment: SGD on all that its clients hold, batch size times their number."""
    batch = None if e.batch_size is None else e.batch_size * e.clients
    held = Iid() if e.partition.complete else Pooled(of=e.partition, clients=e.clients)
    return e.but(partition=held, clients=1, per_round=None, batch_size=batch, methods=(), measures=())


class WeightDivergence(Measure):
    """Divergence of the global model from its centralised twin: ``weight_divergence``, layer -> WD, and layer "all"."""

    def needs(self, experiment: Experiment) -> tuple[Experiment, ...]:
        return (centralised(experiment),)

    def begin(self, run: Any) -> dict[str, Any]:
        return {"twin": run.trajectory(centralised(run.experiment))(run.round)}

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        layout, twin = server.space.layout, scratch["twin"]
        masks = {name: layout.select(name) for name in layout.layers()}
        divergence = {n: float((server.w[m] - twin[m]).norm() / twin[m].norm()) for n, m in masks.items()}
        whole = slice(0, layout.trained)
        divergence["all"] = float((server.w[whole] - twin[whole]).norm() / twin[whole].norm())
        return {"weight_divergence": divergence}
