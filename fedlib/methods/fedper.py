"""FedPer: shared base, private head (Arivazhagan et al. 2019, Algorithm 1).

    client k trains (w_B, w_Pk) together for E epochs;  server: w_B <- sum_k p_k w_B,k;  w_Pk stays on the client

See :class:`~fedlib.methods.private_layers.PrivateLayers` for what is sent, kept and evaluated.
"""

from __future__ import annotations

from pydantic import Field

from fedlib.methods.private_layers import PrivateLayers


class FedPer(PrivateLayers):
    """The last layers are private, trained together with the shared ones."""

    private: tuple[str, ...] = Field(("head",), min_length=1)
    """The last K_P layers: ("head",) is K_P = 1; ("fc*", "head") makes all dense layers private."""
    shared: None = None
    """Everything else."""
