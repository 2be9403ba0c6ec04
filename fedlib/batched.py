"""Clients trained together on one device: what `fedlib.local` does one client after the other, for many at once.

On a CPU small networks train fastest one by one, a process per core; a GPU is idle with them. So here the clients'
weights lie in one tensor (clients, trained), and each step takes one batch of every client that still has one, in a
vectorised gradient (`torch.func`). Batches, loss, optimiser and number formats are those of the local loop, whose parts
this module uses; the results agree up to rounding.

**Unmeasured:** that it gives the same numbers is tested on the CPU. It has not been run on a GPU, and whether and where
it pays there is not known. Evaluation, methods and measures stay on the CPU.

The environment variable ``FEDLIB_DEVICE`` switches it on: ``cuda`` or ``cuda:1``. Runs that :func:`why_not` has a
reason against train as always, and a record's provenance says where its clients were trained.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils.rnn import pad_sequence

from fedlib import local, seeds
from fedlib.experiment import Experiment
from fedlib.methods.base import Client, overriding
from fedlib.spec import InputError, nearest

VARIABLE = "FEDLIB_DEVICE"
"""Environment variable with the device on which clients train together; ``cpu``, the default, is one by one."""

CLIENTS = 32
"""Clients trained together, at most: so many weights, gradients and momenta are on the device at a time."""

INSIDE = ("loss", "gradient", "correct", "stepped")
"""The hooks of a method that are called for each batch."""


def device() -> torch.device | None:
    """The device that ``FEDLIB_DEVICE`` names, None for the CPU. Raises :class:`InputError` for one that is missing."""
    given = os.environ.get(VARIABLE, "cpu")
    if given == "cpu":
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    allowed = ["cpu"] + ["cuda"] * (count > 0) + [f"cuda:{i}" for i in range(count)]
    if given not in allowed:
        missing = "" if count else "; PyTorch finds no CUDA device here"
        near = nearest(given, allowed) if given != "cuda" else ""
        raise InputError(f"{VARIABLE} = {given!r}{near} (allowed: {', '.join(allowed)}{missing})")
    return torch.device(given)


def why_not(experiment: Experiment) -> str | None:
    """Why the clients of an experiment cannot be trained together; None where they can."""
    for hook in INSIDE:
        for method in overriding(experiment.methods, hook):
            return f"{type(method).__name__} takes part in every batch (its hook {hook!r})"
    if experiment.optimizer != "sgd":
        return f"the optimiser is {experiment.optimizer}, not sgd"
    if experiment.augment:
        return "images are augmented"
    for name, _ in experiment.outline.named_buffers():
        return f"the network keeps running statistics ({name})"
    return None


def train(clients: Iterable[Client], experiment: Experiment, device: torch.device) -> Iterator[Client]:
    """Train clients together, each from what ``client.w`` holds when it comes; yields them in order as the local loop
    leaves them, with ``client.w``, ``client.loss``, ``client.step`` and ``client.gradients``.

    They share one workspace, so be done with one before taking the next. Raises :class:`fedlib.local.Diverged` at the
    first one, in order, whose loss or weights are not finite.
    """
    work = [Work(client, client.w.clone(), _batches(client)) for client in clients]
    # Those with fewer steps come last: each step then moves the first so many, and a client that is done stays.
    order = sorted(work, key=lambda own: -len(own.batches))
    for lr in {own.client.lr for own in work}:
        _descend([own for own in order if own.client.lr == lr], lr, experiment, device)
    for own in work:
        client, seen = own.client, sum(map(len, own.batches))
        client.w.copy_(own.w)
        client.step = len(own.batches)
        client.gradients += seen
        client.loss = local.mean_loss(client, own.total, seen)
        yield client


@dataclass
class Work:
    """What one client has to do."""

    client: Client
    w: Tensor
    """Its weights, before and then after training, on the CPU."""
    batches: list[Tensor]
    """Indices of each batch of the round, those that the local loop takes."""
    total: Tensor | None = None
    """After training: the sum of the samples' losses."""


def _batches(client: Client) -> list[Tensor]:
    rng = seeds.numpy(client.seed, "batches", client.round, client.index)
    every = [batch for epoch in range(client.epochs) for batch in local.batches(client, epoch, rng)]
    return every[: client.max_steps]


def _descend(work: list[Work], lr: float, experiment: Experiment, device: torch.device) -> None:
    """Do the work, of which none may have more batches than the one before."""
    clients, batches = [own.client for own in work], [own.batches for own in work]
    space, layout = clients[0].space, clients[0].space.layout
    shift, scale = space.shift.to(device), space.scale.to(device)
    network = copy.deepcopy(experiment.outline)
    names = [name for name, _ in network.named_parameters()]

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return local.criterion(functional_call(network, parameters, (x,)).float(), y)

    compute = vmap(grad_and_value(loss))

    # One image and label past the last fill up smaller batches; the criterion leaves them out.
    images = torch.cat([*(client.x for client in clients), torch.zeros_like(clients[0].x[:1])]).to(device)
    labels = torch.cat([*(client.y for client in clients), torch.tensor([local.IGNORED])]).to(device)
    first = np.cumsum([0, *(client.n for client in clients)]).tolist()
    w = torch.stack([own.w for own in work]).to(device)
    total = torch.zeros(len(work), device=device)
    optimizer = local.SGD(w, torch.zeros_like(w), lr, experiment.momentum, experiment.weight_decay)
    # Else cuDNN computes fp32 convolutions in TF32, and is free to pick other algorithms when a run is resumed.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        for step in range(len(batches[0])):
            now = [start + own[step] for start, own in zip(first, batches, strict=False) if step < len(own)]
            optimizer.narrow(len(now))
            rows = pad_sequence(now, batch_first=True, padding_value=first[-1]).to(device)
            x, y = local.normalised(images[rows].flatten(0, 1), shift, scale).unflatten(0, rows.shape), labels[rows]
            low = optimizer.w.to(space.dtype)
            gradients, losses = compute({name: layout.view(low, name) for name in names}, x.to(space.dtype), y)
            torch._foreach_copy_([layout.view(optimizer.g, name) for name in names], [gradients[n] for n in names])
            optimizer.step()
            total[: len(now)] += losses * (y != local.IGNORED).sum(1)
    for own, own_w, own_total in zip(work, w.cpu(), total.cpu(), strict=True):
        own.w, own.total = own_w, own_total
