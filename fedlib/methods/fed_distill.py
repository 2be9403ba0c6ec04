"""FD, federated distillation: clients exchange mean outputs per label, never weights (Jeong et al. 2018, Algorithm 1).

client k, label l:  F_k,l = mean of softmax(f(x)) over the samples of label l seen in the round's training, sent
server:             F^_k,l = mean of F_i,l over the other devices i != k that had label l
local loss:         cross-entropy(f(x), y) + gamma cross-entropy(f(x), F^_k,y)

Each device keeps its own model, all from the same start; there is no global one (the global weights stay at their
start): look at the clients' own accuracies. With C classes a device sends and receives C (C + 1) numbers. The paper
divides by the number of other devices, as if each held every label; labels of no other device get no second term.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method, Server, State


class FedDistill(Method):
    """Each client has a model of its own and learns from the others' mean outputs for each label."""

    gamma: float = Field(1.0, ge=0)
    """Weight of the distillation term, gamma; 0 is local training. Too large, and wrong teachers drown the labels."""

    def server_state(self, w: Tensor, trained: int, clients: int) -> State:
        return {"fd_sum": torch.zeros(0), "fd_devices": torch.zeros(0)}  # nobody has sent anything yet

    def client_state(self, w: Tensor, trained: int) -> State:
        return {"fd_model": w.clone(), "fd_round": torch.tensor(0)}

    def broadcast(self) -> tuple[str, ...]:
        return ("fd_sum", "fd_devices")

    def start(self, client: Client) -> None:
        self.personal(client)
        client.w_start = client.w.clone()
        client.upload_bytes = client.download_bytes = 0.0
        classes = client.setting.classes
        others, devices = client.server["fd_sum"], client.server["fd_devices"]
        if client.state["fd_round"] == client.round - 1 and len(others):  # the server's sum has our own part
            others, devices = others - client.state["fd_own"], devices - client.state["fd_held"]
        if not len(others):
            others, devices = torch.zeros(classes, classes), torch.zeros(classes)
        client.state["fd_teacher"] = others / devices.clamp(min=1)[:, None]  # zero where there is no teacher
        client.state["fd_outputs"], client.state["fd_seen"] = torch.zeros(classes, classes), torch.zeros(classes)

    def loss(self, client: Client, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> Tensor:
        client.state["fd_outputs"].index_add_(0, y, scores.detach().softmax(1))
        client.state["fd_seen"].index_add_(0, y, torch.ones(len(y)))
        return self.gamma * F.cross_entropy(scores, client.state["fd_teacher"][y])

    def finish(self, client: Client) -> None:
        outputs, seen = client.state.pop("fd_outputs"), client.state.pop("fd_seen")
        del client.state["fd_teacher"]
        own, held = outputs / seen.clamp(min=1)[:, None], (seen > 0).float()
        client.state |= {"fd_model": client.w.clone(), "fd_round": torch.tensor(client.round)}
        client.state |= {"fd_own": own, "fd_held": held}
        client.send("fd_sum", own, "sum")
        client.send("fd_devices", held, "sum")
        client.delta.zero_()

    def personal(self, client: Client) -> None:
        client.w.copy_(client.state["fd_model"])

    def after(self, server: Server) -> None:
        server.state |= {name: server.received[name] for name in self.broadcast()}
