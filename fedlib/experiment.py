"""What a run is: every choice that its numbers depend on, and nothing else."""

from __future__ import annotations

import functools
from typing import Literal

import torch
from pydantic import Field, SerializeAsAny

from fedlib import datasets
from fedlib.measures import Measure
from fedlib.methods import Method
from fedlib.models import CNN, Model, Network
from fedlib.partitions import Iid, Partition
from fedlib.schedules import Constant, Schedule
from fedlib.spec import Spec

NUMERICS = 1
"""Version of the numbers: bump it with any change that alters what a run computes; older records become stale."""


class Experiment(Spec):
    """One federated training run. Its :attr:`id` is the hash of these fields."""

    dataset: str = "digits"
    """Name of the data set, see :func:`fedlib.datasets.names`."""
    train_images: int | None = Field(None, ge=1)
    """Use only so many training images, of each class in proportion to its size; None: all."""
    holdout: int = Field(0, ge=0)
    """Training images that the server holds back before partitioning, of each class in proportion: its validation set,
    and the source of shared data (H in Zhao et al. 2018)."""
    partition: SerializeAsAny[Partition] = Iid()
    """Who holds which training images."""
    clients: int = Field(10, ge=1)
    """Number of clients, N."""
    per_round: int | None = Field(None, ge=1)
    """Clients that take part in a round; None: all."""
    rounds: int = Field(30, ge=1)
    """Communication rounds."""
    epochs: int = Field(1, ge=1)
    """Local epochs, E."""
    batch_size: int | None = Field(32, ge=1)
    """Local batch size, B; None: all samples of the client in one batch. An epoch's last batch has what is left, and a
    client of fewer samples takes all of them in one; more than the largest client has is refused."""
    lr: float = Field(0.05, gt=0)
    """Local learning rate, eta, in the first round."""
    schedule: SerializeAsAny[Schedule] = Constant()
    """How the rate changes over the rounds."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Local momentum; the momentum buffer starts from zero in every round."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty on all parameters, added to the gradient."""
    optimizer: Literal["sgd", "rmsprop"] = "sgd"
    """Local optimiser, started afresh in every round."""
    augment: bool = False
    """Random crop with padding 4 and horizontal flip of training images."""
    model: SerializeAsAny[Model] = CNN()
    """The network."""
    methods: tuple[SerializeAsAny[Method], ...] = ()
    """Departures from FedAvg, applied in this order."""
    measures: tuple[SerializeAsAny[Measure], ...] = ()
    """What is measured beside loss and accuracy."""
    evaluate_every: int = Field(1, ge=1)
    """Evaluate the global model every so many rounds, and after the last."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of the local forward and backward passes; weights and updates are always fp32."""
    seed: int = Field(0, ge=0)
    """Of every random draw."""

    def but(self, **changes: object) -> Experiment:
        """A copy with some fields changed, validated like a new one."""
        return Experiment(**({name: getattr(self, name) for name in type(self).model_fields} | changes))

    def rate(self, round: int) -> float:
        """Local learning rate of a round (from 1), eta_r."""
        return self.lr * self.schedule.factor(round, self.rounds)

    @property
    def outline(self) -> Network:
        """The network without its weights, in which methods look up the layers whose names they were given."""
        return _outline(self.model, self.dataset)

    @property
    def cohort(self) -> int:
        """Clients per round, K_c."""
        return min(self.per_round or self.clients, self.clients)


@functools.lru_cache(maxsize=16)
def _outline(model: Model, dataset: str) -> Network:
    images = datasets.load(dataset)
    with torch.device("meta"):  # names and shapes only
        return model.build(images.x_train.shape[1:], len(images.classes))
