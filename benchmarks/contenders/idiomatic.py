"""What the contenders that use PyTorch in the ordinary way share: the network, a client's data, local training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workload import BATCH, CLASSES, LR, OWN


def network() -> nn.Sequential:
    return nn.Sequential(OrderedDict(
        conv1=nn.Conv2d(3, 32, 3, padding=1), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 3, padding=1), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(), fc1=nn.Linear(64 * 8 * 8, 128), relu3=nn.ReLU(), head=nn.Linear(128, CLASSES),
    ))  # fmt: skip


def samples(x: np.ndarray, y: np.ndarray, client: int) -> tuple[Tensor, Tensor]:
    """A client's normalised images, float32 (500, 3, 32, 32), and labels."""
    own = slice(client * OWN, (client + 1) * OWN)
    images = torch.from_numpy(np.array(x[own])).permute(0, 3, 1, 2).contiguous().float()
    return images.div_(255).sub_(0.5).div_(0.25), torch.from_numpy(np.array(y[own]))


def batches(x: Tensor, y: Tensor, index: bool) -> Iterable[tuple[Tensor, Tensor]] | Iterator[tuple[Tensor, Tensor]]:
    """An epoch in random order: from a DataLoader as most code has it, or, faster, by indexing the tensors."""
    if index:
        return ((x[rows], y[rows]) for rows in torch.randperm(len(y)).split(BATCH))
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


def train(net: nn.Module, x: Tensor, y: Tensor, index: bool, bf16: bool = False) -> None:
    """One epoch of SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    net.train()
    for images, labels in batches(x, y, index):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
