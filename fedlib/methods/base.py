"""What a federated method can change: the hooks of :class:`Method`, and what they are given.

FedAvg is the method that changes nothing. The local loop (`fedlib.local`) and the round loop (`fedlib.federation`)
call each hook of every method of an experiment, in the order in which the experiment lists them.

Signs and weights: a client's update is Delta_k = w - w_k, the server steps w <- w - sum_k p_k Delta_k with
p_k = n_k / sum n over the round's clients, unless a method sets another `Client.weight` than n_k. Vectors are flat and
as long as `fedlib.models.Layout` says; gradients cover the first `trained` entries, BatchNorm's running statistics are
the rest and are averaged like weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlib.spec import Spec

if TYPE_CHECKING:
    from fedlib.local import Workspace

State = dict[str, Tensor]
"""Named tensors that a client or the server keeps from round to round."""


@dataclass
class Client:
    """One client's work in one round. Hooks read and change these fields in place."""

    index: int
    round: int
    seed: int
    space: Workspace
    """The network and its vectors: ``space.w`` (weights, trained in place), ``space.g`` (gradient of the batch)."""
    w_start: Tensor
    """Global weights received this round (flat)."""
    x: Tensor
    """Own samples, uint8 (n, H, W, C)."""
    y: Tensor
    """Their labels, int64 (n,)."""
    lr: float
    epochs: int
    batch_size: int
    state: State
    """What this client keeps between rounds; starts as the methods' `client_state`."""
    server: State
    """What the server broadcast beside the weights."""
    max_steps: int | None = None
    """Stop after so many steps, whatever `epochs` says."""
    step: int = 0
    """Steps done so far, over all epochs of the round."""
    gradients: int = 0
    """Sample gradients computed so far."""
    loss: float = 0.0
    """After training: the mean loss over all samples seen."""
    delta: Tensor | None = None
    """After training: the update w_start - w, to be sent."""
    weight: float = 0.0
    """After training: its weight in the average, before division by the sum of all; n_k unless `finish` sets it."""
    sent: dict[str, tuple[str, Tensor]] = field(default_factory=dict)
    sent_bytes: float = 0.0
    """Bytes of what is sent beside the update."""
    upload_bytes: float = 0.0
    """Bytes of the update as sent, 4 a weight unless a method sends less."""
    download_bytes: float = 0.0
    """Bytes of the received weights, likewise."""
    images_bytes: float = 0.0
    """Bytes of the images received beside them, as methods that share images count them."""
    setting: Any = None
    """The experiment made concrete, :class:`fedlib.federation.Setting`: data set, holdout, everybody's shards."""
    fit: Callable[..., float] | None = None
    """The local loop, see :meth:`train_copy`."""

    @property
    def w(self) -> Tensor:
        return self.space.w

    @property
    def n(self) -> int:
        """Number of training samples, n_k."""
        return len(self.y)

    def train_copy(self, w: Tensor, methods: tuple[Method, ...], purpose: str, epochs: int | None = None) -> Tensor:
        """Train another model from `w` on this client's samples with the one local loop; its weights, a new vector.

        ``client.w`` is left as it was. `purpose` keys the order of the batches. Gradients count as this client's.
        """
        kept = self.w.clone()
        self.w.copy_(w)
        other = replace(self, step=0, gradients=0, epochs=self.epochs if epochs is None else epochs)
        self.fit(other, methods=methods, purpose=purpose)
        self.gradients += other.gradients
        trained = self.w.clone()
        self.w.copy_(kept)
        return trained

    def full_gradient(self, w: Tensor) -> Tensor:
        """Gradient at `w` of the mean loss over all samples of this client, (trained,): batch by batch, training mode.

        ``client.w`` is left as it was. The gradients count as this client's.
        """
        kept = self.w.clone()
        self.w.copy_(w)
        total = torch.zeros(self.space.trained)
        for x, y in zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True):
            self.space.gradient(self, self.space.images(x), y, [])
            total.add_(self.space.g, alpha=len(y) / self.n)
        self.w.copy_(kept)
        return total

    def send(self, name: str, value: Tensor, how: str = "mean", counted: bool = True) -> None:
        """Send a tensor with the update. The server receives its p_k-weighted "mean", or its plain "sum".

        Its bytes are not `counted` where a server would compute it from the update.
        """
        self.sent[name] = (how, value)
        self.sent_bytes += counted * value.numel() * value.element_size()


