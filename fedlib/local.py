"""Local training: the one loop in which a client learns. The hot path.

The network is kept as flat vectors (`fedlib.models.Layout`): `w` its weights, `g` the gradient of the batch. A method's
correction is then the paper's vector formula, and copying, sending or comparing a model is one operation.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib import seeds
from fedlib.experiment import Experiment
from fedlib.layers import first_order
from fedlib.methods.base import Client, Method, overriding
from fedlib.models import Layout, Network


class Diverged(RuntimeError):
    """A client's loss or weights are no longer finite."""


IGNORED = -100
"""A label that marks what only fills up a batch: PyTorch's `ignore_index`."""


def criterion(scores: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """The loss of a batch: cross-entropy, its "mean" or its "sum" over the samples whose label is not IGNORED."""
    return F.cross_entropy(scores, y, reduction=reduction)


class Workspace:
    """One network and its vectors, reused for every client that a process trains.

    In bf16 the network is a copy of the weights in that format, made anew before each batch, and `w` and `g` stay
    fp32: the same arithmetic as autocast, without its per-operation casts.
    """

    def __init__(
        self, network: Network, mean: tuple[float, ...], std: tuple[float, ...], precision: str = "fp32"
    ) -> None:
        self.layout = Layout(network)
        self.trained = self.layout.trained
        self.w = self.layout.flatten(network)
        self.g = torch.zeros(self.trained)
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.network = network
        first_order(network)
        if precision == "bf16":
            self.w_low = self.w[: self.trained].to(self.dtype)
            self.layout.attach(network, self.w_low, buffers=self.w)
        else:
            self.layout.attach(network, self.w)
        self.parameters = list(network.parameters())
        names = [name for name, _ in network.named_parameters()]
        self.weights, self.gradients = ([self.layout.view(flat, name) for name in names] for flat in (self.w, self.g))
        self.latest: tuple[Tensor, ...] = ()
        """The layers' gradients of a batch that were not brought into `g`."""
        self.shift = torch.tensor(mean) * 255
        self.scale = 1 / (torch.tensor(std) * 255)
        self.outputs: dict[str, Tensor] = {}
        """What the layers named to :meth:`capture` gave for the latest batch."""
        self._spare: Network | None = None

    def images(self, x: Tensor) -> Tensor:
        """Normalised network input (n, C, H, W), channels last in memory, from uint8 (n, H, W, C)."""
        return normalised(x, self.shift, self.scale)

    def at(self, w: Tensor) -> Network:
        """A second network, in fp32 and evaluation mode, with the vector `w` as its weights: to use, not to train."""
        with torch.inference_mode(False):  # or tensors made here could never be differentiated with
            if self._spare is None:
                self._spare = copy.deepcopy(self.network).float().eval()
                first_order(self._spare, False)
            self.layout.attach(self._spare, w)
        return self._spare

    def capture(self, layer: str) -> None:
        """From now on keep this layer's output of each batch in :attr:`outputs`, as a part of the graph.

        `layer` is what :meth:`fedlib.models.Network.layer` knows; raises :class:`InputError` for another.
        """
        if layer in self.outputs:
            return
        chosen = self.network.layer(layer)

        def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if module is chosen:  # not its copy in the second network
                self.outputs[layer] = output.clone()  # the next layer may work in place

        chosen.register_forward_hook(keep)
        self.outputs[layer] = torch.empty(0)

    def gradient(self, client: Client, x: Tensor, y: Tensor, methods: list[Method], flat: bool = True) -> Tensor:
        """Fill `g` with the gradient at `w` of the mean loss over a batch plus the methods' terms; the plain loss.

        Without `flat` leave it layer by layer in :attr:`latest`, for :class:`LayerwiseSGD`.
        """
        if self.dtype is not torch.float32:
            self.w_low.copy_(self.w[: self.trained])
        z = self.network.features(x.to(self.dtype))
        scores = self.network.head(z).float()
        plain = criterion(scores, y)
        total = plain
        for method in methods:
            term = method.loss(client, x, y, z, scores)
            if term is not None:
                total = total + term
        self.latest = torch.autograd.grad(total, self.parameters)
        if flat:
            torch._foreach_copy_(self.gradients, self.latest)
            self.latest = ()
        client.gradients += len(y)
        return plain.detach()


def normalised(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """(x - shift) * scale per channel, fp32 (n, C, H, W) and channels last in memory, from uint8 (n, H, W, C)."""
    rows = x.flatten(1).to(torch.float32)
    rows.sub_(_along_rows(shift, rows.shape[1])).mul_(_along_rows(scale, rows.shape[1]))
    return rows.view(x.shape).permute(0, 3, 1, 2)


@functools.lru_cache(maxsize=4)
def _along_rows(by_channel: Tensor, length: int) -> Tensor:
    """Values of the channels again and again: in whole rows, not channel by channel, images are normalised fast."""
    return by_channel.repeat(length // len(by_channel))


def batches(client: Client, epoch: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Indices of each batch of an epoch: a fresh permutation of the client's samples, the last batch may be smaller."""
    order = torch.from_numpy(rng.permutation(client.n))
    yield from order.split(client.batch_size)


def flip_and_crop(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Random horizontal flips and crops after zero padding by 4 pixels, of uint8 images (n, H, W, C)."""
    n, height, width, _ = x.shape
    padded = F.pad(x, (0, 0, 4, 4, 4, 4))
    top, left = (torch.from_numpy(rng.integers(0, 9, n)) for _ in range(2))
    flip = torch.from_numpy(rng.random(n) < 0.5)[:, None]
    rows = top[:, None] + torch.arange(height)
    columns = torch.arange(width).expand(n, -1)
    columns = left[:, None] + torch.where(flip, width - 1 - columns, columns)
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


class SGD:
    """:class:`torch.optim.SGD` on one vector, bit for bit: w <- w - lr u, u <- momentum u + g + weight_decay w.

    PyTorch's own loads its compiler when the first one is made, which takes about a second in every process.
    """

    def __init__(self, w: Tensor, g: Tensor, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.w, self.g, self.lr, self.momentum, self.weight_decay = w, g, lr, momentum, weight_decay
        self.u: Tensor | None = None

    def step(self) -> None:
        u = self.g.add(self.w, alpha=self.weight_decay) if self.weight_decay else self.g
        if self.momentum:
            self.u = u = u.clone() if self.u is None else self.u.mul_(self.momentum).add_(u)
        self.w.add_(u, alpha=-self.lr)

    def narrow(self, count: int) -> None:
        """From now on step only the first `count` of stacked models, where `w` and `g` are (models, size)."""
        self.w, self.g = self.w[:count], self.g[:count]
        self.u = None if self.u is None else self.u[:count]


class LayerwiseSGD:
    """:class:`SGD` without momentum and decay, bit for bit, from gradients that were left layer by layer.

    Bringing them into one vector first would take 2 % of a small network's step.
    """

    def __init__(self, space: Workspace, lr: float) -> None:
        self.space, self.lr = space, lr

    def step(self) -> None:
        torch._foreach_add_(self.space.weights, self.space.latest, alpha=-self.lr)
        self.space.latest = ()


def optimizer_for(
    experiment: Experiment, space: Workspace, lr: float, flat: bool
) -> SGD | LayerwiseSGD | torch.optim.Optimizer:
    """A fresh optimiser over a workspace's trained weights; `flat` as in :meth:`Workspace.gradient`."""
    if not flat:
        return LayerwiseSGD(space, lr)
    w, g = space.w[: space.trained], space.g
    if experiment.optimizer == "sgd":
        return SGD(w, g, lr, experiment.momentum, experiment.weight_decay)
    parameter = torch.nn.Parameter(w)
    parameter.grad = g
    return torch.optim.RMSprop([parameter], lr, weight_decay=experiment.weight_decay, momentum=experiment.momentum)


def train(client: Client, experiment: Experiment, methods: tuple[Method, ...], purpose: str = "batches") -> float:
    """Train ``client.w`` in place for the client's epochs; returns the mean loss over all samples seen.

    `purpose` keys the order of the batches, for methods that train more than one model in a round.
    Raises :class:`Diverged` with round and client when the loss or the weights are not finite.
    """
    space = client.space
    w, g = space.w[: space.trained], space.g
    losses, corrections, watchers = (overriding(methods, hook) for hook in ("loss", "correct", "stepped"))
    plain = experiment.optimizer == "sgd" and not (experiment.momentum or experiment.weight_decay)
    flat = not plain or bool(corrections or overriding(methods, "gradient"))
    gradient = functools.partial(space.gradient, client, methods=losses, flat=flat)
    for method in overriding(methods, "gradient"):
        gradient = functools.partial(method.gradient, client, gradient)
    optimizer = optimizer_for(experiment, space, client.lr, flat)
    rng = seeds.numpy(client.seed, purpose, client.round, client.index)
    if not space.network.training:
        space.network.train()
    total, seen = torch.zeros(()), 0
    for epoch in range(client.epochs):
        for batch in batches(client, epoch, rng):
            if client.max_steps is not None and client.step >= client.max_steps:
                break
            x, y = client.x.index_select(0, batch), client.y[batch]
            if experiment.augment:
                x = flip_and_crop(x, rng)
            loss = gradient(space.images(x), y)
            for method in corrections:
                method.correct(client, g)
            before = w.clone() if watchers else w
            optimizer.step()
            for method in watchers:
                method.stepped(client, before)
            client.step += 1
            total += loss * len(y)
            seen += len(y)
    return mean_loss(client, total, seen)


def mean_loss(client: Client, total: Tensor, seen: int) -> float:
    """The mean of the losses summed up in training; :class:`Diverged` where it or the weights are not finite."""
    mean = float(total) / max(seen, 1)
    if not (np.isfinite(mean) and bool(torch.isfinite(client.w.sum()))):
        raise Diverged(
            f"round {client.round}, client {client.index}: the loss is {mean} after {client.step} steps; "
            f"lower lr (now {client.lr:g})"
        )
    return mean
