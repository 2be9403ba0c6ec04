"""SkipUpdate: random blocks of every local step are left out (Joo et al. 2026).

after each step:   w_b <- w_b - (1/p) m_b Delta_b,   Delta_b the optimiser's update, m_b ~ Bernoulli(p) for each block b

The optimiser's moments (of SGD with momentum, or RMSProp) see every gradient, also where the update is skipped.
:mod:`~fedlib.methods.masks` says what a block is.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedlib.methods.base import Client, Method
from fedlib.methods.masks import Mask


class SkipUpdate(Mask, Method):
    """Masks each local step."""

    redraw: Literal["step", "round"] = "step"
    """Fresh masks for every step, as in the paper, or one for the whole round: its dropped blocks stay as received."""

    def stepped(self, client: Client, before: Tensor) -> None:
        w = client.w[: len(before)]
        mask = self.mask(client, client.step if self.redraw == "step" else 0)
        w.copy_(torch.lerp(before, w, mask / self.p))