@dataclass
class Server:
    """The server's side of one round."""

    w: Tensor
    """Global weights (flat)."""
    trained: int
    """Number of trained entries of `w`; the rest are running statistics."""
    clients: int
    """Number of clients in total, N."""
    sizes: np.ndarray
    """Training samples of each client, (N,)."""
    per_round: int
    state: State
    seed: int
    round: int = 0
    lr: float = 0.0
    selected: list[int] = field(default_factory=list)
    received: State = field(default_factory=dict)
    """What clients sent beside their updates: means and sums by name."""
    losses: Callable[[list[int]], dict[int, float]] | None = None
    """Mean loss of the global weights on the training samples of the given clients."""
    space: Workspace | None = None
    """A network to compute with on the server."""
    fit: Callable[[np.ndarray, np.ndarray, int, str], Tensor] | None = None
    """``fit(x, y, epochs, purpose)``: new weights, from `w` by the local loop on images that the server holds."""
    gradients: int = 0
    """Sample gradients computed on the server in this round."""
    bytes_up: float = 0.0
    """Bytes sent to the server in this round beside what its clients send after training."""
    bytes_down: float = 0.0
    """Bytes sent by the server beside what its clients receive before training."""
    setting: Any = None
    """As :attr:`Client.setting`."""


class Method(Spec):
    """A federated method: its hyper-parameters, and the steps at which it departs from FedAvg."""

    family = {}

    # -- before the first round

    def check(self, experiment: Any) -> None:
        """Raise InputError if the method cannot run in this experiment."""

    def server_state(self, w: Tensor, trained: int, clients: int) -> State:
        """What the server keeps, before round 1. Entries named in :meth:`broadcast` go to the clients."""
        return {}

    def client_state(self, w: Tensor, trained: int) -> State:
        """What a client keeps, before it takes part for the first time."""
        return {}

    def broadcast(self) -> tuple[str, ...]:
        """Names of the server's state that are sent to the clients beside the weights."""
        return ()

    def reserves(self, setting: Any) -> np.ndarray:
        """Training images of the holdout that this method shares, as indices: the server does not validate on them."""
        return np.arange(0)

    def check_setting(self, setting: Any) -> None:
        """Raise InputError if the images do not suit; those of `setting` are divided by now, none is trained on."""

    # -- the server, before training

    def before(self, server: Server) -> None:
        """Before clients are selected and anything is sent: may change server.w and server.state."""

    def select(self, server: Server, candidates: list[int]) -> list[int]:
        """The clients of this round, in order; `candidates` is what FedAvg (or the method before) chose."""
        return candidates

    # -- a client

    def data(
        self, setting: Any, client: int, round: int, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The samples a client trains on, from its own."""
        return x, y

    def samples(self, client: Client) -> None:
        """Change `client.x` and `client.y` by what the received weights tell, for training and for a personal model."""

    def start(self, client: Client) -> None:
        """Before the first step: may change epochs, steps, learning rate or start weights."""

    def loss(self, client: Client, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> Tensor | None:
        """A term added to the batch's loss; z is the representation (n, d), scores the network's output."""
        return None

    def gradient(self, client: Client, compute: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Fill ``client.space.g`` with the gradient that the step takes from a batch; returns the batch's loss.

        `compute` (x, y) does so for the plain objective and the methods' terms, at what ``client.w`` holds when it is
        called. It may be called more than once; ``client.w`` must be back where it was at the end.
        """
        return compute(x, y)

    def correct(self, client: Client, g: Tensor) -> None:
        """Change the batch's gradient g (flat, length `trained`) in place."""

    def stepped(self, client: Client, before: Tensor) -> None:
        """After an optimiser step; `before` holds the weights (length `trained`) from before it."""

    def finish(self, client: Client) -> None:
        """After the last step: may change client.delta, send more, and update client.state."""

    def personal(self, client: Client) -> None:
        """Turn ``client.w``, which holds the global weights, into the weights this client is evaluated with."""

    # -- the server, after training

    def aggregate(self, server: Server, delta: Tensor) -> Tensor:
        """The step the server takes, from the weighted mean of the updates."""
        return delta

    def after(self, server: Server) -> None:
        """After the server's step: may change server.w and server.state."""


def published() -> dict[str, type[Method]]:
    """The methods of this package by name, without those that other code has registered beside them."""
    return {name: method for name, method in sorted(Method.family.items()) if method.__module__.startswith(__package__)}


def overriding(methods: tuple[Method, ...], hook: str) -> list[Method]:
    """The methods that define `hook` themselves; the others need not be called."""
    return [m for m in methods if getattr(type(m), hook) is not getattr(Method, hook)]


def zeros(count: int) -> Tensor:
    """A flat vector of zeros, for states."""
    return torch.zeros(count)
