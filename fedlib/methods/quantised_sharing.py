"""Shared images with fewer bits per pixel value (claim W10).

    q = round(v / 255 (2^b - 1)),  v' = 255 q / (2^b - 1)     v: a pixel value, 0 to 255


|v' - v| <= 255 / (2 (2^b - 1)) + 1/2, the half for rounding v' to 8 bits. A copy of b bits takes b/32 of the space of
32-bit floats and b/8 of that of the 8-bit images it was made from: 4 bits are 1/8 and 1/2. The levels are fixed, so no
scale is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from fedlib.methods.copies import Copy
from fedlib.methods.shared_set import SharedSet


class Quantised(Copy):
    """Uniform quantisation of pixel values."""

    bits: int = Field(4, ge=1, le=8)
    """b, bits of one value; 8 loses nothing, 4 is the claim's."""

    def make(self, setting: Any, drawn: SharedSet, size: int) -> SharedSet:
        levels = 2**self.bits - 1
        q = np.rint(drawn.x.astype(np.float32) / 255 * levels)
        return replace(drawn, x=np.rint(q * (255 / levels)).astype(np.uint8), bits=min(self.bits, drawn.bits))
