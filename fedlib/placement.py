"""Layer placement by device speed: a simulation of what Sky Computing claims (Zhu, Li, You 2022, arXiv 2202.11836).

A model is cut into as many consecutive parts as there are devices, and each device trains its part. With t_d(i, j) the
seconds that device d needs for layers i to j, forward and backward:

    even:        the same number of layers everywhere, within one
    bottleneck:  min over cuts of  max_d t_d      what Sky Computing's integer programme asks for
    total:       min over cuts of  sum_d t_d

subject to the layers' memory fitting on the device. The paper solves the programme by a solver or a heuristic; for
devices in a given order dynamic programming finds the optimum, which is as good as either. A batch runs through the
devices in m micro-batches, all forward passes before the backward passes (GPipe, Huang et al. 2019). With m = 1, as in
the authors' code, no two devices work at once and a batch takes the total, not the bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedlib import seeds
from fedlib.models import Model
from fedlib.spec import InputError

BACKWARD = 2.0
"""Cost of a backward pass in forward passes: gradients for the inputs and for the weights."""


@dataclass(frozen=True)
class Layers:
    """What each layer of a model costs for one batch; arrays of one length, in order."""

    flops: np.ndarray
    """Floating-point operations of the forward pass."""
    memory: np.ndarray
    """Bytes of weights, gradients and kept outputs."""
    output: np.ndarray
    """Bytes that the layer hands to the next one."""

    def __len__(self) -> int:
        return len(self.flops)


@dataclass(frozen=True)
class Devices:
    """What each device can do; arrays of one length, in the order in which the batch passes through."""

    speed: np.ndarray
    """Floating-point operations per second."""
    memory: np.ndarray
    """Bytes."""
    bandwidth: np.ndarray
    """Bytes per second to the next device, and back."""

    def __len__(self) -> int:
        return len(self.speed)


def alike(count: int, flops: float = 1.0, memory: float = 1.0, output: float = 0.0) -> Layers:
    """`count` equal layers, as of a deep transformer."""
    return Layers(np.full(count, flops), np.full(count, memory), np.full(count, output))


def profile(model: Model, shape: tuple[int, int, int], classes: int, batch: int) -> Layers:
    """The layers of one of our networks, measured for a batch of images of `shape` (height, width, channels).

    Layers without weights count to the one before. Only matrix products and convolutions count as operations.
    """
    network = model.build(shape, classes)
    height, width, channels = shape
    x = torch.zeros(batch, channels, height, width).contiguous(memory_format=torch.channels_last)
    rows: list[list[float]] = []
    with torch.no_grad():
        for module in (*_stages(network.body), network.head):
            with FlopCounterMode(display=False) as counter:
                x = module(x)
            weights = sum(p.numel() for p in module.parameters())
            row = [counter.get_total_flops(), 4.0 * (2 * weights + x.numel()), 4.0 * x.numel()]
            if weights or not rows:
                rows.append(row)
            else:
                rows[-1] = [rows[-1][0] + row[0], rows[-1][1] + row[1], row[2]]
    return Layers(*np.array(rows).T)


def _stages(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential):
        for child in module:
            yield from _stages(child)
    else:
        yield module


def draw_devices(count: int, slowest: float = 2.0, seed: int = 0) -> Devices:
    """`count` devices slowed down by factors from U(1, slowest), with links and memory that do not limit.

    The authors' code draws U(1, 2) for computing; its comment there says 1 to 4.
    """
    if count < 1 or slowest < 1:
        raise InputError(f"count = {count}, slowest = {slowest} (allowed: count >= 1, slowest >= 1)")
    slowdown = seeds.numpy(seed, "devices").uniform(1, slowest, count)
    return Devices(1 / slowdown, np.full(count, np.inf), np.full(count, np.inf))


def even(layers: Layers, devices: Devices) -> np.ndarray:
    """Layers on each device, (devices,), in equal numbers, the first devices taking one more where it does not divide.

    Raises :class:`InputError` where a device's memory does not hold its part.
    """
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(len(layers)), len(devices))])
    memory = np.diff(np.concatenate([[0.0], np.cumsum(layers.memory)])[[0, *ends]])
    if (full := np.flatnonzero(memory > devices.memory)).size:
        raise InputError(
            f"an even split puts {memory[full[0]]:g} bytes on device {full[0]} (allowed: {devices.memory[full[0]]:g})"
        )
    return np.diff(ends, prepend=0)


def place(layers: Layers, devices: Devices, objective: Literal["bottleneck", "total"] = "bottleneck") -> np.ndarray:
    """Layers on each device, (devices,), by the objective; a device may get none. Raises InputError where none fits.

    best_d(j) = min over i <= j of  max (or sum) of best_{d-1}(i) and t_d(i, j)
    """
    work = np.concatenate([[0.0], np.cumsum(layers.flops)])
    held = np.concatenate([[0.0], np.cumsum(layers.memory)])
    combine = np.maximum if objective == "bottleneck" else np.add
    best = np.where(np.arange(len(layers) + 1) == 0, 0.0, np.inf)
    cuts = []
    for speed, memory in zip(devices.speed, devices.memory, strict=True):
        seconds = (work[None, :] - work[:, None]) / speed  # from layer i (row) to layer j (column)
        fits = (held[None, :] - held[:, None] <= memory) & (np.arange(len(work))[:, None] <= np.arange(len(work)))
        value = np.where(fits, combine(best[:, None], seconds), np.inf)
        cuts.append(value.argmin(0))
        best = value.min(0)
    if not np.isfinite(best[-1]):
        raise InputError(
            f"{len(layers)} layers of {layers.memory.sum():g} bytes do not fit on {len(devices)} devices of "
            f"{devices.memory.sum():g} (allowed: consecutive parts within each device's memory)"
        )
    ends = [len(layers)]
    for cut in cuts[::-1]:
        ends.append(int(cut[ends[-1]]))
    return np.diff(ends[::-1])


def batch_seconds(layers: Layers, devices: Devices, counts: np.ndarray, microbatches: int = 1) -> float:
    """Seconds for a training step on one batch with `counts` layers on each device, cut into equal micro-batches."""
    if microbatches < 1:
        raise InputError(f"microbatches = {microbatches} (allowed: 1 or more)")
    ends = np.cumsum(counts)
    work = np.concatenate([[0.0], np.cumsum(layers.flops)])
    used = np.flatnonzero(counts)
    forward = (work[ends] - work[ends - counts])[used] / devices.speed[used] / microbatches
    link = layers.output[ends[used] - 1] / devices.bandwidth[used] / microbatches  # the last one's is not used

    def sweep(stage: np.ndarray, links: np.ndarray, ready: np.ndarray) -> np.ndarray:
        """When each device, free from `ready` on, has done all micro-batches that pass through the devices in order."""
        arrival, done = np.full(microbatches, ready[0]), ready.copy()
        for d in range(len(stage)):
            for m in range(microbatches):
                done[d] = arrival[m] = max(arrival[m], done[d]) + stage[d]
            if d + 1 < len(stage):
                arrival += links[d]
        return done

    forwarded = sweep(forward, link[:-1], np.zeros(len(used)))
    backward = sweep(BACKWARD * forward[::-1], link[-2::-1], forwarded[::-1])
    return float(backward[-1])


def saving(layers: Layers, devices: Devices, microbatches: int = 1) -> float:
    """Share of the time of an even split that placement by speed saves, below 1; the paper's figure is 0.55."""
    splits = even(layers, devices), place(layers, devices)
    before, after = (batch_seconds(layers, devices, counts, microbatches) for counts in splits)
    return 1 - after / before
