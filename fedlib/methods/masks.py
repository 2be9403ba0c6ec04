"""Masks over an update's blocks, which the masking methods share.

    parameters fall into blocks b;  m_b ~ Bernoulli(p), independent over blocks

What is kept is scaled by 1/p, so that a masked update has the mean of the dense one; its expected loss then has the
penalty (1 - p)/(2p) sum_b Delta_b^T H_bb Delta_b. Running statistics are never masked.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedlib import seeds
from fedlib.methods.base import Client
from fedlib.models import Layout
from fedlib.spec import Spec

Unit = Literal["tensor", "row", "column", "element"]


@functools.lru_cache(maxsize=8)
def blocks(layout: Layout, unit: Unit) -> Tensor:
    """The block of each trained weight, int64 (trained,), counted from 0.

    Rows and columns are slices of a tensor along its first and its second dimension, output and input channels; vectors
    have neither and are one block.
    """
    ids, count = torch.zeros(layout.size, dtype=torch.int64), 0
    for name, (offset, shape) in layout.places.items():
        if offset >= layout.trained:
            break
        own = {"row": (0,), "column": (1,)}.get(unit, ()) if len(shape) > 1 else ()
        kept = [size if unit == "element" or i in own else 1 for i, size in enumerate(shape)]
        numbers = torch.arange(torch.Size(kept).numel()).view(kept)
        layout.view(ids, name).copy_(numbers + count)
        count += numbers.numel()
    return ids[: layout.trained]


class Mask(Spec):
    """What is masked, and for whom: the fields that the masking methods share."""

    p: float = Field(0.5, gt=0, le=1)
    """Probability p that a block's update is kept; both papers take 0.5, and 1 masks nothing."""
    unit: Unit = "tensor"
    """What is kept or dropped as one block: a parameter tensor, one of its rows or columns, or a single weight. Tensors
    are the papers' blocks; Joo et al. found the finer ones hardly better (Table A2)."""
    shared: bool = False
    """The same masks for all clients of a round, instead of independent ones, whose penalty averaging divides by K."""

    def mask(self, client: Client, step: int = 0) -> Tensor:
        """1 where the update is kept and 0 elsewhere, (trained,); `step` tells a round's masks apart."""
        ids = blocks(client.space.layout, self.unit)
        who = 0 if self.shared else client.index
        generator = seeds.torch_(client.seed, f"{type(self).__name__} step {step}", client.round, who)
        kept = torch.rand(int(ids[-1]) + 1, generator=generator) < self.p
        return kept[ids].float()
