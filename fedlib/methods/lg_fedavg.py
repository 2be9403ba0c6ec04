"""LG-FedAvg: private representation, shared top (Liang et al. 2020, Algorithm 1).

    client k trains (l_k, g) together;  server: g <- sum_k p_k g_k;  the lower layers l_k stay on the client

It is FedPer turned round; :class:`~fedlib.methods.private_layers.PrivateLayers` says what is sent, kept and evaluated.
"""

from __future__ import annotations

from pydantic import Field

from fedlib.methods.private_layers import PrivateLayers


class LGFedAvg(PrivateLayers):
    """The first layers are private, the last ones are averaged."""

    shared: tuple[str, ...] = Field(("head",), min_length=1)
    """The global layers. FedRep's code shares the last two dense layers: ("fc2", "head") of a network with fc1 and fc2.
    The authors start from a model trained by FedAvg; from scratch the private parts have no common ground."""
    private: None = None
    """Everything else."""
