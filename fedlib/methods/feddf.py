"""FedDF: the server distils the clients' models into their average (Lin, Kong, Stich, Jaggi 2020, Algorithm 1).

start:    x_0 = sum_k p_k w_k                            FedAvg's average
teacher:  y(d) = softmax(1/|S_t| sum_{k in S_t} f(w_k, d))   for each unlabelled image d
student:  x_j = x_{j-1} - eta grad KL(y || softmax(f(x_{j-1}, d)))   on batches, by Adam with a cosine schedule

The unlabelled set is the server's holdout without its labels; the validation accuracy of a run is on the same images.
Clients send what FedAvg sends: the server computes the clients' scores from the models it has (here the workers do,
which costs no bytes). Running statistics stay averaged.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field

from fedlib import seeds
from fedlib.methods.base import Client, Method, Server
from fedlib.spec import InputError


class FedDF(Method):
    """Ensemble distillation on unlabelled images after each round's averaging."""

    steps: int = Field(200, ge=1)
    """Distillation steps in each round. The paper takes up to 10,000, and stops after 1,000 without improvement on a
    labelled validation set, which is not assumed here."""
    batch_size: int = Field(128, ge=1)
    """Unlabelled images in a step; the paper's 128."""
    lr: float = Field(0.001, gt=0)
    """First learning rate of Adam, eta, as in the paper; it falls to zero along a cosine."""

    def check(self, experiment: Any) -> None:
        if not experiment.holdout:
            raise InputError("FedDF distils on the server's images: holdout = 0 (allowed: 1 or more)")

    def check_setting(self, setting: Any) -> None:
        if not len(setting.validation):
            raise InputError("FedDF: the whole holdout is shared (allowed: a holdout larger than what is shared)")

    def finish(self, client: Client) -> None:
        network = client.space.at(client.w)
        with torch.no_grad():
            scores = [network(client.space.images(x)) for x in unlabelled(client).split(500)]
        client.send("feddf_scores", torch.cat(scores), "sum", counted=False)

    def after(self, server: Server) -> None:
        images = unlabelled(server)
        teacher = (server.received["feddf_scores"] / len(server.selected)).softmax(1)
        student, w, g = server.space.at(server.w), server.w[: server.trained], torch.zeros(server.trained)
        server.space.layout.attach(student, server.w, g)
        parameter = torch.nn.Parameter(w)
        parameter.grad = g
        optimizer = torch.optim.Adam([parameter], self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        rng = seeds.numpy(server.seed, "FedDF", server.round)
        for _ in range(self.steps):
            batch = torch.from_numpy(rng.choice(len(images), min(self.batch_size, len(images)), replace=False))
            g.zero_()
            scores = student(server.space.images(images[batch]))
            F.kl_div(scores.log_softmax(1), teacher[batch], reduction="batchmean").backward()
            optimizer.step()
            schedule.step()
            server.gradients += len(batch)


def unlabelled(side: Client | Server) -> torch.Tensor:
    """The server's images, uint8 (n, H, W, C); not those that another method shares."""
    return torch.from_numpy(side.setting.split("validation")[0])
